//! The window: one memfd, which the guest sees as BAR 2.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use paragpu_communicator_ring::layout::{CLOSED_BY_GUEST, CLOSED_BY_HOST};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::{Errno, pwrite};

use crate::Error;
use crate::layout::Layout;
use crate::page_unsafe::DevicePage;
use crate::rings::{self, Place};

/// A window and its header.
#[derive(Debug)]
pub struct Window {
    memory: OwnedFd,
    layout: Layout,
    page: DevicePage,
}

impl Window {
    /// A zeroed window whose channels are all free.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new(layout: Layout, generation: u32) -> Result<Self, Error> {
        let memory = memfd_create(
            "paragpu-window",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )
        .map_err(Error::system("make the window"))?;
        ftruncate(&memory, layout.window_size).map_err(Error::system("size the window"))?;
        fcntl_add_seals(
            &memory,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )
        .map_err(Error::system("seal the window"))?;
        write_all(memory.as_fd(), &layout.header(generation), 0)?;
        let page = DevicePage::map(memory.as_fd())?;
        let window = Self {
            memory,
            layout,
            page,
        };
        for channel in 0..layout.channel_count {
            rings::initialise(window.as_fd(), window.place(channel))?;
        }
        Ok(window)
    }

    /// Where its channels lie.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The words of its header.
    #[must_use]
    pub fn page(&self) -> &DevicePage {
        &self.page
    }

    /// Where a channel lies.
    #[must_use]
    pub fn place(&self, channel: u16) -> Place {
        Place {
            channel,
            offset: self.layout.offset_of(channel),
            size: self.layout.channel_size,
        }
    }

    /// Takes away all that was in a channel, so that its next opener finds
    /// zeros and a fresh header. Nobody on the host may use it any more.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn scrub(&self, channel: u16) -> Result<(), Error> {
        fallocate(
            &self.memory,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            self.layout.offset_of(channel),
            self.layout.channel_size,
        )
        .map_err(Error::system("scrub a channel"))?;
        rings::initialise(self.as_fd(), self.place(channel))?;
        Ok(())
    }

    /// Sets the flag that tells the worker that the guest side is gone.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn set_closed_by_guest(&self, channel: u16) -> Result<(), Error> {
        self.set_flag(channel, CLOSED_BY_GUEST)
    }

    /// Sets the flag that tells the guest that the host side is gone.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn set_closed_by_host(&self, channel: u16) -> Result<(), Error> {
        self.set_flag(channel, CLOSED_BY_HOST)
    }

    fn set_flag(&self, channel: u16, flag: usize) -> Result<(), Error> {
        let offset = self.layout.offset_of(channel) + flag as u64;
        write_all(self.memory.as_fd(), &1_u32.to_le_bytes(), offset)
    }
}

impl AsFd for Window {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// Writes to the window through the memfd: the mappings of others see it.
fn write_all(memory: BorrowedFd<'_>, mut bytes: &[u8], mut offset: u64) -> Result<(), Error> {
    let failed = Error::system("write to the window");
    while !bytes.is_empty() {
        match pwrite(memory, bytes, offset) {
            Ok(0) => return Err(failed(Errno::IO)),
            Ok(count) => {
                bytes = bytes.get(count..).unwrap_or_default();
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}
