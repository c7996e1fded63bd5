//! Device memory, and pinned memory in the window.

use std::os::fd::OwnedFd;

use paragpu_abi::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
use paragpu_control::exchange::{Ask, Offer};
use paragpu_device::Access;
use paragpu_protocol::handle::ObjectKind;
use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    HostUnmap, MemAlias, MemAliasEnd, MemLeave, MemMap, MemOffer, MemTake, MemUnmap, PeerAsk,
    PeerOffer,
};
use paragpu_protocol::types::{MemoryOffer, PeerAttributes, PeerName};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{Outcome, fail};
use crate::live::Live;
use crate::session::completion::{Continuation, Progress};
use crate::session::gpu::Gpu;
use crate::session::host_memory::HostMemory;
use crate::session::link::Link;
use crate::session::memory::DeviceMemory;
use crate::session::objects::Objects;
use crate::session::replies::Replies;
use crate::session::sharing::{ImportedMapping, NOT_ACCEPTED, Sharing};

/// The attribute's index: the first is 1.
const ACCESS: usize = CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED as usize - 1;

impl DeviceMemory {
    pub(crate) fn mem_map(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        call: &MemMap,
    ) -> Outcome<Progress> {
        let (address, size) = (call.address.0, call.size);
        self.admit(gpu, size)?;
        let mapped = self.map(gpu, &mut replies.link, address, size)?;
        let progress = match mapped {
            Some(fence) => Progress::after(gpu, fence, Continuation::Reply)?,
            None => Progress::Now,
        };
        self.count();
        Ok(progress)
    }

    pub(crate) fn mem_unmap(
        &mut self,
        gpu: &mut Gpu,
        sharing: &mut Sharing,
        objects: &mut Objects,
        replies: &mut Replies,
        call: &MemUnmap,
    ) -> Outcome<()> {
        let address = call.address.0;
        if !self.arena().is_live(address) {
            return fail(
                Status::INVALID_VALUE,
                format!("no mapping starts at {address:#x}"),
            );
        }
        self.end_aliases_of(gpu, &mut objects.live, &mut replies.link, address)?;
        if sharing.is_taken(address) {
            return fail(
                Status::INVALID_VALUE,
                format!("the memory at {address:#x} belongs to another session"),
            );
        }
        if sharing.withdraw(address) {
            return self.drop_shared(gpu, &mut replies.link, address);
        }
        let fence = objects.streams.fence(gpu)?;
        self.unmap(gpu, &mut replies.link, address, fence)
    }

    pub(crate) fn mem_alias(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        call: &MemAlias,
    ) -> Outcome<()> {
        let access = match call.access {
            1 => Access::Read,
            3 => Access::ReadWrite,
            other => {
                let why = format!("{other} is not a memory access mode");
                return fail(Status::INVALID_VALUE, why);
            }
        };
        let place = [call.address.0, call.size, call.memory.0];
        self.alias(gpu, &mut replies.link, place, access)
    }

    pub(crate) fn mem_alias_end(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        call: &MemAliasEnd,
    ) -> Outcome<()> {
        self.end_alias(gpu, &mut replies.link, call.address.0)
    }

    /// Ends the aliases of a mapping before it is unmapped.
    pub(crate) fn end_aliases_of(
        &mut self,
        gpu: &mut Gpu,
        live: &mut Live,
        link: &mut Link,
        memory: u64,
    ) -> Outcome<()> {
        for alias in self.aliases_of(memory) {
            self.end_alias(gpu, link, alias)?;
            live.discard((ObjectKind::Alias, alias));
        }
        Ok(())
    }
}

impl Sharing {
    pub(crate) fn mem_offer(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        call: &MemOffer,
    ) -> Outcome<MemoryOffer> {
        let found = memory.arena().around(call.address);
        let Some((base, size)) = found.filter(|(base, _)| !self.is_taken(*base)) else {
            return fail(
                Status::INVALID_VALUE,
                format!(
                    "the session has no memory of its own at {:#x}",
                    call.address
                ),
            );
        };
        if let Some(token) = self.token(base) {
            return Ok(MemoryOffer { base, size, token });
        }
        let memory = gpu.memory_share(base)?;
        let ask = Ask::Offer {
            size,
            domain: gpu.domain(),
        };
        let Some(offer) = self.propose(ask, &memory) else {
            return fail(Status::NOT_SUPPORTED, NOT_ACCEPTED);
        };
        let token = offer.token;
        self.offer(base, token);
        Ok(MemoryOffer { base, size, token })
    }

    pub(crate) fn mem_take(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        replies: &mut Replies,
        call: &MemTake,
    ) -> Outcome<()> {
        // Elsewhere it has the memory at a second address, where other devices have it, too.
        let is_in_arena = Regions::holds(gpu.regions().arena, call.address, call.size);
        if is_in_arena && self.is_own(&call.token) {
            return fail(
                Status::INVALID_CONTEXT,
                "the session offers this memory itself",
            );
        }
        let place = [call.address, call.size];
        let Some((offer, offered)) = self.find_for(gpu, place, call.token) else {
            let why = "no session of the VM offers this memory";
            return fail(Status::INVALID_HANDLE, why);
        };
        self.take_offered(gpu, memory, &mut replies.link, place, &offer, offered)
    }

    /// Maps memory that another session offers, found by [`find_for`](Self::find_for).
    pub(crate) fn take_offered(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        link: &mut Link,
        place: [u64; 2],
        offer: &Offer,
        offered: OwnedFd,
    ) -> Outcome<()> {
        let mapped = Self::map_offered(gpu, memory, link, place, offer, offered);
        let token = offer.token;
        match mapped {
            Ok(()) => {
                let [address, size] = place;
                self.take(address, ImportedMapping { size, token });
            }
            Err(_) => self.give_back(token),
        }
        mapped
    }

    fn map_offered(
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        link: &mut Link,
        [address, size]: [u64; 2],
        offer: &Offer,
        offered: OwnedFd,
    ) -> Outcome<()> {
        if offer.size != size {
            return fail(
                Status::INVALID_VALUE,
                format!("{} bytes are offered, not {size}", offer.size),
            );
        }
        let is_peer = || gpu.peer_attributes(offer.domain)[ACCESS] != 0;
        if offer.domain != gpu.domain() && !is_peer() {
            let why = "the memory belongs to a device without peer access";
            return fail(Status::PEER_ACCESS_UNSUPPORTED, why);
        }
        memory.take(gpu, link, [address, size], offered)
    }

    /// Unmaps memory that another session offers.
    pub(crate) fn mem_leave(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        objects: &mut Objects,
        replies: &mut Replies,
        call: &MemLeave,
    ) -> Outcome<()> {
        let address = call.address;
        let Some(ImportedMapping { token, .. }) = self.leave(address) else {
            return fail(
                Status::INVALID_VALUE,
                format!("no memory of another session starts at {address:#x}"),
            );
        };
        memory.end_aliases_of(gpu, &mut objects.live, &mut replies.link, address)?;
        memory.drop_shared(gpu, &mut replies.link, address)?;
        self.give_back(token);
        Ok(())
    }

    pub(crate) fn peer_offer(&mut self, gpu: &mut Gpu, _: &PeerOffer) -> Outcome<PeerName> {
        if let Some(token) = self.name {
            return Ok(PeerName { token });
        }
        // An offer needs a descriptor; this one is never mapped.
        let nothing = memfd_create("paragpu-peer", MemfdFlags::CLOEXEC);
        let nothing = match nothing {
            Ok(nothing) => nothing,
            Err(error) => return fail(Status::OPERATING_SYSTEM, error.to_string()),
        };
        let ask = Ask::Offer {
            size: 0,
            domain: gpu.domain(),
        };
        let Some(offer) = self.propose(ask, &nothing) else {
            return fail(Status::NOT_SUPPORTED, NOT_ACCEPTED);
        };
        self.name = Some(offer.token);
        Ok(PeerName { token: offer.token })
    }

    pub(crate) fn peer_ask(&mut self, gpu: &mut Gpu, call: &PeerAsk) -> Outcome<PeerAttributes> {
        /// Between two virtual GPUs on one GPU.
        const SAME: [i32; 5] = [0, 1, 1, 0, 0];
        let attributes = match self.find(call.token) {
            Some((offer, _)) if offer.domain == gpu.domain() => SAME,
            Some((offer, _)) => gpu.peer_attributes(offer.domain),
            None => [0; 5],
        };
        Ok(PeerAttributes {
            values: attributes.map(|value| u64::from(value.cast_unsigned())),
        })
    }
}

impl HostMemory {
    pub(crate) fn host_unmap(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        call: &HostUnmap,
    ) -> Outcome<Progress> {
        let offset = call.offset.0;
        if !self.is_pinned(offset) {
            return fail(
                Status::HOST_MEMORY_NOT_REGISTERED,
                format!("no pinned memory starts at offset {offset:#x}"),
            );
        }
        let fence = objects.streams.fence(gpu)?;
        self.forget_pin(offset);
        match Progress::after(gpu, fence, Continuation::HostUnmap(offset))? {
            Progress::Now => self.unpin(gpu, offset).map(|()| Progress::Now),
            later => Ok(later),
        }
    }
}
