//! `__managed__` variables of modules: device memory that the program uses at the
//! device's address.
//!
//! The program's side is private memory at that address, synchronized like a shadow
//! ([`crate::shadow`]), but the host has no copy: it reads and writes the variable. So a
//! move takes nothing but the variable along. CUDA lets the program use managed memory
//! only while no work is in flight (CONCURRENT_MANAGED_ACCESS is 0).
//!
//! If several devices use the module, each has its own variable, at another address. The
//! program uses the address on one device; the variables of the others are copies of its
//! memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use crate::error::Result;
use crate::objects::managed_variable::{ManagedVariable, PageRun};
use crate::progress::Progress;
use crate::shadow::{Region, Shadows};
use crate::sys::memory::Pages;
use crate::sys::reservation::Reservation;

const PAGE: u64 = 4096;

/// The managed variables of a session.
#[derive(Debug)]
pub(crate) struct ManagedVariables {
    shadows: Arc<Shadows>,
    /// Addresses of the device's memory, which can contain variables.
    arena: Arc<Reservation>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Memory of the program by its first address. Variables may share pages.
    runs: BTreeMap<u64, Weak<PageRun>>,
}

impl ManagedVariables {
    pub(crate) fn new(shadows: &Arc<Shadows>, arena: &Arc<Reservation>) -> Self {
        Self {
            shadows: Arc::clone(shadows),
            arena: Arc::clone(arena),
            state: Mutex::default(),
        }
    }

    /// Maps a variable of the device for the program, with its contents.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if the program uses these addresses for something else.
    pub(crate) fn add(&self, address: u64, size: u64) -> Result<ManagedVariable> {
        let runs = self.state.lock().map(&self.arena, address, size)?;
        let length = usize::try_from(size).map_err(|_| Status::OUT_OF_MEMORY)?;
        let pages = runs.iter().map(|run| &run.pages);
        let host = Pages::span(pages, address, length).ok_or(Status::UNKNOWN)?;
        // A variable of an earlier module may have been in these pages.
        host.clear();
        let region = Region::of_device(host)?;
        region.show();
        // The device's contents come with the next pull, which is now.
        region.add_writer(&Arc::<Progress>::default(), 0);
        self.shadows.add(Arc::clone(&region));
        let variable = ManagedVariable::new(region, runs);
        match self.shadows.pull() {
            Ok(()) => Ok(variable),
            Err(status) => {
                self.remove(&variable);
                Err(status)
            }
        }
    }

    /// Makes the variable of another device, at `address` of this one, a copy of the program's
    /// memory.
    pub(crate) fn copy(&self, variable: &ManagedVariable, address: u64) -> Result<ManagedVariable> {
        let contents = self.shadows.read_device(address, variable.range().1)?;
        let region = self.shadows.add_copy(variable.region(), address, contents);
        Ok(variable.copy(region))
    }

    /// Removes the variable when its module is unloaded.
    pub(crate) fn remove(&self, variable: &ManagedVariable) {
        self.shadows.remove(variable.region());
    }
}

impl State {
    /// The pages of a range: those that are mapped for other variables, and new
    /// ones between them.
    fn map(
        &mut self,
        arena: &Arc<Reservation>,
        address: u64,
        size: u64,
    ) -> Result<Vec<Arc<PageRun>>> {
        let end = address
            .checked_add(size)
            .and_then(|end| end.checked_next_multiple_of(PAGE))
            .ok_or(Status::INVALID_VALUE)?;
        self.runs.retain(|_, run| run.strong_count() > 0);
        let mut found = Vec::new();
        let mut at = address / PAGE * PAGE;
        while at < end {
            let before = self.runs.range(..=at).next_back();
            let covering = before.and_then(|(_, run)| run.upgrade());
            if let Some(run) = covering.filter(|run| run.end > at) {
                at = run.end;
                found.push(run);
                continue;
            }
            let next = self.runs.range(at..).next();
            let stop = next.map_or(end, |(start, _)| end.min(*start));
            let pages = Pages::within(arena, at, stop - at);
            let pages = pages.map_err(|_| Status::NOT_SUPPORTED)?;
            let run = Arc::new(PageRun { end: stop, pages });
            self.runs.insert(at, Arc::downgrade(&run));
            found.push(run);
            at = stop;
        }
        Ok(found)
    }
}
