//! Operands of loads, stores and atomic operations.

use super::register::Reg;

/// How a loaded value fills its register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extend {
    /// Zero.
    Zero,
    /// Sign, up to this many bits of the register.
    Sign,
}

/// State space of an access after decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemSpace {
    /// Determined by the address.
    Generic,
    /// Device memory (global and constant).
    Global,
    /// The block's shared memory.
    Shared,
    /// The thread's own memory.
    Local,
    /// The kernel's parameters.
    Param,
}

/// Address operand: `base + offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Space.
    pub space: MemSpace,
    /// Base register, if any.
    pub base: Option<Reg>,
    /// Bytes added.
    pub offset: i64,
    /// Whether the offset is relative to the frame's base in local memory.
    pub frame: bool,
}

/// A load or store.
#[derive(Debug, Clone)]
pub struct Access {
    /// Where.
    pub address: Address,
    /// Bytes of one element: 1, 2, 4, 8.
    pub width: u8,
    /// How loads extend.
    pub extend: Extend,
    /// Register bits of the destination when narrower than its row: 16 or 8, else 0.
    pub narrow: u8,
    /// Element registers; `None` for `_`, which only loads have.
    pub regs: Vec<Option<Reg>>,
    /// Whether it is volatile, relaxed, acquire, release or `cv`, which is a sign of waiting.
    pub ordered: bool,
}

impl Access {
    /// The row, if the access is of one whole 32-bit register.
    #[inline(always)]
    #[must_use]
    pub fn word(&self) -> Option<u32> {
        match (self.regs.as_slice(), self.width, self.narrow) {
            ([Some(Reg::R32(row))], 4, 0) => Some(*row),
            _ => None,
        }
    }

    /// The parts of a vector: the offset and size of each, and the registers of its lower and
    /// upper 8 bytes. A lane accesses a part at once, as on NVIDIA's devices: programs use
    /// vectors as messages between blocks.
    #[inline(always)]
    pub fn parts(&self) -> impl Iterator<Item = (u64, u8, &[Option<Reg>], &[Option<Reg>])> {
        let count = 8 / usize::from(self.width);
        let parts = self.regs.chunks(2 * count).enumerate();
        parts.map(move |(n, regs)| {
            let (low, high) = regs.split_at(count.min(regs.len()));
            (16 * n as u64, self.width * regs.len() as u8, low, high)
        })
    }

    /// The bits of an element.
    #[inline(always)]
    #[must_use]
    pub fn mask(&self) -> u64 {
        u64::MAX >> (64 - 8 * u32::from(self.width))
    }
}

/// Atomic operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AtomOp {
    Add,
    MinU,
    MinS,
    MaxU,
    MaxS,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Exch,
    Cas,
    AddF32,
    /// Subnormal operands and results become zero of the same sign.
    AddF32Z,
    AddF64,
    AddF16,
    AddF16x2,
    AddBf16,
    AddBf16x2,
    MinF16,
    MinF16x2,
    MinBf16,
    MinBf16x2,
    MaxF16,
    MaxF16x2,
    MaxBf16,
    MaxBf16x2,
}

impl AtomOp {
    /// The operation as global memory does it: a sum of singles flushes subnormals there,
    /// and in shared memory it does not.
    #[must_use]
    pub fn in_global(self) -> Self {
        match self {
            Self::AddF32 => Self::AddF32Z,
            op => op,
        }
    }
}

/// An atomic read-modify-write.
#[derive(Debug, Clone)]
pub struct Atomic {
    /// Operation.
    pub op: AtomOp,
    /// Where.
    pub address: Address,
    /// Bytes: 2, 4 or 8.
    pub width: u8,
    /// Old value; none for `red`.
    pub d: Option<Reg>,
    /// Operand.
    pub b: Reg,
    /// New value of a compare-and-swap (`b` is then what is compared).
    pub c: Option<Reg>,
}

/// What an atomic access of 128 bits does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum WideOp {
    Load,
    Store,
    Exch,
    Cas,
}

/// An atomic access of 128 bits. Each register is two rows of 64 bits, the low one first.
#[derive(Debug, Clone)]
pub struct Wide {
    /// Operation.
    pub op: WideOp,
    /// Where.
    pub address: Address,
    /// Old value; unused by stores.
    pub d: [u32; 2],
    /// Operand; unused by loads.
    pub b: [u32; 2],
    /// New value of a compare-and-swap (`b` is then what is compared).
    pub c: [u32; 2],
}
