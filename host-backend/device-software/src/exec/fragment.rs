//! Matrices distributed over the lanes of a warp, and the position of each element (PTX ISA
//! 9.7.14).

use super::sparse::Sparse;
use crate::program::{Address, Reg};
use std::sync::Arc;

/// Element types of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Element {
    B1,
    S4,
    U4,
    S8,
    U8,
    /// Four of its eight bits count: the third to the sixth.
    E2m1Padded,
    E2m1,
    E2m3,
    E3m2,
    E4m3,
    E5m2,
    F16,
    Bf16,
    Tf32,
    F32,
    S32,
    F64,
}

impl Element {
    /// The element type written as `name`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "b1" => Self::B1,
            "s4" => Self::S4,
            "u4" => Self::U4,
            "s8" => Self::S8,
            "u8" => Self::U8,
            "e2m1" => Self::E2m1,
            "e2m3" => Self::E2m3,
            "e3m2" => Self::E3m2,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "s32" => Self::S32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Width in bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Self::B1 => 1,
            Self::S4 | Self::U4 | Self::E2m1 => 4,
            Self::S8 | Self::U8 | Self::E2m1Padded => 8,
            Self::E2m3 | Self::E3m2 | Self::E4m3 | Self::E5m2 => 8,
            Self::F16 | Self::Bf16 => 16,
            Self::Tf32 | Self::F32 | Self::S32 => 32,
            Self::F64 => 64,
        }
    }

    /// Elements that a register holds.
    #[must_use]
    pub fn packed(self) -> u32 {
        (32 / self.bits()).max(1)
    }

    /// Whether matrices of it are multiplied in single precision.
    #[must_use]
    pub fn single(self) -> bool {
        self.narrow_float() || matches!(self, Self::F16 | Self::Bf16 | Self::Tf32)
    }

    /// Whether it is a float of at most 8 bits.
    #[must_use]
    pub fn narrow_float(self) -> bool {
        matches!(
            self,
            Self::E2m1Padded | Self::E2m1 | Self::E2m3 | Self::E3m2 | Self::E4m3 | Self::E5m2
        )
    }
}

/// Which operand a fragment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Role {
    A,
    B,
    /// C and D.
    Sum,
}

/// Which lane holds which element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As PTX documents it for `mma`.
    Documented,
    /// PTX does not specify it for `wmma`. Here: in rows, lane after lane, and repeated if
    /// there is more room.
    Rows,
    /// As PTX documents it for the m8n8k4 of halves: four products, of the eight lanes n to
    /// n + 3 and n + 16 to n + 19 each.
    Pairs {
        /// Whether the matrix is column-major.
        columns: bool,
    },
}

impl Layout {
    /// The number of products that a warp computes at once.
    #[must_use]
    pub fn products(self) -> u32 {
        match self {
            Self::Pairs { .. } => 4,
            Self::Documented | Self::Rows => 1,
        }
    }
}

/// Shape of a multiplication: m, n, k.
pub type Shape = [u32; 3];

/// Maximum number of elements of an operand that is multiplied in single precision.
pub const MAX_SINGLES: u32 = 1024;
/// Maximum number of elements of an operand that is multiplied in double precision.
pub const MAX_DOUBLES: u32 = 256;

/// Rows and columns of an operand.
#[must_use]
pub fn extent([m, n, k]: Shape, role: Role) -> [u32; 2] {
    match role {
        Role::A => [m, k],
        Role::B => [k, n],
        Role::Sum => [m, n],
    }
}

/// Row-major index of each element: of lane 0 register by register, then of lane 1, … The
/// matrices of several products follow each other.
///
/// `None` if the operand does not fit that many registers.
#[must_use]
pub fn places(
    layout: Layout,
    shape: Shape,
    role: Role,
    element: Element,
    registers: usize,
) -> Option<Arc<[u16]>> {
    let [rows, columns] = extent(shape, role);
    let size = rows * columns;
    let packed = element.packed();
    let each = u32::try_from(registers).ok()?.checked_mul(packed)?;
    let fits = match layout {
        Layout::Documented | Layout::Pairs { .. } => each * 32 == size * layout.products(),
        Layout::Rows => each != 0 && (each * 32).is_multiple_of(size),
    };
    if !fits || size > 4096 {
        return None;
    }
    let place = |lane: u32, e: u32| -> u32 {
        if layout == Layout::Rows {
            return (lane * each + e) % size;
        }
        if let Layout::Pairs { columns: by_column } = layout {
            let (product, upper, thread) = (lane % 16 / 4, lane / 16 * 4, lane % 4);
            let [row, column] = match (role, by_column) {
                (Role::A, true) => [e + upper, thread],
                (Role::B, false) => [thread, e + upper],
                (Role::B, true) => [e, thread + upper],
                (Role::Sum, _) if element == Element::F32 => [
                    lane % 2 + e / 2 % 2 * 2 + upper,
                    e / 4 * 4 + thread / 2 * 2 + e % 2,
                ],
                (Role::A | Role::Sum, _) => [thread + upper, e],
            };
            return product * size + row * columns + column;
        }
        let (group, thread) = (lane / 4, lane % 4);
        let (register, part) = (e / packed, e % packed);
        let [row, column] = match role {
            // Of sixteen rows, registers alternate between the upper and the lower eight.
            Role::A if shape[0] == 16 => [
                group + 8 * (register % 2),
                (register / 2 * 4 + thread) * packed + part,
            ],
            Role::A => [group, (register * 4 + thread) * packed + part],
            Role::B => [(register * 4 + thread) * packed + part, group],
            Role::Sum => [group + 8 * (e / 2), thread * 2 + e % 2],
        };
        row * columns + column
    };
    let all = (0..32).flat_map(|lane| (0..each).map(move |e| (lane, e)));
    Some(all.map(|(lane, e)| place(lane, e) as u16).collect())
}

/// A matrix in registers.
#[derive(Debug, Clone)]
pub struct Fragment {
    /// Element type.
    pub element: Element,
    /// Registers of each lane.
    pub regs: Vec<Reg>,
    /// See [`places`].
    pub places: Arc<[u16]>,
}

/// How products of bits are formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// Multiplication.
    Multiply,
    /// `.and.popc`
    And,
    /// `.xor.popc`
    Xor,
}

/// A multiplication with addition.
#[derive(Debug, Clone)]
pub struct Multiply {
    /// m, n, k.
    pub shape: Shape,
    /// Left factor.
    pub a: Fragment,
    /// Right factor.
    pub b: Fragment,
    /// Addend.
    pub c: Fragment,
    /// Result.
    pub d: Fragment,
    /// Clamp integers instead of wrapping.
    pub saturate: bool,
    /// How bits multiply.
    pub combine: Combine,
    /// Number of independent products.
    pub products: usize,
    /// Which elements of A are there, if half of them are.
    pub sparse: Option<Sparse>,
    /// Factors of the elements of A and B.
    pub scales: Option<Scales>,
}

/// Factors of the rows of A and the columns of B (`.block_scale`).
#[derive(Debug, Clone)]
pub struct Scales {
    /// Of A: two lanes of each four have those of a row each.
    pub a: Scale,
    /// Of B: one lane of each four has those of a column.
    pub b: Scale,
    /// Into how many blocks, each with a factor, a row or column is divided.
    pub blocks: u32,
    /// Whether a factor is a ue4m3 instead of a ue8m0.
    pub fraction: bool,
}

/// Where the factors of one operand are.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Row of the factors, four to a word.
    pub factors: u32,
    /// Row of which byte is the first.
    pub byte: u32,
    /// Row of which lane, or pair of lanes, of each four has them.
    pub thread: u32,
}

/// A matrix between memory and registers (`wmma.load`, `wmma.store`).
#[derive(Debug, Clone)]
pub struct Transfer {
    /// In registers.
    pub fragment: Fragment,
    /// Rows and columns.
    pub extent: [u32; 2],
    /// First element in memory.
    pub address: Address,
    /// A row with the distance in elements from one row, or column, to the next; without
    /// it, they are contiguous.
    pub stride: Option<u32>,
    /// Whether the matrix is column-major.
    pub columns: bool,
    /// Whether it is a store.
    pub store: bool,
}

/// Operations of a whole warp on matrices.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Matrix {
    Multiply(Multiply),
    Transfer(Transfer),
    /// `ldmatrix` and `stmatrix`: one 8×8 matrix of 16-bit elements a register; eight lanes
    /// each name a row.
    Rows {
        address: Address,
        regs: Vec<Reg>,
        transposed: bool,
        store: bool,
        /// Each row has 16 elements of so many bits, which get a byte each.
        unpack: Option<u32>,
    },
    /// `movmatrix.trans`.
    Transpose {
        d: Reg,
        a: Reg,
    },
}
