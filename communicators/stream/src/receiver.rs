//! The receiving half.

use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use paragpu_communicator::{
    Adaptive, Error, Frame, Landing, Polling, Receiver, Spin, Wait, Waited, Waiter, Wake,
};
use paragpu_communicator_secure::{Error as SecureError, Opener, state};
use paragpu_protocol::frame::FrameHeader;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recv, recvmsg};

use crate::link::{CloseOnDrop, Link};
use crate::parser::{HEARTBEAT, Parser};
use crate::seal::broken;

/// Receives from a stream socket.
#[derive(Debug)]
pub(crate) struct StreamReceiver {
    link: Arc<Link>,
    _life: Arc<CloseOnDrop>,
    parser: Parser,
    /// `None` without TLS.
    opener: Option<Opener>,
    /// The frame that is landing.
    landing: Option<LandedFrame>,
    /// Whether the last frame landed. If so, the next is likely to.
    landed: bool,
    /// The head of the frame that landed last.
    head: [u8; MAX_HEAD],
    adaptive: Adaptive,
    failed: bool,
}

/// A frame whose payload is received directly at its destination.
#[derive(Debug)]
struct LandedFrame {
    header: FrameHeader,
    /// The payload's first bytes, which do not land.
    head: [u8; MAX_HEAD],
    head_len: usize,
    /// Number of bytes, of `rest`, that have landed.
    at: usize,
    rest: usize,
}

impl LandedFrame {
    fn head(&self) -> &[u8] {
        self.head.get(..self.head_len).unwrap_or(&[])
    }
}

/// Payloads from this size on may land. Copying smaller ones out of the buffer costs less
/// than a system call.
const LARGE: usize = 32 << 10;
/// Maximum number of bytes of a head.
const MAX_HEAD: usize = 64;

/// A received frame.
enum Arrival {
    Frame(FrameHeader, Range<usize>),
    Landed(LandedFrame),
}

/// The outcome of one read from the socket.
#[derive(Debug, PartialEq, Eq)]
enum ReadOutcome {
    Bytes,
    Nothing,
}

/// A wait for bytes, which may be received at their destination.
struct ByteWait<'a, 'b> {
    receiver: &'a mut StreamReceiver,
    landing: &'a mut Option<&'b mut dyn Landing>,
}

impl StreamReceiver {
    pub(crate) fn new(
        link: Arc<Link>,
        life: Arc<CloseOnDrop>,
        polling: Polling,
        opener: Option<Opener>,
    ) -> Self {
        Self {
            link,
            _life: life,
            parser: Parser::new(),
            opener,
            landing: None,
            landed: false,
            head: [0; MAX_HEAD],
            adaptive: Adaptive::new(polling),
            failed: false,
        }
    }

    /// Begins with bytes that another receiver has read. Returns false if they are more
    /// than a frame.
    pub(crate) fn begin_with(&mut self, bytes: &[u8]) -> bool {
        self.parser.begin_with(bytes)
    }

    /// Reads available bytes, without waiting.
    fn look(&mut self, landing: &mut Option<&mut dyn Landing>) -> Result<ReadOutcome, Error> {
        if let Some(landing) = landing {
            self.begin_landing(&mut **landing)?;
            if self.landing.is_some() {
                return self.look_landing(&mut **landing);
            }
        } else if self.landing.is_some() {
            return Err(Error::protocol("a frame that lands was not recalled"));
        }
        let space = if self.landed && landing.is_some() {
            self.parser.small_space()?
        } else {
            self.parser.space()?
        };
        let read = read(&self.link.socket, &mut self.opener, space);
        self.took(read, |parser, count| parser.filled(count))
    }

    /// Handles the outcome of a read from the socket.
    fn took(
        &mut self,
        read: Result<usize, Fault>,
        fill: impl FnOnce(&mut Parser, usize),
    ) -> Result<ReadOutcome, Error> {
        match read {
            Ok(0) if self.parser.is_inside_frame() || self.landing.is_some() => Err(Error::cut()),
            Ok(0) => Err(Error::Closed),
            Ok(count) => {
                fill(&mut self.parser, count);
                Ok(ReadOutcome::Bytes)
            }
            Err(Fault::Io(Errno::AGAIN)) => Ok(ReadOutcome::Nothing),
            Err(Fault::Io(Errno::CONNRESET | Errno::NOTCONN | Errno::PIPE)) => {
                // The peer is gone, and sent bytes cannot reach it. Whether a send would
                // detect that depends on the background writer.
                self.link.close();
                Err(Error::Closed)
            }
            Err(Fault::Io(errno)) => Err(Error::io("cannot read from the socket", errno)),
            Err(Fault::Secure(error)) => Err(broken(error)),
        }
    }

    /// Begins the landing of an incomplete frame, if it is large and has a destination.
    fn begin_landing(&mut self, landing: &mut dyn Landing) -> Result<(), Error> {
        if self.landing.is_some() {
            return Ok(());
        }
        let Some((header, payload)) = self.parser.begun()? else {
            return Ok(());
        };
        let large = header.payload_len() >= LARGE;
        let Some(head_len) = landing.head(&header).filter(|_| large) else {
            self.landed = false;
            return Ok(());
        };
        let Some((head, early)) = payload.split_at_checked(head_len) else {
            return Ok(());
        };
        let mut landed = LandedFrame {
            header,
            head: [0; MAX_HEAD],
            head_len,
            at: 0,
            rest: header.payload_len() - head_len,
        };
        match landed.head.get_mut(..head_len) {
            Some(place) => place.copy_from_slice(head),
            None => return Ok(()),
        }
        loop {
            let mut left = early.get(landed.at..).unwrap_or(&[]);
            let mut copied = 0;
            let given = landing.land(&header, landed.head(), landed.at, &mut |memory| {
                copied = memory.len().min(left.len());
                let (now, later) = left.split_at(copied);
                if let Some(place) = memory.get_mut(..copied) {
                    place.copy_from_slice(now);
                }
                left = later;
                copied
            });
            if !given && landed.at == 0 {
                // Received like any other frame until it gets a destination.
                self.landed = false;
                return Ok(());
            }
            landed.at += if given { copied } else { left.len() };
            if landed.at >= early.len() {
                break;
            }
        }
        self.parser.clear();
        self.landed = true;
        self.landing = Some(landed);
        Ok(())
    }

    /// Reads into the destination of the landing frame and, with its last bytes, a little
    /// of the next frame. Without a destination, reads bytes and drops them.
    fn look_landing(&mut self, landing: &mut dyn Landing) -> Result<ReadOutcome, Error> {
        let Some(landed) = &mut self.landing else {
            return Ok(ReadOutcome::Nothing);
        };
        let (at, rest) = (landed.at, landed.rest - landed.at);
        if rest == 0 {
            return Ok(ReadOutcome::Bytes);
        }
        let (socket, parser) = (&self.link.socket, &mut self.parser);
        let opener = &mut self.opener;
        let mut next = parser.small_space()?;
        let mut outcome = Ok(0);
        let mut room = 0;
        let given = landing.land(&landed.header, landed.head(), at, &mut |memory| {
            let most = memory.len().min(rest);
            let memory = memory.get_mut(..most).unwrap_or(&mut []);
            room = most;
            outcome = if most == rest {
                read_two(socket, opener, memory, next)
            } else {
                read(socket, opener, memory)
            };
            outcome.as_ref().map_or(0, |count| (*count).min(most))
        });
        if !given {
            let most = next.len().min(rest);
            next = next.get_mut(..most).unwrap_or(&mut []);
            room = most;
            outcome = read(socket, opener, next);
        }
        let came = outcome.as_ref().map_or(0, |count| *count);
        let look = self.took(outcome, |parser, count| {
            parser.filled(count.saturating_sub(room));
        })?;
        if let Some(landed) = &mut self.landing {
            landed.at += came.min(room);
        }
        Ok(look)
    }

    fn next(
        &mut self,
        wait: Wait,
        mut landing: Option<&mut dyn Landing>,
    ) -> Result<Option<Arrival>, Error> {
        loop {
            if self.failed || self.link.is_closed() {
                return Err(Error::Closed);
            }
            let whole = |landed: &mut LandedFrame| landed.at == landed.rest;
            if let Some(landed) = self.landing.take_if(whole) {
                return Ok(Some(Arrival::Landed(landed)));
            }
            if self.landing.is_none()
                && let Some((header, payload)) = self.parser.next()?
            {
                if header.kind != HEARTBEAT {
                    return Ok(Some(Arrival::Frame(header, payload)));
                }
                // However many heartbeats arrive, they do not extend the wait.
                let late = matches!(wait, Wait::Until(end) if end <= Instant::now());
                if late || wait == Wait::Poll || self.take_wake() {
                    return Ok(None);
                }
                continue;
            }
            if self.look(&mut landing)? == ReadOutcome::Bytes {
                continue;
            }
            let deadline = match wait {
                Wait::Poll => return Ok(None),
                Wait::Until(deadline) => Some(deadline),
                Wait::Forever => None,
            };
            let mut bytes = ByteWait {
                receiver: self,
                landing: &mut landing,
            };
            if bytes.wait(deadline)? != Waited::Found(()) {
                return Ok(None);
            }
        }
    }

    /// Whether a waker ended this wait. Most receives find no wake, and a load is cheaper than
    /// a swap.
    fn take_wake(&self) -> bool {
        self.link.woken.load(Ordering::Relaxed) && self.link.woken.swap(false, Ordering::AcqRel)
    }
}

impl Waiter for ByteWait<'_, '_> {
    type Found = ();

    fn adaptive(&mut self) -> &mut Adaptive {
        &mut self.receiver.adaptive
    }

    fn poll(&mut self, spin: &mut Spin) -> Result<Waited<()>, Error> {
        while spin.again() {
            if self.receiver.look(self.landing)? == ReadOutcome::Bytes {
                return Ok(Waited::Found(()));
            }
            if self.receiver.link.is_closed() {
                return Err(Error::Closed);
            }
            if self.receiver.take_wake() {
                return Ok(Waited::Woken);
            }
        }
        Ok(Waited::Late)
    }

    fn sleep(&mut self, deadline: Option<Instant>) -> Result<Waited<()>, Error> {
        loop {
            if self.receiver.take_wake() {
                return Ok(Waited::Woken);
            }
            if self.receiver.link.is_closed() {
                return Err(Error::Closed);
            }
            let mut fds = [
                PollFd::new(&self.receiver.link.socket, PollFlags::IN),
                PollFd::new(&self.receiver.link.interrupt, PollFlags::IN),
            ];
            if !self.receiver.link.poll(&mut fds, deadline)? {
                return Ok(Waited::Late);
            }
            let [socket, interrupt] = fds.each_ref().map(PollFd::revents);
            if interrupt.contains(PollFlags::IN) {
                let mut count = [0; 8];
                // Only this half reads it. A failed read leaves it set, and the next sleep
                // returns at once.
                let _ = rustix::io::read(&self.receiver.link.interrupt, &mut count);
            }
            if !socket.is_empty() {
                return Ok(Waited::Found(()));
            }
        }
    }
}

/// Why a read failed.
#[derive(Debug)]
enum Fault {
    Io(Errno),
    Secure(SecureError),
}

impl From<SecureError> for Fault {
    fn from(error: SecureError) -> Self {
        Self::Secure(error)
    }
}

/// Reads available bytes; 0 at the end of the connection.
fn read(socket: &OwnedFd, opener: &mut Option<Opener>, memory: &mut [u8]) -> Result<usize, Fault> {
    let plain = |memory: &mut [u8]| read_bytes(socket, memory).map_err(Fault::Io);
    match opener {
        Some(opener) => opener.read(memory, plain),
        None => plain(memory),
    }
}

fn read_bytes(socket: &OwnedFd, memory: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match recv(socket, &mut *memory, RecvFlags::DONTWAIT) {
            Ok((_, count)) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// As [`read`], into one buffer and then another.
fn read_two(
    socket: &OwnedFd,
    opener: &mut Option<Opener>,
    first: &mut [u8],
    then: &mut [u8],
) -> Result<usize, Fault> {
    if opener.is_some() {
        // With TLS, the opener reads ahead itself.
        return read(socket, opener, first);
    }
    loop {
        let mut memory = [IoSliceMut::new(first), IoSliceMut::new(then)];
        let mut nothing = RecvAncillaryBuffer::default();
        match recvmsg(socket, &mut memory, &mut nothing, RecvFlags::DONTWAIT) {
            Ok(message) => return Ok(message.bytes),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Fault::Io(errno)),
        }
    }
}

impl StreamReceiver {
    fn receive_frame(
        &mut self,
        wait: Wait,
        landing: Option<&mut dyn Landing>,
    ) -> Result<Option<Frame<'_>>, Error> {
        match self.next(wait, landing) {
            Ok(None) => Ok(None),
            Ok(Some(Arrival::Frame(header, payload))) => Ok(Some(Frame {
                header,
                payload: self.parser.place(payload),
                landed: 0,
            })),
            Ok(Some(Arrival::Landed(landed))) => {
                let LandedFrame {
                    header,
                    head_len,
                    rest,
                    ..
                } = landed;
                self.head = landed.head;
                Ok(Some(Frame {
                    header,
                    payload: self.head.get(..head_len).unwrap_or(&[]),
                    landed: rest,
                }))
            }
            Err(error) => {
                self.failed = true;
                if !matches!(error, Error::Closed) {
                    self.link.close();
                }
                Err(error)
            }
        }
    }
}

impl Receiver for StreamReceiver {
    fn receive(&mut self, wait: Wait) -> Result<Option<Frame<'_>>, Error> {
        self.receive_frame(wait, None)
    }

    fn receive_into(
        &mut self,
        wait: Wait,
        landing: &mut dyn Landing,
    ) -> Result<Option<Frame<'_>>, Error> {
        self.receive_frame(wait, Some(landing))
    }

    fn recall(&mut self, landing: &dyn Landing) {
        self.landed = false;
        if let Some(landed) = self.landing.take() {
            let mut bytes = landed.header.to_bytes().to_vec();
            bytes.extend_from_slice(landed.head());
            bytes.extend_from_slice(landing.landed(landed.at));
            // The buffer contains nothing else while a frame is landing.
            self.failed |= !self.parser.begin_with(&bytes);
        }
    }

    fn set_polls(&mut self, polls: bool) {
        self.adaptive.set_polls(polls);
    }

    fn hand_over(&mut self) -> Vec<u8> {
        self.parser.unread().to_vec()
    }

    fn secured(&self) -> Option<Vec<u8>> {
        let sealing = self.link.sealing()?;
        let opener = self.opener.as_ref()?;
        Some(state(sealing.sealer(), opener))
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::new(StreamWaker {
            link: Arc::downgrade(&self.link),
        })
    }
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        // Stops the peer's senders. Frames that this side has sent still arrive.
        self.link.close();
    }
}

/// Ends a waiting receive. Does not keep the connection open.
#[derive(Debug)]
struct StreamWaker {
    link: Weak<Link>,
}

impl Wake for StreamWaker {
    fn wake(&self) {
        if let Some(link) = self.link.upgrade() {
            link.woken.store(true, Ordering::Release);
            link.interrupt_receiver();
        }
    }
}
