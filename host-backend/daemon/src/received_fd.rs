//! Closes descriptors that peers sent, in separate threads.
//!
//! close(2) can block: on the peer of a socket with SO_LINGER, or on the server of a FUSE
//! file. Closing a connection also closes the descriptors in its unread messages, which
//! the sender chose. So the broker's loop does not close them. One thread does it for
//! guests, and a timer interrupts its waits: descriptors that guests can leave unread
//! wait interruptibly. Another does it for device processes. The daemon itself holds
//! their descriptors, and closing a FUSE file blocks until its server answers, which
//! delays only other device processes. A third does it for workers, any of which a guest
//! may have compromised.
#![forbid(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags};

use crate::sys::Interrupter;

/// The sender of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// A guest: its connection.
    Guest,
    /// A device process.
    Device,
    /// A worker.
    Worker,
}

/// A descriptor that a peer sent.
#[derive(Debug)]
pub struct ReceivedFd {
    /// `None` only while it is dropped.
    fd: Option<OwnedFd>,
    sender: PeerKind,
}

/// A thread that closes.
#[derive(Debug)]
struct ClosingThread {
    thread: OnceLock<Option<Sender<OwnedFd>>>,
    waiting: AtomicUsize,
}

static GUESTS: ClosingThread = ClosingThread::new();
static DEVICES: ClosingThread = ClosingThread::new();
static WORKERS: ClosingThread = ClosingThread::new();

impl ClosingThread {
    const fn new() -> Self {
        Self {
            thread: OnceLock::new(),
            waiting: AtomicUsize::new(0),
        }
    }

    fn of(sender: PeerKind) -> &'static Self {
        match sender {
            PeerKind::Guest => &GUESTS,
            PeerKind::Device => &DEVICES,
            PeerKind::Worker => &WORKERS,
        }
    }

    fn close(&'static self, fd: OwnedFd) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = match self.thread.get_or_init(|| self.start()) {
            Some(thread) => thread.send(fd).is_ok(),
            // Without a thread, it is closed here.
            None => false,
        };
        if !sent {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn start(&'static self) -> Option<Sender<OwnedFd>> {
        let (sender, receiver) = channel::<OwnedFd>();
        let run = move || {
            let interrupter = Interrupter::new();
            for fd in receiver {
                let ticks = interrupter.as_ref().ok().map(Interrupter::ticks);
                drop(fd);
                drop(ticks);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new().name("closer".into());
        match thread.spawn(run) {
            Ok(_) => Some(sender),
            Err(error) => {
                tracing::error!(%error, "a peer that lingers can hold up the daemon");
                None
            }
        }
    }
}

impl ReceivedFd {
    /// A descriptor sent by `sender`.
    #[must_use]
    pub fn new(fd: OwnedFd, sender: PeerKind) -> Self {
        let fd = Some(fd);
        Self { fd, sender }
    }

    /// The number of workers' descriptors that are not closed yet. They delay no
    /// connections, only offers of other workers.
    #[must_use]
    pub fn of_workers() -> usize {
        WORKERS.waiting.load(Ordering::Relaxed)
    }

    /// The larger number of descriptors that are not closed yet, of guests or of device
    /// processes.
    #[must_use]
    pub fn unclosed() -> usize {
        let one = GUESTS.waiting.load(Ordering::Relaxed);
        one.max(DEVICES.waiting.load(Ordering::Relaxed))
    }
}

/// Receives bytes that came without descriptors, without blocking. Reading bytes with
/// descriptors without receiving those would close them, which may block. So this peeks
/// first, and leaves such bytes unread.
///
/// # Errors
/// `MSGSIZE` if descriptors came with the bytes; as recvmsg(2).
pub fn receive_plainly(socket: impl AsFd, to: &mut [u8]) -> Result<usize, Errno> {
    let peeked = receive(socket.as_fd(), to, RecvFlags::PEEK)?;
    let to = to.get_mut(..peeked).unwrap_or_default();
    receive(socket.as_fd(), to, RecvFlags::empty())
}

fn receive(socket: BorrowedFd<'_>, to: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(to)],
        &mut RecvAncillaryBuffer::default(),
        flags | RecvFlags::DONTWAIT,
    )?;
    match received.flags.contains(ReturnFlags::CTRUNC) {
        true => Err(Errno::MSGSIZE),
        false => Ok(received.bytes),
    }
}

impl AsFd for ReceivedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("a descriptor that was given is there until it is dropped"),
        }
    }
}

impl Drop for ReceivedFd {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            ClosingThread::of(self.sender).close(fd);
        }
    }
}
