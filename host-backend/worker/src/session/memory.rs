//! The session's device memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use paragpu_device::Access;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::MemoryInfo;

use super::gpu::{Fence, Gpu};
use super::link::Link;
use crate::aliases::Aliases;
use crate::arena::{Arena, Plan, Refused};
use crate::error::{Fault, Outcome, fail};
use crate::statistics::Statistics;
use paragpu_control::account::Share;

/// Maximum number of bytes of device memory that stay mapped though the guest freed them.
const IDLE_MEMORY: u64 = 1 << 30;

/// The mapped ranges of the arena, and the bytes that count for its limit.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    arena: Arena<Fence>,
    aliases: Aliases,
    statistics: Arc<Statistics>,
}

impl DeviceMemory {
    /// Mappings from `base` on, of at most `limit` bytes (0 for all there is) on
    /// a device of `total`.
    pub(crate) fn new(base: u64, limit: u64, total: u64, statistics: Arc<Statistics>) -> Self {
        let limit = match limit {
            0 => total,
            limit => limit.min(total),
        };
        Self {
            arena: Arena::new(base, limit, IDLE_MEMORY.min(total / 8)),
            aliases: Aliases::default(),
            statistics,
        }
    }

    /// Memory mapped from now on counts for the session's VM.
    pub(crate) fn count_for(&mut self, share: Share) {
        self.arena.count_for(share);
    }

    /// The part in the VM's account.
    pub(crate) fn share(&self) -> &Share {
        self.arena.share()
    }

    /// Maximum number of bytes that the guest may have.
    pub(crate) fn limit(&self) -> u64 {
        self.arena.limit()
    }

    /// Bytes that the guest has.
    pub(crate) fn live(&self) -> u64 {
        self.arena.live()
    }

    /// Which mapping starts at `address`: another number is other memory.
    pub(crate) fn mapping(&self, address: u64) -> Option<u64> {
        self.arena.mapping(address)
    }

    /// Does a mapping of the guest's start at `address`?
    pub(crate) fn is_live(&self, address: u64) -> bool {
        self.arena.is_live(address)
    }

    /// Counts memory of the device that lies elsewhere.
    pub(crate) fn charge(&mut self, bytes: u64) -> Outcome<()> {
        match self.arena.charge(bytes) {
            Ok(()) => Ok(()),
            Err(refused) => self.no_room(&refused),
        }
    }

    /// Counts it no longer.
    pub(crate) fn discharge(&mut self, bytes: u64) {
        self.arena.discharge(bytes);
    }

    /// Tells who looks at the session from outside how much the guest has.
    pub(crate) fn count(&self) {
        self.statistics.device_memory.set(self.arena.live());
    }

    /// Would so many bytes more pass the limit together with what the guest gave up and
    /// work in flight still holds? A device that computes on the host keeps that in the
    /// host's memory, where an endless kernel would keep it for good. A stall, then.
    pub(crate) fn admit(&self, gpu: &mut Gpu, size: u64) -> Outcome<()> {
        if !gpu.computes_on_host() || self.arena.live().saturating_add(size) > self.arena.limit() {
            // A GPU's driver, or the limit itself, says more.
            return Ok(());
        }
        let device = gpu.memory_info()?;
        let used = device.total.saturating_sub(device.free);
        let held = used.saturating_sub(self.arena.idle());
        let passes = held.saturating_add(size) > self.arena.limit();
        match passes && !gpu.context_query()? {
            true => Err(Fault::Stall),
            false => Ok(()),
        }
    }

    fn plan(&mut self, address: u64, size: u64) -> Outcome<Plan<Fence>> {
        let plan = match self.aliases.overlap(address, size) {
            true => Err(Refused::Overlap),
            false => self.arena.plan(address, size),
        };
        self.placed(plan, address, size)
    }

    /// The error for a range that is not available.
    fn placed<T>(&self, result: Result<T, Refused>, address: u64, size: u64) -> Outcome<T> {
        match result {
            Ok(placed) => Ok(placed),
            Err(Refused::Place) => fail(
                Status::INVALID_VALUE,
                format!("{size} bytes at {address:#x} are not chunks of the arena"),
            ),
            Err(Refused::Overlap) => fail(
                Status::INVALID_VALUE,
                format!("{size} bytes at {address:#x} overlap another mapping"),
            ),
            Err(refused) => self.no_room(&refused),
        }
    }

    /// Past a limit, as on a full device.
    fn no_room<T>(&self, refused: &Refused) -> Outcome<T> {
        let limit = self.arena.limit();
        let who = match refused {
            Refused::Shared => "the sessions of this VM may together have",
            _ => "the session may have",
        };
        fail(
            Status::OUT_OF_MEMORY,
            format!("{who} {limit} bytes of device memory"),
        )
    }

    /// Maps a range. If it is mapped already, the fence after which it may
    /// be used; the caller [counts](Self::count) then.
    pub(crate) fn map(
        &mut self,
        gpu: &mut Gpu,
        link: &mut Link,
        address: u64,
        size: u64,
    ) -> Outcome<Option<Fence>> {
        match self.plan(address, size)? {
            Plan::Reuse(fence) => Ok(Some(fence)),
            Plan::Map(in_the_way) => {
                let mapped = self
                    .unmap_all(gpu, link, in_the_way)
                    .and_then(|()| self.map_now(gpu, link, address, size));
                if mapped.is_err() {
                    self.arena.abandon_plan();
                }
                mapped.map(|()| None)
            }
        }
    }

    fn map_now(&mut self, gpu: &mut Gpu, link: &mut Link, address: u64, size: u64) -> Outcome<()> {
        match gpu.memory_map(address, size) {
            Err(error) if error.status == Status::OUT_OF_MEMORY && self.arena.idle() > 0 => {
                let idle = self.arena.take_idle();
                self.unmap_all(gpu, link, idle)?;
                gpu.memory_map(address, size)?;
            }
            mapped => mapped?,
        }
        self.arena.mapped(address, size);
        Ok(())
    }

    /// Lets the first bytes of a mapping appear at a second address.
    pub(crate) fn alias(
        &mut self,
        gpu: &mut Gpu,
        link: &mut Link,
        [address, size, memory]: [u64; 3],
        access: Access,
    ) -> Outcome<()> {
        if self.arena.size(memory).is_none_or(|there| there < size) {
            return fail(
                Status::INVALID_VALUE,
                format!("no mapping of {size} bytes starts at {memory:#x}"),
            );
        }
        let cleared = match self.aliases.overlap(address, size) {
            true => Err(Refused::Overlap),
            false => self.arena.clear(address, size),
        };
        let in_the_way = self.placed(cleared, address, size)?;
        self.unmap_all(gpu, link, in_the_way)?;
        gpu.memory_alias(address, size, memory, access)?;
        self.aliases.insert(address, size, memory);
        Ok(())
    }

    /// Ends an alias once the work that may use it is over.
    pub(crate) fn end_alias(
        &mut self,
        gpu: &mut Gpu,
        link: &mut Link,
        address: u64,
    ) -> Outcome<()> {
        if !self.aliases.remove(address) {
            return fail(
                Status::INVALID_VALUE,
                format!("no alias starts at {address:#x}"),
            );
        }
        self.unmap_all(gpu, link, vec![address])
    }

    /// The aliases of the mapping that starts at `memory`.
    pub(crate) fn aliases_of(&self, memory: u64) -> Vec<u64> {
        self.aliases.of(memory)
    }

    /// Maps memory that another worker hands over, in the place of what is
    /// mapped at `address`. If the device does not take it, or nothing is
    /// handed over, memory of its own is mapped: false.
    pub(crate) fn import(
        &mut self,
        gpu: &mut Gpu,
        link: &mut Link,
        address: u64,
        size: u64,
        descriptor: Option<OwnedFd>,
    ) -> Outcome<bool> {
        if self.arena.give_up(address) {
            self.unmap_all(gpu, link, vec![address])?;
        }
        let Plan::Map(in_the_way) = self.plan(address, size)? else {
            return fail(Status::INVALID_VALUE, "memory that was just given up");
        };
        let imported = self.unmap_all(gpu, link, in_the_way).map(|()| {
            let descriptor = descriptor?;
            let imported = gpu.memory_import(address, size, descriptor);
            if let Err(error) = &imported {
                tracing::warn!(%error, address, size, "memory is copied that was handed over");
            }
            imported.ok()
        });
        let mapped = imported.and_then(|imported| match imported {
            Some(()) => {
                self.arena.mapped(address, size);
                Ok(true)
            }
            None => self.map_now(gpu, link, address, size).map(|()| false),
        });
        if mapped.is_err() {
            self.arena.abandon_plan();
        }
        self.count();
        mapped
    }

    fn unmap_all(&mut self, gpu: &mut Gpu, link: &mut Link, ranges: Vec<u64>) -> Outcome<()> {
        for fence in self.arena.take_dropped() {
            fence.abandon(gpu);
        }
        if !ranges.is_empty() {
            // The guest may still lack what frames name of this memory.
            link.own_lent();
        }
        for address in ranges {
            gpu.memory_unmap(address)?;
        }
        Ok(())
    }

    /// Takes the mapping that starts at `address` away; it stays mapped for a
    /// while, and may be used again once the fence is passed.
    pub(crate) fn unmap(
        &mut self,
        gpu: &mut Gpu,
        link: &mut Link,
        address: u64,
        fence: Fence,
    ) -> Outcome<()> {
        let surplus = self.arena.unmap(address, fence).unwrap_or_default();
        self.count();
        self.unmap_all(gpu, link, surplus)
    }

    /// First address and bytes of the guest's mapping around an address.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, u64)> {
        self.arena.around(address)
    }

    /// Maps memory of another session.
    pub(crate) fn take(
        &mut self,
        gpu: &mut Gpu,
        link: &mut Link,
        [address, size]: [u64; 2],
        memory: OwnedFd,
    ) -> Outcome<()> {
        let cleared = self.arena.clear(address, size);
        let in_the_way = self.placed(cleared, address, size)?;
        self.unmap_all(gpu, link, in_the_way)?;
        let Plan::Map(surplus) = self.plan(address, size)? else {
            return fail(Status::INVALID_VALUE, "memory that was just given up");
        };
        let taken = self
            .unmap_all(gpu, link, surplus)
            .and_then(|()| Ok(gpu.memory_import(address, size, memory)?));
        match taken {
            Ok(()) => self.arena.mapped(address, size),
            Err(_) => self.arena.abandon_plan(),
        }
        self.count();
        taken
    }

    /// Takes a mapping away that others have, too: it is not used again.
    pub(crate) fn drop_shared(
        &mut self,
        gpu: &mut Gpu,
        link: &mut Link,
        address: u64,
    ) -> Outcome<()> {
        self.arena.give_up(address);
        self.count();
        self.unmap_all(gpu, link, vec![address])
    }

    /// Free and total bytes, as the guest sees them.
    pub(crate) fn info(&self, gpu: &mut Gpu) -> Outcome<MemoryInfo> {
        let device = gpu.memory_info()?;
        let limit = self.arena.limit();
        let free = device.free.saturating_add(self.arena.idle());
        Ok(MemoryInfo {
            free: free.min(self.arena.free()),
            total: device.total.min(limit),
        })
    }

    /// As if the mapping had been handed to somebody else.
    #[cfg(test)]
    pub(crate) fn give_up(&mut self, address: u64) -> bool {
        self.arena.give_up(address)
    }
}
