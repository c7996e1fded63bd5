//! Registers as operands.

/// A row of either width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reg {
    /// 32-bit row.
    R32(u32),
    /// 64-bit row.
    R64(u32),
    /// Predicate.
    P(u32),
}
