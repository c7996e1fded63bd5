//! A `__managed__` variable and its pages.

use std::sync::Arc;

use crate::shadow::Region;
use crate::sys::memory::Pages;

/// Whole pages of the program at the device's addresses.
#[derive(Debug)]
pub(crate) struct PageRun {
    /// The end address.
    pub(crate) end: u64,
    /// The memory there.
    pub(crate) pages: Pages,
}

/// One variable.
#[derive(Debug)]
pub(crate) struct ManagedVariable {
    region: Arc<Region>,
    runs: Vec<Arc<PageRun>>,
}

impl ManagedVariable {
    /// A variable whose bytes are in `runs`.
    pub(crate) fn new(region: Arc<Region>, runs: Vec<Arc<PageRun>>) -> Self {
        Self { region, runs }
    }

    /// The copy of another device, which `region` synchronizes.
    pub(crate) fn copy(&self, region: Arc<Region>) -> Self {
        Self::new(region, self.runs.clone())
    }

    /// Synchronizes program and device.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The program's first address and bytes.
    pub(crate) fn range(&self) -> (u64, u64) {
        self.region.in_program()
    }
}
