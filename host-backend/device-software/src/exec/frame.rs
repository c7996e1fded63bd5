//! The registers of a running frame.

use crate::program::{Row32, Row64};

/// The registers of the running frame.
pub struct Frame<'a> {
    /// 32-bit rows.
    pub r32: &'a mut [Row32],
    /// 64-bit rows.
    pub r64: &'a mut [Row64],
    /// Predicates.
    pub p: &'a mut [u32],
}

/// `new` in the lanes of `mask`, `old` in the others.
macro_rules! kept {
    ($old:expr, $new:expr, $mask:expr) => {
        for l in 0..32 {
            $old[l] = if $mask >> l & 1 != 0 {
                $new[l]
            } else {
                $old[l]
            };
        }
    };
}

impl Frame<'_> {
    /// Writes the lanes of `mask` of a row.
    #[inline(always)]
    pub(super) fn put32(&mut self, row: u32, values: &[u32; 32], mask: u32) {
        let row = &mut self.r32[row as usize].0;
        if mask == u32::MAX {
            *row = *values;
        } else {
            let mut old = *row;
            kept!(old, values, mask);
            *row = old;
        }
    }

    /// The same of a 64-bit row.
    #[inline(always)]
    pub(super) fn put64(&mut self, row: u32, values: &[u64; 32], mask: u32) {
        let row = &mut self.r64[row as usize].0;
        if mask == u32::MAX {
            *row = *values;
        } else {
            let mut old = *row;
            kept!(old, values, mask);
            *row = old;
        }
    }

    /// The same of a predicate.
    #[inline(always)]
    pub(super) fn put_p(&mut self, p: u32, bits: u32, mask: u32) {
        let p = &mut self.p[p as usize];
        *p = *p & !mask | bits & mask;
    }
}
