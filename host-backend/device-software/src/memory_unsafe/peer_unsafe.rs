//! Memory of other devices, at the addresses that it has there.
//!
//! Its ranges are kept with registered host memory: kernels reach both, and writes are
//! recorded for neither.

use std::os::fd::{AsRawFd as _, OwnedFd};

use paragpu_protocol::layout::{CHUNK, Regions};

use super::{Memory, MemoryError, map_fixed, pointer_mut, shared};

impl Memory {
    /// Whether a range consists of chunks of the arena of another device.
    fn is_of_peer(&self, address: u64, size: u64) -> bool {
        let chunks = size > 0 && (address | size).is_multiple_of(CHUNK);
        let arena = Regions::arena_of(address, size);
        chunks && arena.is_some_and(|arena| arena != self.base)
    }

    /// Whether no memory of another device is in the range, ended or not.
    #[must_use]
    pub fn is_free_of_peers(&self, address: u64, size: u64) -> bool {
        let end = address.saturating_add(size);
        let host = self.host.read();
        host.iter()
            .all(|&(start, stop)| end <= start || stop <= address)
    }

    /// Maps shared memory of another device at its addresses there.
    ///
    /// # Errors
    /// [`MemoryError::Range`], [`MemoryError::Descriptor`].
    pub fn map_peer(&self, address: u64, size: u64, memory: &OwnedFd) -> Result<(), MemoryError> {
        shared::check(memory, size).map_err(|error| MemoryError::Descriptor(size, error))?;
        let mut table = self.table.lock();
        if !self.is_of_peer(address, size) || !self.is_free_of_peers(address, size) {
            return Err(MemoryError::Range(address, size));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
        map_fixed(address, size, access, flags, memory.as_raw_fd())
            .map_err(|error| MemoryError::Descriptor(size, error))?;
        // It is free, as found above.
        self.add_host(address, address + size);
        table.peers.insert(address, size);
        Ok(())
    }

    /// Unmaps memory of another device that no work uses any more.
    pub(super) fn release_peer(&self, address: u64, size: u64) {
        let mut host = self.host.write();
        host.retain(|(start, _)| *start != address);
        // SAFETY: `map_peer` mapped the range, and the list no longer has it: no checked
        // access reaches it.
        unsafe { libc::munmap(pointer_mut(address as usize), size as usize) };
    }
}
