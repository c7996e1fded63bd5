//! Device memory, and pinned memory in the window.

use std::os::fd::OwnedFd;

use paragpu_control::exchange::{Ask, Offer};
use paragpu_device::Access;
use paragpu_protocol::handle::{ObjectKind, ShadowAddress};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    HostUnmap, MemAlias, MemAliasEnd, MemLeave, MemMap, MemOffer, MemTake, MemUnmap, PeerAsk,
    PeerOffer, ShadowDestroy,
};
use paragpu_protocol::types::{MemoryOffer, PeerAttributes, PeerName};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{Outcome, fail};
use crate::session::Session;
use crate::session::completion::{Continuation, Progress};
use crate::session::sharing::{ImportedMapping, NOT_ACCEPTED};

/// The index of CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED among the attributes.
const ACCESS: usize = 1;

impl Session {
    pub(crate) fn mem_map(&mut self, call: &MemMap) -> Outcome<Progress> {
        let (address, size) = (call.address.0, call.size);
        self.memory.admit(&mut self.gpu, size)?;
        let mapped = self
            .memory
            .map(&mut self.gpu, &mut self.link, address, size)?;
        let progress = match mapped {
            Some(fence) => self.after(fence, Continuation::Reply)?,
            None => Progress::Now,
        };
        self.memory.count();
        Ok(progress)
    }

    pub(crate) fn mem_unmap(&mut self, call: &MemUnmap) -> Outcome<()> {
        let address = call.address.0;
        if !self.memory.arena().is_live(address) {
            return fail(
                Status::INVALID_VALUE,
                format!("no mapping starts at {address:#x}"),
            );
        }
        self.end_aliases_of(address)?;
        if self.sharing.is_taken(address) {
            return fail(
                Status::INVALID_VALUE,
                format!("the memory at {address:#x} belongs to another session"),
            );
        }
        if self.sharing.withdraw(address) {
            return self
                .memory
                .drop_shared(&mut self.gpu, &mut self.link, address);
        }
        let fence = self.objects.streams.fence(&mut self.gpu)?;
        self.memory
            .unmap(&mut self.gpu, &mut self.link, address, fence)
    }

    pub(crate) fn mem_alias(&mut self, call: &MemAlias) -> Outcome<()> {
        let access = match call.access {
            1 => Access::Read,
            3 => Access::ReadWrite,
            other => {
                let why = format!("{other} is not a memory access mode");
                return fail(Status::INVALID_VALUE, why);
            }
        };
        let place = [call.address.0, call.size, call.memory.0];
        self.memory
            .alias(&mut self.gpu, &mut self.link, place, access)
    }

    pub(crate) fn mem_alias_end(&mut self, call: &MemAliasEnd) -> Outcome<()> {
        self.memory
            .end_alias(&mut self.gpu, &mut self.link, call.address.0)
    }

    pub(crate) fn mem_offer(&mut self, call: &MemOffer) -> Outcome<MemoryOffer> {
        let found = self.memory.arena().around(call.address);
        let Some((base, size)) = found.filter(|(base, _)| !self.sharing.is_taken(*base)) else {
            return fail(
                Status::INVALID_VALUE,
                format!(
                    "the session has no memory of its own at {:#x}",
                    call.address
                ),
            );
        };
        if let Some(token) = self.sharing.token(base) {
            return Ok(MemoryOffer { base, size, token });
        }
        let memory = self.gpu.memory_share(base)?;
        let ask = Ask::Offer {
            size,
            domain: self.gpu.domain(),
        };
        let Some(offer) = self.sharing.propose(ask, &memory) else {
            return fail(Status::NOT_SUPPORTED, NOT_ACCEPTED);
        };
        let token = offer.token;
        self.sharing.offer(base, token);
        Ok(MemoryOffer { base, size, token })
    }

    pub(crate) fn mem_take(&mut self, call: &MemTake) -> Outcome<()> {
        /// CUDA_ERROR_INVALID_CONTEXT: the memory belongs to the process itself.
        const INVALID_CONTEXT: Status = Status(201);
        // Elsewhere it has the memory at a second address, where other devices have it, too.
        let is_in_arena = Regions::holds(self.gpu.regions().arena, call.address, call.size);
        if is_in_arena && self.sharing.is_own(&call.token) {
            return fail(INVALID_CONTEXT, "the session offers this memory itself");
        }
        let Some((offer, memory)) = self.sharing.find(call.token) else {
            let why = "no session of the VM offers this memory";
            return fail(Status::INVALID_HANDLE, why);
        };
        self.take_offered([call.address, call.size], &offer, memory)
    }

    /// Maps memory that another session offers.
    pub(crate) fn take_offered(
        &mut self,
        [address, size]: [u64; 2],
        offer: &Offer,
        memory: OwnedFd,
    ) -> Outcome<()> {
        /// CUDA_ERROR_PEER_ACCESS_UNSUPPORTED.
        const PEER_ACCESS_UNSUPPORTED: Status = Status(217);
        if offer.size != size {
            return fail(
                Status::INVALID_VALUE,
                format!("{} bytes are offered, not {size}", offer.size),
            );
        }
        let is_peer = || self.gpu.peer_attributes(offer.domain)[ACCESS] != 0;
        if offer.domain != self.gpu.domain() && !is_peer() {
            let why = "the memory belongs to a device without peer access";
            return fail(PEER_ACCESS_UNSUPPORTED, why);
        }
        self.memory
            .take(&mut self.gpu, &mut self.link, [address, size], memory)?;
        let token = offer.token;
        self.sharing.take(address, ImportedMapping { size, token });
        Ok(())
    }

    /// Unmaps memory that another session offers.
    pub(crate) fn mem_leave(&mut self, call: &MemLeave) -> Outcome<()> {
        let address = call.address;
        if !self.sharing.leave(address) {
            return fail(
                Status::INVALID_VALUE,
                format!("no memory of another session starts at {address:#x}"),
            );
        }
        self.end_aliases_of(address)?;
        self.memory
            .drop_shared(&mut self.gpu, &mut self.link, address)
    }

    pub(crate) fn peer_offer(&mut self, _: &PeerOffer) -> Outcome<PeerName> {
        if let Some(token) = self.sharing.name {
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
            domain: self.gpu.domain(),
        };
        let Some(offer) = self.sharing.propose(ask, &nothing) else {
            return fail(Status::NOT_SUPPORTED, NOT_ACCEPTED);
        };
        self.sharing.name = Some(offer.token);
        Ok(PeerName { token: offer.token })
    }

    pub(crate) fn peer_ask(&mut self, call: &PeerAsk) -> Outcome<PeerAttributes> {
        /// Between two virtual GPUs on one GPU.
        const SAME: [i32; 5] = [0, 1, 1, 0, 0];
        let attributes = match self.sharing.find(call.token) {
            Some((offer, _)) if offer.domain == self.gpu.domain() => SAME,
            Some((offer, _)) => self.gpu.peer_attributes(offer.domain),
            None => [0; 5],
        };
        Ok(PeerAttributes {
            values: attributes.map(|value| u64::from(value.cast_unsigned())),
        })
    }

    /// Ends the aliases of a mapping before it is unmapped.
    pub(crate) fn end_aliases_of(&mut self, memory: u64) -> Outcome<()> {
        for alias in self.memory.aliases_of(memory) {
            self.memory
                .end_alias(&mut self.gpu, &mut self.link, alias)?;
            self.objects.live.discard((ObjectKind::Alias, alias));
        }
        Ok(())
    }

    pub(crate) fn host_unmap(&mut self, call: &HostUnmap) -> Outcome<Progress> {
        let offset = call.offset.0;
        if let Some(address) = self.host.shadow_of_pin(offset) {
            return self.shadow_destroy(&ShadowDestroy {
                address: ShadowAddress(address),
            });
        }
        if !self.host.is_pinned(offset) {
            return fail(
                Status::HOST_MEMORY_NOT_REGISTERED,
                format!("no pinned memory starts at offset {offset:#x}"),
            );
        }
        let fence = self.objects.streams.fence(&mut self.gpu)?;
        self.host.forget_pin(offset);
        match self.after(fence, Continuation::HostUnmap(offset))? {
            Progress::Now => self
                .host
                .unpin(&mut self.gpu, offset)
                .map(|()| Progress::Now),
            later => Ok(later),
        }
    }
}
