//! Turns pinned memory in a window into shadows when the session moves to a host that does
//! not share the window.
//!
//! The program's memory stays in place. The host has separate memory at the same
//! addresses, and both are synchronized like any shadow ([`crate::shadow`]). From then on the
//! session is like one that never had a window, and may get another one. One thread
//! does this between two connections ([`crate::connection`]), while others may be
//! anywhere in a call:
//!
//! - A thread may have checked the window before and post its work afterwards. The memory
//!   of that work already had its contents, so they are among those sent now. Work that
//!   may write is recorded after it was posted.
//! - Copies in progress continue in the staging slots. These remain pinned
//!   memory, even if the VM's device is removed.
//! - The shadows are locked from the moment at which they can be found until their
//!   contents were read. Otherwise a thread could send changes before there is a state
//!   to compare them with.

use std::sync::Arc;

use paragpu_abi::CU_MEMHOSTALLOC_DEVICEMAP;
use paragpu_communicator::{Error, Window};

use super::join_window::Joining;
use super::{Backing, HostMemory, Pinned, ShadowPlace, whole_pages};
use crate::connection::{Content, PinnedMemory};
use crate::shadow::Region;
use crate::staging::Staging;
use crate::sys::moved_pages::MovedPages;

/// The backing of memory in a window that the session has left, of which `region` is the shadow.
pub(super) fn left(region: Arc<Region>, joining: Joining) -> Backing {
    let (base, length) = region.on_wire();
    let place = ShadowPlace {
        base,
        length,
        pages: None,
        joining,
        space: None,
    };
    Backing::Shadow(region, Arc::new(place))
}

impl HostMemory {
    /// The shadow of memory at `offset` of the window that the session leaves. The program has
    /// registered memory elsewhere.
    fn left_behind(
        &self,
        pinned: &Pinned,
        offset: u64,
        length: u64,
    ) -> Option<(Arc<Region>, Joining)> {
        if !pinned.registered {
            return Some((self.window.region(offset, length)?, Joining::default()));
        }
        let pages = self.window.take_moved(pinned.address)?;
        self.left_registered((pinned.address, pinned.size), (offset, pages))
    }

    /// The shadow of registered memory whose pages are at `offset` of a window that the session
    /// leaves.
    pub(super) fn left_registered(
        &self,
        (address, size): (u64, u64),
        (offset, pages): (u64, MovedPages),
    ) -> Option<(Arc<Region>, Joining)> {
        let within = address - pages.address();
        let length = whole_pages(within + size).ok()?;
        let base = self.window.base() + offset;
        let source = pages.part(address, size)?;
        let region = Region::new(source, base + within, base, length);
        Some((region, Joining::of(offset, pages)))
    }
}

impl PinnedMemory for HostMemory {
    fn settle_contents(&self) {
        self.contents.lock().clear();
    }

    fn window(&self) -> Option<u64> {
        self.window.current().map(|current| current.place().0)
    }

    fn room(&self) -> Option<u64> {
        self.window.room()
    }

    fn missing(&self) -> Vec<Content> {
        self.contents.lock().clone()
    }

    fn adopt_window(self: Arc<Self>, window: Arc<Window>) {
        HostMemory::adopt_window(self, window);
    }

    /// Turns all pinned memory of the window into shadows.
    ///
    /// # Errors
    /// If the window's memory is gone.
    fn leave_window(&self) -> Result<(), Error> {
        let Some(current) = self.window.current() else {
            return Ok(());
        };
        let mut contents = self.contents.lock();
        current.keep()?;
        // Work posted up to here may write to the window, and is not recorded as a writer of any
        // shadow. `after_launch` records later work.
        let position = self.streams.progress().posted();
        *self.free.lock() = None;
        // Held until the shadows can be found, so that nothing in the window is allocated or
        // freed in between.
        let mut pinned = self.pinned.write();
        let mut regions: Vec<Arc<Region>> = Vec::new();
        for pinned in pinned.values_mut() {
            match &pinned.backing {
                Backing::Window(offset, length) => {
                    let Some((region, joining)) = self.left_behind(pinned, *offset, *length) else {
                        continue;
                    };
                    if pinned.flags & CU_MEMHOSTALLOC_DEVICEMAP != 0 || self.window.is_known() {
                        region.show();
                    }
                    regions.push(Arc::clone(&region));
                    pinned.backing = left(region, joining);
                }
                Backing::Shadow(region, place) if place.is_joined() => {
                    place.part();
                    // What kernels know was not observed meanwhile.
                    region.show();
                    self.shadows.files().remove(region.in_program().0);
                    regions.push(Arc::clone(region));
                }
                Backing::Shadow(..) | Backing::File(_) => {}
            }
        }
        regions.extend(current.staging().and_then(Staging::depart));
        // Locked before any thread can find them, so that no thread sends changes before `agree`
        // has recorded the state to compare with.
        let mut held: Vec<_> = regions.iter().map(|region| region.hold()).collect();
        for region in &regions {
            self.shadows.add(Arc::clone(region));
        }
        self.window.leave(current);
        drop(pinned);
        for (region, state) in regions.iter().zip(&mut held) {
            let address = region.device();
            contents.push(Content::new(address, region.agree(state, position)));
        }
        Ok(())
    }
}
