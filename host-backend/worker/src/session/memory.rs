//! The session's device memory.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_device::Access;
use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::MemGetInfo;
use paragpu_protocol::types::MemoryInfo;

use super::fences::Fence;
use super::gpu::Gpu;
use super::link::Link;
use crate::aliases::Aliases;
use crate::arena::{Arena, Plan, Refused};
use crate::error::{Fault, Outcome, fail};
use crate::statistics::Statistics;
use paragpu_control::account::{Divider, Share};
use paragpu_control::exchange::MAX_OFFERS;

/// How long the VM's other sessions may take to unmap memory that one of them freed. A program
/// posts the ends of both mappings, so one session may free memory, and allocate again, before
/// another one has left it.
const LEAVING: Duration = Duration::from_secs(1);
/// Maximum bytes of freed device memory that stay mapped for reuse.
const IDLE_MEMORY: u64 = 1 << 30;

/// The mapped ranges of the arena, and the bytes charged to its limit.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    arena: Arena<Fence>,
    aliases: Aliases,
    /// Memory of other devices, at its addresses there. It is charged to their sessions, by
    /// the daemon if they have freed it.
    peers: BTreeSet<u64>,
    /// When a call began to wait for others to unmap memory.
    awaiting: Option<Instant>,
    statistics: Arc<Statistics>,
}

impl DeviceMemory {
    /// An arena at `base`, with a limit of `limit` bytes (0 for none) on a device
    /// with `total` bytes. It is charged to `share`.
    pub(crate) fn new(
        base: u64,
        limit: u64,
        total: u64,
        share: Share,
        statistics: Arc<Statistics>,
    ) -> Self {
        let limit = match limit {
            0 => total,
            limit => limit.min(total),
        };
        Self {
            arena: Arena::new(base, limit, IDLE_MEMORY.min(total / 8), share),
            aliases: Aliases::default(),
            peers: BTreeSet::new(),
            awaiting: None,
            statistics,
        }
    }

    /// Asks here for a larger part of the GPU when a charge does not fit.
    pub(crate) fn set_divider(&mut self, divider: Arc<dyn Divider>) {
        self.arena.set_divider(divider);
    }

    /// The mapped ranges of the arena, the limit and what is charged to it.
    pub(crate) fn arena(&self) -> &Arena<Fence> {
        &self.arena
    }

    /// Charges device memory outside the arena.
    pub(crate) fn charge(&mut self, bytes: u64) -> Outcome<()> {
        match self.arena.charge(bytes) {
            Ok(()) => Ok(()),
            Err(refused) => self.no_room(&refused, bytes),
        }
    }

    /// Returns such a charge.
    pub(crate) fn discharge(&mut self, bytes: u64) {
        self.arena.discharge(bytes);
    }

    /// Publishes the guest's memory in the session's counters.
    pub(crate) fn count(&self) {
        self.statistics.device_memory.set(self.arena.live());
    }

    /// Stalls the call for a while if `size` more bytes would exceed a limit only because other
    /// sessions still map memory that is freed. Stalls it, too, if they would exceed the limit
    /// with freed memory that work in flight still holds. A device that computes on the host keeps that
    /// memory in host memory, where an endless kernel would hold it forever.
    pub(crate) fn admit(&mut self, gpu: &mut Gpu, size: u64) -> Outcome<()> {
        if self.arena.is_behind_others(size)
            && self.awaiting.get_or_insert_with(Instant::now).elapsed() < LEAVING
        {
            return Err(Fault::Stall);
        }
        self.awaiting = None;
        if !gpu.computes_on_host() || self.arena.live().saturating_add(size) > self.arena.limit() {
            // A GPU's driver, or the limit itself, gives a better error.
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

    /// Converts the error for a range that is not available.
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
            Err(refused) => self.no_room(&refused, size),
        }
    }

    /// The error for exceeding a limit, as on a full device.
    fn no_room<T>(&self, refused: &Refused, size: u64) -> Outcome<T> {
        fail(Status::OUT_OF_MEMORY, self.reason(refused, size))
    }

    /// Why there is no room for `size` bytes.
    fn reason(&self, refused: &Refused, size: u64) -> String {
        let share = self.arena.share();
        let limit = self.arena.limit();
        match refused {
            Refused::Full => format!(
                "{size} bytes do not fit on this GPU: its sessions have all but {} of its memory \
                 (software.memory)",
                share.free()
            ),
            Refused::Shared => {
                let free = share.free();
                format!(
                    "the sessions of this VM are together limited to {limit} bytes of device \
                     memory (limits.per_vm_memory, `memory` under [vm.NAME], or its certificate \
                     or lease): {free} are free, and {size} are needed"
                )
            }
            _ => format!(
                "the session is limited to {limit} bytes of device memory (limits.memory), and \
                 {size} more are needed"
            ),
        }
    }

    /// Why other sessions leave no room for `size` more bytes, and the limit of the VM if that is
    /// why.
    pub(crate) fn crowded(&self, size: u64) -> Option<(Option<u64>, String)> {
        let refused = self.arena.crowded(size)?;
        let of_vm = (refused == Refused::Shared).then(|| self.arena.share().limit());
        Some((of_vm, self.reason(&refused, size)))
    }

    /// Maps a range. If it is still mapped from before, returns the fence after
    /// which it may be used; the caller then calls [`count`](Self::count).
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
                self.unmap_idle(gpu, link)?;
                gpu.memory_map(address, size)?;
            }
            mapped => mapped?,
        }
        self.arena.mapped(address, size);
        Ok(())
    }

    /// Maps the first bytes of a mapping at a second address.
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

    /// Unmaps an alias once the work that may use it is complete.
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

    /// Maps memory that another worker hands over, replacing the mapping at `address`.
    /// Returns false if the device does not accept it, or nothing is handed over. Then
    /// the session maps new memory.
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
            return fail(Status::INVALID_VALUE, "the range is still mapped");
        };
        let imported = self.unmap_all(gpu, link, in_the_way).map(|()| {
            let descriptor = descriptor?;
            let imported = gpu.memory_import(address, size, descriptor);
            if let Err(error) = &imported {
                tracing::warn!(%error, address, size, "memory was handed over but must be copied");
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
        if !ranges.is_empty() {
            // The guest may not have received all data in this memory.
            link.own_lent();
        }
        for address in ranges {
            gpu.memory_unmap(address)?;
        }
        Ok(())
    }

    /// Whether an address lies in the arena, but in no mapping. Parked ranges are mappings.
    pub(crate) fn is_unmapped(&self, gpu: &Gpu, address: u64) -> bool {
        Regions::holds(gpu.regions().arena, address, 1)
            && self.arena.around(address).is_none()
            && !self.aliases.overlap(address, 1)
    }

    /// Unmaps what stays mapped for reuse.
    pub(crate) fn unmap_idle(&mut self, gpu: &mut Gpu, link: &mut Link) -> Outcome<()> {
        let idle = self.arena.take_idle();
        self.unmap_all(gpu, link, idle)
    }

    /// Frees the mapping that starts at `address`. It stays mapped for a while and may be
    /// reused once the fence is passed.
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

    /// Maps memory of another session: in the arena, or where another device has it.
    pub(crate) fn take(
        &mut self,
        gpu: &mut Gpu,
        link: &mut Link,
        [address, size]: [u64; 2],
        memory: OwnedFd,
    ) -> Outcome<()> {
        if !Regions::holds(gpu.regions().arena, address, size) {
            return self.take_of_peer(gpu, [address, size], memory);
        }
        let cleared = self.arena.clear(address, size);
        let in_the_way = self.placed(cleared, address, size)?;
        self.unmap_all(gpu, link, in_the_way)?;
        let plan = match self.aliases.overlap(address, size) {
            true => Err(Refused::Overlap),
            false => self.arena.plan_import(address, size),
        };
        let Plan::Map(surplus) = self.placed(plan, address, size)? else {
            return fail(Status::INVALID_VALUE, "the range is still mapped");
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

    /// Maps memory of another device's session at its address there.
    fn take_of_peer(
        &mut self,
        gpu: &mut Gpu,
        [address, size]: [u64; 2],
        memory: OwnedFd,
    ) -> Outcome<()> {
        if self.peers.len() >= MAX_OFFERS {
            let why = format!("the limit is {MAX_OFFERS} mappings of other devices");
            return fail(Status::OUT_OF_MEMORY, why);
        }
        gpu.peer_map(address, size, memory)?;
        self.peers.insert(address);
        Ok(())
    }

    /// Unmaps memory that other sessions share. It is not reused.
    pub(crate) fn drop_shared(
        &mut self,
        gpu: &mut Gpu,
        link: &mut Link,
        address: u64,
    ) -> Outcome<()> {
        if !self.peers.remove(&address) {
            self.arena.give_up(address);
            self.count();
        }
        self.unmap_all(gpu, link, vec![address])
    }

    /// Free and total bytes, as the guest sees them.
    pub(crate) fn mem_get_info(&self, gpu: &mut Gpu, _: &MemGetInfo) -> Outcome<MemoryInfo> {
        let device = gpu.memory_info()?;
        let limit = self.arena.limit();
        let free = device.free.saturating_add(self.arena.idle());
        Ok(MemoryInfo {
            free: free.min(self.arena.free()),
            total: device.total.min(limit),
        })
    }

    /// Removes a mapping as if it had been handed over.
    #[cfg(test)]
    pub(crate) fn give_up(&mut self, address: u64) -> bool {
        self.arena.give_up(address)
    }
}
