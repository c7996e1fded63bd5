//! State shared by sender, receiver and background writer: the socket, the batch that
//! accumulates, and the batch being written.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::Error;
use paragpu_communicator_secure::Sealer;
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, send, sendmsg, shutdown};

use crate::Options;
use crate::parser::HEARTBEAT;
use crate::seal::{PARTS, Sealing};

/// How long a closed connection may take to write what was flushed, while the
/// peer takes nothing.
const LINGER: Duration = Duration::from_secs(1);

/// Batches that one flushing thread writes for others before it leaves the
/// rest to the background writer.
const BATCHES_PER_FLUSH: u32 = 16;

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: OwnedFd,
    pub(crate) options: Options,
    pub(crate) closed: AtomicBool,
    /// [`paragpu_communicator::Wake::wake`] was called and not yet seen.
    pub(crate) woken: AtomicBool,
    /// Ends the receiver's sleep.
    pub(crate) interrupt: OwnedFd,
    /// The process that connected: a forked child's copy ends nothing.
    process: u32,
    /// Where TLS protects the connection. The thread that writes holds it.
    sealing: Option<Mutex<Sealing>>,
    outgoing: Apart<Mutex<Outgoing>>,
    /// Something was written, or the connection ended.
    progress: Condvar,
    /// There is work for the background writer.
    work: Condvar,
}

/// Alone in its cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// Bytes to write, in this order: `batch[written..]`, `filling`.
#[derive(Debug)]
pub(crate) struct Outgoing {
    filling: Vec<u8>,
    /// Empty (and without memory) while a thread writes it.
    batch: Vec<u8>,
    written: usize,
    socket: Socket,
    background: Background,
    sequence: u64,
}

/// The state of the socket.
///
/// ```text
///        a thread appends a large frame, flushes,
///        or is the background writer
///   Free ───────────────────────────────────────► Writing
///    ▲     all is written, or the socket is full     │
///    ├───────────────────────────────────────────────┤
///    │                                               │ the socket fails
///    │                                               ▼
///    │                                             Failed
/// ```
///
/// [`Link::close`] ends the connection in any of them: `Free` shuts the socket
/// down at once if nothing is pending; else the background writer does, when it
/// has written the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Socket {
    /// Nobody writes.
    Free,
    /// One thread writes without the lock. It looks here again after.
    Writing,
    /// It takes nothing any more.
    Failed,
}

/// What the background writer does. [`run`](crate::background) sleeps in ticks
/// while there is traffic, so that posting costs no system call, and is
/// `Parked` after some ticks without work. A thread that finds it so and leaves work
/// behind makes it `Awake`, and notifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Background {
    /// It looks for work by itself.
    Awake,
    /// It sleeps until notified.
    Parked,
}

/// The behaviour of a writer when the socket is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Leaves the rest to the background writer.
    None,
    /// Waits for the peer as long as it takes.
    Endless,
    /// Waits, but not for a peer that takes nothing for [`LINGER`].
    Linger,
}

impl Outgoing {
    fn pending(&self) -> bool {
        self.written < self.batch.len() || !self.filling.is_empty()
    }

    /// Something is there to write, and nobody writes.
    pub(crate) fn is_due(&self) -> bool {
        self.socket == Socket::Free && self.pending()
    }

    /// Wakes the background writer; true if it must be notified.
    fn rouse(&mut self) -> bool {
        std::mem::replace(&mut self.background, Background::Awake) == Background::Parked
    }

    fn append(
        &mut self,
        header: &mut FrameHeader,
        sequence: Option<u64>,
        payload: &[&[u8]],
        limit: usize,
    ) -> bool {
        if self.filling.len() + HEADER_LEN + header.payload_len() > limit {
            return false;
        }
        header.sequence = self.number(sequence);
        self.filling.extend_from_slice(&header.to_bytes());
        for part in payload {
            self.filling.extend_from_slice(part);
        }
        true
    }

    /// A frame that says nothing.
    fn beat(&mut self) {
        if let Ok(header) = FrameHeader::new(HEARTBEAT, 0, 0, 0) {
            self.filling.extend_from_slice(&header.to_bytes());
        }
    }

    fn number(&mut self, sequence: Option<u64>) -> u64 {
        sequence.unwrap_or_else(|| {
            self.sequence = self.sequence.wrapping_add(1);
            self.sequence
        })
    }
}

impl Link {
    pub(crate) fn new(
        socket: OwnedFd,
        options: Options,
        sealer: Option<Sealer>,
    ) -> Result<Self, Error> {
        let interrupt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::io("cannot create an eventfd", errno))?;
        Ok(Self {
            socket,
            options,
            closed: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            interrupt,
            process: std::process::id(),
            sealing: sealer.map(|sealer| Mutex::new(Sealing::new(sealer))),
            outgoing: Apart(Mutex::new(Outgoing {
                filling: Vec::with_capacity(options.buffer),
                batch: Vec::with_capacity(options.buffer),
                written: 0,
                socket: Socket::Free,
                background: Background::Awake,
                sequence: 0,
            })),
            progress: Condvar::new(),
            work: Condvar::new(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.0.lock()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn check(&self, outgoing: &Outgoing) -> Result<(), Error> {
        if outgoing.socket == Socket::Failed || self.is_closed() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    pub(crate) fn last_sequence(&self) -> u64 {
        self.lock().sequence
    }

    /// Appends a frame to the batch that gathers; `None` if it is full.
    pub(crate) fn append(
        &self,
        mut header: FrameHeader,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<Option<u64>, Error> {
        let mut outgoing = self.lock();
        self.check(&outgoing)?;
        let fits = outgoing.append(&mut header, sequence, payload, self.options.buffer);
        // A full batch that nobody was asked to write would never make room.
        let wanted = header.slot == 0 || !fits;
        // While a thread writes, it looks for work again before it stops, under this lock:
        // the frame cannot be missed, and nobody has to be woken.
        let rouse = wanted && outgoing.socket == Socket::Free && outgoing.rouse();
        // Notified without the lock, which the woken thread takes first.
        drop(outgoing);
        if rouse {
            self.work.notify_one();
        }
        Ok(fits.then_some(header.sequence))
    }

    /// Waits until a frame of `length` payload bytes fits into the batch.
    pub(crate) fn wait_for_room(&self, length: usize) -> Result<(), Error> {
        let mut outgoing = self.lock();
        loop {
            self.check(&outgoing)?;
            if outgoing.filling.len() + HEADER_LEN + length <= self.options.buffer {
                return Ok(());
            }
            outgoing = self.progress(outgoing);
        }
    }

    /// Makes or awaits progress of the writing.
    fn progress<'a>(&'a self, mut outgoing: MutexGuard<'a, Outgoing>) -> MutexGuard<'a, Outgoing> {
        // A thread that needs room writes itself if nobody does, instead of waking the
        // background writer and waiting for it.
        if outgoing.socket != Socket::Writing {
            return self.drain(outgoing, Patience::Endless, 1);
        }
        self.progress.wait(&mut outgoing);
        outgoing
    }

    /// Writes what is there, without waiting for the peer.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let outgoing = self.lock();
        self.check(&outgoing)?;
        // If another thread writes, it takes this one's frames along.
        if !outgoing.is_due() {
            return Ok(());
        }
        // Bounded: while other threads post, this one would write for them forever.
        let outgoing = self.drain(outgoing, Patience::None, BATCHES_PER_FLUSH);
        self.check(&outgoing)
    }

    /// Waits until the socket has taken all there is; false past `deadline`.
    pub(crate) fn settle(&self, deadline: Instant) -> Result<bool, Error> {
        const GLANCE: Duration = Duration::from_millis(10);
        let mut outgoing = self.lock();
        loop {
            self.check(&outgoing)?;
            if outgoing.socket == Socket::Free && !outgoing.pending() {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            if outgoing.socket != Socket::Writing {
                outgoing = self.drain(outgoing, Patience::Linger, 1);
                continue;
            }
            self.progress.wait_for(&mut outgoing, GLANCE);
        }
    }

    /// Writes batches, at most `batches` of them, while others append. Called
    /// while nobody writes. What is left is the background writer's.
    pub(crate) fn drain<'a>(
        &'a self,
        mut outgoing: MutexGuard<'a, Outgoing>,
        patience: Patience,
        batches: u32,
    ) -> MutexGuard<'a, Outgoing> {
        if outgoing.socket == Socket::Failed {
            return outgoing;
        }
        outgoing.socket = Socket::Writing;
        let mut left = batches;
        let mut has_failed = false;
        while !has_failed && outgoing.pending() && left > 0 {
            left -= 1;
            // The rest of a batch goes first: frames may not be reordered, and a frame
            // may be half written.
            if outgoing.written == outgoing.batch.len() {
                outgoing.batch.clear();
                outgoing.written = 0;
                let Outgoing { filling, batch, .. } = &mut *outgoing;
                std::mem::swap(filling, batch);
                // `filling` is empty now: threads that wait for room can continue before the
                // batch is written.
                self.progress.notify_all();
            }
            let batch = std::mem::take(&mut outgoing.batch);
            let mut written = outgoing.written;
            // Written without the lock, so that others append meanwhile. `Writing` keeps
            // them from the socket.
            drop(outgoing);
            let end = self.write(&[IoSlice::new(&batch)], &mut written, patience);
            outgoing = self.lock();
            outgoing.batch = batch;
            outgoing.written = written;
            match end {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => has_failed = true,
            }
        }
        self.stop_writing(&mut outgoing, has_failed);
        outgoing
    }

    /// `Writing` ends. What is left is the background writer's.
    fn stop_writing(&self, outgoing: &mut Outgoing, has_failed: bool) {
        outgoing.socket = match has_failed {
            true => Socket::Failed,
            false => Socket::Free,
        };
        self.progress.notify_all();
        if outgoing.pending() && outgoing.rouse() {
            self.work.notify_one();
        }
    }

    /// Sends one frame of less than [`PARTS`] parts from the caller's memory, after all that is pending,
    /// waiting for the peer as long as it takes.
    pub(crate) fn send_directly(
        &self,
        mut header: FrameHeader,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<u64, Error> {
        let mut outgoing = self.lock();
        loop {
            self.check(&outgoing)?;
            if outgoing.socket == Socket::Free && !outgoing.pending() {
                break;
            }
            outgoing = self.progress(outgoing);
        }
        outgoing.socket = Socket::Writing;
        // Numbered in the same critical section in which the socket is taken, so that
        // frames get their numbers in the order in which they are written.
        header.sequence = outgoing.number(sequence);
        drop(outgoing);
        let bytes = header.to_bytes();
        let mut slices = [IoSlice::new(&[]); PARTS];
        let parts = std::iter::once(bytes.as_slice()).chain(payload.iter().copied());
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        let ended = self.write(&slices, &mut 0, Patience::Endless);
        let mut outgoing = self.lock();
        if ended.is_err() || !outgoing.pending() {
            self.stop_writing(&mut outgoing, ended.is_err());
        } else {
            outgoing = self.drain(outgoing, Patience::None, BATCHES_PER_FLUSH);
        }
        self.check(&outgoing)?;
        ended.map(|_| header.sequence)
    }

    /// Writes `slices` from `written` bytes on; true when all is written,
    /// false if the peer takes no more and patience is over.
    fn write(
        &self,
        slices: &[IoSlice<'_>],
        written: &mut usize,
        patience: Patience,
    ) -> Result<bool, Error> {
        let Some(sealing) = &self.sealing else {
            return self.write_bytes(slices, written, patience);
        };
        let mut sealing = sealing.lock();
        loop {
            // Records that were sealed and not sent completely go first, as they are: their
            // numbers are used up, and sealing the same bytes again would use others.
            let (records, sent) = sealing.records();
            if !self.write_bytes(&[IoSlice::new(records)], sent, patience)? {
                return Ok(false);
            }
            *written += sealing.sent();
            if !sealing.seal(slices, *written)? {
                return Ok(true);
            }
        }
    }

    /// What is sent once all was written, and may not be before.
    pub(crate) fn sealing(&self) -> Option<MutexGuard<'_, Sealing>> {
        self.sealing.as_ref().map(Mutex::lock)
    }

    /// [`write`](Self::write), as the bytes are.
    fn write_bytes(
        &self,
        slices: &[IoSlice<'_>],
        written: &mut usize,
        patience: Patience,
    ) -> Result<bool, Error> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        while *written < total {
            match self.write_some(slices, *written) {
                Ok(more) => *written += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if patience == Patience::None || !self.await_writable(patience)? {
                        return Ok(false);
                    }
                }
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(Error::Closed),
                Err(errno) => return Err(Error::io("cannot write to the socket", errno)),
            }
        }
        Ok(true)
    }

    fn write_some(&self, slices: &[IoSlice<'_>], mut skip: usize) -> Result<usize, Errno> {
        let mut chosen = [IoSlice::new(&[]); PARTS];
        let mut room = self.options.largest_write;
        let mut places = chosen.iter_mut();
        for slice in slices {
            let bytes: &[u8] = slice;
            let Some(rest) = bytes.get(skip..) else {
                skip -= bytes.len();
                continue;
            };
            skip = 0;
            let rest = rest.get(..room).unwrap_or(rest);
            if rest.is_empty() {
                continue;
            }
            let Some(place) = places.next() else { break };
            room -= rest.len();
            *place = IoSlice::new(rest);
        }
        let unused = places.len();
        let chosen = chosen.get(..PARTS - unused).unwrap_or(&[]);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let [one] = chosen {
            return send(&self.socket, one, flags);
        }
        let mut nothing = SendAncillaryBuffer::default();
        sendmsg(&self.socket, chosen, &mut nothing, flags)
    }

    /// Waits until the socket takes bytes; false when patience is over.
    fn await_writable(&self, patience: Patience) -> Result<bool, Error> {
        let patience_ends = (patience == Patience::Linger).then(|| Instant::now() + LINGER);
        loop {
            let timeout = patience_ends.map(|end| {
                let left = end.saturating_duration_since(Instant::now());
                Timespec {
                    tv_sec: left.as_secs() as i64,
                    tv_nsec: i64::from(left.subsec_nanos()),
                }
            });
            let mut fds = [PollFd::new(&self.socket, PollFlags::OUT | PollFlags::RDHUP)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) => {
                    let [socket] = fds;
                    // A peer that ended its sending ended its receiving too.
                    return if socket.revents() == PollFlags::OUT {
                        Ok(true)
                    } else {
                        Err(Error::Closed)
                    };
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::io("cannot wait for the socket", errno)),
            }
        }
    }

    /// For the background writer: sleeps until told, or for `at_most`.
    pub(crate) fn await_work<'a>(
        &'a self,
        mut outgoing: MutexGuard<'a, Outgoing>,
        at_most: Option<Duration>,
    ) -> MutexGuard<'a, Outgoing> {
        match at_most {
            None => {
                outgoing.background = Background::Parked;
                let silent = match self.options.heartbeat {
                    None => {
                        self.work.wait(&mut outgoing);
                        false
                    }
                    Some(silence) => self.work.wait_for(&mut outgoing, silence).timed_out(),
                };
                outgoing.background = Background::Awake;
                if silent && !outgoing.pending() && !self.is_closed() {
                    outgoing.beat();
                }
            }
            Some(time) => {
                self.work.wait_for(&mut outgoing, time);
            }
        }
        outgoing
    }

    /// For the background writer of a closed connection: lets another thread's
    /// write end, but not for long.
    pub(crate) fn await_writer<'a>(
        &'a self,
        mut outgoing: MutexGuard<'a, Outgoing>,
    ) -> MutexGuard<'a, Outgoing> {
        let is_writing = |outgoing: &mut Outgoing| outgoing.socket == Socket::Writing;
        self.progress
            .wait_while_for(&mut outgoing, is_writing, LINGER);
        outgoing
    }

    /// Ends the connection; the background writer writes the rest and shuts
    /// the socket down.
    pub(crate) fn close(&self) {
        // A forked child closes its copy only: shutdown(2) would end the parent's
        // connection. It must not take the lock either, which another thread of the
        // parent may have held at the fork.
        if self.closed.swap(true, Ordering::AcqRel) || std::process::id() != self.process {
            return;
        }
        let mut outgoing = self.lock();
        match outgoing.socket {
            // What was flushed still has to reach the peer, such as a goodbye. The background
            // writer sends it and shuts the socket down.
            Socket::Free if outgoing.pending() => {}
            Socket::Writing => {}
            Socket::Free | Socket::Failed => self.shut_down(),
        }
        outgoing.background = Background::Awake;
        drop(outgoing);
        self.work.notify_one();
        self.progress.notify_all();
        self.interrupt_receiver();
    }

    /// Both ways, so that writers and the peer stop.
    pub(crate) fn shut_down(&self) {
        // A socket that is no longer connected is what is wanted.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    pub(crate) fn interrupt_receiver(&self) {
        // An eventfd of our own cannot fail but by being full.
        let _ = rustix::io::write(self.interrupt.as_fd(), &1_u64.to_ne_bytes());
    }
}

/// Held by both halves: closes the link when both are gone.
#[derive(Debug)]
pub(crate) struct Life {
    link: Arc<Link>,
}

impl Life {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.link.close();
    }
}
