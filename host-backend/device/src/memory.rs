//! Device memory, and host memory that the device can access.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::MemoryInfo;

use crate::{Error, PeerId, Result, StreamId};

/// The permissions of an alias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads only.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// The export of a mapping, for any thread.
pub type Export = Box<dyn FnOnce() -> Result<OwnedFd> + Send>;

/// Memory of a device.
pub trait MemoryDevice {
    /// Changes the device's address ranges to `regions`, before anything is mapped. Returns
    /// false if the device must be reopened for that.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if the addresses are in use.
    fn rehome(&mut self, _regions: Regions) -> Result<bool> {
        Ok(false)
    }

    /// Backs `[address, address + size)` of the arena with memory; both are multiples of
    /// 2 MiB. Memory that belonged to another session is zeroed.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `INVALID_VALUE` outside the arena or over another mapping.
    fn memory_map(&mut self, address: u64, size: u64) -> Result<()>;

    /// Removes a whole mapping once all work submitted so far is complete. Does not wait.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no mapping starts there.
    fn memory_unmap(&mut self, address: u64) -> Result<()>;

    /// Maps the first `size` bytes of the mapping at `memory` a second time, at `address` of
    /// the arena; both are multiples of 2 MiB. [`memory_unmap`](Self::memory_unmap) removes
    /// the alias, which must happen before the mapping is removed.
    ///
    /// # Errors
    /// `INVALID_VALUE` outside the arena, over another mapping, or if no mapping of that
    /// size starts at `memory`; `NOT_SUPPORTED`, also for a part of a mapping (NVIDIA's
    /// driver maps whole allocations).
    fn memory_alias(
        &mut self,
        _address: u64,
        _size: u64,
        _memory: u64,
        _access: Access,
    ) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device maps memory once",
        ))
    }

    /// Identifies this GPU among those of its host.
    fn identity(&self) -> [u8; 16];

    /// Identifies the memory that this device can export and import. Workers of one host
    /// whose devices return the same value can pass mappings to each other with
    /// [`memory_export`](Self::memory_export) and
    /// [`memory_import`](Self::memory_import). Between different values
    /// [`peer_open`](Self::peer_open) may work. `None` if the device supports none of these.
    fn memory_domain(&self) -> Option<[u8; 16]> {
        None
    }

    /// Exports the whole mapping at `address` as a descriptor. The mapping stays, and the
    /// memory lives until the last process unmaps it.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no mapping starts there; `NOT_SUPPORTED` if it cannot be exported.
    fn memory_export(&mut self, _address: u64) -> Result<OwnedFd> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device's memory cannot be handed over",
        ))
    }

    /// Prepares [`memory_export`](Self::memory_export) for another thread, on which it may take
    /// its time. The memory lives until then, even if it is unmapped.
    ///
    /// # Errors
    /// Those of `memory_export`, some of which may only come from the [`Export`].
    fn memory_exporter(&mut self, address: u64) -> Result<Export> {
        let exported = self.memory_export(address)?;
        Ok(Box::new(|| Ok(exported)))
    }

    /// As [`memory_export`](Self::memory_export), for a session that keeps using the memory
    /// together with others. The first export of a mapping may be slow.
    ///
    /// # Errors
    /// Those of `memory_export`; `OUT_OF_MEMORY`.
    fn memory_share(&mut self, address: u64) -> Result<OwnedFd> {
        self.memory_export(address)
    }

    /// Backs `[address, address + size)` of the arena with the memory behind a descriptor,
    /// which keeps its contents. The descriptor is untrusted: a peer sent it.
    ///
    /// # Errors
    /// `INVALID_VALUE` outside the arena, over another mapping, or if the descriptor is not
    /// such memory of that size; errors of the driver.
    fn memory_import(&mut self, _address: u64, _size: u64, _descriptor: OwnedFd) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device cannot use memory of others",
        ))
    }

    /// CU_DEVICE_P2P_ATTRIBUTE_* 1 to 5 (CUDA Driver API, Peer Context Memory Access) for
    /// access of this device to the one with this [name](Self::identity). The second says
    /// whether there is access. All are 0 for a device that this host does not have, and
    /// for this device.
    fn peer_attributes(&self, _peer: [u8; 16]) -> [i32; 5] {
        [0; 5]
    }

    /// Backs `[address, address + size)` of the arena of another device (multiples of
    /// 2 MiB) with memory that the device [exported](Self::memory_export): kernels and
    /// copies reach it at the address that it has there. It ends by
    /// [`memory_unmap`](Self::memory_unmap). The descriptor may be anything that a peer
    /// sent.
    ///
    /// # Errors
    /// `INVALID_VALUE` outside the other arenas or over another mapping, or where the
    /// descriptor is not of such memory; `NOT_SUPPORTED`; what the driver says of a device
    /// without access.
    fn peer_map(&mut self, _address: u64, _size: u64, _descriptor: OwnedFd) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device does not reach memory of others",
        ))
    }

    /// Opens `size` bytes that another device of this host
    /// [exported](Self::memory_export), a multiple of 2 MiB, for copies by this device.
    /// Kernels and calls of the session cannot access them. The descriptor is untrusted: a
    /// peer sent it.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if this device has no peers; the driver's error for a descriptor that
    /// is not such memory, or belongs to a device that is no peer (CUDA driver API, "Peer
    /// Context Memory Access").
    fn peer_open(&mut self, _size: u64, _descriptor: OwnedFd) -> Result<PeerId> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device copies from no other",
        ))
    }

    /// Copies `size` bytes at `offset` of a peer's memory to `destination`, in stream order.
    /// Concurrent writes of the peer may or may not be included.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` beyond the end of either memory.
    fn peer_copy(
        &mut self,
        _destination: u64,
        _peer: PeerId,
        _offset: u64,
        _size: u64,
        _stream: StreamId,
    ) -> Result<()> {
        Err(Status::INVALID_HANDLE.into())
    }

    /// Closes a peer's memory, from which no copy is in flight.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn peer_close(&mut self, _peer: PeerId) -> Result<()> {
        Err(Status::INVALID_HANDLE.into())
    }

    /// Free and total bytes.
    ///
    /// # Errors
    /// Errors of the driver.
    fn memory_info(&mut self) -> Result<MemoryInfo>;

    /// Registers `[address, address + size)` of this process, so that the device can access
    /// it at the same address; both are multiples of 4096. The caller owns the mapping and
    /// keeps it until it is unregistered.
    ///
    /// # Errors
    /// `HOST_MEMORY_ALREADY_REGISTERED`, `OUT_OF_MEMORY`, `INVALID_VALUE`.
    fn host_register(&mut self, address: u64, size: u64) -> Result<()>;

    /// Ends a whole registration. Waits for work that may use it.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED`.
    fn host_unregister(&mut self, address: u64) -> Result<()>;

    /// Starts or stops dirty tracking of mapped memory and module variables, for
    /// [`writes`](Self::writes). Earlier writes are visible to readers once it has started.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if the device cannot track writes exactly. Contents are then compared
    /// by hash.
    fn watch_writes(&mut self, _on: bool) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device does not note what is written",
        ))
    }

    /// Appends to `written` the dirty ranges of `[address, address + size)`: address and
    /// bytes, ascending and disjoint, that may have been written or mapped since tracking
    /// began or since they were last cleared. `forget` clears them. Bytes outside are
    /// unchanged: a copy that began after they were cleared is still valid. Writes by
    /// running work are reported by this call or by the next, and never missed by both.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if dirty tracking is off.
    fn writes(
        &mut self,
        _address: u64,
        _size: u64,
        _forget: bool,
        _written: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device does not note what is written",
        ))
    }

    /// A pointer through which this process may access `size` bytes of device memory at
    /// `address` directly, as if the access were the next work of `stream`. Only devices
    /// whose memory belongs to this process return it, and only if all work before it is
    /// complete; otherwise `None`, and the device must copy. The caller reports its writes
    /// with [`host_wrote`](Self::host_wrote). The pointer is valid until the memory is
    /// unmapped.
    fn host_access(&mut self, _address: u64, _size: u64, _stream: StreamId) -> Option<NonNull<u8>> {
        None
    }

    /// Reports that `size` bytes at `address` were written through
    /// [`host_access`](Self::host_access).
    fn host_wrote(&mut self, _address: u64, _size: u64) {}

    /// Hashes each of `ranges` (address and bytes, at most 2 MiB each) with BLAKE3, in stream
    /// order, and writes the hashes of 32 bytes one after another to `out`. The device can
    /// access all of them. Every device computes the same hash for the same bytes, so that
    /// the two ends of a migration can compare.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if hashing on the device is not faster than copying the bytes out;
    /// `INVALID_VALUE` if a range is not completely accessible.
    fn hash(&mut self, _ranges: &[(u64, u64)], _out: u64, _stream: StreamId) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device does not hash its memory",
        ))
    }
}
