//! Virtual memory management: addresses that the program reserves, and memory that it
//! maps there (CUDA Driver API, Virtual Memory Management).
//!
//! Reservations and handles exist only in the guest. Memory is created at an address of
//! the session; the host maps it at the program's address once a device or the program
//! has access there. Memory in the host is device memory, too, of which the program has a
//! view where it has access ([`crate::host_view`]).

use std::sync::Arc;

use paragpu_protocol::handle::{AliasAddress, DeviceAddress};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{MemAlias, MemAliasEnd};
use parking_lot::Mutex;

use crate::connection::Link;
use crate::error::Result;
use crate::host_view::HostViews;
use crate::memory::DeviceMemory;
use crate::objects::graph_memory::GraphMemory;
use crate::shared_memory::{Kind, SharedMemory, SharedName};
use crate::virtual_space::{Access, Change, VirtualSpace};

pub use crate::host_view::is_seen;
pub use crate::virtual_space::{Place, Properties, Side};

/// Sizes and addresses are multiples of this.
pub const GRANULARITY: u64 = CHUNK;

/// The virtual memory of a session.
#[derive(Debug)]
pub struct VirtualMemory {
    link: Arc<Link>,
    memory: Arc<DeviceMemory>,
    /// Memory of other processes.
    shared: SharedMemory,
    /// Where the program has access to memory in the host.
    views: HostViews,
    /// Held while the host is told: what one thread unmaps another may map.
    space: Mutex<VirtualSpace>,
}

impl VirtualMemory {
    pub(crate) fn new(link: Arc<Link>, memory: Arc<DeviceMemory>, views: HostViews) -> Self {
        Self {
            shared: SharedMemory::new(Arc::clone(&link), Arc::clone(&memory)),
            link,
            memory,
            views,
            space: Mutex::default(),
        }
    }

    /// cuMemAddressReserve; at `hint` where that is free.
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
    /// `INVALID_VALUE`, also where something is mapped in it.
    pub fn unreserve(&self, address: u64, size: u64) -> Result<()> {
        let mut space = self.space.lock();
        space.unreserve(address, size)?;
        self.memory.unreserve(address, size);
        Ok(())
    }

    /// cuMemCreate: the allocation's number in this session.
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

    /// Holds an allocation once more, for a program that may come to it otherwise.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn hold(&self, handle: u64) -> Result<()> {
        self.space.lock().hold(handle)
    }

    /// cuMemRelease.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn release(&self, handle: u64) -> Result<()> {
        match self.space.lock().release(handle)? {
            Some(memory) => self.free(memory),
            None => Ok(()),
        }
    }

    /// Memory of other processes.
    #[must_use]
    pub fn shared(&self) -> &SharedMemory {
        &self.shared
    }

    /// An allocation's memory goes back to whom it is of.
    fn free(&self, memory: u64) -> Result<()> {
        match self.shared.kind(memory) {
            Some(_) => self.shared.close(memory),
            None => self.memory.free(memory),
        }
    }

    /// cuMemExportToShareableHandle: what another process imports it by.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED`.
    pub fn offer(&self, handle: u64) -> Result<SharedName> {
        let memory = self.space.lock().memory_of(handle)?;
        self.shared.offer(memory, Kind::Allocation, 0)
    }

    /// cuMemImportFromShareableHandle: the allocation's number in this session.
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
    /// `INVALID_VALUE` where nothing is mapped.
    pub fn retain(&self, address: u64) -> Result<u64> {
        self.space.lock().retain(address)
    }

    /// cuMemGetAllocationPropertiesFromHandle.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn properties(&self, handle: u64) -> Result<Properties> {
        self.space.lock().properties(handle)
    }

    /// cuMemMap; nobody may use the memory there yet.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `NOT_SUPPORTED` for more than the allocation has, and for memory
    /// in the host that is mapped already.
    pub fn map(&self, address: u64, size: u64, handle: u64) -> Result<()> {
        self.link.check()?;
        self.space.lock().map(address, size, handle)
    }

    /// Is memory in the host that is mapped somewhere?
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn is_mapped_in_host(&self, handle: u64) -> Result<bool> {
        self.space.lock().is_mapped_in_host(handle)
    }

    /// cuMemUnmap, of whole maps.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn unmap(&self, address: u64, size: u64) -> Result<()> {
        self.link.check()?;
        let mut space = self.space.lock();
        // What the program wrote goes to the device before the map does. The maps end
        // whatever comes of that.
        let mut kept = Ok(());
        for map in space.inside(address, size)? {
            kept = kept.and(self.views.end(map));
        }
        let (ends, frees) = space.unmap(address, size)?;
        for address in ends {
            self.end(address)?;
        }
        frees.into_iter().try_for_each(|memory| self.free(memory))?;
        kept
    }

    /// cuMemSetAccess of a device or the program, of whole maps: 0 for none, 1 to read,
    /// 3 to read and write.
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
                self.link.call(&MemAlias {
                    address: AliasAddress(address),
                    size,
                    memory: DeviceAddress(change.memory),
                    access: alias,
                })?;
                self.memory.add_map(address, size);
                // The program has no view yet.
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

    /// Does an address lie where the program itself has access?
    #[must_use]
    pub fn is_seen(&self, address: u64) -> bool {
        self.views.find(address).is_some()
    }

    /// cuMemGetAccess.
    ///
    /// # Errors
    /// `INVALID_VALUE` where nothing is mapped.
    pub fn access(&self, address: u64, side: Side) -> Result<u32> {
        self.space
            .lock()
            .access(address)
            .map(|access| access.of(side))
    }

    /// Where the memory lies that is mapped in a range, map by map.
    ///
    /// # Errors
    /// `INVALID_VALUE` where something is not mapped.
    pub fn places(&self, address: u64, size: u64) -> Result<Vec<Place>> {
        self.space.lock().places(address, size)
    }

    /// Ends every allocation that is none of these and no graph's
    /// (cuDevicePrimaryCtxReset).
    ///
    /// # Errors
    /// Of work that failed.
    pub fn clear_others(&self) -> Result<()> {
        let space = self.space.lock();
        let kept = space.memory().chain(GraphMemory::addresses());
        self.memory.clear(&kept.collect())
    }

    /// The memory is at the address no longer.
    fn end(&self, address: u64) -> Result<()> {
        self.memory.remove_map(address);
        self.link
            .post(&MemAliasEnd {
                address: AliasAddress(address),
            })
            .map(drop)
    }
}
