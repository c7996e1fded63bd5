//! From the syntax tree to a [`Program`]: names become rows, opcodes become operations.
//!
//! Every opcode and modifier is either implemented exactly or refused here with its line.

mod arith;
mod array;
mod asynchronous;
mod compare;
mod control;
mod convert;
mod float;
mod function_state;
pub mod half;
mod matrix;
mod memory;
mod moves;
mod narrow;
mod operand;
mod order;
mod packed;
mod scope;
mod shared;
mod stack;
mod tensor;
mod texture;
mod video;
mod warp;

use crate::error::PtxError;
use crate::exec::fragment::{Element, Layout, Role, Shape};
use crate::program::{
    Alignment, Ext, FUNCTION_BASE, FUNCTION_STRIDE, Func, Inst, Op, Program, RuntimeCall,
};
use crate::ptx::ast::{Function, Init, Instruction, Module, Operand, Space, Statement, Var};
use function_state::{FuncState, Scope, Storage};
pub use half::{FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E5M2, FP8_FINITE, FP8_UE8M0, FP8_UP};
use shared::Shared;
use std::collections::HashMap;
use std::sync::Arc;

type Result<T> = std::result::Result<T, PtxError>;

/// Maximum number of registers of each kind in a function.
const MAX_ROWS: u32 = 1 << 17;

/// Maximum number of bytes of a function's parameters and results.
const MAX_PARAMS: u32 = 1 << 20;

/// The meaning of a module-scope name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbol {
    /// A variable in device memory.
    Memory(u64),
    /// Offset in static shared memory.
    Shared(u32),
    /// Dynamic shared memory.
    DynamicShared,
    /// Function by index.
    Function(usize),
    /// `vprintf`.
    Printf,
    /// `__assertfail`.
    AssertFail,
    /// A function of the device runtime.
    Runtime(RuntimeCall),
    /// `malloc`.
    Malloc,
    /// `__nv_aligned_device_malloc`.
    AlignedMalloc,
    /// `free`.
    Free,
    /// `cudaGraphSetConditional`.
    SetConditional,
    /// A variable of a type that this device does not have.
    Unserved,
}

/// What `__nv_aligned_device_malloc` of CUDA's headers calls.
pub(crate) const ALIGNED_MALLOC: &str = "__cuda_syscall_aligned_malloc";

/// Sets the value of a graph's condition.
const SET_CONDITIONAL: &str = "cudaGraphSetConditional";

/// Positions of the elements of matrix fragments.
type Places = HashMap<(Layout, Shape, Role, Element, usize), Arc<[u16]>>;

pub(crate) struct Decoder<'m> {
    program: Program,
    symbols: HashMap<&'m str, Symbol>,
    /// Bytes of an element of each of the module's variables.
    strides: HashMap<&'m str, u32>,
    /// Local-memory layouts of each function: returns, then parameters.
    f: FuncState<'m>,
    guard: u32,
    line: u32,
    /// Bytes of shared memory of the module and of the functions so far.
    shared: u32,
    /// The positions of the elements of matrix fragments, shared by the instructions of a
    /// shape.
    places: Places,
}

fn align_up(value: u32, align: u64) -> Option<u32> {
    let align = u32::try_from(align.max(1)).ok()?;
    value.checked_add(align - 1).map(|v| v / align * align)
}

/// Whether the function takes variable arguments: its last parameter is an array without a
/// length.
fn is_variadic(function: &Function<'_>) -> bool {
    let last = function.params.last();
    !function.entry && last.is_some_and(|var| var.count.is_none())
}

/// Bytes of the largest `.param` variable of these statements: no call passes more variable
/// arguments.
fn largest_argument(list: &[Statement<'_>]) -> u64 {
    let sizes = list.iter().map(|statement| match statement {
        Statement::Block(inner) => largest_argument(inner),
        Statement::Variable(var) if var.space == Space::Param => var.size(),
        _ => 0,
    });
    sizes.max().unwrap_or(0)
}

/// Offsets and sizes of `vars`, placed one after another from `start`, and the end.
fn layout(vars: &[Var<'_>], start: u32) -> Result<(Vec<(u32, u32)>, u32)> {
    let mut at = start;
    let mut out = Vec::new();
    for var in vars {
        let too_large = || PtxError::invalid(var.line, "parameters too large");
        let offset = align_up(at, var.align).ok_or_else(too_large)?;
        let size = u32::try_from(var.size()).map_err(|_| too_large())?;
        at = offset
            .checked_add(size)
            .filter(|&end| end <= MAX_PARAMS)
            .ok_or_else(too_large)?;
        out.push((offset, size));
    }
    Ok((out, at))
}

/// The place of a shared variable behind the first `end` bytes, which are then more.
fn place_shared(end: &mut u32, var: &Var<'_>) -> Result<u32> {
    let too_large = || PtxError::invalid(var.line, "shared memory too large");
    let offset = align_up(*end, var.align).ok_or_else(too_large)?;
    let size = u32::try_from(var.size()).map_err(|_| too_large())?;
    *end = offset.checked_add(size).ok_or_else(too_large)?;
    Ok(offset)
}

/// Decodes a module whose variables in memory are at `addresses`.
///
/// A function with something unsupported or unresolved is kept as refused
/// ([`Func::refused`]), and so is every function that calls it.
///
/// # Errors
/// The first malformed construct.
pub fn decode<'m>(module: &'m Module<'m>, addresses: &HashMap<&'m str, u64>) -> Result<Program> {
    let mut symbols = HashMap::new();
    let mut program = Program {
        ptx_version: module.version,
        target: module.target,
        ..Program::default()
    };
    let plan = Shared::of(module);
    let mut shared = 0u32;
    for var in &module.variables {
        let symbol = match var.space {
            _ if var.unserved.is_some() => Symbol::Unserved,
            Space::Shared if !plan.is_sized(var.name) => {
                Alignment::raise(&mut program.alignment.dynamic_shared, var.align);
                Symbol::DynamicShared
            }
            Space::Shared if plan.is_placed(var) && plan.is_common(var.name) => {
                Symbol::Shared(place_shared(&mut shared, var)?)
            }
            // Each kernel that mentions it places it.
            Space::Shared => continue,
            _ => match addresses.get(var.name) {
                Some(&address) => Symbol::Memory(address),
                None => {
                    return Err(PtxError::Unresolved {
                        line: var.line,
                        name: var.name.to_owned(),
                    });
                }
            },
        };
        symbols.insert(var.name, symbol);
    }
    let mut bodies: Vec<&Function<'_>> = Vec::new();
    for function in &module.functions {
        if function.body.is_some() {
            symbols.insert(function.name, Symbol::Function(bodies.len()));
            bodies.push(function);
        }
    }
    for (name, target) in &module.aliases {
        if let Some(&symbol) = symbols.get(target) {
            symbols.insert(*name, symbol);
        }
    }
    for function in module.functions.iter().filter(|f| f.body.is_none()) {
        match function.name {
            "vprintf" => symbols.insert("vprintf", Symbol::Printf),
            "__assertfail" => symbols.insert("__assertfail", Symbol::AssertFail),
            "malloc" => symbols.insert("malloc", Symbol::Malloc),
            ALIGNED_MALLOC => symbols.insert(ALIGNED_MALLOC, Symbol::AlignedMalloc),
            "free" => symbols.insert("free", Symbol::Free),
            SET_CONDITIONAL => symbols.insert(SET_CONDITIONAL, Symbol::SetConditional),
            // A prototype of a function that is defined below or never used. A call reports
            // it if it is missing.
            name => RuntimeCall::of(name)
                .and_then(|(call, ..)| symbols.insert(name, Symbol::Runtime(call))),
        };
    }
    // Bytes of the variable arguments of any call.
    let mut variable = 0;
    if bodies.iter().any(|function| is_variadic(function)) {
        let bodies = bodies.iter().filter_map(|f| f.body.as_deref());
        let largest = bodies.map(largest_argument).max().unwrap_or(0);
        variable = u32::try_from(largest).unwrap_or(u32::MAX);
    }
    program.funcs.reserve_exact(bodies.len());
    program.by_name.reserve(bodies.len());
    for function in &bodies {
        let mut func = Func {
            name: function.name.into(),
            entry: function.entry,
            bounds: function.bounds,
            ..Func::default()
        };
        if function.entry {
            let (params, bytes) = layout(&function.params, 0)?;
            func.params = params;
            func.param_bytes = bytes;
        } else {
            let (returns, end) = layout(&function.returns, 0)?;
            let (mut params, mut end) = layout(&function.params, end)?;
            func.variadic = is_variadic(function);
            if let Some((offset, size)) = params.last_mut().filter(|_| func.variadic) {
                // A larger argument does not fit, like parameters that are too large.
                *size = variable.min(MAX_PARAMS.saturating_sub(*offset));
                end = *offset + *size;
            }
            func.returns = returns;
            func.params = params;
            func.local = end;
        }
        program
            .by_name
            .insert(Arc::clone(&func.name), program.funcs.len());
        program.funcs.push(func);
    }
    let strides = module.variables.iter().map(|var| (var.name, var.stride));
    let mut decoder = Decoder {
        program,
        symbols,
        strides: strides.collect(),
        f: FuncState::default(),
        guard: 0,
        line: 0,
        shared,
        places: HashMap::new(),
    };
    // Kernels come last, because shared memory of functions precedes that of the kernels
    // that call them.
    let functions = bodies
        .iter()
        .enumerate()
        .filter(|(_, function)| !function.entry);
    let kernels = bodies
        .iter()
        .enumerate()
        .filter(|(_, function)| function.entry);
    for (index, function) in functions.chain(kernels) {
        let mark = decoder.program.mark();
        let mut shared = decoder.shared;
        if function.entry {
            if !plan.uses_common(function) {
                shared = 0;
            }
            for var in plan.own(function) {
                let symbol = Symbol::Shared(place_shared(&mut shared, var)?);
                decoder.symbols.insert(var.name, symbol);
            }
        }
        match decoder.function(index, function, shared) {
            Ok(()) => {}
            Err(invalid @ PtxError::Invalid { .. }) => return Err(invalid),
            // The module's other kernels still run: only those that need this function are refused.
            Err(refusal) => {
                decoder.program.truncate(mark);
                if let Some(func) = decoder.program.funcs.get_mut(index) {
                    func.refused = Some(Arc::new(refusal));
                }
            }
        }
    }
    let mut program = decoder.program;
    program.code.shrink_to_fit();
    program.lines.shrink_to_fit();
    program.ext.shrink_to_fit();
    program.refuse_callers();
    Ok(program)
}

/// The initial contents of a variable, with the addresses of other variables filled in.
///
/// # Errors
/// For an initialiser that does not fit or names an unknown symbol.
pub fn image(
    var: &Var<'_>,
    addresses: &HashMap<&str, u64>,
    functions: &HashMap<&str, usize>,
) -> Result<Vec<u8>> {
    let size = var.ty.size() as usize;
    let mut out = Vec::with_capacity(size.saturating_mul(var.init.len()));
    for init in &var.init {
        let bits = match *init {
            Init::Int(v) if var.ty.float() && size == 8 => (v as i64 as f64).to_bits(),
            Init::Int(v) if var.ty.float() && size == 4 => u64::from((v as i64 as f32).to_bits()),
            Init::Int(v) => v,
            Init::F32(v) if size == 8 => f64::from(f32::from_bits(v)).to_bits(),
            Init::F32(v) => u64::from(v),
            Init::F64(v) if size == 4 => u64::from((f64::from_bits(v) as f32).to_bits()),
            Init::F64(v) => v,
            Init::Symbol(name, offset, mask) => {
                let address = match (addresses.get(name), functions.get(name)) {
                    (Some(&address), _) => address,
                    (None, Some(&index)) => FUNCTION_BASE + index as u64 * FUNCTION_STRIDE,
                    (None, None) => {
                        return Err(PtxError::Unresolved {
                            line: var.line,
                            name: name.to_owned(),
                        });
                    }
                };
                let address = address.wrapping_add_signed(offset);
                mask.map_or(address, |mask| {
                    (address & mask) >> (mask.trailing_zeros() & 63)
                })
            }
        };
        out.extend(bits.to_le_bytes().into_iter().chain([0; 8]).take(size));
    }
    Ok(out)
}

impl<'m> Decoder<'m> {
    pub(crate) fn invalid<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(PtxError::invalid(self.line, what))
    }

    pub(crate) fn unsupported<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(PtxError::unsupported(self.line, what))
    }

    /// Operands that this decoder does not expect. It does not know every form of every
    /// instruction, so they refuse the function, not the module.
    pub(crate) fn unfit<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(PtxError::unsupported(self.line, what))
    }

    /// Decodes a function whose own shared variables begin at `shared`.
    fn function(&mut self, index: usize, function: &'m Function<'m>, shared: u32) -> Result<()> {
        let func = self.program.funcs.get(index).cloned().unwrap_or_default();
        self.f = FuncState::default();
        self.f.local = func.local;
        self.f.shared = shared;
        let mut scope = Scope::default();
        let in_memory = |var: &Var<'_>| var.space != Space::Register;
        let params = function.params.iter().zip(&func.params);
        for (var, &(offset, size)) in params.filter(|(var, _)| in_memory(var)) {
            let place = if function.entry {
                Storage::Param(offset)
            } else {
                Storage::Frame(offset)
            };
            scope.declare(var, place, size);
        }
        let returns = function.returns.iter().zip(&func.returns);
        for (var, &(offset, size)) in returns.filter(|(var, _)| in_memory(var)) {
            scope.declare(var, Storage::Frame(offset), size);
        }
        self.f.scopes.push(scope);
        if let Some((line, what)) = &function.unserved {
            return Err(PtxError::unsupported(*line, what.clone()));
        }
        let (start, mark) = (self.position(), self.program.mark());
        let body = function.body.as_deref().unwrap_or_default();
        if !function.entry {
            self.begin_stack(body);
        }
        self.begin_registers(function, &func)?;
        self.begin_end();
        self.statements(body)?;
        self.line = function.line;
        self.guard = 0;
        if function.entry {
            self.ext(Ext::Exit);
        } else {
            self.end_of_function();
        }
        self.patch_branches(mark)?;
        order::arrange(&mut self.program, mark);
        let end = self.position();
        let f = std::mem::take(&mut self.f);
        if !function.entry {
            self.shared = f.shared;
        }
        if let Some(func) = self.program.funcs.get_mut(index) {
            func.code = start..end;
            func.rows32 = f.rows32;
            func.rows64 = f.rows64;
            func.preds = f.preds;
            func.constants.rows32 = f.consts32.iter().map(|(&v, &row)| (row, v)).collect();
            func.constants.rows64 = f.consts64.iter().map(|(&v, &row)| (row, v)).collect();
            func.local = f.local;
            func.shared = f.shared;
        }
        Ok(())
    }

    fn position(&self) -> u32 {
        u32::try_from(self.program.code.len()).unwrap_or(u32::MAX)
    }

    fn statements(&mut self, list: &'m [Statement<'m>]) -> Result<()> {
        self.collect_labels(list);
        for statement in list {
            match statement {
                Statement::Block(inner) => {
                    self.f.scopes.push(Scope::default());
                    self.statements(inner)?;
                    self.f.scopes.pop();
                }
                Statement::Register(ty, name, family) => {
                    self.declare_register(*ty, name, *family)?
                }
                Statement::Vector(ty, width, name) => self.declare_vector(*ty, *width, name),
                Statement::Variable(var) => self.declare_variable(var)?,
                Statement::Label(name) => {
                    let position = self.position();
                    self.place_label(name, position)?;
                }
                Statement::Targets(name, targets) => {
                    let labels = targets
                        .iter()
                        .map(|t| self.label(t))
                        .collect::<Result<Vec<_>>>()?;
                    let table = u32::try_from(self.program.tables.len()).unwrap_or(u32::MAX);
                    self.program.tables.push(labels);
                    self.scope_mut().targets.insert(name, table);
                }
                Statement::Prototype(name) => {
                    self.scope_mut().prototypes.insert(name);
                }
                Statement::Instruction(instruction) => {
                    self.line = instruction.line;
                    self.instruction(instruction)?;
                    self.f.end_instruction();
                }
            }
            if self.f.rows32 > MAX_ROWS || self.f.rows64 > MAX_ROWS || self.f.preds > MAX_ROWS {
                return self.invalid("too many registers");
            }
        }
        Ok(())
    }

    pub(crate) fn emit(&mut self, op: Op, d: u32, a: u32, b: u32, c: u32, imm: u64) {
        self.program.code.push(Inst {
            op,
            guard: self.guard,
            d,
            a,
            b,
            c,
            imm,
        });
        self.program.lines.push(self.line);
    }

    pub(crate) fn ext(&mut self, ext: Ext) {
        let next = u32::try_from(self.program.ext.len()).unwrap_or(u32::MAX);
        // Instructions without operands share their entry, and so do branches to a label.
        let shared = match ext {
            Ext::Bra { target } => {
                let label = self.f.labels.get_mut(target as usize);
                label.map(|label| &mut label.branch)
            }
            Ext::Ret => self.f.plain.get_mut(0),
            Ext::Exit => self.f.plain.get_mut(1),
            Ext::Trap => self.f.plain.get_mut(2),
            Ext::Nop => self.f.plain.get_mut(3),
            Ext::Fence => self.f.plain.get_mut(4),
            Ext::Yield => self.f.plain.get_mut(5),
            _ => None,
        };
        let index = shared.map_or(next, |index| *index.get_or_insert(next));
        if index == next {
            self.program.ext.push(ext);
        }
        self.emit(Op::Ext, 0, index, 0, 0, 0);
    }

    fn instruction(&mut self, i: &'m Instruction<'m>) -> Result<()> {
        self.guard = 0;
        if let Some((name, negated)) = i.guard {
            let p = self.pred_named(name)?;
            self.guard = ((p + 1) << 1) | u32::from(negated);
        }
        let mut parts = i.opcode.split('.');
        let base = parts.next().unwrap_or_default();
        let mut mods: Vec<&str> = parts.collect();
        // PTX has `.relu` before the type; CUDA's headers and CUTLASS write it behind.
        if matches!(base, "min" | "max" | "fma") && mods.last() == Some(&"relu") {
            mods.rotate_right(1);
        }
        let addressed = self.with_addresses(base, &mods, &i.operands)?;
        let operands = addressed.as_deref().unwrap_or(&i.operands);
        let expanded = self.with_elements(operands)?;
        let operands = expanded.as_deref().unwrap_or(operands);
        match self.operation(base, &mods, operands) {
            Ok(true) => Ok(()),
            Ok(false) => self.unsupported(format!("instruction {}", i.opcode)),
            Err(PtxError::Unsupported { line, what }) if !what.contains(i.opcode) => {
                Err(PtxError::unsupported(line, format!("{}: {what}", i.opcode)))
            }
            Err(error) => Err(error),
        }
    }

    /// Decodes an instruction; `false` if its opcode is unknown.
    fn operation(&mut self, base: &str, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        Ok(self.packed(base, mods, operands)?
            || self.arith(base, mods, operands)?
            || self.float(base, mods, operands)?
            || self.compare(base, mods, operands)?
            || self.moves(base, mods, operands)?
            || self.convert(base, mods, operands)?
            || self.memory(base, mods, operands)?
            || self.tensor(base, mods, operands)?
            || self.asynchronous(base, mods, operands)?
            || self.matrix(base, mods, operands)?
            || self.control(base, mods, operands)?
            || self.warp(base, mods, operands)?
            || self.texture(base, mods, operands)?
            || self.video(base, mods, operands)?
            || self.stack(base, mods, operands)?)
    }

    /// Exactly `N` operands.
    pub(crate) fn operands<'o, const N: usize>(
        &self,
        list: &'o [Operand<'m>],
    ) -> Result<&'o [Operand<'m>; N]> {
        list.try_into()
            .or_else(|_| self.unfit(format!("expected {N} operands, found {}", list.len())))
    }
}
