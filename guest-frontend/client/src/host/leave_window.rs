//! Turns pinned memory in a window into shadows when the session moves to a host that does
//! not share the window.
//!
//! The program's memory stays in place. The host has separate memory at the same
//! addresses, and both are synchronized like any shadow ([`crate::shadow`]). One thread
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
use paragpu_protocol::layout::BULK_TOKEN_BYTES;

use super::{Backing, HostMemory};
use crate::connection::{Content, PinnedMemory};
use crate::shadow::Region;

impl PinnedMemory for HostMemory {
    fn is_apart(&self) -> bool {
        self.window.is_left()
    }

    fn settle_contents(&self) {
        self.contents.lock().clear();
    }

    fn has_window(&self) -> bool {
        self.window.is_mapped()
    }

    fn adopt_window(self: Arc<Self>, window: Arc<Window>) {
        HostMemory::adopt_window(self, window);
    }

    /// Turns all pinned memory of the window into shadows, and returns the contents that the
    /// host lacks: the same at every call, until the host has them.
    ///
    /// # Errors
    /// If the window's memory is gone.
    fn leave_window(&self) -> Result<Vec<Content>, Error> {
        let mut contents = self.contents.lock();
        if self.window.is_left() {
            return Ok(contents.clone());
        }
        self.window.keep()?;
        // Work posted up to here may write to the window, and is not recorded as a writer of any
        // shadow. `after_launch` records later work.
        let position = self.streams.progress().posted();
        *self.free.lock() = None;
        // Held until the shadows can be found, so that nothing in the window is allocated or
        // freed in between.
        let pinned = self.pinned.write();
        let mut regions: Vec<(Arc<Region>, bool)> = Vec::new();
        for pinned in pinned.values() {
            match &pinned.backing {
                Backing::Window(offset, length) => {
                    let Some(region) = self.window.region(*offset, *length) else {
                        continue;
                    };
                    if pinned.flags & CU_MEMHOSTALLOC_DEVICEMAP != 0 || self.window.is_known() {
                        region.show();
                    }
                    regions.push((region, true));
                }
                Backing::Shadow(region, place) if place.is_joined() => {
                    // What kernels know was not observed meanwhile.
                    region.show();
                    self.shadows.files().remove(region.in_program().0);
                    regions.push((Arc::clone(region), true));
                }
                Backing::Shadow(..) | Backing::File(_) => {}
            }
        }
        if let Some(staging) = self.window.staging() {
            let length = staging.end() - BULK_TOKEN_BYTES;
            let region = self.window.region_of_slots(BULK_TOKEN_BYTES, length);
            // Slots that the host does not know were not used.
            regions.extend(region.map(|region| (region, staging.is_registered())));
        }
        // Locked before any thread can find them, so that no thread sends changes before `agree`
        // has recorded the state to compare with.
        let mut held: Vec<_> = regions.iter().map(|(region, _)| region.hold()).collect();
        for (region, _) in &regions {
            self.shadows.add(Arc::clone(region));
        }
        self.window.leave();
        drop(pinned);
        for ((region, known), state) in regions.iter().zip(&mut held) {
            if *known {
                let address = region.device();
                contents.push(Content::new(address, region.agree(state, position)));
            }
        }
        Ok(contents.clone())
    }
}
