//! Copies of linear memory (CUDA Driver API, Memory Management; API synchronization
//! behavior).
//!
//! - From pageable memory to the device, the data is read during the call. Small copies
//!   are sent in the call, large ones through staging slots or, without a window, in
//!   calls of a quarter MiB. The copy returns when the data has been read.
//! - From the device to pageable memory, a copy returns when the data has arrived.
//! - The device itself copies pinned memory in the window, and shadows ([`crate::shadow`])
//!   that other work may have changed.

mod direct;
mod in_bulk;
mod memset;
#[path = "rect_unsafe.rs"]
mod rect;
mod words;

use std::collections::VecDeque;
use std::sync::Arc;

use paragpu_communicator::Pinner;
use paragpu_protocol::codec::Bytes;
use paragpu_protocol::frame::MAX_PAYLOAD;
use paragpu_protocol::table::{Copy, CopyFromDevice, CopyToDevice};

use crate::access::Access;
use crate::connection::Link;
use crate::error::Result;
use crate::host_function::HostFunctions;
use crate::objects::graph::{CopyNodeEnd, CopyWork, Work};
use crate::objects::stream::Stream;
use crate::parallel::in_parts;
use crate::shadow::{DeviceView, Region};
use crate::staging::{SLOT, Slot, StagedCopy, Staging};
use crate::statistics;
use crate::stream::Streams;
use crate::sys::memory::{HostRows, HostSlice};
use direct::{Direct, Direction};
pub use rect::RectEnd;
pub(crate) use rect::{host_copy, span, volume};
pub(crate) use words::named;

/// Maximum size of a copy whose bytes are sent in calls even if there is a window.
const INLINE: usize = 64 << 10;
/// The same to the device, if the program waits for the stream's work anyway. A slot of the
/// window costs it less than the bytes of a call, but may be busy for as long as the stream.
const INLINE_AWAITED: usize = 2 << 10;
/// Bytes of a copy that leaves little of itself in a processor's caches.
const MUCH: usize = 16 << 20;
/// Maximum bytes of a copy in one call: a frame without the call's other fields.
const PART: usize = MAX_PAYLOAD - 64;

/// The copies of a session.
#[derive(Debug)]
pub struct Copies {
    link: Arc<Link>,
    ordinal: u32,
    streams: Arc<Streams>,
    access: Arc<Access>,
    host_functions: Arc<HostFunctions>,
    direct: Option<Direct>,
}

impl Copies {
    pub(crate) fn new(
        link: &Arc<Link>,
        ordinal: u32,
        streams: &Arc<Streams>,
        access: &Arc<Access>,
        host_functions: &Arc<HostFunctions>,
        pinner: Option<Arc<dyn Pinner>>,
    ) -> Self {
        Self {
            link: Arc::clone(link),
            ordinal,
            streams: Arc::clone(streams),
            access: Arc::clone(access),
            host_functions: Arc::clone(host_functions),
            direct: pinner.map(Direct::new),
        }
    }

    /// The staging slots, if the host shares them.
    fn staging(&self) -> Option<&Staging> {
        self.access.staging()
    }

    /// The device's address of bytes that the next work of `stream` copies. `None` for bytes that
    /// the caller sends: those of pageable memory, and those of a shadow if neither work nor a
    /// host function may write to it before the copy.
    fn source_of(&self, address: u64, size: u64, stream: &Stream) -> Result<Option<u64>> {
        let is_last =
            |region: &Region| !region.has_writers() && self.host_functions.outstanding() == 0;
        match self.access.reach(address, size)? {
            DeviceView::Direct(device) => Ok(Some(device)),
            DeviceView::Shadow(region) if is_last(&region) => Ok(None),
            DeviceView::Shadow(_) => self.access.before_read(address, size, stream).map(Some),
            DeviceView::Pageable => Ok(None),
        }
    }

    /// The device's address of bytes to which the next work of a stream copies. `None` for bytes
    /// that the caller receives: those of pageable memory, and, with `wait`, those of a shadow
    /// if no work may write to it before the copy.
    fn destination_of(&self, address: u64, size: u64, wait: bool) -> Result<Option<u64>> {
        match self.access.reach(address, size)? {
            DeviceView::Direct(device) => Ok(Some(device)),
            DeviceView::Shadow(region) if wait && !region.has_writers() => Ok(None),
            DeviceView::Shadow(_) => self.access.before(address, size).map(Some),
            DeviceView::Pageable => Ok(None),
        }
    }

    /// cuMemcpyHtoD (with `wait`), cuMemcpyHtoDAsync.
    ///
    /// # Errors
    /// `INVALID_VALUE`; the error of failed work.
    pub fn to_device(
        &self,
        destination: u64,
        source: HostSlice,
        stream: &Stream,
        wait: bool,
    ) -> Result<()> {
        let size = source.len() as u64;
        if size == 0 {
            return self.link.check();
        }
        if stream.is_capturing() {
            return self.capture_row(
                stream,
                wait,
                device_row(destination, size),
                host_row(source.address(), size),
            );
        }
        statistics::count_to_device(size);
        let destination = self.access.before(destination, size)?;
        if let Some(address) = self.source_of(source.address(), size, stream)? {
            self.post_copy(destination, address, size, stream, 0)?;
            if wait {
                self.streams.synchronize(stream)?;
            }
            return Ok(());
        }
        if wait {
            self.streams.before_taking(stream)?;
        }
        let (mut destination, mut source) = (destination, source);
        if wait && let Some(direct) = self.direct(source.len()) {
            self.streams.before_work(stream)?;
            let (host, size) = (source.address(), source.len());
            let copied =
                self.copy_direct(direct, Direction::ToDevice, destination, host, size, stream)?;
            if copied == size {
                return Ok(());
            }
            destination += copied as u64;
            source = source.from(copied);
        }
        let inline = if wait { INLINE_AWAITED } else { INLINE };
        match self.slots_for(source.len(), inline)? {
            Some(staging) => {
                self.stage_in(&staging, destination, &source, |to, from, size, token| {
                    self.post_copy(to, from, size, stream, token)
                })?;
            }
            None => self.send_in(destination, &source, stream)?,
        }
        match wait {
            true => self.streams.after_taking(stream),
            false => Ok(()),
        }
    }

    /// cuMemcpyDtoH (with `wait`), cuMemcpyDtoHAsync. `destination` is
    /// `size` bytes without gaps at `address`.
    ///
    /// # Errors
    /// `INVALID_VALUE`; the error of failed work.
    pub fn from_device(
        &self,
        destination: HostRows,
        source: u64,
        stream: &Stream,
        wait: bool,
    ) -> Result<()> {
        let (address, size) = (destination.address(), destination.len() as u64);
        if size == 0 {
            return self.link.check();
        }
        if stream.is_capturing() {
            return self.capture_row(
                stream,
                wait,
                host_row(address, size),
                device_row(source, size),
            );
        }
        statistics::count_from_device(size);
        let source = self.access.before(source, size)?;
        if let Some(address) = self.destination_of(address, size, wait)? {
            self.post_copy(address, source, size, stream, 0)?;
            if wait {
                self.streams.synchronize(stream)?;
            }
            return Ok(());
        }
        let (mut destination, mut source) = (destination, source);
        if let Some(room) = destination.contiguous()
            && let Some(direct) = self.direct(room)
        {
            self.streams.sleep_before_waiting(stream)?;
            self.streams.before_work(stream)?;
            let copied =
                self.copy_direct(direct, Direction::FromDevice, source, address, room, stream)?;
            if copied == room {
                return self.streams.synchronize(stream);
            }
            source += copied as u64;
            destination = destination.from(copied);
        }
        let mut staging = self.slots_for(destination.len(), 0)?;
        // A small copy waits for no slot: they may be busy for as long as another thread's stream.
        if let Some(staging) = staging.take_if(|_| destination.len() <= SLOT)
            && let Some(slot) = staging.try_take()
        {
            return self.take_out(&slot, &destination, source, stream);
        }
        match staging {
            Some(staging) => {
                self.streams.sleep_before_waiting(stream)?;
                self.stage_out(&staging, &destination, source, stream)?;
                self.streams.synchronize(stream)
            }
            None => {
                self.streams.sleep_before_waiting(stream)?;
                let copy = CopyFromDevice {
                    source,
                    size: destination.len() as u64,
                    stream: stream.handle(),
                };
                self.streams.copy_out(stream, &copy, destination)
            }
        }
    }

    /// cuMemcpyDtoD, cuMemcpyDtoDAsync, and copies between any two addresses that the
    /// device can access.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn on_device(
        &self,
        destination: u64,
        source: u64,
        size: u64,
        stream: &Stream,
    ) -> Result<()> {
        if size == 0 {
            return self.link.check();
        }
        if stream.is_capturing() {
            let (to, from) = (device_row(destination, size), device_row(source, size));
            return self.capture_row(stream, false, to, from);
        }
        let source = self.access.before_read(source, size, stream)?;
        let destination = self.access.before(destination, size)?;
        self.post_copy(destination, source, size, stream, 0)
    }

    fn capture_row(
        &self,
        stream: &Stream,
        wait: bool,
        destination: CopyNodeEnd,
        source: CopyNodeEnd,
    ) -> Result<()> {
        if wait {
            return stream.cannot_capture();
        }
        let (CopyNodeEnd::Device { pitch, .. } | CopyNodeEnd::Host { pitch, .. }) = destination
        else {
            return stream.cannot_capture();
        };
        self.capture(stream, destination, source, [pitch, 1, 1])
    }

    /// Refuses the end of a node in device memory that is not allocated.
    fn check_end(&self, end: &CopyNodeEnd, extent: [u64; 3]) -> Result<()> {
        let CopyNodeEnd::Device {
            address,
            pitch,
            rows,
        } = *end
        else {
            return Ok(());
        };
        let size = span(extent, pitch, rows)?;
        self.access.name(address, size, false).map(drop)
    }

    /// A copy in a stream that captures.
    fn capture(
        &self,
        stream: &Stream,
        destination: CopyNodeEnd,
        source: CopyNodeEnd,
        extent: [u64; 3],
    ) -> Result<()> {
        self.check_end(&destination, extent)?;
        self.check_end(&source, extent)?;
        stream.note(Work::Copy(Arc::new(CopyWork {
            ordinal: self.ordinal,
            destination,
            source,
            extent,
        })))
    }

    fn post_only(
        &self,
        destination: u64,
        source: u64,
        size: u64,
        stream: &Stream,
        token: u32,
    ) -> Result<u64> {
        let copy = Copy {
            destination,
            source,
            size,
            stream: stream.handle(),
            token,
        };
        self.streams.post_work(stream, &copy)
    }

    /// Posts a copy, and notes that it writes its destination.
    fn post_copy(
        &self,
        destination: u64,
        source: u64,
        size: u64,
        stream: &Stream,
        token: u32,
    ) -> Result<()> {
        let position = self.post_only(destination, source, size, stream, token)?;
        self.access.after_write(destination, size, stream, position);
        Ok(())
    }

    /// Sends the bytes in calls, large ones without copying them first.
    fn send_in(&self, destination: u64, source: &HostSlice, stream: &Stream) -> Result<()> {
        let _lending = (source.len() > INLINE).then(|| self.link.lending());
        let mut at = 0;
        while at < source.len() {
            let part = source.cut(at, PART);
            let data = part.as_ref();
            let position = self.streams.post_work_lent(
                stream,
                &CopyToDevice {
                    destination: destination + at as u64,
                    stream: stream.handle(),
                    data: Bytes(data),
                },
                (data.len() > INLINE).then_some(part),
            )?;
            self.access
                .after_write(destination + at as u64, data.len() as u64, stream, position);
            at += data.len();
        }
        Ok(())
    }

    /// The slots, if a copy of `size` bytes, of more than `inline`, is to use them.
    fn slots_for(&self, size: usize, inline: usize) -> Result<Option<StagedCopy<'_>>> {
        let uses = |staging: &&Staging| size > INLINE || (size > inline && staging.is_worthwhile());
        match self.staging().filter(uses) {
            Some(staging) => staging.begin(&self.link),
            None => Ok(None),
        }
    }

    /// Sends the bytes through staging slots. `post` gets destination, source, size and token
    /// of each copy.
    fn stage_in(
        &self,
        staging: &Staging,
        destination: u64,
        source: &HostSlice,
        post: impl Fn(u64, u64, u64, u32) -> Result<()> + Sync,
    ) -> Result<()> {
        in_parts(source.len(), |part, of| {
            // Every `of`-th chunk, from chunk `part` on.
            for at in (part * SLOT..source.len()).step_by(of * SLOT) {
                let bytes = source.part(at, SLOT);
                let slot = staging.take(&self.link)?;
                slot.fill(bytes)?;
                let (from, size) = (slot.address(), bytes.len() as u64);
                self.access.before(from, size)?;
                slot.arm();
                let posted = post(destination + at as u64, from, size, slot.token());
                if posted.is_err() {
                    slot.disarm();
                }
                posted?;
            }
            Ok(())
        })
    }

    /// Receives the bytes through staging slots.
    fn stage_out(
        &self,
        staging: &Staging,
        destination: &HostRows,
        source: u64,
        stream: &Stream,
    ) -> Result<()> {
        let copy_out = |slot: &Slot<'_>, at, length| self.empty(slot, destination, at, length);
        let size = destination.len();
        in_parts(size, |part, of| {
            self.stage_out_part(staging, (source, size), stream, (part, of), copy_out)
        })
    }

    /// Receives the bytes through one slot, at the end of the stream's work.
    fn take_out(
        &self,
        slot: &Slot<'_>,
        destination: &HostRows,
        source: u64,
        stream: &Stream,
    ) -> Result<()> {
        let size = destination.len();
        self.post_copy(slot.address(), source, size as u64, stream, 0)?;
        self.streams.synchronize(stream)?;
        self.empty(slot, destination, 0, size)
    }

    /// Copies the first `length` bytes of a slot to `at` in the program's memory.
    fn empty(
        &self,
        slot: &Slot<'_>,
        destination: &HostRows,
        at: usize,
        length: usize,
    ) -> Result<()> {
        if slot.is_apart() {
            self.access.pull()?;
        }
        let mut copied = 0;
        destination.fill(at, length, |bytes| {
            let result = slot.empty(copied, bytes, destination.len() >= MUCH);
            copied += bytes.len();
            result
        })
    }

    /// Every `of`-th chunk of `size` bytes at `source`, from chunk `part` on, with several in
    /// flight: while one is taken out, the device writes the next. Each thread also takes
    /// the page faults of the pages that it touches first. `take` gets the slot, its offset in
    /// the memory, and its bytes.
    fn stage_out_part(
        &self,
        staging: &Staging,
        (source, size): (u64, usize),
        stream: &Stream,
        (part, of): (usize, usize),
        mut take: impl FnMut(&Slot<'_>, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let depth = (staging.len() / 2 / of).max(1);
        let mut under_way: VecDeque<(Slot<'_>, usize, usize)> = VecDeque::with_capacity(depth);
        let mut asked = part * SLOT;
        loop {
            while asked < size && under_way.len() < depth {
                // Waiting for a slot while holding others could deadlock two threads.
                let slot = if under_way.is_empty() {
                    staging.take(&self.link)?
                } else {
                    match staging.try_take() {
                        Some(slot) => slot,
                        None => break,
                    }
                };
                let length = SLOT.min(size - asked);
                slot.arm();
                let posted = self.post_copy(
                    slot.address(),
                    source + asked as u64,
                    length as u64,
                    stream,
                    slot.token(),
                );
                if posted.is_err() {
                    slot.disarm();
                }
                posted?;
                under_way.push_back((slot, asked, length));
                asked += of * SLOT;
            }
            let Some((slot, at, length)) = under_way.pop_front() else {
                return Ok(());
            };
            slot.wait(&self.link)?;
            take(&slot, at, length)?;
        }
    }
}

/// One row of device memory, in a graph node's form.
fn device_row(address: u64, size: u64) -> CopyNodeEnd {
    CopyNodeEnd::Device {
        address,
        pitch: size,
        rows: 1,
    }
}

/// One row of the program's memory.
fn host_row(address: u64, size: u64) -> CopyNodeEnd {
    CopyNodeEnd::Host {
        address,
        pitch: size,
        rows: 1,
    }
}
