//! Memory of calls: what a warp uses beyond the kernel's own frame, until it ends.

use std::sync::Arc;

use crate::kernel_memory::{Held, KernelMemory};

/// The memory of a warp's calls.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) held: Held,
    /// The greatest depth of a call stack so far.
    pub(super) depth: usize,
}

impl Calls {
    /// Without calls.
    pub(super) fn new(memory: &Arc<KernelMemory>) -> Self {
        Self {
            held: memory.open(),
            depth: 0,
        }
    }
}
