//! A VM whose memory the host can copy, for tests: its pages, the page lists of a channel
//! as its kernel may write them, and the table of its memory as its device process writes
//! it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc
)]

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use rustix::pipe::pipe;

use crate::guest_memory::{CHECKED, GuestMemory, Range, TABLE_SIZE, write_table};
use crate::layout::list;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Pages of the VM's memory, unless a test needs more.
pub const PAGES: u64 = 16;
/// The first address of the memory.
pub const BASE: u64 = 0x10_0000;

/// The guest's and the device process's side.
#[derive(Debug)]
pub struct Vm {
    /// The page lists of two channels, one after the other.
    pub window: OwnedFd,
    /// The table of the VM's memory.
    pub table: OwnedFd,
    /// The VM's memory.
    pub ram: OwnedFd,
    /// The sequence number of the table.
    pub sequence: u64,
    /// Reports a hang-up once the first channel's lists are unused.
    pub tenure: OwnedFd,
    size: u64,
}

fn file(size: u64) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, size).unwrap();
    file
}

/// The address of a page.
#[must_use]
pub fn page(number: u64) -> u64 {
    BASE + number * PAGE
}

impl Vm {
    /// A VM with [`PAGES`] pages.
    #[must_use]
    pub fn new() -> (Self, GuestMemory) {
        Self::with_pages(PAGES)
    }

    /// A VM whose page `n` is filled with the byte `n % 256`, and a worker's view of its
    /// first channel, after the check that the memory is shared.
    #[must_use]
    pub fn with_pages(pages: u64) -> (Self, GuestMemory) {
        let (vm, mut memory) = Self::unchecked(pages);
        let value = 0x5eed_u64;
        vm.write(0, &value.to_le_bytes());
        vm.name(0, &[page(0)], 0, CHECKED, list::WRITABLE);
        memory.check(&memory.take(0).unwrap(), value).unwrap();
        assert_eq!(vm.bytes(8, 8), (!value).to_le_bytes());
        vm.write(0, &[0; 16]);
        vm.free(0);
        (vm, memory)
    }

    /// The same without that check.
    #[must_use]
    pub fn unchecked(pages: u64) -> (Self, GuestMemory) {
        let (tenure, kept) = pipe().unwrap();
        let mut vm = Self {
            window: file(2 * list::SIZE * u64::from(list::COUNT)),
            table: file(TABLE_SIZE),
            ram: file(pages * PAGE),
            sequence: 0,
            tenure,
            size: pages * PAGE,
        };
        for page in 0..pages {
            let bytes = [page as u8; PAGE as usize];
            pwrite(&vm.ram, &bytes, page * PAGE).unwrap();
        }
        vm.map(&[vm.all(1)]);
        let [table, ram] = [&vm.table, &vm.ram].map(|file| file.try_clone().unwrap());
        let memory = GuestMemory::new(vm.window.as_fd(), 0, table, &[ram], kept).unwrap();
        (vm, memory)
    }

    /// The range of all its memory.
    #[must_use]
    pub fn all(&self, writable: u32) -> Range {
        Range {
            address: BASE,
            size: self.size,
            offset: 0,
            file: 0,
            writable,
        }
    }

    /// Sets the table of its memory, as after messages of the hypervisor.
    pub fn map(&mut self, ranges: &[Range]) {
        write_table(self.table.as_fd(), &mut self.sequence, ranges).unwrap();
    }

    /// Writes a page list as the guest's kernel does, the state last.
    pub fn name(&self, number: u64, entries: &[u64], offset: u32, length: u64, flags: u32) {
        let base = number * list::SIZE;
        let put = |at: usize, bytes: &[u8]| {
            pwrite(&self.window, bytes, base + at as u64).unwrap();
        };
        put(list::COUNT_OF, &(entries.len() as u32).to_le_bytes());
        put(list::OFFSET, &offset.to_le_bytes());
        put(list::FLAGS, &flags.to_le_bytes());
        put(list::LENGTH, &length.to_le_bytes());
        for (index, entry) in entries.iter().enumerate() {
            put(list::ENTRY + 8 * index, &entry.to_le_bytes());
        }
        put(list::STATE, &list::READY.to_le_bytes());
    }

    /// Takes a list back, as the guest's kernel does.
    pub fn free(&self, number: u64) {
        pwrite(&self.window, &list::FREE.to_le_bytes(), number * list::SIZE).unwrap();
    }

    /// The state of a list.
    #[must_use]
    pub fn state(&self, number: u64) -> u32 {
        let mut bytes = [0; 4];
        pread(&self.window, &mut bytes, number * list::SIZE).unwrap();
        u32::from_le_bytes(bytes)
    }

    /// Bytes of its memory.
    #[must_use]
    pub fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        pread(&self.ram, &mut bytes, offset).unwrap();
        bytes
    }

    /// One of these bytes.
    #[must_use]
    pub fn byte(&self, offset: u64) -> u8 {
        self.bytes(offset, 1)[0]
    }

    /// Writes to its memory, as a program in the VM does.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        pwrite(&self.ram, bytes, offset).unwrap();
    }
}
