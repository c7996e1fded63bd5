//! Pinned memory that kernels of all devices can access: each has a shadow of it at the
//! same address. The program's memory is what the devices have in common: it gets what one
//! changed after the program found that work complete, and another one gets that before
//! its next work.

use paragpu_abi::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE};
use paragpu_protocol::status::Status;

use super::{Backing, HostMemory, whole_pages};
use crate::error::Result;

impl HostMemory {
    /// Zeroed memory that other sessions can [`share`](Self::share).
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub fn allocate_for_all(&self, size: u64) -> Result<u64> {
        self.link.check()?;
        let pinned = self.shadow_allocate(
            size,
            whole_pages(size)?,
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP,
        )?;
        let address = pinned.address;
        self.pinned.write().insert(address, pinned);
        Ok(address)
    }

    /// Gives this session's device a shadow of memory that `owner` allocated for all, until
    /// [`forsake`](Self::forsake). Kernels may know its address from anywhere.
    ///
    /// # Errors
    /// `INVALID_VALUE` if none starts at `address`; as [`adopt`](Self::adopt).
    pub fn share(&self, owner: &Self, address: u64) -> Result<()> {
        let found = owner.find(address).filter(|found| found.address == address);
        let Some(Backing::Shadow(theirs, _)) = found.map(|found| found.backing) else {
            return Err(Status::INVALID_VALUE);
        };
        self.adopt(theirs.memory(), address)?;
        let own = self.shadows.find(address, 1).ok_or(Status::UNKNOWN)?;
        own.show();
        Ok(())
    }
}
