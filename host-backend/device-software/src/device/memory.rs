//! Memory.

use super::{SoftwareDevice, handle};
use crate::copy;
use crate::error::invalid;
use crate::memory_unsafe::MemoryError;
use crate::module::{self};
use crate::scheduler::Work;
use crate::shared::Peer;
use paragpu_device::{Access, Error, MemoryDevice, PeerId, Result, StreamId};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::MemoryInfo;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

impl MemoryDevice for SoftwareDevice {
    fn memory_map(&mut self, address: u64, size: u64) -> Result<()> {
        self.scheduler.check()?;
        self.check_room(address, size)?;
        self.wait_for_aliases(address, size);
        let mapped = match self.options.shareable {
            true => self.memory.map_shareable(address, size),
            false => self.memory.map(address, size),
        };
        mapped.map_err(|e| module::memory_error(&e))
    }

    fn memory_alias(&mut self, address: u64, size: u64, memory: u64, access: Access) -> Result<()> {
        self.scheduler.check()?;
        if access == Access::Read {
            let what = "the software GPU cannot map memory read-only";
            return Err(Error::new(Status::NOT_SUPPORTED, what));
        }
        if address
            .checked_add(size)
            .is_none_or(|end| end > self.memory.base() + module::GLOBALS_OFFSET)
        {
            return Err(invalid("outside the arena"));
        }
        if self.memory.is_backed_in(address, size) {
            // Memory that was unmapped there is released once its work is complete.
            self.scheduler.settle();
        }
        if !self.memory.is_shared(memory) {
            // If descriptors run out, the memory cannot be shared with other processes.
            let share = || {
                let handed_out = self.memory.hand_out(memory);
                handed_out.or_else(|_| self.memory.share(memory))
            };
            // Waiting for all work could take forever: host functions may wait for this call.
            let shared = self.scheduler.pause(share);
            shared.map_err(|e| module::memory_error(&e))?;
        }
        self.memory
            .alias(address, size, memory)
            .map_err(|e| module::memory_error(&e))
    }

    fn identity(&self) -> [u8; 16] {
        // Each ordinal is a GPU with its own memory.
        let mut name = *b"software GPU    ";
        if let Some((_, end)) = name.split_last_chunk_mut::<4>() {
            *end = self.ordinal.to_le_bytes();
        }
        name
    }

    fn memory_domain(&self) -> Option<[u8; 16]> {
        self.options.shareable.then(|| self.identity())
    }

    fn memory_export(&mut self, address: u64) -> Result<OwnedFd> {
        self.scheduler.check()?;
        self.memory
            .export(address)
            .map_err(|e| module::memory_error(&e))
    }

    fn memory_share(&mut self, address: u64) -> Result<OwnedFd> {
        self.scheduler.check()?;
        if !self.memory.is_handed_out(address) {
            let shared = self.scheduler.pause(|| self.memory.hand_out(address));
            shared.map_err(|e| module::memory_error(&e))?;
        }
        self.memory_export(address)
    }

    fn memory_import(&mut self, address: u64, size: u64, descriptor: OwnedFd) -> Result<()> {
        self.scheduler.check()?;
        self.check_room(address, size)?;
        self.wait_for_aliases(address, size);
        self.memory
            .import(address, size, descriptor)
            .map_err(|e| module::memory_error(&e))
    }

    fn peer_attributes(&self, peer: [u8; 16]) -> [i32; 5] {
        // All software GPUs of a host are alike, and their memory is the host's.
        let is_one = peer.starts_with(b"software GPU");
        let reached = i32::from(is_one && peer != self.identity());
        [0, reached, reached, 0, 0]
    }

    fn peer_map(&mut self, address: u64, size: u64, descriptor: OwnedFd) -> Result<()> {
        self.scheduler.check()?;
        if !self.memory.is_free_of_peers(address, size) {
            // Memory that was unmapped there is released once its work is complete.
            self.scheduler.settle();
        }
        self.memory
            .map_peer(address, size, &descriptor)
            .map_err(|e| module::memory_error(&e))
    }

    fn peer_open(&mut self, size: u64, descriptor: OwnedFd) -> Result<PeerId> {
        let peer = Peer::new(descriptor, size)
            .map_err(|error| module::memory_error(&MemoryError::Descriptor(size, error)))?;
        let id = self.id();
        self.peers.insert(id, Arc::new(peer));
        Ok(PeerId(id))
    }

    fn peer_copy(
        &mut self,
        destination: u64,
        peer: PeerId,
        offset: u64,
        size: u64,
        stream: StreamId,
    ) -> Result<()> {
        self.scheduler.check()?;
        let peer = Arc::clone(handle(self.peers.get(&peer.0))?);
        if !peer.holds(offset, size) || !self.memory.reachable(destination, size) {
            return Err(invalid("a range of the copy is not completely mapped"));
        }
        let memory = Arc::clone(&self.memory);
        let copy = move || copy::from_peer(&memory, destination, &peer, offset, size);
        self.give(stream, Work::Task(Box::new(copy))).map(|_| ())
    }

    fn peer_close(&mut self, peer: PeerId) -> Result<()> {
        handle(self.peers.remove(&peer.0)).map(drop)
    }

    fn memory_unmap(&mut self, address: u64) -> Result<()> {
        self.scheduler.check()?;
        let variables = self.memory.base() + module::GLOBALS_OFFSET
            ..self.memory.base() + paragpu_protocol::layout::DEVICE_STRIDE;
        if variables.contains(&address) {
            return Err(invalid("no mapping starts there"));
        }
        let generation = self
            .memory
            .retire(address)
            .map_err(|e| module::memory_error(&e))?;
        let memory = Arc::clone(&self.memory);
        self.scheduler
            .after_all(Box::new(move || memory.release(generation)));
        Ok(())
    }

    fn memory_info(&mut self) -> Result<MemoryInfo> {
        self.scheduler.check()?;
        let (_, total) = self.memory.info();
        let free = self.free();
        Ok(MemoryInfo { free, total })
    }

    fn host_register(&mut self, address: u64, size: u64) -> Result<()> {
        self.scheduler.check()?;
        self.memory
            .register(address, size)
            .map_err(|e| module::memory_error(&e))
    }

    fn host_unregister(&mut self, address: u64) -> Result<()> {
        self.scheduler.settle();
        let result = self.memory.unregister(address).map_err(|e| match e {
            MemoryError::NotMapped(_) => {
                Error::new(Status::HOST_MEMORY_NOT_REGISTERED, e.to_string())
            }
            e => module::memory_error(&e),
        });
        // Waits for threads that checked an address before it was unregistered.
        self.scheduler.quiesce();
        result
    }

    fn watch_writes(&mut self, on: bool) -> Result<()> {
        self.memory.written().watch(on);
        if on {
            // Waits for writers that may not have recorded their writes yet.
            self.scheduler.quiesce();
        }
        Ok(())
    }

    fn writes(
        &mut self,
        address: u64,
        size: u64,
        forget: bool,
        written: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        let (base, notes) = (self.memory.base(), self.memory.written());
        if !notes.is_watching() {
            return Err(Error::new(Status::NOT_SUPPORTED, "writes are not tracked"));
        }
        let offset = address
            .checked_sub(base)
            .ok_or_else(|| invalid("outside the arena"))?;
        let twice = self.memory.twice(address, size);
        if twice.is_empty() {
            notes.each(offset, size, forget, |at, length| {
                written.push((base + at, length));
            });
            return Ok(());
        }
        let mut found = Vec::new();
        notes.each(offset, size, forget, |at, length| {
            found.push((base + at, length));
        });
        for part in twice {
            notes.each(part.alias - base, part.size, forget, |at, length| {
                found.push((part.memory + (base + at - part.alias), length));
            });
        }
        found.sort_unstable();
        join(&found, written);
        Ok(())
    }

    fn host_access(&mut self, address: u64, size: u64, stream: StreamId) -> Option<NonNull<u8>> {
        let end = address.checked_add(size)?;
        // A module's memory is freed with the module.
        let of_module = self
            .code
            .placed
            .range(..end)
            .next_back()
            .is_some_and(|(start, bytes)| start + bytes > address);
        if of_module || !self.memory.is_mapped(address, size) || !self.scheduler.is_ready(stream.0)
        {
            return None;
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(
            usize::try_from(address).ok()?,
        ))
    }

    fn host_wrote(&mut self, address: u64, size: u64) {
        self.memory.wrote(address, size);
    }

    fn hash(&mut self, ranges: &[(u64, u64)], out: u64, stream: StreamId) -> Result<()> {
        self.scheduler.check()?;
        let reachable =
            |&(address, size): &(u64, u64)| size <= CHUNK && self.memory.reachable(address, size);
        let results = ranges.len() as u64 * 32;
        if !ranges.iter().all(reachable) || !self.memory.reachable(out, results) {
            return Err(invalid("a range to hash is not completely mapped"));
        }
        let (memory, ranges) = (Arc::clone(&self.memory), ranges.to_vec());
        let work = Work::Task(Box::new(move || copy::hash(&memory, &ranges, out)));
        self.give(stream, work).map(|_| ())
    }
}

/// Appends ranges in order, and merges adjacent ones.
fn join(ranges: &[(u64, u64)], joined: &mut Vec<(u64, u64)>) {
    let mut rest = ranges.iter().copied();
    let Some((mut start, length)) = rest.next() else {
        return;
    };
    let mut end = start + length;
    for (next, length) in rest {
        if next > end {
            joined.push((start, end - start));
            start = next;
        }
        end = end.max(next + length);
    }
    joined.push((start, end - start));
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn ranges_that_meet_are_one() {
        let mut joined = vec![(0, 1)];
        join(&[(4, 4), (4, 2), (6, 4), (12, 1), (13, 1)], &mut joined);
        assert_eq!(joined, [(0, 1), (4, 6), (12, 2)]);
        join(&[], &mut joined);
        assert_eq!(joined.len(), 3);
    }
}
