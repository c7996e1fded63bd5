//! Device memory and pinned memory of the window.

use std::os::fd::OwnedFd;

use paragpu_protocol::handle::ShadowAddress;
use paragpu_protocol::layout::{BULK_TOKEN_BYTES, DEVICE_STRIDE};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{HostMap, HostUnmap, MemMap, MemUnmap, ShadowDestroy};
use paragpu_protocol::types::MemoryInfo;

use crate::answer::Progress;
use crate::arena::{Plan, Refused};
use crate::completion::{Goal, Then};
use crate::error::{Outcome, fail};
use crate::events::Fence;
use crate::pinned::Pinned;
use crate::session::Session;

/// Unit of registered host memory.
pub(crate) const PAGE: u64 = 4096;

impl Session {
    fn plan(&mut self, address: u64, size: u64) -> Outcome<Plan<Fence>> {
        match self.arena.plan(address, size) {
            Ok(plan) => Ok(plan),
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

    pub(crate) fn mem_map(&mut self, call: &MemMap) -> Outcome<Progress> {
        let (address, size) = (call.address.0, call.size);
        let progress = match self.plan(address, size)? {
            Plan::Reuse(fence) => self.after(fence, Then::Reply)?,
            Plan::Map(in_the_way) => {
                self.map(in_the_way, address, size)?;
                Progress::Now
            }
        };
        self.statistics.device_memory.set(self.arena.live());
        Ok(progress)
    }

    /// Past a limit, as on a full device.
    pub(crate) fn no_room<T>(&self, refused: &Refused) -> Outcome<T> {
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

    fn map(&mut self, in_the_way: Vec<u64>, address: u64, size: u64) -> Outcome<()> {
        let mapped = self
            .unmap_all(in_the_way)
            .and_then(|()| self.map_now(address, size));
        if mapped.is_err() {
            self.arena.abandon_plan();
        }
        mapped
    }

    fn map_now(&mut self, address: u64, size: u64) -> Outcome<()> {
        match self.device.memory_map(address, size) {
            Err(error) if error.status == Status::OUT_OF_MEMORY && self.arena.idle() > 0 => {
                let idle = self.arena.take_idle();
                self.unmap_all(idle)?;
                self.device.memory_map(address, size)?;
            }
            mapped => mapped?,
        }
        self.arena.mapped(address, size);
        Ok(())
    }

    /// Maps memory that another worker hands over, in the place of what is
    /// mapped at `address`. Where the device does not take it, or nothing is
    /// handed over, memory of its own is mapped: false.
    pub(crate) fn mem_import(
        &mut self,
        address: u64,
        size: u64,
        descriptor: Option<OwnedFd>,
    ) -> Outcome<bool> {
        if self.arena.give_up(address) {
            self.unmap_all(vec![address])?;
        }
        let Plan::Map(in_the_way) = self.plan(address, size)? else {
            return fail(Status::INVALID_VALUE, "memory that was just given up");
        };
        let imported = self.unmap_all(in_the_way).map(|()| {
            let descriptor = descriptor?;
            let imported = self.device.memory_import(address, size, descriptor);
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
            None => self.map_now(address, size).map(|()| false),
        });
        if mapped.is_err() {
            self.arena.abandon_plan();
        }
        self.statistics.device_memory.set(self.arena.live());
        mapped
    }

    fn unmap_all(&mut self, ranges: Vec<u64>) -> Outcome<()> {
        for fence in self.arena.take_dropped() {
            fence.abandon(&mut self.events);
        }
        if !ranges.is_empty() && std::mem::take(&mut self.lends_device_memory) {
            self.sender.own();
        }
        for address in ranges {
            self.device.memory_unmap(address)?;
        }
        Ok(())
    }

    pub(crate) fn mem_unmap(&mut self, call: &MemUnmap) -> Outcome<()> {
        let address = call.address.0;
        if !self.arena.is_live(address) {
            return fail(
                Status::INVALID_VALUE,
                format!("no mapping starts at {address:#x}"),
            );
        }
        let fence = self.fence()?;
        let surplus = self.arena.unmap(address, fence).unwrap_or_default();
        self.statistics.device_memory.set(self.arena.live());
        self.unmap_all(surplus)
    }

    pub(crate) fn mem_get_info(&mut self) -> Outcome<MemoryInfo> {
        let device = self.device.memory_info()?;
        let limit = self.arena.limit();
        let free = device.free.saturating_add(self.arena.idle());
        Ok(MemoryInfo {
            free: free.min(self.arena.free()),
            total: device.total.min(limit),
        })
    }

    /// Goes on once the fence is passed.
    pub(crate) fn after(&mut self, mut fence: Fence, then: Then) -> Outcome<Progress> {
        if fence.passed(self.device.as_mut(), &mut self.events)? {
            Ok(Progress::Now)
        } else {
            Ok(Progress::Later(Goal::Fence(fence), then))
        }
    }

    pub(crate) fn host_map(&mut self, call: &HostMap) -> Outcome<()> {
        let (offset, size) = (call.offset.0, call.size);
        let (base, length) = match &self.window {
            Some(window) => (window.address(), window.len()),
            // Copies, wherever the window's end was.
            None if self.pinned != Pinned::Window => (self.regions.window, DEVICE_STRIDE),
            None => (0, 0),
        };
        let end = offset.checked_add(size).filter(|end| *end <= length);
        let whole = size != 0 && (offset | size).is_multiple_of(PAGE);
        let Some(end) = end.filter(|_| whole && offset >= BULK_TOKEN_BYTES) else {
            return fail(
                Status::INVALID_VALUE,
                format!("{size} bytes at offset {offset:#x} are not pages of the window"),
            );
        };
        if self.window.is_none() {
            return self.make_shadow(base + offset, size);
        }
        let before = self.host_maps.range(..end).next_back();
        if before.is_some_and(|(start, size)| start + size > offset) {
            return fail(
                Status::HOST_MEMORY_ALREADY_REGISTERED,
                format!("{size} bytes at offset {offset:#x} are pinned already"),
            );
        }
        self.device.host_register(base + offset, size)?;
        self.host_maps.insert(offset, size);
        Ok(())
    }

    pub(crate) fn host_unmap(&mut self, call: &HostUnmap) -> Outcome<Progress> {
        let offset = call.offset.0;
        if self.pinned != Pinned::Window {
            let address = self.regions.window.saturating_add(offset);
            return self.shadow_destroy(&ShadowDestroy {
                address: ShadowAddress(address),
            });
        }
        if !self.host_maps.contains_key(&offset) {
            return fail(
                Status::HOST_MEMORY_NOT_REGISTERED,
                format!("no pinned memory starts at offset {offset:#x}"),
            );
        }
        let fence = self.fence()?;
        self.host_maps.remove(&offset);
        match self.after(fence, Then::HostUnmap(offset))? {
            Progress::Now => self.host_unmap_now(offset).map(|()| Progress::Now),
            later => Ok(later),
        }
    }

    /// The rest of [`host_unmap`](Self::host_unmap), when no work uses the
    /// memory any more.
    pub(crate) fn host_unmap_now(&mut self, offset: u64) -> Outcome<()> {
        let base = self.window.as_ref().map_or(0, |window| window.address());
        Ok(self.device.host_unregister(base + offset)?)
    }
}
