//! Memory that a program creates in the host (cuMemCreate) and maps with access for
//! itself.
//!
//! Such memory is the session's device memory, so it counts, moves and is checkpointed
//! like the rest. While the program has access, it has separate pages at the map's
//! address: a *view*, synchronized like a shadow ([`crate::shadow`]). A view is coherent
//! at launches, at copies of its range, after waits and in host functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use paragpu_protocol::status::Status;
use parking_lot::RwLock;

use crate::error::Result;
use crate::progress::Progress;
use crate::shadow::{Region, Shadows};
use crate::stream::Streams;
use crate::sys::memory::Pages;
use crate::sys::reservation::Reservation;

/// The views of all sessions: first address to bytes.
static SEEN: RwLock<BTreeMap<u64, u64>> = RwLock::new(BTreeMap::new());

/// Whether the program has a view at an address of device memory.
#[must_use]
pub fn has_view(address: u64) -> bool {
    let seen = SEEN.read();
    let found = seen.range(..=address).next_back();
    found.is_some_and(|(start, size)| address - start < *size)
}

/// The views of a session.
#[derive(Debug)]
pub(crate) struct HostViews {
    streams: Arc<Streams>,
    shadows: Arc<Shadows>,
    /// The addresses of the session's reservations.
    arena: Arc<Reservation>,
    views: RwLock<BTreeMap<u64, View>>,
}

/// Pages of the program at the address of a map.
#[derive(Debug)]
struct View {
    region: Arc<Region>,
    pages: Pages,
}

impl HostViews {
    pub(crate) fn new(
        streams: &Arc<Streams>,
        shadows: &Arc<Shadows>,
        arena: &Arc<Reservation>,
    ) -> Self {
        Self {
            streams: Arc::clone(streams),
            shadows: Arc::clone(shadows),
            arena: Arc::clone(arena),
            views: RwLock::default(),
        }
    }

    /// The view that an address lies in: its first address and bytes.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, u64)> {
        let views = self.views.read();
        let (_, view) = views.range(..=address).next_back()?;
        let (start, size) = view.region.on_wire();
        (address - start < size).then_some((start, size))
    }

    /// Gives the program pages at the address of a device map, with the memory's
    /// contents.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if no pages fit there; the error of a failed copy.
    pub(crate) fn begin(&self, address: u64, size: u64) -> Result<()> {
        // Work posted so far may write the memory at its earlier addresses.
        self.streams.synchronize_all()?;
        let pages = Pages::within(&self.arena, address, size);
        let pages = pages.map_err(|_| Status::OUT_OF_MEMORY)?;
        let region = Region::of_device(pages.bytes())?;
        region.show();
        // The pull fetches the device's contents.
        region.add_writer(&Arc::<Progress>::default(), 0);
        self.shadows.add(Arc::clone(&region));
        let view = View { region, pages };
        self.views.write().insert(address, view);
        SEEN.write().insert(address, size);
        let pulled = self.shadows.pull();
        if pulled.is_err() {
            self.drop_view(address);
        }
        pulled
    }

    /// Removes the program's pages at an address, if any. The device keeps what the
    /// program wrote.
    ///
    /// # Errors
    /// The error of failed work. The pages are gone nevertheless.
    pub(crate) fn end(&self, address: u64) -> Result<()> {
        let found = {
            let views = self.views.read();
            views.get(&address).map(|view| Arc::clone(&view.region))
        };
        let Some(region) = found else {
            return Ok(());
        };
        let (start, size) = region.on_wire();
        let kept = self
            .streams
            .synchronize_all()
            .and_then(|()| self.shadows.push(&region, start, size));
        self.drop_view(address);
        kept
    }

    fn drop_view(&self, address: u64) {
        let view = self.views.write().remove(&address);
        SEEN.write().remove(&address);
        if let Some(View { region, pages }) = view {
            self.shadows.remove(&region);
            drop(pages);
        }
    }
}
