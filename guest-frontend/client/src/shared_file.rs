//! Registered memory that is a shared mapping of a file, which several processes use to
//! communicate. The host maps the same file: program, device, and other processes see the
//! same bytes at any time, also while a kernel runs. Only communicators between processes
//! of one machine can pass the file.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use paragpu_protocol::table::FileMap;
use parking_lot::{Mutex, RwLock};

use crate::connection::Link;
use crate::sys::{moved_pages, shared_file};

/// The pinned ranges that the host maps as well, at other addresses than the window's:
/// registered shared mappings of files, and former shadows that joined the window.
#[derive(Debug, Default)]
pub(crate) struct SharedFiles {
    /// By the program's address: size in bytes, and the device's address.
    ranges: RwLock<BTreeMap<u64, (u64, u64)>>,
    /// Number of ranges. Checked before the lock is taken.
    count: AtomicUsize,
    /// Number of the file passed last. The lock is held until its call has ended, because
    /// the host takes files in the order of their numbers.
    passed: Mutex<u64>,
}

impl SharedFiles {
    /// The device's address of a range, given by the program's address or the device's.
    pub(crate) fn address_of(&self, address: u64, size: u64) -> Option<u64> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let inside = |base: u64, length: u64| {
            let offset = address.checked_sub(base)?;
            (offset.checked_add(size)? <= length).then_some(offset)
        };
        let ranges = self.ranges.read();
        if let Some((base, (length, device))) = ranges.range(..=address).next_back()
            && let Some(offset) = inside(*base, *length)
        {
            return Some(device + offset);
        }
        let mut all = ranges.values();
        all.any(|(length, device)| inside(*device, *length).is_some())
            .then_some(address)
    }

    /// Adds a range.
    pub(crate) fn add(&self, address: u64, size: u64, device: u64) {
        let mut ranges = self.ranges.write();
        ranges.insert(address, (size, device));
        self.count.store(ranges.len(), Ordering::Release);
    }

    /// Removes a range.
    pub(crate) fn remove(&self, address: u64) {
        let mut ranges = self.ranges.write();
        ranges.remove(&address);
        self.count.store(ranges.len(), Ordering::Release);
    }

    /// Has the host map `length` bytes at `address` of the program, in whole pages, at
    /// `device`. Returns false if they are not a shared mapping of a file, if they are pages of
    /// a window, or if the host cannot map it.
    pub(crate) fn share(&self, link: &Link, address: u64, length: u64, device: u64) -> bool {
        let find = || shared_file::find(address, length);
        let Some(pages) = moved_pages::unless_moved(address, length, find) else {
            return false;
        };
        let mut passed = self.passed.lock();
        *passed += 1;
        if link.pass_file(*passed, pages.file.as_fd()).is_err() {
            return false;
        }
        let map = FileMap {
            address: device,
            size: length,
            offset: pages.offset,
            file: *passed,
        };
        link.call(&map).is_ok()
    }
}
