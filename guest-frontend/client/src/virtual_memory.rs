//! Virtual memory management: reserved addresses, and memory that the program maps there
//! (CUDA Driver API, Virtual Memory Management).
//!
//! Reservations and handles exist only in the guest. Memory is created at an address of the
//! session's arena. The host maps it at the program's address as soon as the device or the
//! program gets access there. Memory with a location in the host is device memory, too; the
//! program accesses it through a view ([`crate::host_view`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use paragpu_protocol::handle::{AliasAddress, DeviceAddress};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{MemAlias, MemAliasEnd};
use parking_lot::Mutex;

use crate::connection::Link;
use crate::error::Result;
use crate::host_view::HostViews;
use crate::managed_home;
use crate::memory::DeviceMemory;
use crate::objects::graph_memory::GraphMemory;
use crate::shared_memory::{Kind, SharedMemory, SharedName};
use crate::virtual_space::{Access, Change, VirtualSpace};

pub use crate::host_view::has_view;
pub use crate::virtual_space::{MemoryLocation, Properties, Side};

/// Sizes and addresses must be multiples of this many bytes.
pub const GRANULARITY: u64 = CHUNK;

/// The virtual memory of a session.
#[derive(Debug)]
pub struct VirtualMemory {
    link: Arc<Link>,
    memory: Arc<DeviceMemory>,
    /// Memory shared with other processes.
    shared: SharedMemory,
    /// The views through which the program accesses memory in the host.
    views: HostViews,
    /// Other devices that have access, by the address of the mapping. Locked after `space`.
    peers: Mutex<BTreeMap<u64, BTreeMap<u32, Arc<DeviceMemory>>>>,
    /// Locked until the host has received the change, because another thread may map
    /// memory at addresses that this one unmaps.
    space: Mutex<VirtualSpace>,
}

impl VirtualMemory {
    pub(crate) fn new(link: &Arc<Link>, memory: &Arc<DeviceMemory>, views: HostViews) -> Self {
        Self {
            shared: SharedMemory::new(Arc::clone(link), Arc::clone(memory)),
            link: Arc::clone(link),
            memory: Arc::clone(memory),
            views,
            peers: Mutex::default(),
            space: Mutex::default(),
        }
    }

    /// cuMemAddressReserve; at `hint` if that is free.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `OUT_OF_MEMORY`.
    pub fn reserve(&self, size: u64, alignment: u64, hint: u64) -> Result<u64> {
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if size == 0 || !size.is_multiple_of(GRANULARITY) || !aligned {
            return Err(Status::INVALID_VALUE);
        }
        let alignment = alignment.max(GRANULARITY);
        let mut space = self.space.lock();
        let address = self.memory.reserve(size, alignment, hint)?;
        space.reserved(address, size);
        Ok(address)
    }

    /// cuMemAddressFree, of a whole reservation.
    ///
    /// # Errors
    /// `INVALID_VALUE`, also if memory is mapped in it.
    pub fn unreserve(&self, address: u64, size: u64) -> Result<()> {
        let mut space = self.space.lock();
        space.unreserve(address, size)?;
        self.memory.unreserve(address, size);
        Ok(())
    }

    /// cuMemCreate. Returns the allocation's handle in this session.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `OUT_OF_MEMORY`.
    pub fn create(&self, size: u64, properties: Properties) -> Result<u64> {
        if size == 0 || !size.is_multiple_of(GRANULARITY) {
            return Err(Status::INVALID_VALUE);
        }
        let memory = self.memory.allocate(size)?;
        Ok(self.space.lock().created(memory, size, properties))
    }

    /// Adds a reference to the handle of an allocation.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn hold(&self, handle: u64) -> Result<()> {
        self.space.lock().hold(handle)
    }

    /// cuMemRelease. Frees the memory if nothing refers to it any more.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn release(&self, handle: u64) -> Result<()> {
        match self.space.lock().release(handle)? {
            Some(memory) => self.free(memory),
            None => Ok(()),
        }
    }

    /// Memory shared with other processes.
    #[must_use]
    pub fn shared(&self) -> &SharedMemory {
        &self.shared
    }

    /// Frees the memory of an allocation, or closes it if another process shared it.
    fn free(&self, memory: u64) -> Result<()> {
        match self.shared.kind(memory) {
            Some(_) => self.shared.close(memory),
            None => self.memory.free(memory),
        }
    }

    /// cuMemExportToShareableHandle. Returns the name under which another process imports
    /// it.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    pub fn offer(&self, handle: u64) -> Result<SharedName> {
        let memory = self.space.lock().memory_of(handle)?;
        self.shared.offer(memory, Kind::Allocation, 0)
    }

    /// cuMemImportFromShareableHandle. Returns the allocation's handle in this session.
    ///
    /// # Errors
    /// As [`SharedMemory::open`].
    pub fn import(&self, name: &SharedName, properties: Properties) -> Result<u64> {
        let memory = self.shared.open(name)?;
        Ok(self.space.lock().created(memory, name.length, properties))
    }

    /// cuMemRetainAllocationHandle.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing is mapped there.
    pub fn retain(&self, address: u64) -> Result<u64> {
        self.space.lock().retain(address)
    }

    /// The handle types with which the program created the allocation mapped at an address; none
    /// for one of another process. `None` if nothing is mapped there.
    #[must_use]
    pub fn handle_types(&self, address: u64) -> Option<i32> {
        let (memory, properties) = self.space.lock().mapped(address)?;
        Some(match self.shared.kind(memory) {
            Some(_) => 0,
            None => properties.handle_types,
        })
    }

    /// cuMemGetAllocationPropertiesFromHandle.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn properties(&self, handle: u64) -> Result<Properties> {
        self.space.lock().properties(handle)
    }

    /// cuMemMap. Neither side has access to the memory there yet.
    ///
    /// # Errors
    /// `INVALID_VALUE`; `NOT_SUPPORTED` for a size larger than the allocation or not a
    /// multiple of [`GRANULARITY`], and for memory in the host that is already mapped elsewhere.
    pub fn map(&self, address: u64, size: u64, handle: u64) -> Result<()> {
        self.link.check()?;
        self.space.lock().map(address, size, handle)
    }

    /// Whether [`map`](Self::map) would succeed.
    ///
    /// # Errors
    /// As for [`map`](Self::map).
    pub fn check_map(&self, address: u64, size: u64, handle: u64) -> Result<()> {
        self.link.check()?;
        self.space
            .lock()
            .mappable(address, size, handle)
            .map(|_| ())
    }

    /// Whether this is memory in the host and mapped somewhere.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn is_mapped_in_host(&self, handle: u64) -> Result<bool> {
        self.space.lock().is_mapped_in_host(handle)
    }

    /// cuMemUnmap, of whole mappings.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn unmap(&self, address: u64, size: u64) -> Result<()> {
        self.link.check()?;
        let mut space = self.space.lock();
        // The program's writes are sent to the device before the mapping ends. If that
        // fails, the mapping still ends, and the error is returned.
        let mut kept = Ok(());
        for map in space.inside(address, size)? {
            kept = kept.and(self.views.end(map));
        }
        for map in space.inside(address, size)? {
            for peer in self.peers.lock().remove(&map).unwrap_or_default().values() {
                peer.leave_taken(map);
            }
        }
        let (ends, frees) = space.unmap(address, size)?;
        for address in ends {
            self.end(address)?;
        }
        frees.into_iter().try_for_each(|memory| self.free(memory))?;
        kept
    }

    /// cuMemSetAccess of one side, for whole mappings. `access` is 0 for none, 1 for
    /// reading, 3 for reading and writing.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `OUT_OF_MEMORY`, `NOT_SUPPORTED`.
    pub fn set_access(&self, address: u64, size: u64, side: Side, access: u32) -> Result<()> {
        if !matches!(access, 0 | 1 | 3) {
            return Err(Status::INVALID_VALUE);
        }
        self.link.check()?;
        let mut space = self.space.lock();
        for change in space.changes(address, size, side, access)? {
            let Change {
                address,
                size,
                before,
                after,
                ..
            } = change;
            if after.host == 0 && before.host != 0 {
                self.views.end(address)?;
            }
            let (had, alias) = (before.on_device(), after.on_device());
            if had != 0 && had != alias {
                self.end(address)?;
                space.changed(address, Access::default());
            }
            if alias != 0 && had != alias {
                let map = |access| {
                    self.link.call(&MemAlias {
                        address: AliasAddress(address),
                        size,
                        memory: DeviceAddress(change.memory),
                        access,
                    })?;
                    self.memory.add_map(address, size);
                    Ok(())
                };
                if let Err(status) = map(alias) {
                    if had != 0 && map(had).is_ok() {
                        // Refused: the access is as before, without a view that ended above.
                        let host = if after.host == 0 { 0 } else { before.host };
                        space.changed(address, Access { host, ..before });
                    }
                    return Err(status);
                }
                // The program's view begins below. Until then, an error leaves the mapping
                // without it.
                space.changed(address, Access { host: 0, ..after });
            }
            if after.host != 0
                && before.host == 0
                && let Err(status) = self.views.begin(address, size)
            {
                if after.device == 0 {
                    self.end(address)?;
                }
                return Err(status);
            }
            space.changed(address, after);
        }
        Ok(())
    }

    /// cuMemSetAccess of another device, for whole mappings of whole allocations. `access`
    /// is 0 for none, else 3.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`; errors of the hosts.
    pub(crate) fn set_peer_access(
        &self,
        address: u64,
        size: u64,
        (device, accessing): (u32, &Arc<DeviceMemory>),
        access: u32,
    ) -> Result<()> {
        let space = self.space.lock();
        let mut peers = self.peers.lock();
        for (address, size, memory) in space.backed(address, size)? {
            let of_map = peers.entry(address).or_default();
            match (of_map.contains_key(&device), access) {
                (false, 3) => {
                    accessing.take(&self.link, memory, address, size)?;
                    of_map.insert(device, Arc::clone(accessing));
                }
                (true, 0) => {
                    of_map.remove(&device);
                    accessing.leave_taken(address);
                }
                (_, 0 | 3) => {}
                _ => return Err(Status::NOT_SUPPORTED),
            }
        }
        Ok(())
    }

    /// The access of another device at an address.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing is mapped there.
    pub fn peer_access(&self, address: u64, device: u32) -> Result<u32> {
        let start = self.space.lock().start(address)?;
        let peers = self.peers.lock();
        let has = peers.get(&start).is_some_and(|of| of.contains_key(&device));
        Ok(if has { 3 } else { 0 })
    }

    /// Whether the program has access to memory in the host at an address.
    #[must_use]
    pub fn has_view(&self, address: u64) -> bool {
        self.views.find(address).is_some()
    }

    /// cuMemGetAccess.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing is mapped there.
    pub fn access(&self, address: u64, side: Side) -> Result<u32> {
        self.space
            .lock()
            .access(address)
            .map(|access| access.of(side))
    }

    /// The location of the memory of each mapping in a range.
    ///
    /// # Errors
    /// `INVALID_VALUE` if part of the range is not mapped.
    pub fn locations(&self, address: u64, size: u64) -> Result<Vec<MemoryLocation>> {
        self.space.lock().locations(address, size)
    }

    /// Frees all of the session's allocations (cuDevicePrimaryCtxReset) except those of this
    /// module, of graphs, of other devices' managed memory, and those at `others`.
    ///
    /// # Errors
    /// Errors of earlier work.
    pub fn clear_others(&self, others: impl IntoIterator<Item = u64>) -> Result<()> {
        let space = self.space.lock();
        let kept = space.memory().chain(GraphMemory::addresses());
        let kept = kept.chain(managed_home::addresses()).chain(others);
        self.memory.clear(&kept.collect())
    }

    /// Has the host unmap memory from an address.
    fn end(&self, address: u64) -> Result<()> {
        self.memory.remove_map(address);
        self.link
            .post(&MemAliasEnd {
                address: AliasAddress(address),
            })
            .map(drop)
    }
}
