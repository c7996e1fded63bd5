//! The VM's memory, as the hypervisor maps it for the device, in a table that workers read.
//! This process never reads that memory.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use paragpu_communicator_ring::guest_memory::{
    MAX_FILES, MAX_RANGES, Range, TABLE_SIZE, write_table,
};
use rustix::fs::{
    FileType, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::wire::{DmaMap, DmaUnmap, MAX_MAPPINGS, UNMAP_ALL, dma_flags};

/// Alignment in bytes of shared ranges.
const PAGE: u64 = 4096;

/// The mapped memory, and its table for workers. The default is a VM without memory.
#[derive(Debug, Default)]
pub struct GuestMemory {
    ranges: BTreeMap<u64, Mapped>,
    files: Vec<File>,
    /// The table of all workers since the last [`cut_off`](Self::cut_off); `None` before
    /// the first of them.
    table: Option<OwnedFd>,
    sequence: u64,
    /// Whether it has been logged that memory is not shared.
    said_unshared: bool,
    /// Whether it has been logged that memory is in too many files.
    said_full: bool,
}

#[derive(Debug, Clone, Copy)]
struct Mapped {
    size: u64,
    /// How workers access it: offset, number of the file, whether it is writable.
    shared: Option<(u64, u32, bool)>,
}

/// A file that contains memory. Workers keep the files that they were given, so its number
/// becomes another file's only after they are cut off.
#[derive(Debug)]
struct File {
    identity: (u64, u64),
    /// `None` while no range is in it, so that its memory can be freed.
    descriptor: Option<OwnedFd>,
}

impl GuestMemory {
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
        let Some(number) = self.number(identity)? else {
            if !std::mem::replace(&mut self.said_full, true) {
                tracing::warn!(
                    "the VM's memory is in more than {MAX_FILES} files: data in the others are \
                     copied through the window"
                );
            }
            return Ok(None);
        };
        if let Some(kept) = self.files.get_mut(number) {
            kept.descriptor.get_or_insert(file);
        }
        let writable = map.flags & dma_flags::WRITE != 0;
        let number = u32::try_from(number).map_err(|_| Errno::NOSPC)?;
        Ok(Some((map.offset, number, writable)))
    }

    /// The number of a file; a new one if it has none. `None` if all are in use.
    fn number(&mut self, identity: (u64, u64)) -> Result<Option<usize>, Errno> {
        let known = self.files.iter().position(|file| file.identity == identity);
        if known.is_some() {
            return Ok(known);
        }
        let new = File {
            identity,
            descriptor: None,
        };
        if self.files.len() < MAX_FILES {
            self.files.push(new);
            return Ok(Some(self.files.len() - 1));
        }
        let unused = |file: &File| file.descriptor.is_none();
        let number = self.files.iter().position(unused);
        if let Some(file) = number.and_then(|number| self.files.get_mut(number)) {
            *file = new;
            self.cut_off()?;
        }
        Ok(number)
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
            self.close_unused();
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
        self.close_unused();
        self.publish()
    }

    /// Closes the files that contain no range any more.
    fn close_unused(&mut self) {
        let mut used = [false; MAX_FILES];
        for (_, number, _) in self.ranges.values().filter_map(|mapped| mapped.shared) {
            if let Some(used) = used.get_mut(number as usize) {
                *used = true;
            }
        }
        for (file, used) in self.files.iter_mut().zip(used) {
            file.descriptor.take_if(|_| !used);
        }
    }

    /// Ends the access of all workers that have the memory, for good: their table stays
    /// empty, and later workers get another. Workers begin no new copies; one in progress
    /// ends within milliseconds.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn cut_off(&mut self) -> Result<(), Errno> {
        match self.table.take() {
            Some(table) => write_table(table.as_fd(), &mut self.sequence, &[]),
            None => Ok(()),
        }
    }

    fn publish(&mut self) -> Result<(), Errno> {
        let ranges = self.shared_ranges();
        match &self.table {
            Some(table) => write_table(table.as_fd(), &mut self.sequence, &ranges),
            None => Ok(()),
        }
    }

    fn shared_ranges(&self) -> Vec<Range> {
        self.ranges
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
            .collect()
    }

    /// A read-only descriptor of the table, which is created for the first worker.
    fn table(&mut self) -> Result<OwnedFd, Errno> {
        let table = match self.table.take() {
            Some(table) => table,
            None => {
                let table = memfd_create("paragpu-guest-memory", MemfdFlags::CLOEXEC)?;
                ftruncate(&table, TABLE_SIZE)?;
                let ranges = self.shared_ranges();
                write_table(table.as_fd(), &mut self.sequence, &ranges)?;
                table
            }
        };
        let table = self.table.insert(table);
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&*table));
        rustix::fs::open(own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// The descriptors for a worker: the table, read-only, and the files. None if no memory
    /// is shared, which is logged once.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn descriptors(&mut self) -> Result<Vec<OwnedFd>, Errno> {
        if self.files.iter().all(|file| file.descriptor.is_none()) {
            if !std::mem::replace(&mut self.said_unshared, true) {
                tracing::warn!(
                    "the VM's memory is not shared, so all data is copied through the window: \
                     QEMU's memory-backend-memfd with share=on lets the host copy them"
                );
            }
            return Ok(Vec::new());
        }
        let table = self.table()?;
        let files = self.files.iter().map(|file| match &file.descriptor {
            Some(descriptor) => fcntl_dupfd_cloexec(descriptor, 0),
            None => placeholder(),
        });
        std::iter::once(Ok(table)).chain(files).collect()
    }
}

/// A file in place of one that is closed, because workers find files by their number. If
/// that one returns, workers that have the placeholder do not reach it: the check fails that
/// guest and host share the file.
fn placeholder() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("paragpu-no-memory", flags)?;
    ftruncate(&file, PAGE)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        let mut memory = GuestMemory::default();
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
        let mut memory = GuestMemory::default();
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

    /// The number of ranges in a worker's table.
    fn count(worker: &[OwnedFd]) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::pread(&worker[0], &mut bytes, 8).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn size_of_file(file: &OwnedFd) -> i64 {
        fstat(file).unwrap().st_size
    }

    #[test]
    fn workers_that_are_cut_off_stay_so() {
        let mut memory = GuestMemory::default();
        let file = ram(0x4000, SealFlags::SHRINK);
        let copy = || Some(file.try_clone().unwrap());
        memory.map(&at(0, 0x1000, 0), copy()).unwrap();
        let early = memory.descriptors().unwrap();
        assert_eq!(count(&early), 1);
        memory.cut_off().unwrap();
        assert_eq!(count(&early), 0);
        memory.map(&at(0x1000, 0x1000, 0x1000), copy()).unwrap();
        let late = memory.descriptors().unwrap();
        assert_eq!((count(&early), count(&late)), (0, 2));
        memory.unmap(&gone(0, 0x1000)).unwrap();
        assert_eq!((count(&early), count(&late)), (0, 1));
        assert_ne!(
            fstat(&early[0]).unwrap().st_ino,
            fstat(&late[0]).unwrap().st_ino
        );
    }

    #[test]
    fn files_of_unplugged_memory_are_closed_and_make_room() {
        let mut memory = GuestMemory::default();
        let main = ram(0x8000, SealFlags::SHRINK);
        memory.map(&at(0, 0x8000, 0), Some(main)).unwrap();
        let module = |size| (at(1 << 32, size, 0), ram(size, SealFlags::SHRINK));
        let open = |memory: &GuestMemory| {
            let files = memory.files.iter();
            files.filter(|file| file.descriptor.is_some()).count()
        };
        // More than there are numbers, one at a time.
        for size in [0x1000, 0x2000, 0x3000, 0x4000, 0x5000] {
            let (map, file) = module(size);
            memory.map(&map, Some(file)).unwrap();
            let worker = memory.descriptors().unwrap();
            assert_eq!((count(&worker), open(&memory)), (2, 2), "{size:#x}");
            let sizes: Vec<_> = worker[1..].iter().map(size_of_file).collect();
            assert!(sizes.contains(&(size as i64)), "{sizes:x?}");
            memory.unmap(&gone(1 << 32, size)).unwrap();
            assert_eq!((count(&worker), open(&memory)), (1, 1), "{size:#x}");
        }
        // A file that returns is found by those that have it.
        let (map, file) = module(0x6000);
        let copy = || Some(file.try_clone().unwrap());
        memory.map(&map, copy()).unwrap();
        let worker = memory.descriptors().unwrap();
        memory.unmap(&gone(1 << 32, 0x6000)).unwrap();
        memory.map(&map, copy()).unwrap();
        assert_eq!(count(&worker), 2);
        // All numbers are in use: the next file is not shared, and nobody is cut off.
        for place in [2, 3, 4] {
            let file = ram(0x1000, SealFlags::SHRINK);
            memory.map(&at(place << 32, 0x1000, 0), Some(file)).unwrap();
        }
        let worker = memory.descriptors().unwrap();
        assert_eq!((worker.len(), count(&worker)), (1 + MAX_FILES, 4));
        memory.unmap(&gone(2 << 32, 0x1000)).unwrap();
        memory.unmap(&gone(4 << 32, 0x1000)).unwrap();
        assert_eq!(count(&worker), 3);
        // A number changes hands only once those that know it are cut off.
        let file = ram(0x7000, SealFlags::SHRINK);
        memory.map(&at(4 << 32, 0x7000, 0), Some(file)).unwrap();
        let late = memory.descriptors().unwrap();
        assert_eq!((count(&worker), count(&late)), (0, 4));
        let unmap = DmaUnmap {
            flags: UNMAP_ALL,
            ..gone(0, 0)
        };
        memory.unmap(&unmap).unwrap();
        assert_eq!((count(&late), open(&memory)), (0, 0));
        assert!(memory.descriptors().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn ranges_never_overlap(
            steps in prop::collection::vec((any::<bool>(), 0_u64..40, 0_u64..20), 1..60)
        ) {
            let mut memory = GuestMemory::default();
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
