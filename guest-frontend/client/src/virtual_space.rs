//! The state of a session's virtual memory: reserved addresses, physical allocations, and
//! mappings (CUDA Driver API, Virtual Memory Management). Nothing here calls the host.
//!
//! An allocation is memory at an address of the session's arena, which the program never
//! sees. A mapping gives it an address in a reservation.

use std::collections::{BTreeMap, HashMap};

use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;

use crate::error::Result;

/// The location of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLocation {
    /// On the session's device.
    Device,
    /// In the host.
    Host,
    /// In the host, on this NUMA node.
    HostNode(i32),
}

/// A side that may have access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The session's device.
    Device,
    /// The program.
    Host,
}

/// The parameters with which a program created an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// CUmemAllocationProp::location.
    pub location: MemoryLocation,
    /// A mask of CUmemAllocationHandleType.
    pub handle_types: i32,
    /// CUmemAllocationProp::allocFlags::usage.
    pub usage: u16,
}

/// The access of each side, as CUmemAccess_flags: 0 none, 1 read, 3 read and write.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) device: u32,
    /// Nonzero only for memory in the host.
    pub(crate) host: u32,
}

impl Access {
    /// The access of one side.
    pub(crate) fn of(self, side: Side) -> u32 {
        match side {
            Side::Device => self.device,
            Side::Host => self.host,
        }
    }

    fn with(self, side: Side, access: u32) -> Self {
        match side {
            Side::Device => Self {
                device: access,
                ..self
            },
            Side::Host => Self {
                host: access,
                ..self
            },
        }
    }

    /// The access with which the device maps the memory. If the program has access, its
    /// view is synchronized with the device's mapping, which must then exist even if
    /// kernels have no access.
    pub(crate) fn on_device(self) -> u32 {
        match self.host {
            0 => self.device,
            _ => 3,
        }
    }
}

/// A physical allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// Its address in the session's arena.
    memory: u64,
    size: u64,
    properties: Properties,
    /// The program's references to its handle.
    handles: u64,
    /// The number of its mappings.
    maps: u64,
}

/// A mapping of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Map {
    size: u64,
    allocation: u64,
    access: Access,
}

/// A mapping whose access changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    /// The first address of the mapping.
    pub(crate) address: u64,
    /// Its length in bytes.
    pub(crate) size: u64,
    /// The address of its memory in the session's arena.
    pub(crate) memory: u64,
    /// The access before the change.
    pub(crate) before: Access,
    /// The access after it.
    pub(crate) after: Access,
}

/// The virtual memory of a session.
#[derive(Debug, Default)]
pub(crate) struct VirtualSpace {
    reservations: BTreeMap<u64, u64>,
    allocations: HashMap<u64, Allocation>,
    maps: BTreeMap<u64, Map>,
    next: u64,
}

fn is_chunks(values: &[u64]) -> bool {
    values.iter().all(|value| value.is_multiple_of(CHUNK))
}

impl VirtualSpace {
    /// Records a reservation.
    pub(crate) fn reserved(&mut self, address: u64, size: u64) {
        self.reservations.insert(address, size);
    }

    /// Removes a reservation, which must be given whole and without mappings.
    pub(crate) fn unreserve(&mut self, address: u64, size: u64) -> Result<()> {
        if self.reservations.get(&address) != Some(&size) || self.is_mapped(address, size) {
            return Err(Status::INVALID_VALUE);
        }
        self.reservations.remove(&address);
        Ok(())
    }

    /// Records an allocation and returns its handle.
    pub(crate) fn created(&mut self, memory: u64, size: u64, properties: Properties) -> u64 {
        self.next += 1;
        let allocation = Allocation {
            memory,
            size,
            properties,
            handles: 1,
            maps: 0,
        };
        self.allocations.insert(self.next, allocation);
        self.next
    }

    fn held(&mut self, handle: u64) -> Result<&mut Allocation> {
        let found = self.allocations.get_mut(&handle);
        found
            .filter(|allocation| allocation.handles > 0)
            .ok_or(Status::INVALID_VALUE)
    }

    /// Adds a reference to a handle.
    pub(crate) fn hold(&mut self, handle: u64) -> Result<()> {
        self.held(handle)?.handles += 1;
        Ok(())
    }

    /// The parameters of an allocation.
    pub(crate) fn properties(&mut self, handle: u64) -> Result<Properties> {
        self.held(handle).map(|allocation| allocation.properties)
    }

    /// The allocation mapped at an address: its memory in the session's arena, and its
    /// parameters.
    pub(crate) fn mapped(&self, address: u64) -> Option<(u64, Properties)> {
        let (_, map) = self.find(address)?;
        let allocation = self.allocations.get(&map.allocation)?;
        Some((allocation.memory, allocation.properties))
    }

    /// The address of an allocation's memory in the session's arena.
    pub(crate) fn memory_of(&mut self, handle: u64) -> Result<u64> {
        self.held(handle).map(|allocation| allocation.memory)
    }

    /// Drops a reference to a handle. Returns the memory to free if nothing refers to it
    /// any more.
    pub(crate) fn release(&mut self, handle: u64) -> Result<Option<u64>> {
        self.held(handle)?.handles -= 1;
        Ok(self.unused(handle))
    }

    /// Adds a reference to the allocation that is mapped at an address, and returns its
    /// handle.
    pub(crate) fn retain(&mut self, address: u64) -> Result<u64> {
        let (_, map) = self.find(address).ok_or(Status::INVALID_VALUE)?;
        let allocation = self.allocations.get_mut(&map.allocation);
        allocation.ok_or(Status::INVALID_VALUE)?.handles += 1;
        Ok(map.allocation)
    }

    /// Maps an allocation in a reservation, without access.
    pub(crate) fn map(&mut self, address: u64, size: u64, handle: u64) -> Result<()> {
        self.mappable(address, size, handle)?.maps += 1;
        let map = Map {
            size,
            allocation: handle,
            access: Access::default(),
        };
        self.maps.insert(address, map);
        Ok(())
    }

    /// The allocation of a handle, if it can be mapped at an address.
    pub(crate) fn mappable(
        &mut self,
        address: u64,
        size: u64,
        handle: u64,
    ) -> Result<&mut Allocation> {
        let fits = size > 0 && is_chunks(&[address]) && self.is_reserved(address, size);
        if !fits || self.is_mapped(address, size) {
            return Err(Status::INVALID_VALUE);
        }
        let allocation = self.held(handle)?;
        // Memory in the host has one mapping at a time: the views of two would not see each
        // other's writes.
        let is_second =
            allocation.properties.location != MemoryLocation::Device && allocation.maps > 0;
        if size > allocation.size || !is_chunks(&[size]) || is_second {
            // NVIDIA's driver returns this, not INVALID_VALUE, for a size larger than the
            // allocation or not a multiple of the granularity.
            return Err(Status::NOT_SUPPORTED);
        }
        Ok(allocation)
    }

    /// Whether this is memory in the host and mapped somewhere.
    pub(crate) fn is_mapped_in_host(&mut self, handle: u64) -> Result<bool> {
        let allocation = self.held(handle)?;
        Ok(allocation.properties.location != MemoryLocation::Device && allocation.maps > 0)
    }

    /// The location of the memory of each mapping in a range.
    pub(crate) fn locations(&self, address: u64, size: u64) -> Result<Vec<MemoryLocation>> {
        let maps = self.whole(address, size)?;
        let allocations = maps.iter().filter_map(|at| {
            let map = self.maps.get(at)?;
            self.allocations.get(&map.allocation)
        });
        Ok(allocations.map(|one| one.properties.location).collect())
    }

    /// The addresses of the mappings that make up exactly this range, without a gap.
    fn whole(&self, address: u64, size: u64) -> Result<Vec<u64>> {
        let end = address.checked_add(size).ok_or(Status::INVALID_VALUE)?;
        let (mut at, mut found) = (address, Vec::new());
        while at < end {
            let map = self.maps.get(&at).ok_or(Status::INVALID_VALUE)?;
            found.push(at);
            at += map.size;
        }
        match at == end && !found.is_empty() {
            true => Ok(found),
            false => Err(Status::INVALID_VALUE),
        }
    }

    /// The addresses of the mappings in a range of a reservation. An error if one reaches
    /// out of the range.
    pub(crate) fn inside(&self, address: u64, size: u64) -> Result<Vec<u64>> {
        if size == 0 || !is_chunks(&[address, size]) || !self.is_reserved(address, size) {
            return Err(Status::INVALID_VALUE);
        }
        let end = address + size;
        let apart = |at: u64| self.find(at).is_none_or(|(start, _)| start == at);
        match apart(address) && apart(end) {
            true => Ok(self.maps.range(address..end).map(|(&at, _)| at).collect()),
            false => Err(Status::INVALID_VALUE),
        }
    }

    /// Whether a range is inside a reservation, or adjacent ones, which a program makes to grow
    /// a range in place.
    fn is_reserved(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        let mut at = address;
        while at < end {
            match self.reservations.range(..=at).next_back() {
                Some((start, length)) if at - start < *length => at = start + length,
                _ => return false,
            }
        }
        true
    }

    /// The mappings of a range whose access would change.
    pub(crate) fn changes(
        &self,
        address: u64,
        size: u64,
        side: Side,
        access: u32,
    ) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        for at in self.whole(address, size)? {
            if let Some(map) = self.maps.get(&at)
                && map.access.of(side) != access
                && let Some(allocation) = self.allocations.get(&map.allocation)
            {
                changes.push(Change {
                    address: at,
                    size: map.size,
                    memory: allocation.memory,
                    before: map.access,
                    after: map.access.with(side, access),
                });
            }
        }
        Ok(changes)
    }

    /// The mappings that make up exactly a range: address, bytes, and the address of the
    /// memory in the session's arena.
    pub(crate) fn backed(&self, address: u64, size: u64) -> Result<Vec<(u64, u64, u64)>> {
        let maps = self.whole(address, size)?.into_iter();
        let backed = maps.filter_map(|at| {
            let map = self.maps.get(&at)?;
            let allocation = self.allocations.get(&map.allocation)?;
            Some((at, map.size, allocation.memory))
        });
        Ok(backed.collect())
    }

    /// The start of the mapping that contains an address.
    pub(crate) fn start(&self, address: u64) -> Result<u64> {
        let found = self.find(address).ok_or(Status::INVALID_VALUE)?;
        Ok(found.0)
    }

    /// Records the new access of the mapping that starts at `address`.
    pub(crate) fn changed(&mut self, address: u64, access: Access) {
        if let Some(map) = self.maps.get_mut(&address) {
            map.access = access;
        }
    }

    /// The access at an address.
    pub(crate) fn access(&self, address: u64) -> Result<Access> {
        let found = self.find(address).ok_or(Status::INVALID_VALUE)?;
        Ok(found.1.access)
    }

    /// Removes the mappings of a range. Returns the addresses of those that the host must
    /// unmap, and the memory to free. As with NVIDIA's driver, the range may have gaps,
    /// but only whole mappings are removed.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> Result<(Vec<u64>, Vec<u64>)> {
        let (mut ends, mut frees) = (Vec::new(), Vec::new());
        for at in self.inside(address, size)? {
            let Some(map) = self.maps.remove(&at) else {
                continue;
            };
            if map.access.on_device() != 0 {
                ends.push(at);
            }
            if let Some(allocation) = self.allocations.get_mut(&map.allocation) {
                allocation.maps -= 1;
            }
            frees.extend(self.unused(map.allocation));
        }
        Ok((ends, frees))
    }

    /// The addresses of all allocations in the session's arena.
    pub(crate) fn memory(&self) -> impl Iterator<Item = u64> {
        self.allocations
            .values()
            .map(|allocation| allocation.memory)
    }

    /// Removes an allocation without handles and mappings. Returns its memory.
    fn unused(&mut self, handle: u64) -> Option<u64> {
        let allocation = self.allocations.get(&handle)?;
        if allocation.handles > 0 || allocation.maps > 0 {
            return None;
        }
        self.allocations.remove(&handle).map(|gone| gone.memory)
    }

    fn find(&self, address: u64) -> Option<(u64, Map)> {
        let (&start, &map) = self.maps.range(..=address).next_back()?;
        (address - start < map.size).then_some((start, map))
    }

    fn is_mapped(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else {
            return true;
        };
        let before = self.maps.range(..end).next_back();
        before.is_some_and(|(start, map)| start + map.size > address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: u64 = 1 << 40;
    const PLAIN: Properties = Properties {
        location: MemoryLocation::Device,
        handle_types: 0,
        usage: 0,
    };

    fn space() -> VirtualSpace {
        let mut space = VirtualSpace::default();
        space.reserved(BASE, 16 * CHUNK);
        space
    }

    #[test]
    fn memory_lives_as_long_as_a_handle_or_a_map() {
        let mut space = space();
        let handle = space.created(7, CHUNK, PLAIN);
        space.map(BASE, CHUNK, handle).unwrap();
        assert_eq!(space.release(handle), Ok(None));
        assert_eq!(space.release(handle), Err(Status::INVALID_VALUE));
        assert_eq!(
            space.map(BASE + CHUNK, CHUNK, handle),
            Err(Status::INVALID_VALUE)
        );
        assert_eq!(space.retain(BASE + 5), Ok(handle));
        assert_eq!(space.mapped(BASE + 5), Some((7, PLAIN)));
        assert_eq!(space.mapped(BASE + CHUNK), None);
        assert_eq!(space.unmap(BASE, CHUNK), Ok((vec![], vec![])));
        assert_eq!(space.release(handle), Ok(Some(7)));
        assert_eq!(space.retain(BASE), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn a_size_that_cannot_be_mapped_is_told_last() {
        let mut space = space();
        let handle = space.created(7, CHUNK, PLAIN);
        for (address, size, handle, status) in [
            (BASE, 100, handle, Status::NOT_SUPPORTED),
            (BASE, 2 * CHUNK, handle, Status::NOT_SUPPORTED),
            (BASE, 0, handle, Status::INVALID_VALUE),
            (BASE + 1, 100, handle, Status::INVALID_VALUE),
            (BASE, 100, handle + 1, Status::INVALID_VALUE),
            (BASE + 16 * CHUNK, 100, handle, Status::INVALID_VALUE),
        ] {
            let refused = space.map(address, size, handle);
            assert_eq!(refused, Err(status), "{size} at {address:#x}");
        }
    }

    #[test]
    fn only_whole_maps_are_changed() {
        let mut space = space();
        let handle = space.created(7, 2 * CHUNK, PLAIN);
        for at in [0, 2] {
            space.map(BASE + at * CHUNK, 2 * CHUNK, handle).unwrap();
        }
        for (at, size) in [(0, 1), (1, 1), (0, 3), (1, 2), (0, 5), (4, 1), (0, 0)] {
            let (at, size) = (BASE + at * CHUNK, size * CHUNK);
            assert!(
                space.changes(at, size, Side::Device, 3).is_err(),
                "{size} at {at:#x}"
            );
        }
        for (at, size) in [(0, 1), (1, 1), (0, 3), (1, 2), (3, 4), (0, 0), (12, 5)] {
            let (at, size) = (BASE + at * CHUNK, size * CHUNK);
            assert!(space.unmap(at, size).is_err(), "{size} at {at:#x}");
        }
        assert_eq!(space.unmap(BASE + 5 * CHUNK, CHUNK), Ok((vec![], vec![])));
        assert_eq!(
            space
                .changes(BASE, 4 * CHUNK, Side::Device, 3)
                .unwrap()
                .len(),
            2
        );
        let used = Access { device: 3, host: 0 };
        space.changed(BASE, used);
        assert_eq!(
            space
                .changes(BASE, 4 * CHUNK, Side::Device, 3)
                .unwrap()
                .len(),
            1
        );
        assert_eq!(space.access(BASE + CHUNK), Ok(used));
        assert_eq!(space.access(BASE + 2 * CHUNK), Ok(Access::default()));
        assert_eq!(
            space.unreserve(BASE, 16 * CHUNK),
            Err(Status::INVALID_VALUE)
        );
        assert_eq!(space.unmap(BASE, 4 * CHUNK), Ok((vec![BASE], vec![])));
        assert_eq!(space.unreserve(BASE, CHUNK), Err(Status::INVALID_VALUE));
        assert_eq!(space.unreserve(BASE, 16 * CHUNK), Ok(()));
    }

    #[test]
    fn adjacent_reservations_are_one_range() {
        let mut space = space();
        space.reserved(BASE + 16 * CHUNK, 4 * CHUNK);
        space.reserved(BASE + 21 * CHUNK, CHUNK);
        let handle = space.created(7, 4 * CHUNK, PLAIN);
        let across = BASE + 14 * CHUNK;
        space.map(across, 4 * CHUNK, handle).unwrap();
        for (at, size) in [(17, 4), (19, 2), (20, 1), (22, 1)] {
            let refused = space.map(BASE + at * CHUNK, size * CHUNK, handle);
            assert_eq!(refused, Err(Status::INVALID_VALUE), "{size} at {at}");
        }
        for (at, size) in [(0, 16), (16, 4)] {
            let refused = space.unreserve(BASE + at * CHUNK, size * CHUNK);
            assert_eq!(refused, Err(Status::INVALID_VALUE), "{size} at {at}");
        }
        assert_eq!(space.unmap(BASE, 20 * CHUNK), Ok((vec![], vec![])));
        assert_eq!(space.unreserve(BASE, 16 * CHUNK), Ok(()));
        assert_eq!(
            space.map(across, 4 * CHUNK, handle),
            Err(Status::INVALID_VALUE)
        );
    }

    proptest! {
        /// Mappings are inside the reservation and do not overlap, and all memory is
        /// freed in the end.
        #[test]
        fn maps_are_apart(steps in prop::collection::vec((0_u8..5, 0_u64..18, 0_u64..4), 1..200)) {
            let mut space = space();
            let mut handles = Vec::new();
            let mut alive = 0;
            for (what, at, size) in steps {
                let (address, bytes) = (BASE + at * CHUNK, size * CHUNK);
                let handle = handles.get(at as usize % handles.len().max(1)).copied().unwrap_or(0);
                match what {
                    0 => {
                        handles.push(space.created(alive, bytes, PLAIN));
                        alive += 1;
                    }
                    1 | 2 => {
                        let before: Vec<_> = space.maps.clone().into_iter().collect();
                        if space.map(address, bytes, handle).is_ok() {
                            prop_assert!(bytes > 0 && at + size <= 16);
                            let apart = |(start, map): &(u64, Map)| {
                                start + map.size <= address || address + bytes <= *start
                            };
                            prop_assert!(before.iter().all(apart));
                        }
                    }
                    3 => {
                        let _ = space.unmap(address, bytes);
                    }
                    _ => {
                        let _ = space.release(handle);
                    }
                }
                let maps: u64 = space.allocations.values().map(|one| one.maps).sum();
                prop_assert_eq!(maps, space.maps.len() as u64);
            }
            for (at, map) in space.maps.clone() {
                space.unmap(at, map.size).unwrap();
            }
            for handle in handles {
                let _ = space.release(handle);
            }
            prop_assert_eq!(space.memory().count(), 0);
        }
    }
}
