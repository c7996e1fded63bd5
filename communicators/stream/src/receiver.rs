//! The receiving half.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use paragpu_communicator::{Adaptive, Error, Frame, Polling, Receiver, Spin, Wait, Wake};
use paragpu_protocol::frame::FrameHeader;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::link::{Life, Link};
use crate::parser::Parser;

/// Receives from a stream socket.
#[derive(Debug)]
pub(crate) struct StreamReceiver {
    link: Arc<Link>,
    _life: Arc<Life>,
    parser: Parser,
    adaptive: Adaptive,
    failed: bool,
}

/// Outcome of one look at the socket.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Bytes,
    Nothing,
}

/// Why a sleep ended.
#[derive(Debug, PartialEq, Eq)]
enum Slept {
    LookAgain,
    Over,
}

impl StreamReceiver {
    pub(crate) fn new(link: Arc<Link>, life: Arc<Life>, polling: Polling) -> Self {
        Self {
            link,
            _life: life,
            parser: Parser::new(),
            adaptive: Adaptive::new(polling),
            failed: false,
        }
    }

    /// Begins with bytes that another receiver has read; false where they are
    /// more than a frame.
    pub(crate) fn begin_with(&mut self, bytes: &[u8]) -> bool {
        self.parser.begin_with(bytes)
    }

    /// Reads what is there, without waiting.
    fn look(&mut self) -> Result<Look, Error> {
        loop {
            let space = self.parser.space()?;
            match recv(&self.link.socket, space, RecvFlags::DONTWAIT) {
                Ok((_, 0)) if self.parser.is_inside_frame() => {
                    return Err(Error::cut());
                }
                Ok((_, 0)) | Err(Errno::CONNRESET | Errno::NOTCONN | Errno::PIPE) => {
                    return Err(Error::Closed);
                }
                Ok((_, count)) => {
                    self.parser.filled(count);
                    return Ok(Look::Bytes);
                }
                Err(Errno::AGAIN) => return Ok(Look::Nothing),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::io("cannot read from the socket", errno)),
            }
        }
    }

    fn next(&mut self, wait: Wait) -> Result<Option<(FrameHeader, Range<usize>)>, Error> {
        loop {
            if self.failed || self.link.is_closed() {
                return Err(Error::Closed);
            }
            if let Some(frame) = self.parser.next()? {
                return Ok(Some(frame));
            }
            if self.look()? == Look::Bytes {
                continue;
            }
            let deadline = match wait {
                Wait::Poll => return Ok(None),
                Wait::Until(deadline) => Some(deadline),
                Wait::Forever => None,
            };
            if self.poll_then_sleep(deadline)? == Slept::Over {
                return Ok(None);
            }
        }
    }

    fn poll_then_sleep(&mut self, deadline: Option<Instant>) -> Result<Slept, Error> {
        let mut spin = Spin::new(self.adaptive.budget(), deadline);
        while spin.again() {
            if self.look()? == Look::Bytes {
                self.adaptive.found(&spin);
                return Ok(Slept::LookAgain);
            }
            if self.link.is_closed() {
                return Err(Error::Closed);
            }
            if self.take_wake() {
                return Ok(Slept::Over);
            }
        }
        let began = Instant::now();
        let slept = self.sleep(deadline)?;
        if slept == Slept::LookAgain {
            self.adaptive.slept(&spin, began.elapsed());
        }
        Ok(slept)
    }

    fn sleep(&self, deadline: Option<Instant>) -> Result<Slept, Error> {
        loop {
            if self.take_wake() {
                return Ok(Slept::Over);
            }
            if self.link.is_closed() {
                return Err(Error::Closed);
            }
            let timeout = deadline.map(|deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                Timespec::try_from(left).unwrap_or(Timespec {
                    tv_sec: i64::MAX,
                    tv_nsec: 0,
                })
            });
            let mut fds = [
                PollFd::new(&self.link.socket, PollFlags::IN),
                PollFd::new(&self.link.interrupt, PollFlags::IN),
            ];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(Slept::Over),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::io("cannot wait for the socket", errno)),
            }
            let [socket, interrupt] = fds.each_ref().map(PollFd::revents);
            if interrupt.contains(PollFlags::IN) {
                let mut count = [0; 8];
                // Only this half reads it, and a failed read leaves it set.
                let _ = rustix::io::read(&self.link.interrupt, &mut count);
            }
            if !socket.is_empty() {
                return Ok(Slept::LookAgain);
            }
        }
    }

    fn take_wake(&self) -> bool {
        self.link.woken.load(Ordering::Relaxed) && self.link.woken.swap(false, Ordering::AcqRel)
    }
}

impl Receiver for StreamReceiver {
    fn receive(&mut self, wait: Wait) -> Result<Option<Frame<'_>>, Error> {
        match self.next(wait) {
            Ok(None) => Ok(None),
            Ok(Some((header, payload))) => Ok(Some(Frame {
                header,
                payload: self.parser.place(payload),
            })),
            Err(error) => {
                self.failed = true;
                if !matches!(error, Error::Closed) {
                    self.link.close();
                }
                Err(error)
            }
        }
    }

    fn unfinished(&self) -> Vec<u8> {
        self.parser.unread().to_vec()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::new(StreamWaker {
            link: Arc::downgrade(&self.link),
        })
    }
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        // The peer's senders shall stop; what this side sent still arrives.
        self.link.close();
    }
}

/// Ends a waiting receive; does not keep the connection open.
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
