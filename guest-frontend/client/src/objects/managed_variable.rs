//! A `__managed__` variable and its pages.

use std::sync::Arc;

use crate::shadow::Region;
use crate::sys::memory::Pages;

/// Whole pages of the program's at the device's addresses.
#[derive(Debug)]
pub(crate) struct PageRun {
    /// Where they end.
    pub(crate) end: u64,
    /// The memory there.
    pub(crate) pages: Pages,
}

/// One variable.
#[derive(Debug)]
pub(crate) struct ManagedVariable {
    region: Arc<Region>,
    _runs: Vec<Arc<PageRun>>,
}

impl ManagedVariable {
    /// A variable whose bytes are in `runs`.
    pub(crate) fn new(region: Arc<Region>, runs: Vec<Arc<PageRun>>) -> Self {
        Self {
            region,
            _runs: runs,
        }
    }

    /// Synchronizes program and device.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// First address and bytes.
    pub(crate) fn place(&self) -> (u64, u64) {
        self.region.on_wire()
    }
}
