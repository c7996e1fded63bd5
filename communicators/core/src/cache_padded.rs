//! Keeps values that threads write out of the cache lines of values that others read.

use std::ops::Deref;

/// A value alone in its cache lines: two, because processors prefetch pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
