//! Device memory and pinned memory of the window.

use paragpu_device::Access;
use paragpu_protocol::handle::{ObjectKind, ShadowAddress};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    HostMap, HostUnmap, MemAlias, MemAliasEnd, MemGetInfo, MemMap, MemUnmap, ShadowDestroy,
};
use paragpu_protocol::types::MemoryInfo;

use crate::error::{Outcome, fail};
use crate::session::Session;
use crate::session::completion::{Progress, Then};

impl Session {
    pub(crate) fn mem_map(&mut self, call: &MemMap) -> Outcome<Progress> {
        let (address, size) = (call.address.0, call.size);
        let mapped = self
            .memory
            .map(&mut self.gpu, &mut self.link, address, size)?;
        let progress = match mapped {
            Some(fence) => self.after(fence, Then::Reply)?,
            None => Progress::Now,
        };
        self.memory.count();
        Ok(progress)
    }

    pub(crate) fn mem_unmap(&mut self, call: &MemUnmap) -> Outcome<()> {
        let address = call.address.0;
        if !self.memory.is_live(address) {
            return fail(
                Status::INVALID_VALUE,
                format!("no mapping starts at {address:#x}"),
            );
        }
        self.end_aliases_of(address)?;
        let fence = self.objects.streams.fence(&mut self.gpu)?;
        self.memory
            .unmap(&mut self.gpu, &mut self.link, address, fence)
    }

    pub(crate) fn mem_alias(&mut self, call: &MemAlias) -> Outcome<()> {
        let access = match call.access {
            1 => Access::Read,
            3 => Access::ReadWrite,
            other => {
                let why = format!("{other} is no access to memory");
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

    /// Ends the aliases of a mapping before it goes.
    pub(crate) fn end_aliases_of(&mut self, memory: u64) -> Outcome<()> {
        for alias in self.memory.aliases_of(memory) {
            self.memory
                .end_alias(&mut self.gpu, &mut self.link, alias)?;
            self.objects.live.forget((ObjectKind::Alias, alias));
        }
        Ok(())
    }

    pub(crate) fn mem_get_info(&mut self, _: &MemGetInfo) -> Outcome<MemoryInfo> {
        self.memory.info(&mut self.gpu)
    }

    pub(crate) fn host_map(&mut self, call: &HostMap) -> Outcome<()> {
        self.host.pin(&mut self.gpu, call.offset.0, call.size)
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
        match self.after(fence, Then::HostUnmap(offset))? {
            Progress::Now => self
                .host
                .unpin(&mut self.gpu, offset)
                .map(|()| Progress::Now),
            later => Ok(later),
        }
    }
}
