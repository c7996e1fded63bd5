//! State shared by sender, receiver and background writer: the socket, the batch being
//! filled, and the batch being written.

use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::{CachePadded, Error};
use paragpu_communicator_secure::Sealer;
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, send, sendmsg, shutdown};

use crate::Options;
use crate::parser::HEARTBEAT;
use crate::path::{Path, SILENT, poll_path};
use crate::seal::{PARTS, Sealing};

/// How long a closed connection waits for a peer that accepts none of the flushed bytes.
const LINGER: Duration = Duration::from_secs(1);

/// Maximum number of batches that one flushing thread writes for others. The background
/// writer writes the rest.
const BATCHES_PER_FLUSH: u32 = 16;

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: OwnedFd,
    pub(crate) options: Options,
    /// `None` if the socket is not of TCP.
    path: Option<Path>,
    /// [`Link::close`] was called. Not a state of [`Socket`]: a close does not stop the
    /// thread that is writing, and the receiver reads it without the lock.
    pub(crate) closed: AtomicBool,
    /// [`paragpu_communicator::Wake::wake`] was called, and no receive has consumed it.
    /// It concerns the receiver alone, in any state of the socket.
    pub(crate) woken: AtomicBool,
    /// Ends the receiver's sleep.
    pub(crate) interrupt: OwnedFd,
    /// The process that connected. Dropping a forked child's copy must not end the
    /// connection.
    process: u32,
    /// `None` without TLS. The writing thread locks it.
    sealing: Option<Mutex<Sealing>>,
    outgoing: CachePadded<Mutex<Outgoing>>,
    /// Notified when bytes were written or the connection ended.
    progress: Condvar,
    /// Notified when there is work for the background writer.
    work: Condvar,
}

/// Bytes to write, in this order: `batch[written..]`, `filling`.
#[derive(Debug)]
pub(crate) struct Outgoing {
    filling: Vec<u8>,
    /// Taken out, and so empty, while a thread writes it.
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
///    │                                         Failed, Silent
/// ```
///
/// [`Link::close`] ends the connection in any state. In `Free` without pending bytes, it
/// shuts down the socket at once. Otherwise the background writer does so, after it has
/// written the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Socket {
    /// No thread is writing.
    Free,
    /// One thread writes without the lock. It checks for further work when it is done.
    Writing,
    /// A write failed. Nothing more is written.
    Failed,
    /// The same, because the peer does not answer: it may still come back.
    Silent,
}

impl Socket {
    /// After a write.
    fn after<T>(end: &Result<T, Error>) -> Self {
        match end {
            Ok(_) => Self::Free,
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::TimedOut => Self::Silent,
            Err(_) => Self::Failed,
        }
    }

    fn has_failed(self) -> bool {
        matches!(self, Self::Failed | Self::Silent)
    }
}

/// The state of the background writer. [`run`](crate::background) sleeps in ticks while
/// there is traffic, so that posting costs no system call, and is `Parked` after some ticks
/// without work. A thread that leaves work behind sets it to `Awake`, and notifies it if it
/// was `Parked`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Background {
    /// It checks for work periodically.
    Awake,
    /// It sleeps until notified.
    Parked,
}

/// How long a writer waits when the socket is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Does not wait; leaves the rest to the background writer.
    None,
    /// Waits without limit.
    Endless,
    /// Waits, but gives up on a peer that accepts nothing for [`LINGER`].
    Linger,
}

impl Outgoing {
    fn pending(&self) -> bool {
        self.written < self.batch.len() || !self.filling.is_empty()
    }

    /// Whether there is something to write and no thread is writing.
    pub(crate) fn is_due(&self) -> bool {
        self.socket == Socket::Free && self.pending()
    }

    /// Sets the background writer to `Awake`. Returns true if it must be notified.
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

    /// Appends a heartbeat frame.
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
            path: Path::of(&socket)
                .map_err(|errno| Error::io("cannot ask for the socket's keepalive", errno))?,
            socket,
            options,
            closed: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            interrupt,
            process: std::process::id(),
            sealing: sealer.map(|sealer| Mutex::new(Sealing::new(sealer))),
            outgoing: CachePadded(Mutex::new(Outgoing {
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
        self.outgoing.lock()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn check(&self, outgoing: &Outgoing) -> Result<(), Error> {
        match outgoing.socket {
            _ if self.is_closed() => Err(Error::Closed),
            Socket::Free | Socket::Writing => Ok(()),
            Socket::Failed => Err(Error::Closed),
            Socket::Silent => Err(Error::io(SILENT, Errno::TIMEDOUT)),
        }
    }

    /// Appends a frame to the batch being filled; `None` if it is full.
    pub(crate) fn append(
        &self,
        mut header: FrameHeader,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<Option<u64>, Error> {
        let mut outgoing = self.lock();
        self.check(&outgoing)?;
        let fits = outgoing.append(&mut header, sequence, payload, self.options.buffer);
        // If the batch is full, the background writer must make room, because no thread may
        // be about to flush.
        let wanted = header.slot == 0 || !fits;
        // A thread that is writing checks for work under this lock before it stops. It
        // cannot miss the frame, and no thread must be woken.
        let rouse = wanted && outgoing.socket == Socket::Free && outgoing.rouse();
        // Notified without the lock, which the woken thread takes at once.
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

    /// Writes a batch, or waits for another thread to make progress.
    fn progress<'a>(&'a self, mut outgoing: MutexGuard<'a, Outgoing>) -> MutexGuard<'a, Outgoing> {
        // If no thread is writing, a thread that needs room writes itself, instead of
        // waking the background writer and waiting for it.
        if outgoing.socket != Socket::Writing {
            return self.drain(outgoing, Patience::Endless, 1);
        }
        self.progress.wait(&mut outgoing);
        outgoing
    }

    /// Writes all pending bytes that fit into the socket, without waiting for the peer.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let outgoing = self.lock();
        self.check(&outgoing)?;
        // If another thread is writing, it also writes this thread's frames.
        if !outgoing.is_due() {
            return Ok(());
        }
        // Bounded, because this thread would otherwise write for others as long as they
        // post.
        let outgoing = self.drain(outgoing, Patience::None, BATCHES_PER_FLUSH);
        self.check(&outgoing)
    }

    /// Waits until the socket has accepted all bytes. Returns false if `deadline` passes
    /// first.
    pub(crate) fn settle(&self, deadline: Instant) -> Result<bool, Error> {
        const POLL_INTERVAL: Duration = Duration::from_millis(10);
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
            self.progress.wait_for(&mut outgoing, POLL_INTERVAL);
        }
    }

    /// Writes up to `batches` batches while other threads append. Called while no thread is
    /// writing. Leaves the rest to the background writer.
    pub(crate) fn drain<'a>(
        &'a self,
        mut outgoing: MutexGuard<'a, Outgoing>,
        patience: Patience,
        batches: u32,
    ) -> MutexGuard<'a, Outgoing> {
        if outgoing.socket.has_failed() {
            return outgoing;
        }
        outgoing.socket = Socket::Writing;
        let mut left = batches;
        let mut next = Socket::Free;
        while next == Socket::Free && outgoing.pending() && left > 0 {
            left -= 1;
            // The rest of a batch goes first: frames must not be reordered, and one may be
            // partly written.
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
            // Written without the lock, so that others can append meanwhile. `Writing`
            // keeps them from using the socket.
            drop(outgoing);
            let end = self.write(&[IoSlice::new(&batch)], &mut written, patience);
            outgoing = self.lock();
            outgoing.batch = batch;
            outgoing.written = written;
            next = Socket::after(&end);
            if matches!(end, Ok(false)) {
                break;
            }
        }
        self.stop_writing(&mut outgoing, next);
        outgoing
    }

    /// Ends `Writing`, and leaves the rest to the background writer.
    fn stop_writing(&self, outgoing: &mut Outgoing, next: Socket) {
        outgoing.socket = next;
        self.progress.notify_all();
        if outgoing.pending() && outgoing.rouse() {
            self.work.notify_one();
        }
    }

    /// Sends one frame of fewer than [`PARTS`] parts directly from the caller's memory,
    /// after all pending bytes. Waits for the peer without limit.
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
        // Numbered under the same lock under which the socket is taken, so that frames are
        // numbered in the order in which they are written.
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
            self.stop_writing(&mut outgoing, Socket::after(&ended));
        } else {
            outgoing = self.drain(outgoing, Patience::None, BATCHES_PER_FLUSH);
        }
        self.check(&outgoing)?;
        ended.map(|_| header.sequence)
    }

    /// Writes `slices`, of which `written` bytes have been written before. Returns true
    /// when all is written, false if the socket is full and `patience` has run out.
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
            // Sealed records that are not sent completely go first, unchanged. Their record
            // numbers are used; sealing the same bytes again would use other numbers.
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

    /// The state of encryption, if TLS protects the connection. Final once all bytes are
    /// written.
    pub(crate) fn sealing(&self) -> Option<MutexGuard<'_, Sealing>> {
        self.sealing.as_ref().map(Mutex::lock)
    }

    /// As [`write`](Self::write), without encryption.
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

    /// Waits until the socket accepts bytes. Returns false if `patience` has run out.
    fn await_writable(&self, patience: Patience) -> Result<bool, Error> {
        let patience_ends = (patience == Patience::Linger).then(|| Instant::now() + LINGER);
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT | PollFlags::RDHUP)];
        if !self.poll(&mut fds, patience_ends)? {
            return Ok(false);
        }
        let [socket] = fds;
        // A peer that has ended its sending direction does not receive either.
        match socket.revents() == PollFlags::OUT {
            true => Ok(true),
            false => Err(Error::Closed),
        }
    }

    /// As [`poll_path`]. The socket stays open: its end would look like the peer's.
    pub(crate) fn poll(
        &self,
        fds: &mut [PollFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<bool, Error> {
        poll_path(self.path.as_ref(), &self.socket, fds, deadline)
    }

    /// For the background writer: sleeps until notified, or for `at_most`. Without a limit,
    /// appends a heartbeat frame after a silence.
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

    /// For the background writer of a closed connection: waits for another thread's write
    /// to end, for at most [`LINGER`].
    pub(crate) fn await_writer<'a>(
        &'a self,
        mut outgoing: MutexGuard<'a, Outgoing>,
    ) -> MutexGuard<'a, Outgoing> {
        let is_writing = |outgoing: &mut Outgoing| outgoing.socket == Socket::Writing;
        self.progress
            .wait_while_for(&mut outgoing, is_writing, LINGER);
        outgoing
    }

    /// Ends the connection. If bytes are pending, the background writer writes them and
    /// then shuts down the socket.
    pub(crate) fn close(&self) {
        // A forked child only marks its copy: shutdown(2) would end the parent's
        // connection. It must not take the lock either, which another thread of the parent
        // may have held at the fork.
        if self.closed.swap(true, Ordering::AcqRel) || std::process::id() != self.process {
            return;
        }
        let mut outgoing = self.lock();
        match outgoing.socket {
            // Flushed frames, such as a goodbye, must still reach the peer. The background
            // writer sends them and shuts down the socket.
            Socket::Free if outgoing.pending() => {}
            Socket::Writing => {}
            Socket::Free | Socket::Failed | Socket::Silent => self.shut_down(),
        }
        outgoing.background = Background::Awake;
        drop(outgoing);
        self.work.notify_one();
        self.progress.notify_all();
        self.interrupt_receiver();
    }

    /// Shuts down both directions, so that writers and the peer stop.
    pub(crate) fn shut_down(&self) {
        // Fails only if the socket is not connected any more.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    pub(crate) fn interrupt_receiver(&self) {
        // Writing to an own eventfd fails only if it is full, and so already set.
        let _ = rustix::io::write(self.interrupt.as_fd(), &1_u64.to_ne_bytes());
    }
}

/// Held by both halves. Closes the link when both are dropped.
#[derive(Debug)]
pub(crate) struct CloseOnDrop {
    link: Arc<Link>,
}

impl CloseOnDrop {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link }
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.link.close();
    }
}
