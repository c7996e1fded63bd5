//! Memory.

use super::{CudaDevice, HASH, find, stream};
use crate::hash;
use crate::memory::Memory;
use crate::retired::Leaving;
use paragpu_device::{
    Access, Error, Export, FunctionId, Launch, MemoryDevice, PeerId, Result, StreamId,
};
use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::MemoryInfo;
use std::os::fd::{AsFd, OwnedFd};

impl MemoryDevice for CudaDevice {
    fn rehome(&mut self, regions: Regions) -> Result<bool> {
        self.context.reserve_arena(regions.arena)?;
        self.memory = Memory::new(regions);
        Ok(true)
    }

    fn memory_map(&mut self, address: u64, size: u64) -> Result<()> {
        self.make_room(address, size)?;
        let handle = self.context.map(address, size, &self.quiet)?;
        self.memory.add_device(address, size, handle);
        Ok(())
    }

    fn memory_unmap(&mut self, address: u64) -> Result<()> {
        let (size, handle) = self.memory.remove_device(address)?;
        self.imported.remove(address);
        self.retire(Leaving::Mapping {
            address,
            size,
            handle,
        })
    }

    fn memory_alias(&mut self, address: u64, size: u64, memory: u64, access: Access) -> Result<()> {
        let handle = self.memory.backing(memory, size)?;
        self.make_room(address, size)?;
        self.context.alias(address, size, handle, access)?;
        self.memory.add_alias(address, size);
        Ok(())
    }

    fn identity(&self) -> [u8; 16] {
        self.context.uuid().unwrap_or_default()
    }

    fn memory_domain(&self) -> Option<[u8; 16]> {
        self.context.uuid().ok()
    }

    fn memory_export(&mut self, address: u64) -> Result<OwnedFd> {
        let handle = self.memory.device(address)?;
        let Some(came) = self.imported.get(address) else {
            return self.context.export(handle);
        };
        came.try_clone_to_owned()
            .map_err(|error| Error::new(Status::OPERATING_SYSTEM, error.to_string()))
    }

    fn memory_exporter(&mut self, address: u64) -> Result<Export> {
        self.memory.device(address)?;
        if self.imported.get(address).is_some() {
            let known = self.memory_export(address)?;
            return Ok(Box::new(|| Ok(known)));
        }
        let allocation = self.context.retain(address)?;
        Ok(Box::new(move || allocation.export()))
    }

    fn memory_import(&mut self, address: u64, size: u64, descriptor: OwnedFd) -> Result<()> {
        self.imported.check_room()?;
        self.make_room(address, size)?;
        let handle = self.context.import(address, size, descriptor.as_fd())?;
        self.memory.add_device(address, size, handle);
        self.imported.add(address, descriptor);
        Ok(())
    }

    fn peer_attributes(&self, peer: [u8; 16]) -> [i32; 5] {
        self.context.peer_attributes(&peer)
    }

    fn peer_map(&mut self, address: u64, size: u64, descriptor: OwnedFd) -> Result<()> {
        let arena = self.memory.check_peer(address, size)?;
        self.context.reserve_peer_arena(arena)?;
        self.wait_for_retired(address, size)?;
        let handle = self.context.import(address, size, descriptor.as_fd())?;
        self.memory.add_peer(address, size, handle);
        Ok(())
    }

    fn peer_open(&mut self, size: u64, descriptor: OwnedFd) -> Result<PeerId> {
        if size == 0 || !size.is_multiple_of(CHUNK) {
            return Err(Status::INVALID_VALUE.into());
        }
        let place = self.memory.peer_place(size);
        let (span, handle) = self.context.open_peer(place, size, descriptor.as_fd())?;
        match self.peers.insert((span, handle)) {
            Ok(id) => Ok(PeerId(id)),
            Err(status) => {
                self.context.close_peer(span, handle)?;
                Err(status.into())
            }
        }
    }

    fn peer_copy(
        &mut self,
        destination: u64,
        peer: PeerId,
        offset: u64,
        size: u64,
        order: StreamId,
    ) -> Result<()> {
        let destination = self.memory.span(destination, size)?;
        let (span, _) = find(&self.peers, peer.0)?;
        let source = span.part(offset, size).ok_or(Status::INVALID_VALUE)?;
        self.context
            .copy(destination, source, stream(&self.streams, order)?)
    }

    fn peer_close(&mut self, peer: PeerId) -> Result<()> {
        let closed = self.peers.remove(peer.0);
        let (span, handle) = closed.ok_or(Status::INVALID_HANDLE)?;
        self.context.close_peer(span, handle)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo> {
        self.reap()?;
        let (free, total) = self.context.memory_info()?;
        Ok(MemoryInfo { free, total })
    }

    fn host_register(&mut self, address: u64, size: u64) -> Result<()> {
        self.memory.check_register(address, size)?;
        self.context.host_register(address, size)?;
        self.memory.add_host(address, size);
        Ok(())
    }

    fn host_unregister(&mut self, address: u64) -> Result<()> {
        self.memory.remove_host(address)?;
        self.context.host_unregister(address)
    }

    fn hash(&mut self, ranges: &[(u64, u64)], out: u64, order: StreamId) -> Result<()> {
        if ranges
            .iter()
            .any(|(_, size)| !(1..=hash::MAX_RANGE).contains(size))
        {
            return Err(Status::INVALID_VALUE.into());
        }
        for (address, size) in ranges {
            self.memory.span(*address, *size)?;
        }
        self.memory.span(out, ranges.len() as u64 * HASH)?;
        let (_, function) = self.hasher.as_ref().ok_or(Status::NOT_SUPPORTED)?;
        let order = stream(&self.streams, order)?;
        let mut out = out;
        for (first, each, count) in hash::runs(ranges) {
            let launch = Launch {
                // No function of the session has this ID.
                function: FunctionId(0),
                grid: [count, 1, 1],
                block: [hash::THREADS, 1, 1],
                dynamic_shared: 0,
                cooperative: false,
                programmatic: false,
                cluster: [0; 3],
                preferences: Vec::new(),
                parameters: [first, each, out].map(u64::to_le_bytes).concat().into(),
            };
            self.context.launch(&launch, function, order)?;
            out += u64::from(count) * HASH;
        }
        Ok(())
    }
}
