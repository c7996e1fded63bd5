//! A `__managed__` variable and its pages.

use std::sync::Arc;

use crate::shadow::Region;
use crate::sys::memory::{HostSlice, Pages};

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

    /// The program's memory, which must not outlive this.
    fn memory(&self) -> Option<HostSlice> {
        let (address, size) = self.range();
        let pages = self.runs.iter().map(|run| &run.pages);
        Pages::span(pages, address, usize::try_from(size).ok()?)
    }

    /// What the program sees.
    pub(crate) fn contents(&self) -> Vec<u8> {
        self.memory()
            .map_or_else(Vec::new, |memory| memory.as_ref().to_vec())
    }

    /// Writes it as the program does.
    pub(crate) fn write(&self, contents: &[u8]) {
        if let Some(memory) = self.memory().filter(|it| it.len() == contents.len()) {
            for (at, byte) in contents.iter().enumerate() {
                memory.overwrite(at, [*byte]);
            }
        }
    }

    /// The program's first address and bytes.
    pub(crate) fn range(&self) -> (u64, u64) {
        self.region.in_program()
    }
}
