//! Device memory, and host memory that the device can reach.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::MemoryInfo;

use crate::{Error, PeerId, Result, StreamId};

/// How an alias may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Read and written.
    ReadWrite,
}

/// Memory of a device.
pub trait MemoryDevice {
    /// Gives the device's memory the addresses of `regions` instead, before anything
    /// is mapped; false if the device must be opened again for that.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` where the addresses are taken.
    fn rehome(&mut self, _regions: Regions) -> Result<bool> {
        Ok(false)
    }

    /// Backs `[address, address + size)` of the arena; both multiples of 2 MiB.
    /// The memory reads as zero if it ever belonged to another session.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `INVALID_VALUE` outside the arena or over another mapping.
    fn memory_map(&mut self, address: u64, size: u64) -> Result<()>;

    /// Takes a whole mapping away once all work given so far is over; does not wait.
    ///
    /// # Errors
    /// `INVALID_VALUE` where no mapping starts.
    fn memory_unmap(&mut self, address: u64) -> Result<()>;

    /// Lets the first `size` bytes of the mapping that starts at `memory` appear
    /// at `address` of the arena, too; both multiples of 2 MiB. It ends by
    /// [`memory_unmap`](Self::memory_unmap), before the mapping does.
    ///
    /// # Errors
    /// `INVALID_VALUE` outside the arena or over another mapping, where no
    /// mapping starts at `memory`, or one of less; `NOT_SUPPORTED`, also for a part
    /// of a mapping (NVIDIA's driver maps whole allocations).
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

    /// Names this GPU among all of its host.
    fn identity(&self) -> [u8; 16];

    /// Names the memory that this device can hand over and take: workers of one
    /// host whose devices give the same name can pass mappings to each other by
    /// [`memory_export`](Self::memory_export) and
    /// [`memory_import`](Self::memory_import). Between two that give different
    /// names [`peer_open`](Self::peer_open) may serve. `None` if it can do
    /// none of these.
    fn memory_domain(&self) -> Option<[u8; 16]> {
        None
    }

    /// A descriptor that stands for the whole mapping that starts at `address`.
    /// The mapping stays; the memory lives until the last process unmaps it.
    ///
    /// # Errors
    /// `INVALID_VALUE` where no mapping starts; `NOT_SUPPORTED` where this one
    /// cannot be handed over.
    fn memory_export(&mut self, _address: u64) -> Result<OwnedFd> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device's memory cannot be handed over",
        ))
    }

    /// [`memory_export`](Self::memory_export) for a session that continues with
    /// the memory while others use it; it may take long the first time.
    ///
    /// # Errors
    /// As there; `OUT_OF_MEMORY`.
    fn memory_share(&mut self, address: u64) -> Result<OwnedFd> {
        self.memory_export(address)
    }

    /// Backs `[address, address + size)` of the arena, as
    /// [`memory_map`](Self::memory_map) does, with the memory that a descriptor
    /// stands for, which keeps its contents. The descriptor may be anything that
    /// a peer sent.
    ///
    /// # Errors
    /// `INVALID_VALUE` outside the arena or over another mapping, or where the
    /// descriptor is not of such memory, or of less; what the driver says.
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

    /// Lets this device copy from `size` bytes of another device of this host,
    /// which [exported](Self::memory_export) them; multiples of 2 MiB. Kernels
    /// and calls of the session do not reach them. The descriptor may be
    /// anything that a peer sent.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` where this device has no peers; what the driver says of
    /// a descriptor that is not of such memory, or of a device too far away
    /// (CUDA driver API, "Peer Context Memory Access").
    fn peer_open(&mut self, _size: u64, _descriptor: OwnedFd) -> Result<PeerId> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device copies from no other",
        ))
    }

    /// Copies `size` bytes, `offset` bytes into a peer's memory, to `destination`
    /// in a stream's order. What the peer writes meanwhile may come or not.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `INVALID_VALUE` past the end of either memory.
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

    /// Gives a peer's memory up; no copy from it is under way.
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

    /// Lets the device reach `[address, address + size)` of this process at
    /// the same address; both multiples of 4096. The memory must stay mapped
    /// until it is unregistered: the worker that calls this owns the mapping.
    ///
    /// # Errors
    /// `HOST_MEMORY_ALREADY_REGISTERED`, `OUT_OF_MEMORY`, `INVALID_VALUE`.
    fn host_register(&mut self, address: u64, size: u64) -> Result<()>;

    /// Ends a whole registration; waits for work that may use it.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED`.
    fn host_unregister(&mut self, address: u64) -> Result<()>;

    /// Notes from now on what is written to mapped memory and to variables of
    /// modules, for [`writes`](Self::writes), or ends that. Where it begins,
    /// what was written earlier is visible to readers after it returns.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` where the device cannot tell exactly: contents are
    /// compared by hash then.
    fn watch_writes(&mut self, _on: bool) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device does not note what is written",
        ))
    }

    /// Appends to `written` the ranges, address and bytes, ascending and apart,
    /// of `[address, address + size)` that may have been written or mapped
    /// since they were forgotten last, or since the watch began; `forget`
    /// forgets them. A byte that is not named holds what it held: a copy of it
    /// that was begun after it was forgotten is still true. Work that runs
    /// meanwhile is named now or by the next call, never by neither.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` where nothing is watched.
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

    /// Where this process itself may read and write `size` bytes of device
    /// memory at `address`, as if that were the next work of `stream`: on
    /// devices whose memory is this process's, while all that such work would
    /// wait for is over. Until then, and elsewhere, `None`: the device copies.
    /// The caller reports its writes with [`host_wrote`](Self::host_wrote); the
    /// place is there until the memory is unmapped.
    fn host_access(&mut self, _address: u64, _size: u64, _stream: StreamId) -> Option<NonNull<u8>> {
        None
    }

    /// `size` bytes at `address` were written by way of
    /// [`host_access`](Self::host_access).
    fn host_wrote(&mut self, _address: u64, _size: u64) {}

    /// Writes the BLAKE3 of each of `ranges` (address and bytes, at most
    /// 2 MiB, of memory that the device reaches), 32 bytes each, one after
    /// another to `out`, which the device reaches too, when `stream` gets
    /// there. Every device gives the same hash for the same bytes, so that
    /// two ends of a migration can compare.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` where the device has no way that is faster than
    /// copying the bytes out; `INVALID_VALUE` where a range is not wholly
    /// reachable.
    fn hash(&mut self, _ranges: &[(u64, u64)], _out: u64, _stream: StreamId) -> Result<()> {
        Err(Error::new(
            Status::NOT_SUPPORTED,
            "this device does not hash its memory",
        ))
    }
}
