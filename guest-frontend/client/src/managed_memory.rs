//! Managed memory that migrates between program and device (CUDA Programming Guide,
//! Unified Memory).
//!
//! It is device memory, so it counts, moves and is checkpointed like the rest. The program
//! has pages at the same addresses while it uses them: [`crate::shadow`]. The device has no
//! access to the program's pages; it gets what the program wrote before each piece of
//! work that may use it. So CUDA's CONCURRENT_MANAGED_ACCESS is 0: what both write while work
//! is in flight reaches the other side within milliseconds, and atomic operations of one
//! side are not atomic for the other.
//!
//! Small allocations, and all of a process that has several devices, are pinned memory
//! instead, which every device accesses in place.

use std::sync::Arc;

use paragpu_protocol::table::Memset;
use parking_lot::Mutex;

use crate::arena::SMALL;
use crate::connection::Link;
use crate::copy::Copies;
use crate::error::Result;
use crate::memory::DeviceMemory;
use crate::objects::stream::{NON_BLOCKING, Stream};
use crate::shadow::{DevicePath, ManagedRange, ManagedRanges, watcher};
use crate::stream::Streams;
use crate::sys::memory::{PAGE, Pages, Reservation};

/// The managed memory of a session that migrates.
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
}

impl ManagedMemory {
    pub(crate) fn new(
        link: Arc<Link>,
        streams: Arc<Streams>,
        memory: Arc<DeviceMemory>,
        copies: Arc<Copies>,
        ranges: Arc<ManagedRanges>,
        arena: Arc<Reservation>,
    ) -> Self {
        Self {
            link,
            streams,
            memory,
            copies,
            ranges,
            arena,
            own_stream: Mutex::default(),
        }
    }

    /// cuMemAllocManaged: zeroed memory. `None` if memory of this size does not migrate, or
    /// if this process may not use userfaultfd(2).
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if the device has too little memory.
    pub fn allocate(&self, size: u64) -> Result<Option<u64>> {
        if size <= SMALL {
            return Ok(None);
        }
        let Some(faults) = watcher() else {
            return Ok(None);
        };
        let address = self.memory.allocate(size)?;
        let length = size.next_multiple_of(PAGE as u64);
        let pages = Pages::within(&self.arena, address, length);
        let watched = pages.ok().filter(|_| faults.watch(address, length));
        let Some(pages) = watched else {
            self.memory.free(address)?;
            return Ok(None);
        };
        pages.hide_from_children();
        match self.clear(address, length) {
            Ok(stream) => {
                let device = DevicePath::new(&self.link, &self.streams, &self.copies, stream);
                let range = ManagedRange::new(pages, faults, device);
                Ok(Some(self.ranges.add(range)))
            }
            Err(status) => {
                drop(pages);
                let _ = self.memory.free(address);
                Err(status)
            }
        }
    }

    /// Fills device memory with zeros, and waits for that: work of any stream may use it
    /// next. Returns the library's own stream.
    fn clear(&self, address: u64, length: u64) -> Result<Arc<Stream>> {
        let stream = {
            let mut own = self.own_stream.lock();
            let stream = match own.take() {
                Some(stream) => stream,
                None => self.streams.create(NON_BLOCKING, 0)?,
            };
            Arc::clone(own.insert(stream))
        };
        let fill = Memset {
            destination: address,
            pitch: length,
            value: 0,
            element: 1,
            width: length,
            height: 1,
            stream: stream.handle(),
        };
        self.streams.post_work(&stream, &fill)?;
        self.streams.finish_own(&stream)?;
        Ok(stream)
    }

    /// cuMemFree. Returns false if no such memory begins at the address.
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn free(&self, address: u64) -> Result<bool> {
        // The pages go first: the addresses may be allocated again at once.
        if !self.ranges.remove(address) {
            return Ok(false);
        }
        self.memory.free(address).map(|()| true)
    }

    /// The addresses of all allocations.
    #[must_use]
    pub fn all(&self) -> Vec<u64> {
        self.ranges.addresses()
    }

    /// cuMemPrefetchAsync to the device: it gets what the program wrote.
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn prefetch_to_device(&self, address: u64, size: u64) -> Result<()> {
        self.ranges.before_use(address, size).map(drop)
    }

    /// cuMemPrefetchAsync to the host: the program's next accesses fetch long runs.
    pub fn prefetch_to_host(&self, address: u64, size: u64) {
        self.ranges.want(address, size);
    }
}
