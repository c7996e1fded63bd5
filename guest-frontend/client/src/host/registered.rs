//! Registered memory that is part of the window: program and device share the bytes, as
//! with cudaMallocHost, but the program keeps its own address. The device uses the
//! window's address.

use std::sync::Arc;

use paragpu_protocol::handle::WindowOffset;
use paragpu_protocol::table::{HostMap, HostUnmap};

use super::leave_window::left;
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
        if let Some(pages) = second.replace(address, self.window.base() + offset, None) {
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

    /// Pins what [`move_in`](Self::move_in) moved, which contains the memory.
    /// `departures`: how many windows the session had left before.
    pub(super) fn keep_moved(
        &self,
        (address, size): (u64, u64),
        flags: u32,
        (offset, pages): (u64, MovedPages),
        departures: usize,
    ) -> Option<()> {
        let within = address - pages.address();
        let length = (within + size).next_multiple_of(PAGE);
        let mut all = self.pinned.write();
        let backing = if self.window.departures() == departures {
            self.window.add_moved(address, size, pages);
            Backing::Window(offset, length)
        } else {
            // The window was left meanwhile: the host has zeros there.
            let (region, joining) = self.left_registered((address, size), (offset, pages))?;
            region.show();
            self.shadows.add(Arc::clone(&region));
            left(region, joining)
        };
        all.insert(
            address,
            Pinned {
                address,
                size,
                device: self.window.base() + offset + within,
                flags,
                registered: true,
                kept: false,
                backing,
            },
        );
        Some(())
    }

    /// Makes the memory at `address` private to the program again.
    pub(super) fn move_out(&self, address: u64, offset: u64, length: u64) -> Result<()> {
        self.streams.synchronize_all()?;
        self.unmap(offset)?;
        let pages = self.window.take_moved(address);
        if pages.is_none_or(|pages| pages.give_back()) {
            self.give_back(offset, length);
        }
        Ok(())
    }
}
