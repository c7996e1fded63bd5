//! Device memory (CUDA Driver API, Memory Management).

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use paragpu_protocol::handle::DeviceAddress;
use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{MemGetInfo, MemMap, MemUnmap, Memset};
use paragpu_protocol::types::MemoryInfo;

use crate::arena::{Allocation, Arena, Block};
use crate::error::Result;
use crate::graph::Fill;
use crate::session::Session;
use crate::stream::Stream;

/// What lies where on the device.
#[derive(Debug)]
pub struct Memory {
    arena: RwLock<Arena>,
    /// Variables of modules: first address to bytes.
    globals: RwLock<BTreeMap<u64, u64>>,
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    pub(crate) fn new(regions: &Regions) -> Self {
        Self {
            arena: RwLock::new(Arena::new(regions.arena)),
            globals: RwLock::new(BTreeMap::new()),
        }
    }

    pub(crate) fn add_global(&self, address: u64, size: u64) {
        write(&self.globals).insert(address, size);
    }

    pub(crate) fn remove_global(&self, address: u64) {
        write(&self.globals).remove(&address);
    }

    /// The allocation or module variable that `address` lies in: first
    /// address, bytes, and a number that no other allocation ever had (0 for
    /// variables).
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(u64, u64, u64)> {
        if let Some(Block {
            address, size, id, ..
        }) = read(&self.arena).find(address)
        {
            return Some((address, size, id));
        }
        let globals = read(&self.globals);
        let (&start, &size) = globals.range(..=address).next_back()?;
        (address - start < size).then_some((start, size, 0))
    }

    /// Refuses a range that is neither allocated nor in a module's variable.
    pub(crate) fn check(&self, address: u64, size: u64) -> Result<()> {
        if read(&self.arena).holds(address, size) {
            return Ok(());
        }
        match self.find(address) {
            Some((start, length, _)) if size <= length && address - start <= length - size => {
                Ok(())
            }
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// Bytes that the program holds.
    #[must_use]
    pub fn used(&self) -> u64 {
        read(&self.arena).used()
    }

    /// Is this a device address, as far as the guest can know?
    #[must_use]
    pub fn is_device(&self, address: u64) -> bool {
        if read(&self.arena).spans(address) {
            return true;
        }
        self.find(address).is_some()
    }
}

impl Session {
    /// What lies where on the device.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// cuMemAlloc. Blocks up to 1 MiB usually do not cross.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub fn memory_allocate(&self, size: u64) -> Result<u64> {
        if size == 0 {
            return Err(Status::INVALID_VALUE);
        }
        self.link.check()?;
        let mut arena = write(&self.memory.arena);
        let unmap = arena.reclaim(self.progress.complete());
        self.unmap(&unmap)?;
        let mut retried = false;
        let mut settled = false;
        loop {
            match arena.allocate(size) {
                Allocation::Ready(address) => return Ok(address),
                Allocation::Full => return Err(Status::OUT_OF_MEMORY),
                Allocation::Map {
                    address,
                    size: range,
                } => {
                    if !settled && arena.has_quarantine() {
                        arena.not_mapped(address, range);
                        settled = true;
                        self.settle();
                        let unmap = arena.reclaim(self.progress.complete());
                        self.unmap(&unmap)?;
                        continue;
                    }
                    let mapped = self.link.call(&MemMap {
                        address: DeviceAddress(address),
                        size: range,
                    });
                    match mapped {
                        Ok(()) => return Ok(arena.mapped(address, size)),
                        Err(status) => {
                            arena.not_mapped(address, range);
                            if status != Status::OUT_OF_MEMORY || retried {
                                return Err(status);
                            }
                        }
                    }
                    // What was freed may be enough once nothing uses it.
                    retried = true;
                    self.synchronize()?;
                    let mut unmap = arena.reclaim(self.progress.complete());
                    unmap.extend(arena.trim());
                    self.unmap(&unmap)?;
                }
            }
        }
    }

    /// cuMemFree. The memory is used again only when all work posted before
    /// is over.
    ///
    /// # Errors
    /// `INVALID_VALUE` where no allocation starts at `address`.
    pub fn memory_free(&self, address: u64) -> Result<()> {
        self.link.check()?;
        let mut arena = write(&self.memory.arena);
        let unmap = arena
            .free(address, self.progress.posted(), self.progress.complete())
            .ok_or(Status::INVALID_VALUE)?;
        self.unmap(&unmap)?;
        if arena.quarantine_is_large() {
            drop(arena);
            self.synchronize()?;
            let unmap = write(&self.memory.arena).reclaim(self.progress.complete());
            self.unmap(&unmap)?;
        }
        Ok(())
    }

    /// Ends every allocation (cuDevicePrimaryCtxReset).
    ///
    /// # Errors
    /// Of work that failed.
    pub fn memory_clear(&self) -> Result<()> {
        self.synchronize()?;
        let unmap = write(&self.memory.arena).clear();
        self.unmap(&unmap)
    }

    /// Waits for all work and gives memory that is not in use back to the host
    /// (cuMemPoolTrimTo).
    ///
    /// # Errors
    /// Of work that failed.
    pub fn memory_trim(&self) -> Result<()> {
        self.synchronize()?;
        let mut arena = write(&self.memory.arena);
        let mut unmap = arena.reclaim(self.progress.complete());
        unmap.extend(arena.trim());
        self.unmap(&unmap)
    }

    fn unmap(&self, ranges: &[(u64, u64)]) -> Result<()> {
        for &(address, _) in ranges {
            self.link.post(&MemUnmap {
                address: DeviceAddress(address),
            })?;
        }
        Ok(())
    }

    /// cuMemGetInfo.
    ///
    /// # Errors
    /// As [`crate::link::Link::check`].
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.link.call(&MemGetInfo {})
    }

    /// cuMemsetD8Async, D16, D32 and their 2D forms: `height` rows of `width`
    /// elements of `element` bytes (1, 2, 4).
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    #[allow(clippy::too_many_arguments)]
    pub fn memset(
        &self,
        destination: u64,
        pitch: u64,
        value: u32,
        element: u8,
        width: u64,
        height: u64,
        stream: &Stream,
    ) -> Result<()> {
        if width == 0 || height == 0 {
            return self.link.check();
        }
        let row = width
            .checked_mul(element.into())
            .ok_or(Status::INVALID_VALUE)?;
        if !destination.is_multiple_of(element.into())
            || (height > 1 && (pitch < row || !pitch.is_multiple_of(element.into())))
        {
            return Err(Status::INVALID_VALUE);
        }
        let size = (height - 1)
            .checked_mul(pitch)
            .and_then(|above| above.checked_add(row))
            .ok_or(Status::INVALID_VALUE)?;
        if stream.is_capturing() {
            let ordinal = self.ordinal;
            return self.capture_memset(
                stream,
                Fill {
                    ordinal,
                    destination,
                    pitch,
                    value,
                    element,
                    width,
                    height,
                },
            );
        }
        let destination = self.before_device_writes(destination, size)?;
        let position = self.post_work(
            stream,
            &Memset {
                destination,
                pitch,
                value,
                element,
                width,
                height,
                stream: stream.handle,
            },
        )?;
        self.device_writes(destination, size, stream, position);
        Ok(())
    }
}
