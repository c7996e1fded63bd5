//! The VM's memory, as the hypervisor maps it for the device, in a table that workers read.
//! This process never reads that memory.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use paragpu_communicator_ring::guest_memory::{
    MAX_FILES, MAX_RANGES, Range, TABLE_SIZE, write_table,
};
use rustix::fs::{
    FileType, MemfdFlags, Mode, OFlags, SealFlags, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::wire::{DmaMap, DmaUnmap, MAX_MAPPINGS, UNMAP_ALL, dma_flags};
use crate::Error;

/// Alignment in bytes of shared ranges.
const PAGE: u64 = 4096;

/// The mapped memory, and its table for workers.
#[derive(Debug)]
pub struct GuestMemory {
    ranges: BTreeMap<u64, Mapped>,
    files: Vec<File>,
    table: OwnedFd,
    sequence: u64,
    /// Whether it has been logged that memory is not shared.
    said: bool,
}

#[derive(Debug, Clone, Copy)]
struct Mapped {
    size: u64,
    /// How workers access it: offset, number of the file, whether it is writable.
    shared: Option<(u64, u32, bool)>,
}

/// A file that contains memory. Its number is never reused, because workers keep the files
/// that they were given.
#[derive(Debug)]
struct File {
    identity: (u64, u64),
    descriptor: OwnedFd,
}

impl GuestMemory {
    /// Creates the table of a VM without memory.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new() -> Result<Self, Error> {
        let failed = || Error::system("keep a table of the VM's memory");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let table = memfd_create("paragpu-guest-memory", flags).map_err(failed())?;
        ftruncate(&table, TABLE_SIZE).map_err(failed())?;
        Ok(Self {
            ranges: BTreeMap::new(),
            files: Vec::new(),
            table,
            sequence: 0,
            said: false,
        })
    }

    /// Adds memory, which is in `file` if the hypervisor passed one.
    ///
    /// # Errors
    /// The reply to the hypervisor: [`Errno::EXIST`] for an overlap, [`Errno::INVAL`] for
    /// an invalid range, [`Errno::NOSPC`].
    pub fn map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno> {
        let known = dma_flags::READ | dma_flags::WRITE;
        let last = map.size.checked_sub(1).ok_or(Errno::INVAL)?;
        let last = map.address.checked_add(last).ok_or(Errno::INVAL)?;
        if map.flags & !known != 0 {
            return Err(Errno::INVAL);
        }
        let before = self.ranges.range(..=last).next_back();
        if before.is_some_and(|(start, found)| start + (found.size - 1) >= map.address) {
            return Err(Errno::EXIST);
        }
        if self.ranges.len() >= MAX_MAPPINGS {
            return Err(Errno::NOSPC);
        }
        let shared = match file {
            Some(file) => self.share(map, file)?,
            None => None,
        };
        let size = map.size;
        self.ranges.insert(map.address, Mapped { size, shared });
        self.publish()
    }

    /// How workers access the memory; `None` if they cannot.
    fn share(&mut self, map: &DmaMap, file: OwnedFd) -> Result<Option<(u64, u32, bool)>, Errno> {
        let found = fstat(&file)?;
        let length = u64::try_from(found.st_size).unwrap_or(0);
        let end = map.offset.checked_add(map.size).ok_or(Errno::INVAL)?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if is_file && end > length {
            // The range exceeds the file.
            return Err(Errno::INVAL);
        }
        // If the file could shrink, an access could kill a process that maps it.
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let aligned = (map.address | map.size | map.offset).is_multiple_of(PAGE);
        if !is_file || !sealed || !aligned || map.flags & dma_flags::READ == 0 {
            return Ok(None);
        }
        #[allow(clippy::unnecessary_cast)]
        let identity = (found.st_dev as u64, found.st_ino as u64);
        let number = self.files.iter().position(|file| file.identity == identity);
        let number = match number {
            Some(number) => number,
            None if self.files.len() < MAX_FILES => {
                self.files.push(File {
                    identity,
                    descriptor: file,
                });
                self.files.len() - 1
            }
            None => return Ok(None),
        };
        let writable = map.flags & dma_flags::WRITE != 0;
        let number = u32::try_from(number).map_err(|_| Errno::NOSPC)?;
        Ok(Some((map.offset, number, writable)))
    }

    /// Removes memory, in whole mapped ranges. Workers begin no new copies there; one in
    /// progress ends within milliseconds.
    ///
    /// # Errors
    /// [`Errno::NOENT`] if nothing is mapped there, [`Errno::INVAL`] if a range would be
    /// cut.
    pub fn unmap(&mut self, unmap: &DmaUnmap) -> Result<(), Errno> {
        if unmap.flags == UNMAP_ALL {
            self.ranges.clear();
            return self.publish();
        }
        let last = unmap.size.checked_sub(1).ok_or(Errno::INVAL)?;
        let last = unmap.address.checked_add(last).ok_or(Errno::INVAL)?;
        if unmap.flags != 0 {
            return Err(Errno::INVAL);
        }
        let end = |(start, found): (&u64, &Mapped)| start + (found.size - 1);
        let before = self.ranges.range(..unmap.address).next_back();
        if before.is_some_and(|before| end(before) >= unmap.address) {
            return Err(Errno::INVAL);
        }
        let inside = || self.ranges.range(unmap.address..=last);
        if inside().next_back().is_some_and(|found| end(found) > last) {
            return Err(Errno::INVAL);
        }
        let gone: Vec<u64> = inside().map(|(start, _)| *start).collect();
        if gone.is_empty() {
            return Err(Errno::NOENT);
        }
        for start in gone {
            self.ranges.remove(&start);
        }
        self.publish()
    }

    fn publish(&mut self) -> Result<(), Errno> {
        let ranges: Vec<Range> = self
            .ranges
            .iter()
            .filter_map(|(address, mapped)| {
                let (offset, file, writable) = mapped.shared?;
                Some(Range {
                    address: *address,
                    size: mapped.size,
                    offset,
                    file,
                    writable: writable.into(),
                })
            })
            .take(MAX_RANGES)
            .collect();
        write_table(self.table.as_fd(), &mut self.sequence, &ranges)
    }

    /// The descriptors for a worker: the table, read-only, and the files. None if no memory
    /// is shared, which is logged once.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn descriptors(&mut self) -> Result<Vec<OwnedFd>, Errno> {
        if self.files.is_empty() {
            if !std::mem::replace(&mut self.said, true) {
                tracing::warn!(
                    "the VM's memory is not shared, so all data is copied through the window: \
                     QEMU's memory-backend-memfd with share=on lets the host copy them"
                );
            }
            return Ok(Vec::new());
        }
        let own = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&self.table)
        );
        let table = rustix::fs::open(own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let files = self
            .files
            .iter()
            .map(|file| fcntl_dupfd_cloexec(&file.descriptor, 0));
        std::iter::once(Ok(table)).chain(files).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::fs::fcntl_add_seals;

    use super::*;

    fn ram(size: u64, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("ram", flags).unwrap();
        ftruncate(&file, size).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    fn at(address: u64, size: u64, offset: u64) -> DmaMap {
        DmaMap {
            argsz: 32,
            flags: dma_flags::READ | dma_flags::WRITE,
            offset,
            address,
            size,
        }
    }

    fn gone(address: u64, size: u64) -> DmaUnmap {
        DmaUnmap {
            argsz: 24,
            flags: 0,
            address,
            size,
        }
    }

    #[test]
    fn what_overlaps_or_lies_is_refused() {
        let mut memory = GuestMemory::new().unwrap();
        let file = ram(1 << 20, SealFlags::SHRINK);
        let copy = || Some(file.try_clone().unwrap());
        memory.map(&at(0x10000, 0x10000, 0), copy()).unwrap();
        for (address, size) in [(0x10000, 1), (0x1f000, 0x2000), (0, 0x10001), (0, u64::MAX)] {
            assert_eq!(memory.map(&at(address, size, 0), copy()), Err(Errno::EXIST));
        }
        for (address, size, offset) in [
            (0x40000, 0, 0),
            (u64::MAX, 2, 0),
            (0x40000, 0x2000, (1 << 20) - 0x1000),
            (0x40000, 0x1000, u64::MAX),
        ] {
            let refused = memory.map(&at(address, size, offset), copy());
            assert_eq!(
                refused,
                Err(Errno::INVAL),
                "{address:#x}+{size:#x}@{offset:#x}"
            );
        }
        memory.map(&at(u64::MAX - 0xfff, 0x1000, 0), None).unwrap();
        assert_eq!(memory.unmap(&gone(0x10000, 0x1000)), Err(Errno::INVAL));
        assert_eq!(memory.unmap(&gone(0x11000, 0xf000)), Err(Errno::INVAL));
        assert_eq!(memory.unmap(&gone(0x30000, 0x1000)), Err(Errno::NOENT));
        memory.unmap(&gone(0, 0x40000)).unwrap();
        assert_eq!(memory.unmap(&gone(0x10000, 0x10000)), Err(Errno::NOENT));
    }

    #[test]
    fn only_memory_that_cannot_go_away_is_shared() {
        let mut memory = GuestMemory::new().unwrap();
        memory
            .map(&at(0, 0x1000, 0), Some(ram(0x1000, SealFlags::empty())))
            .unwrap();
        memory.map(&at(0x1000, 0x1000, 0), None).unwrap();
        memory
            .map(&at(0x2100, 0x800, 0), Some(ram(0x1000, SealFlags::SHRINK)))
            .unwrap();
        assert!(memory.descriptors().unwrap().is_empty());
        let file = ram(0x1000, SealFlags::SHRINK);
        memory
            .map(&at(0x4000, 0x1000, 0), Some(file.try_clone().unwrap()))
            .unwrap();
        memory.map(&at(0x5000, 0x1000, 0), Some(file)).unwrap();
        let descriptors = memory.descriptors().unwrap();
        assert_eq!(descriptors.len(), 2, "the table, and one file once");
        let denied = rustix::io::pwrite(&descriptors[0], &[1], 0);
        assert_eq!(denied, Err(Errno::BADF), "a worker only reads the table");
    }

    proptest! {
        #[test]
        fn ranges_never_overlap(
            steps in prop::collection::vec((any::<bool>(), 0_u64..40, 0_u64..20), 1..60)
        ) {
            let mut memory = GuestMemory::new().unwrap();
            for (maps, address, size) in steps {
                let (address, size) = (address * PAGE, size * PAGE);
                let _ = if maps {
                    memory.map(&at(address, size, 0), None)
                } else {
                    memory.unmap(&gone(address, size))
                };
                let ranges: Vec<_> = memory.ranges.iter().collect();
                for pair in ranges.windows(2) {
                    prop_assert!(pair[0].0 + pair[0].1.size <= *pair[1].0);
                }
            }
        }
    }
}
