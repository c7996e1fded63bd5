//! Registered memory that is part of the window: program and device share the bytes, as
//! with cudaMallocHost, but the program keeps its own address. The device uses the
//! window's address.

use paragpu_protocol::handle::WindowOffset;
use paragpu_protocol::table::{HostMap, HostUnmap};

use super::{Backing, HostMemory, PAGE, Pinned};
use crate::error::Result;
use crate::sys::moved_pages::{MovedPages, SecondMapping};

impl HostMemory {
    /// Makes pages of the program part of the window. Returns their offset and the pages.
    /// `None` if that is impossible or unsafe.
    pub(super) fn move_in(&self, address: u64, length: u64) -> Option<(u64, MovedPages)> {
        let (offset, second) = self.take_second(length)?;
        let map = HostMap {
            offset: WindowOffset(offset),
            size: length,
        };
        if self.link.call(&map).is_err() {
            self.give_back(offset, length);
            return None;
        }
        if let Some(pages) = second.replace(address, self.window.base() + offset) {
            return Some((offset, pages));
        }
        let unmap = HostUnmap {
            offset: WindowOffset(offset),
        };
        // If the host continues with the mapping, the range stays in use.
        if self.link.call(&unmap).is_ok() {
            self.give_back(offset, length);
        }
        None
    }

    /// A part of the window, mapped a second time, and its offset. `None` if there is no room.
    pub(super) fn take_second(&self, length: u64) -> Option<(u64, SecondMapping)> {
        let offset = self.take_offset(length)?;
        let second = self.window.second(offset, length);
        if second.is_none() {
            self.give_back(offset, length);
        }
        Some((offset, second?))
    }

    /// Pins what [`move_in`](Self::move_in) moved.
    pub(super) fn keep_moved(
        &self,
        address: u64,
        size: u64,
        flags: u32,
        offset: u64,
        pages: MovedPages,
    ) {
        let within = address - pages.address();
        let length = (within + size).next_multiple_of(PAGE);
        let mut all = self.pinned.write();
        self.window.add_moved(address, size, pages);
        if self.window.is_left()
            && let Some(region) = self.window.region(offset, length)
        {
            // The window was left meanwhile: the host has zeros there.
            region.show();
            self.shadows.add(region);
        }
        all.insert(
            address,
            Pinned {
                address,
                size,
                device: self.window.base() + offset + within,
                flags,
                registered: true,
                kept: false,
                backing: Backing::Window(offset, length),
            },
        );
    }

    /// Makes the memory at `address` private to the program again.
    pub(super) fn move_out(&self, address: u64, offset: u64, length: u64) -> Result<()> {
        self.streams.synchronize_all()?;
        let region = self.shadows.find(self.window.base() + offset, length);
        if let Some(region) = region {
            self.forget_shadow(&region)?;
        }
        self.link.call(&HostUnmap {
            offset: WindowOffset(offset),
        })?;
        if self.window.give_back(address) {
            self.give_back(offset, length);
        }
        Ok(())
    }
}
