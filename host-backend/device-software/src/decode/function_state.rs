//! The registers, variables and labels of the function being decoded.

use crate::program::Reg;
use crate::ptx::ast::{Type, Var};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The storage of a variable of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Offset in the kernel's parameters.
    Param(u32),
    /// Offset in the frame's local memory.
    Frame(u32),
    /// Offset in static shared memory.
    Shared(u32),
    /// Dynamic shared memory.
    DynamicShared,
}

#[derive(Debug, Default)]
pub(crate) struct Scope<'m> {
    pub registers: HashMap<&'m str, (Type, Option<Reg>)>,
    pub families: HashMap<&'m str, (Type, u32)>,
    /// Elements of the vector registers.
    pub vectors: HashMap<&'m str, Vec<(Reg, Type)>>,
    pub places: HashMap<&'m str, Storage>,
    /// Bytes of each variable.
    pub sizes: HashMap<&'m str, u32>,
    /// Bytes of an element of each variable.
    pub strides: HashMap<&'m str, u32>,
    pub labels: HashMap<&'m str, u32>,
    /// Number of the table of each list of branch targets.
    pub targets: HashMap<&'m str, u32>,
    pub prototypes: HashSet<&'m str>,
}

impl<'m> Scope<'m> {
    /// Adds a variable of `size` bytes.
    pub fn declare(&mut self, var: &Var<'m>, place: Storage, size: u32) {
        self.places.insert(var.name, place);
        self.sizes.insert(var.name, size);
        self.strides.insert(var.name, var.stride);
    }
}

/// Rows that live until the end of an instruction, and how many of each kind it uses.
#[derive(Debug, Default)]
struct Temporaries {
    rows32: Vec<u32>,
    rows64: Vec<u32>,
    preds: Vec<u32>,
    used: [usize; 3],
}

/// A label of a function.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Label {
    /// Its position, once placed.
    pub position: Option<u32>,
    /// The entry of the branches to it.
    pub branch: Option<u32>,
}

/// The state of the function being decoded.
#[derive(Debug, Default)]
pub(crate) struct FuncState<'m> {
    pub scopes: Vec<Scope<'m>>,
    pub rows32: u32,
    pub rows64: u32,
    pub preds: u32,
    pub consts32: BTreeMap<u32, u32>,
    pub consts64: BTreeMap<u64, u32>,
    pub local: u32,
    pub shared: u32,
    pub labels: Vec<Label>,
    temps: Temporaries,
    carry: Option<u32>,
    /// The elements of the vector registers that the instruction names as a whole.
    pub elements: Vec<(Reg, Type)>,
    pub ending: Ending,
    /// The entries of instructions without operands, by kind.
    pub plain: [Option<u32>; 6],
}

/// What a function does before it returns.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Result registers, and the places in the frame where the caller finds them.
    pub results: Vec<(Reg, (u32, u32))>,
    /// The label of the function's end, if more than a return is there.
    pub label: Option<u32>,
    /// Holds the end of the stack at the function's start, in functions with `alloca`.
    saved_stack: Option<u32>,
}

fn take(list: &mut Vec<u32>, used: &mut usize, rows: &mut u32) -> u32 {
    let row = match list.get(*used) {
        Some(&row) => row,
        None => {
            let row = *rows;
            *rows += 1;
            list.push(row);
            row
        }
    };
    *used += 1;
    row
}

impl FuncState<'_> {
    /// A new label, without a position.
    pub fn new_label(&mut self) -> u32 {
        let label = u32::try_from(self.labels.len()).unwrap_or(u32::MAX);
        self.labels.push(Label::default());
        label
    }

    /// A 32-bit row that lives until the end of this instruction.
    pub fn temp32(&mut self) -> u32 {
        let temps = &mut self.temps;
        take(&mut temps.rows32, &mut temps.used[0], &mut self.rows32)
    }

    /// A 64-bit row that lives until the end of this instruction.
    pub fn temp64(&mut self) -> u32 {
        let temps = &mut self.temps;
        take(&mut temps.rows64, &mut temps.used[1], &mut self.rows64)
    }

    /// A predicate that lives until the end of this instruction.
    pub fn temp_pred(&mut self) -> u32 {
        let temps = &mut self.temps;
        take(&mut temps.preds, &mut temps.used[2], &mut self.preds)
    }

    /// The carry flag.
    pub fn carry(&mut self) -> u32 {
        match self.carry {
            Some(p) => p,
            None => {
                let p = self.preds;
                self.preds += 1;
                self.carry = Some(p);
                p
            }
        }
    }

    pub fn const32(&mut self, value: u32) -> u32 {
        let rows = &mut self.rows32;
        *self.consts32.entry(value).or_insert_with(|| {
            *rows += 1;
            *rows - 1
        })
    }

    pub fn const64(&mut self, value: u64) -> u32 {
        let rows = &mut self.rows64;
        *self.consts64.entry(value).or_insert_with(|| {
            *rows += 1;
            *rows - 1
        })
    }

    /// The row of `saved_stack`, if the function has one.
    pub fn saved_stack(&self) -> Option<u32> {
        self.ending.saved_stack
    }

    /// A row for the end of the stack.
    pub fn save_stack(&mut self) -> u32 {
        let row = self.rows32;
        self.rows32 += 1;
        self.ending.saved_stack = Some(row);
        row
    }

    pub fn end_instruction(&mut self) {
        self.temps.used = [0; 3];
        self.elements.clear();
    }

    /// A new register. One of 128 bits is two rows of 64: this one has the low bits, the
    /// next the high ones.
    pub fn new_reg(&mut self, ty: Type) -> Reg {
        let (count, rows, wrap): (&mut u32, u32, fn(u32) -> Reg) = match ty {
            Type::Pred => (&mut self.preds, 1, Reg::P),
            Type::B128 => (&mut self.rows64, 2, Reg::R64),
            _ if ty.size() == 8 => (&mut self.rows64, 1, Reg::R64),
            _ => (&mut self.rows32, 1, Reg::R32),
        };
        *count += rows;
        wrap(*count - rows)
    }
}
