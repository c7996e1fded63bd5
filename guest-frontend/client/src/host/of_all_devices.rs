//! Pinned memory that kernels of all devices can access: each has a shadow of it at the
//! same address. The program's memory is what the devices have in common: it gets what one
//! changed after the program found that work complete, and another one gets that before
//! its next work.

use std::sync::Arc;

use paragpu_protocol::handle::ShadowAddress;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{ShadowCreate, ShadowDestroy};

use super::{Backing, DEVICEMAP, HostMemory, PORTABLE, whole_pages};
use crate::error::Result;
use crate::shadow::Region;

/// Another session's memory, of which this session has a shadow.
#[derive(Debug)]
pub(super) struct Adopted {
    region: Arc<Region>,
    /// The memory.
    _of: Backing,
}

impl HostMemory {
    /// Zeroed memory of this session that others can [`adopt`](Self::adopt).
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub fn allocate_for_all(&self, size: u64) -> Result<u64> {
        self.link.check()?;
        let pinned = self.shadow_allocate(size, whole_pages(size)?, PORTABLE | DEVICEMAP)?;
        let address = pinned.address;
        self.pinned.write().insert(address, pinned);
        Ok(address)
    }

    /// Gives this session's device a shadow of memory that `owner` allocated for all.
    ///
    /// # Errors
    /// `INVALID_VALUE` if none starts at `address`; errors of the host.
    pub fn adopt(&self, owner: &Self, address: u64) -> Result<()> {
        let found = owner.find(address).filter(|found| found.address == address);
        let backing = found.ok_or(Status::INVALID_VALUE)?.backing;
        let Backing::Shadow(theirs, _) = &backing else {
            return Err(Status::INVALID_VALUE);
        };
        let (_, size) = theirs.on_wire();
        self.link.call(&ShadowCreate {
            address: ShadowAddress(address),
            size,
        })?;
        let zeros = vec![0; usize::try_from(size).map_err(|_| Status::OUT_OF_MEMORY)?];
        let region = self.shadows.add_copy(theirs, address, zeros);
        let adopted = Adopted {
            region,
            _of: backing,
        };
        self.adopted.lock().insert(address, adopted);
        Ok(())
    }

    /// Ends this, before the memory is freed.
    ///
    /// # Errors
    /// The error of failed work.
    pub fn leave_adopted(&self, address: u64) -> Result<()> {
        let Some(adopted) = self.adopted.lock().remove(&address) else {
            return Ok(());
        };
        self.forget_shadow(&adopted.region)?;
        self.link.call(&ShadowDestroy {
            address: ShadowAddress(address),
        })
    }
}
