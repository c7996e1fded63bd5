//! Copies of linear memory (CUDA Driver API, Memory Management; API
//! synchronization behavior).
//!
//! - From pageable memory to the device the bytes are taken when the call is
//!   made: small ones travel in the call, large ones through staging slots or,
//!   without a window, in calls of a quarter MiB. Such a copy returns when the
//!   bytes are taken.
//! - From the device to pageable memory a copy returns when the bytes are
//!   there.
//! - Pinned memory of the window is copied by the device itself.

use std::collections::VecDeque;

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::frame::MAX_PAYLOAD;
use paragpu_protocol::table::{Copy, CopyFromDevice, CopyToDevice};

use crate::direct::Way;
use crate::error::Result;
use crate::graph::Place;
use crate::host::Reach;
use crate::session::Session;
use crate::staging::{SLOT, Slot, Staging};
use crate::statistics;
use crate::stream::Stream;
use crate::sys::memory::{Destination, Source};

/// Largest copy whose bytes travel in calls although there is a window.
const INLINE: usize = 64 << 10;
/// Bytes of a copy in one call: a frame less the call's other fields.
const PART: usize = MAX_PAYLOAD - 64;
/// Copies from here on are staged by several threads.
const PARALLEL: usize = 8 << 20;

impl Session {
    /// cuMemcpyHtoD (with `wait`), cuMemcpyHtoDAsync.
    ///
    /// # Errors
    /// `INVALID_VALUE`; of work that failed.
    pub fn copy_to_device(
        &self,
        destination: u64,
        source: Source,
        stream: &Stream,
        wait: bool,
    ) -> Result<()> {
        let size = source.len() as u64;
        if size == 0 {
            return self.link.check();
        }
        if stream.is_capturing() {
            return self.capture_line(
                stream,
                wait,
                line(destination, size),
                host_line(source.address(), size),
            );
        }
        statistics::count_to_device(size);
        let destination = self.before_device_writes(destination, size)?;
        match self.host.reach(source.address(), size) {
            Reach::Direct(address) => {
                self.post_copy(destination, address, size, stream, 0)?;
                if wait {
                    self.stream_synchronize(stream)?;
                }
                return Ok(());
            }
            Reach::Shadow(region) => {
                // What the device or a host function is yet to write there
                // must be there before the bytes are taken.
                if region.has_writers() || self.callbacks.outstanding() > 0 {
                    self.synchronize()?;
                }
            }
            Reach::Pageable => {}
        }
        if wait {
            self.before_taking(stream)?;
        }
        let (mut destination, mut source) = (destination, source);
        if wait && let Some(direct) = self.direct(source.len()) {
            self.before_work(stream)?;
            let (host, size) = (source.address(), source.len());
            let way = Way::ToDevice;
            let copied = self.copy_direct(direct, way, destination, host, size, stream)?;
            if copied == size {
                return Ok(());
            }
            destination += copied as u64;
            source = source.from(copied);
        }
        match self.staging() {
            Some(staging) if source.len() > INLINE => {
                self.stage_in(staging, destination, &source, stream)?;
            }
            _ => self.send_in(destination, &source, stream)?,
        }
        if wait {
            self.after_taking(stream);
        }
        Ok(())
    }

    /// cuMemcpyDtoH (with `wait`), cuMemcpyDtoHAsync. `destination` is
    /// `size` bytes without gaps at `address`.
    ///
    /// # Errors
    /// `INVALID_VALUE`; of work that failed.
    pub fn copy_from_device(
        &self,
        destination: Destination,
        source: u64,
        stream: &Stream,
        wait: bool,
    ) -> Result<()> {
        let (address, size) = (destination.address(), destination.len() as u64);
        if size == 0 {
            return self.link.check();
        }
        if stream.is_capturing() {
            return self.capture_line(stream, wait, host_line(address, size), line(source, size));
        }
        statistics::count_from_device(size);
        let source = self.before_device_reads(source, size)?;
        match self.host.reach(address, size) {
            Reach::Direct(address) => {
                self.post_copy(address, source, size, stream, 0)?;
                if wait {
                    self.stream_synchronize(stream)?;
                }
                return Ok(());
            }
            Reach::Shadow(region) if !wait => {
                let device = region.to_device(address);
                self.before_device_writes(device, size)?;
                return self.post_copy(device, source, size, stream, 0);
            }
            Reach::Shadow(_) | Reach::Pageable => {}
        }
        let (mut destination, mut source) = (destination, source);
        if let Some(room) = destination.straight()
            && let Some(direct) = self.direct(room)
        {
            self.before_work(stream)?;
            let way = Way::FromDevice;
            let copied = self.copy_direct(direct, way, source, address, room, stream)?;
            if copied == room {
                return self.stream_synchronize(stream);
            }
            source += copied as u64;
            destination = destination.from(copied);
        }
        match self.staging() {
            Some(staging) if destination.len() > INLINE => {
                self.stage_out(staging, &destination, source, stream)?;
                self.stream_synchronize(stream)
            }
            _ => {
                let before = self.before(stream);
                self.link.call_with(
                    &CopyFromDevice {
                        source,
                        size: destination.len() as u64,
                        stream: stream.handle(),
                    },
                    Some(destination),
                    |()| (),
                )?;
                self.finished(stream, before);
                self.pull()
            }
        }
    }

    /// cuMemcpyDtoD, cuMemcpyDtoDAsync, and copies between any two addresses
    /// that the device reaches.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn copy_on_device(
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
            let (to, from) = (line(destination, size), line(source, size));
            return self.capture_line(stream, false, to, from);
        }
        let source = self.before_device_reads(source, size)?;
        let destination = self.before_device_writes(destination, size)?;
        self.post_copy(destination, source, size, stream, 0)
    }

    fn capture_line(
        &self,
        stream: &Stream,
        wait: bool,
        destination: Place,
        source: Place,
    ) -> Result<()> {
        if wait {
            return stream.cannot_capture();
        }
        let (Place::Device { pitch, .. } | Place::Host { pitch, .. }) = destination else {
            return stream.cannot_capture();
        };
        self.capture_copy(stream, destination, source, [pitch, 1, 1])
    }

    fn post_copy(
        &self,
        destination: u64,
        source: u64,
        size: u64,
        stream: &Stream,
        token: u32,
    ) -> Result<()> {
        let copy = Copy {
            destination,
            source,
            size,
            stream: stream.handle(),
            token,
        };
        let position = self.post_work(stream, &copy)?;
        self.device_writes(destination, size, stream, position);
        Ok(())
    }

    /// The bytes travel in calls: large ones from where they are.
    fn send_in(&self, destination: u64, source: &Source, stream: &Stream) -> Result<()> {
        let _lending = (source.len() > INLINE).then(|| self.link.lending());
        let mut at = 0;
        while at < source.len() {
            let part = source.cut(at, PART);
            let data = part.as_ref();
            let position = self.post_work_lent(
                stream,
                &CopyToDevice {
                    destination: destination + at as u64,
                    stream: stream.handle(),
                    data: Bytes(data),
                },
                (data.len() > INLINE).then_some(part),
            )?;
            self.device_writes(destination + at as u64, data.len() as u64, stream, position);
            at += data.len();
        }
        Ok(())
    }

    /// The bytes go through staging slots.
    fn stage_in(
        &self,
        staging: &Staging,
        destination: u64,
        source: &Source,
        stream: &Stream,
    ) -> Result<()> {
        in_parts(source.len(), |part, of| {
            self.stage_part(staging, destination, source, stream, part, of)
        })
    }

    /// Every `of`-th chunk, from chunk `part` on.
    fn stage_part(
        &self,
        staging: &Staging,
        destination: u64,
        source: &Source,
        stream: &Stream,
        part: usize,
        of: usize,
    ) -> Result<()> {
        for at in (part * SLOT..source.len()).step_by(of * SLOT) {
            let bytes = source.part(at, SLOT);
            let slot = staging.take(&self.link)?;
            slot.fill(bytes)?;
            self.before_device_reads(slot.address(), bytes.len() as u64)?;
            slot.arm();
            let posted = self.post_copy(
                destination + at as u64,
                slot.address(),
                bytes.len() as u64,
                stream,
                slot.token(),
            );
            if posted.is_err() {
                slot.disarm();
            }
            posted?;
        }
        Ok(())
    }

    /// The bytes come through staging slots.
    fn stage_out(
        &self,
        staging: &Staging,
        destination: &Destination,
        source: u64,
        stream: &Stream,
    ) -> Result<()> {
        in_parts(destination.len(), |part, of| {
            self.stage_out_part(staging, destination, source, stream, part, of)
        })
    }

    /// Every `of`-th chunk, from chunk `part` on, several on their way at
    /// once: while one is copied out, the device writes the next. Each thread
    /// also takes the faults of the pages that it is the first to touch.
    fn stage_out_part(
        &self,
        staging: &Staging,
        destination: &Destination,
        source: u64,
        stream: &Stream,
        part: usize,
        of: usize,
    ) -> Result<()> {
        let depth = (staging.len() / 2 / of).max(1);
        let mut under_way: VecDeque<(Slot<'_>, usize, usize)> = VecDeque::with_capacity(depth);
        let mut asked = part * SLOT;
        loop {
            while asked < destination.len() && under_way.len() < depth {
                // Waiting for a slot while holding others could make two
                // threads wait for each other.
                let slot = if under_way.is_empty() {
                    staging.take(&self.link)?
                } else {
                    match staging.try_take() {
                        Some(slot) => slot,
                        None => break,
                    }
                };
                let length = SLOT.min(destination.len() - asked);
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
            if self.host.is_apart() {
                self.pull()?;
            }
            let mut copied = 0;
            destination.fill(at, length, |bytes| {
                let result = slot.empty(copied, bytes);
                copied += bytes.len();
                result
            })?;
        }
    }
}

/// Stages `size` bytes by as many threads as are worth it: `stage` is given
/// the number of its part, and how many there are.
fn in_parts(size: usize, stage: impl Fn(usize, usize) -> Result<()> + Sync) -> Result<()> {
    let parts = helpers(size) + 1;
    if parts == 1 {
        return stage(0, 1);
    }
    let stage = &stage;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..parts)
            .map(|part| scope.spawn(move || stage(part, parts)))
            .collect();
        let own = stage(0, parts);
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or(Err(paragpu_protocol::status::Status::UNKNOWN))
            })
            .fold(own, Result::and)
    })
}

/// One row of device memory, as a node of a graph names it.
fn line(address: u64, size: u64) -> Place {
    Place::Device {
        address,
        pitch: size,
        rows: 1,
    }
}

/// One row of the program's memory.
fn host_line(address: u64, size: u64) -> Place {
    Place::Host {
        address,
        pitch: size,
        rows: 1,
    }
}

/// Threads besides the caller's own that help to stage `size` bytes: the
/// machine's other half is the host's, or the program's.
fn helpers(size: usize) -> usize {
    if size < PARALLEL {
        return 0;
    }
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors / 4).min(3)
}
