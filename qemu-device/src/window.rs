//! The window: one memfd, which the guest sees as BAR 2.
//!
//! This process writes to it through the descriptor. Words that guest and host change
//! concurrently are accessed through [`IdleChannel`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use paragpu_communicator_ring::layout::{CLOSED_BY_GUEST, device};
use paragpu_communicator_ring::pci::IdleChannel;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::{Errno, pwrite};

use crate::Error;
use crate::eventfd::EventFd;
use crate::layout::{LISTS_SIZE, Layout};
use crate::rings::{self, ChannelExtent};

/// The memory of one device.
#[derive(Debug)]
pub struct Window {
    memory: OwnedFd,
    layout: Layout,
}

impl Window {
    /// Creates a zeroed window whose channels have no headers yet.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new(layout: Layout, generation: u32) -> Result<Self, Error> {
        let memory = memfd_create(
            "paragpu-window",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )
        .map_err(Error::system("create the window"))?;
        ftruncate(&memory, layout.window_size).map_err(Error::system("size the window"))?;
        fcntl_add_seals(
            &memory,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )
        .map_err(Error::system("seal the window"))?;
        write_all(memory.as_fd(), &layout.header(generation), 0)?;
        Ok(Self { memory, layout })
    }

    /// The window of another process.
    #[must_use]
    pub fn received(memory: OwnedFd, layout: Layout) -> Self {
        Self { memory, layout }
    }

    /// Tells the guest that nobody serves the device any more: first those that open a channel,
    /// then those that have one.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn leave(&self, interrupt: &EventFd) -> Result<(), Error> {
        let gone = 1_u32.to_le_bytes();
        write_all(self.memory.as_fd(), &gone, device::HOST_GONE as u64)?;
        for number in 0..self.layout.channel_count {
            self.channel(number)?.end(interrupt)?;
        }
        Ok(())
    }

    /// Its division into channels.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The place of a channel.
    #[must_use]
    pub fn place(&self, channel: u16) -> ChannelExtent {
        ChannelExtent {
            channel,
            offset: self.layout.offset_of(channel),
            size: self.layout.channel_size,
        }
    }

    /// One of its channels, for this process to handle.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn channel(&self, channel: u16) -> Result<IdleChannel, Error> {
        let place = self.place(channel);
        let memory = rings::duplicate(self.as_fd())?;
        let number = u32::from(channel);
        Ok(IdleChannel::new(memory, number, place.offset, place.size)?)
    }

    /// Removes the contents of a channel, including its header and page lists, so that the
    /// next user finds zeros. No process on the host may still use it.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn erase(&self, channel: u16) -> Result<(), Error> {
        let place = self.place(channel);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.memory, flags, place.offset, place.size)
            .map_err(Error::system("scrub a channel"))?;
        match self.layout.lists_of(channel) {
            Some(lists) => fallocate(&self.memory, flags, lists, LISTS_SIZE)
                .map_err(Error::system("scrub page lists")),
            None => Ok(()),
        }
    }

    /// Sets the flag that tells the worker that the guest's side is gone.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn set_closed_by_guest(&self, channel: u16) -> Result<(), Error> {
        let offset = self.layout.offset_of(channel) + CLOSED_BY_GUEST as u64;
        write_all(self.memory.as_fd(), &1_u32.to_le_bytes(), offset)
    }
}

impl AsFd for Window {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// Writes to the window through the memfd, which is coherent with all mappings of it.
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
