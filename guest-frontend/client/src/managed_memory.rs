//! Managed memory that migrates between program and device (CUDA Programming Guide,
//! Unified Memory).
//!
//! It is device memory, so it counts, moves and is checkpointed like the rest. The program
//! has pages at the same addresses while it uses them: [`crate::shadow`]. The device has no
//! access to the program's pages; it gets what the program wrote before each piece of
//! work that may use it. So CUDA's CONCURRENT_MANAGED_ACCESS is 0: what either side writes
//! while work is in flight reaches the other within milliseconds and in no order, and atomic
//! operations of one side are not atomic for the other.
//!
//! Other devices of the process access it where it is: on the device of the session that
//! allocated it, or to which it [moved](crate::managed_home). Small allocations, such as flags and counters, are pinned memory instead,
//! which both sides access in place.

use std::sync::Arc;

use paragpu_abi::CU_STREAM_NON_BLOCKING;
use paragpu_protocol::codec::Bytes;
use paragpu_protocol::table::{Memset, ShadowWrite};
use parking_lot::Mutex;

use crate::connection::Link;
use crate::copy::Copies;
use crate::device_path::DevicePath;
use crate::error::Result;
use crate::managed_home::{Homes, piece};
use crate::memory::DeviceMemory;
use crate::objects::stream::Stream;
use crate::shadow::{DeviceContents as _, ManagedRange, ManagedRanges, watcher};
use crate::stream::Streams;
use crate::sys::memory::{PAGE, Pages};
use crate::sys::reservation::Reservation;
use crate::sys::userfault::{Userfault, Watch};

/// Whether managed memory can migrate in this process: the kernel lets it handle the page
/// faults of system calls, too.
#[must_use]
pub fn can_migrate() -> bool {
    Userfault::new(Watch::Absent).is_some()
}

/// The managed memory that migrates and is on a session's device.
#[derive(Debug)]
pub struct ManagedMemory {
    link: Arc<Link>,
    streams: Arc<Streams>,
    memory: Arc<DeviceMemory>,
    copies: Arc<Copies>,
    ranges: Arc<ManagedRanges>,
    /// The addresses of the device memory.
    arena: Arc<Reservation>,
    /// A stream for work of the library's own, which waits for nothing else.
    own_stream: Mutex<Option<Arc<Stream>>>,
    /// What is on other devices.
    homes: Homes,
}

impl ManagedMemory {
    pub(crate) fn new(
        link: &Arc<Link>,
        streams: &Arc<Streams>,
        memory: &Arc<DeviceMemory>,
        copies: &Arc<Copies>,
        ranges: &Arc<ManagedRanges>,
        arena: &Arc<Reservation>,
    ) -> Self {
        Self {
            link: Arc::clone(link),
            streams: Arc::clone(streams),
            memory: Arc::clone(memory),
            copies: Arc::clone(copies),
            ranges: Arc::clone(ranges),
            arena: Arc::clone(arena),
            own_stream: Mutex::default(),
            homes: Homes::default(),
        }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    pub(crate) fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    pub(crate) fn ranges(&self) -> &ManagedRanges {
        &self.ranges
    }

    pub(crate) fn homes(&self) -> &Homes {
        &self.homes
    }

    /// cuMemAllocManaged: zeroed memory. `None` if this process may not use userfaultfd(2).
    /// With `can_move`, parts of more than 1 MiB can [move](Self::move_to) to other devices.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if the device has too little memory.
    pub fn allocate(&self, size: u64, can_move: bool) -> Result<Option<u64>> {
        let Some(faults) = watcher() else {
            return Ok(None);
        };
        let piece = if can_move { piece(size) } else { u64::MAX };
        let address = self.memory.allocate_pieces(size, PAGE as u64, piece)?;
        let length = size.next_multiple_of(PAGE as u64);
        let pages = Pages::within(&self.arena, address, length);
        // A program that locks its future memory has all pages already.
        let is_absent = |pages: &Pages| pages.discard(0, pages.bytes().len());
        let watched = pages
            .ok()
            .filter(|pages| faults.watch(address, length) && is_absent(pages));
        let Some(pages) = watched else {
            self.memory.free(address)?;
            return Ok(None);
        };
        pages.hide_from_children();
        let device = self.own_stream().and_then(|stream| {
            self.clear(address, length, &stream)?;
            let (streams, copies) = (&self.streams, &self.copies);
            let device = DevicePath::new(&self.link, streams, copies, stream);
            if self.ranges.are_shared() {
                device.settle(address)?;
            }
            Ok(device)
        });
        match device {
            Ok(device) => {
                let range = ManagedRange::new(pages, faults, Box::new(device));
                Ok(Some(self.ranges.add(range)))
            }
            Err(status) => {
                drop(pages);
                let _ = self.memory.free(address);
                Err(status)
            }
        }
    }

    pub(crate) fn own_stream(&self) -> Result<Arc<Stream>> {
        let mut own = self.own_stream.lock();
        let stream = match own.take() {
            Some(stream) => stream,
            None => self.streams.create(CU_STREAM_NON_BLOCKING, 0)?,
        };
        Ok(Arc::clone(own.insert(stream)))
    }

    /// Fills new device memory with zeros, before any later work.
    fn clear(&self, address: u64, length: u64, stream: &Stream) -> Result<()> {
        if self.memory.is_new(address) {
            return Ok(());
        }
        // A write of this call waits for nothing, and later calls wait for it.
        static SHORT: [u8; 64 << 10] = [0; 64 << 10];
        let short = usize::try_from(length)
            .ok()
            .and_then(|length| SHORT.get(..length));
        if let Some(zeros) = short {
            let data = Bytes(zeros);
            return self.link.post(&ShadowWrite { address, data }).map(drop);
        }
        let fill = Memset {
            destination: address,
            pitch: length,
            value: 0,
            element: 1,
            width: length,
            height: 1,
            stream: stream.handle(),
        };
        self.streams.post_work(stream, &fill)?;
        self.streams.finish_own(stream)
    }

    /// cuMemFree, once no other session's work may use the memory. Returns false if no such
    /// memory begins at the address.
    pub fn free(&self, address: u64) -> Result<bool> {
        // The pages go first: the addresses may be allocated again at once.
        if !self.ranges.remove(address) {
            return Ok(false);
        }
        let size = self.memory.block(address).map_or(0, |(_, size)| size);
        let freed = self.memory.free(address);
        self.homes.forget(address, size);
        freed.map(|()| true)
    }

    /// Whether it is an address of memory that migrates.
    #[must_use]
    pub fn holds(&self, address: u64) -> bool {
        self.ranges.holds(address, 1)
    }

    /// The addresses of all allocations.
    #[must_use]
    pub fn all(&self) -> Vec<u64> {
        let mut all = self.ranges.addresses();
        all.retain(|address| self.memory.block(*address).is_some());
        all
    }

    /// cuMemPrefetchAsync to a device: the one that has the memory gets what the program
    /// wrote. [`move_to`](Self::move_to) changes which one that is.
    pub fn prefetch_to_device(&self, address: u64, size: u64) -> Result<()> {
        self.expect_program(address, size, false);
        self.ranges.before_use(address, size).map(drop)
    }

    /// Records whether the program will access most of a range: its accesses then fetch long
    /// runs.
    pub fn expect_program(&self, address: u64, size: u64, is_expected: bool) {
        self.ranges.want(address, size, is_expected);
    }
}
