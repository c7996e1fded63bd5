//! Memory of the test device.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use paragpu_device::{Access, Error, MemoryDevice, Result, StreamId};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::MemoryInfo;
use rustix::fs::{MemfdFlags, memfd_create};

use super::super::memory_unsafe;
use super::{Stream, TOTAL, TestDevice};

/// The mapped and registered memory.
#[derive(Default)]
pub(super) struct Memory {
    mapped: BTreeMap<u64, Vec<u8>>,
    /// Second addresses: bytes, and the mapping.
    aliases: BTreeMap<u64, (u64, u64)>,
    pub registered: BTreeMap<u64, u64>,
    /// Memory of removed mappings, overwritten.
    gone: Vec<Vec<u8>>,
    /// Whether it is handed over.
    hands_over: bool,
    /// Mappings that were handed over: another worker has them, too.
    handed: BTreeSet<u64>,
    /// Bytes of removed mappings that this worker keeps.
    kept: u64,
}

#[cfg(test)]
impl TestDevice {
    /// Its memory can be handed over.
    pub fn hand_over(&self) {
        self.state().memory.hands_over = true;
    }

    /// Another worker lets go of memory that was handed over and is mapped no longer.
    pub fn let_go(&self) {
        self.state().memory.kept = 0;
    }
}

impl Memory {
    fn used(&self) -> u64 {
        let mapped = self.mapped.values().map(|memory| memory.len() as u64);
        mapped.sum::<u64>() + self.kept
    }

    /// The address where the memory behind an address is mapped.
    fn first(&self, address: u64, size: u64) -> u64 {
        match self.aliases.range(..=address).next_back() {
            Some((start, (length, memory))) if address - start + size <= *length => {
                memory + (address - start)
            }
            _ => address,
        }
    }

    /// Refuses a range that is neither mapped nor registered.
    pub fn reachable(&self, address: u64, size: u64) -> Result<()> {
        let address = self.first(address, size);
        let inside = |start: u64, length: u64| {
            address >= start
                && address
                    .checked_add(size)
                    .is_some_and(|end| end <= start + length)
        };
        let mapped = self.mapped.range(..=address).next_back();
        let registered = self.registered.range(..=address).next_back();
        if mapped.is_some_and(|(start, bytes)| inside(*start, bytes.len() as u64))
            || registered.is_some_and(|(start, length)| inside(*start, *length))
        {
            Ok(())
        } else {
            Err(Error::new(Status::INVALID_VALUE, "not reachable"))
        }
    }

    /// The bytes of a range.
    pub fn read(&self, address: u64, size: u64) -> Vec<u8> {
        let address = self.first(address, size);
        let mut bytes = vec![0; size as usize];
        if let Some((start, memory)) = self.mapped.range(..=address).next_back()
            && let Some(from) = memory.get((address - start) as usize..)
            && let Some(from) = from.get(..bytes.len())
        {
            bytes.copy_from_slice(from);
        } else if self.reachable(address, size).is_ok() {
            memory_unsafe::read(address, &mut bytes);
        }
        bytes
    }

    /// Writes a range.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let address = self.first(address, bytes.len() as u64);
        if let Some((start, memory)) = self.mapped.range_mut(..=address).next_back()
            && let Some(to) = memory.get_mut((address - start) as usize..)
            && let Some(to) = to.get_mut(..bytes.len())
        {
            to.copy_from_slice(bytes);
        } else if self.reachable(address, bytes.len() as u64).is_ok() {
            memory_unsafe::write(address, bytes);
        }
    }
}

impl MemoryDevice for TestDevice {
    fn identity(&self) -> [u8; 16] {
        *b"the test device "
    }

    fn memory_map(&mut self, address: u64, size: u64) -> Result<()> {
        let mut state = self.enter("memory_map")?;
        let used = state.memory.used();
        if used + size > TOTAL {
            return Err(Status::OUT_OF_MEMORY.into());
        }
        state.memory.mapped.insert(address, vec![0; size as usize]);
        Ok(())
    }

    fn memory_unmap(&mut self, address: u64) -> Result<()> {
        let mut state = self.enter("memory_unmap")?;
        if state.memory.aliases.remove(&address).is_some() {
            return Ok(());
        }
        let gone = state.memory.mapped.remove(&address);
        let mut memory = gone.ok_or(Status::INVALID_VALUE)?;
        memory.fill(0xEE);
        if state.memory.handed.remove(&address) {
            state.memory.kept += memory.len() as u64;
        }
        state.memory.gone.push(memory);
        Ok(())
    }

    fn memory_domain(&self) -> Option<[u8; 16]> {
        self.state().memory.hands_over.then(|| self.identity())
    }

    fn memory_export(&mut self, address: u64) -> Result<OwnedFd> {
        let mut state = self.enter("memory_export")?;
        state.memory.handed.insert(address);
        memfd_create("test", MemfdFlags::CLOEXEC).map_err(|_| Status::OPERATING_SYSTEM.into())
    }

    fn memory_alias(&mut self, address: u64, size: u64, memory: u64, _: Access) -> Result<()> {
        let mut state = self.enter("memory_alias")?;
        state.memory.aliases.insert(address, (size, memory));
        Ok(())
    }

    fn host_access(&mut self, address: u64, size: u64, stream: StreamId) -> Option<NonNull<u8>> {
        let mut state = self.state();
        let busy = |stream: &Stream| stream.held || !stream.work.is_empty();
        if !state.in_place || state.streams.get(&stream.0).is_some_and(busy) {
            return None;
        }
        let (start, memory) = state.memory.mapped.range_mut(..=address).next_back()?;
        let at = address - start;
        let inside = at.checked_add(size)? <= memory.len() as u64;
        let place = memory.as_mut_ptr().wrapping_add(usize::try_from(at).ok()?);
        NonNull::new(place).filter(|_| inside)
    }

    fn memory_info(&mut self) -> Result<MemoryInfo> {
        let state = self.enter("memory_info")?;
        let used = state.memory.used();
        Ok(MemoryInfo {
            free: TOTAL - used,
            total: TOTAL,
        })
    }

    fn host_register(&mut self, address: u64, size: u64) -> Result<()> {
        let mut state = self.enter("host_register")?;
        state.memory.registered.insert(address, size);
        Ok(())
    }

    fn host_unregister(&mut self, address: u64) -> Result<()> {
        let mut state = self.enter("host_unregister")?;
        let gone = state.memory.registered.remove(&address);
        gone.map(drop)
            .ok_or(Status::HOST_MEMORY_NOT_REGISTERED.into())
    }
}
