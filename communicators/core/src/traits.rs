//! The two halves of a connection.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use paragpu_protocol::frame::FrameHeader;

use crate::{Error, Landing};

/// How long [`Receiver::receive`] may wait for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all. Finds a peer that closed the connection; a peer that died
    /// without a word may be noticed only after many calls.
    Poll,
    /// Until this moment.
    Until(Instant),
    /// Until a frame, the end of the connection, or a [`Wake`].
    Forever,
}

/// One received frame. The payload is the receiver's private memory: the peer
/// can no longer change it.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The header, its length already checked.
    pub header: FrameHeader,
    /// `header.length` bytes, less those that landed elsewhere.
    pub payload: &'a [u8],
    /// Bytes after `payload` that [`Receiver::receive_into`] let land.
    pub landed: usize,
}

/// The sending half; one for all threads of a process.
pub trait Sender: Send + Sync {
    /// Appends one frame, its payload gathered from `payload`, and returns the
    /// sequence number it carries: `sequence` where given (a host's
    /// acknowledgement), else the next of this session, counted from 1. Frames
    /// leave in the order of these numbers. Never waits for the peer. May
    /// buffer: a frame with `slot` 0 leaves by itself soon after; one with
    /// another slot is only sure to leave with the next
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::Full`] where the frame would have to wait for the peer
    /// (nothing was sent: [`wait_for_room`](Self::wait_for_room), then again),
    /// [`Error::Closed`], [`Error::Protocol`] for an oversized payload or the
    /// reserved kind 0xffff, [`Error::Io`].
    fn try_send(
        &self,
        kind: u16,
        slot: u16,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<u64, Error>;

    /// Returns once a frame of `length` payload bytes may fit. Other threads
    /// may take the room first.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Protocol`], [`Error::Io`].
    fn wait_for_room(&self, length: usize) -> Result<(), Error>;

    /// Whether frames wait here for [`flush`](Self::flush). Otherwise each is
    /// transmitted when it is sent.
    fn gathers(&self) -> bool {
        true
    }

    /// Makes sure that everything sent so far reaches the peer without a
    /// further call. Never waits for the peer.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Io`].
    fn flush(&self) -> Result<(), Error>;

    /// Waits until the system has taken everything that was sent, so that
    /// another process can continue writing where this one stopped; false where
    /// the peer did not take enough of it in time.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Io`].
    fn settle(&self, _deadline: Instant) -> Result<bool, Error> {
        Ok(true)
    }

    /// Ends the connection both ways: this side's waiting calls return
    /// [`Error::Closed`]; the peer receives what was flushed before, then
    /// [`Error::Closed`].
    fn close(&self);

    /// [`try_send`](Self::try_send), waiting for room as long as it takes.
    /// The way to send bulk data: streams write large payloads from the
    /// caller's memory without a copy of their own.
    ///
    /// Both peers blocked here with nobody receiving wait for each other: a
    /// side that sends bulk data must have a thread that receives.
    ///
    /// # Errors
    /// As `try_send`, without [`Error::Full`].
    fn send(
        &self,
        kind: u16,
        slot: u16,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<u64, Error> {
        loop {
            match self.try_send(kind, slot, sequence, payload) {
                Err(Error::Full) => {
                    self.wait_for_room(payload.iter().map(|part| part.len()).sum())?;
                }
                sent => return sent,
            }
        }
    }

    /// Passes an open file to the peer's [`take_file`](Self::take_file), beside the
    /// frames and without waiting. `number` names it; numbers must rise.
    ///
    /// # Errors
    /// [`Error::Io`] with `Unsupported` where the two sides share no socket that
    /// carries descriptors, and where the socket is full.
    fn pass_file(&self, _number: u64, _file: BorrowedFd<'_>) -> Result<(), Error> {
        Err(Error::passes_no_files())
    }

    /// Takes the file that the peer passed as `number`, and closes those with lower
    /// numbers. `None` if it has not been passed. Never waits.
    ///
    /// # Errors
    /// [`Error::Protocol`], [`Error::Io`].
    fn take_file(&self, _number: u64) -> Result<Option<OwnedFd>, Error> {
        Ok(None)
    }

    /// The sequence number that the last frame without a given one carried; 0
    /// before the first.
    fn last_sequence(&self) -> u64;
}

/// The receiving half; one thread at a time. Dropping it ends the connection
/// for the peer's senders.
pub trait Receiver: Send {
    /// The next frame in order, or `None` when `wait` is over or a
    /// [`Wake`] came.
    ///
    /// # Errors
    /// [`Error::Closed`] once every frame sent before the end was received,
    /// [`Error::Protocol`], [`Error::Io`]. After an error every further call
    /// fails.
    fn receive(&mut self, wait: Wait) -> Result<Option<Frame<'_>>, Error>;

    /// As [`receive`](Self::receive); large payloads go where `landing` says,
    /// where the communicator would else copy them once more. Between two
    /// calls a frame may be half landed: with another landing, or none, only
    /// after [`recall`](Self::recall).
    ///
    /// # Errors
    /// As `receive`.
    fn receive_into(
        &mut self,
        wait: Wait,
        _landing: &mut dyn Landing,
    ) -> Result<Option<Frame<'_>>, Error> {
        self.receive(wait)
    }

    /// Takes back what has landed of a frame that is not whole.
    fn recall(&mut self, _landing: &dyn Landing) {}

    /// The bytes of a frame that were taken from the connection and do not
    /// make a whole frame yet: the next receiver begins with them.
    fn unfinished(&self) -> Vec<u8> {
        Vec::new()
    }

    /// If TLS protects the connection, how another process continues with it
    /// once its sender has settled. It holds the connection's keys.
    fn secured(&self) -> Option<Vec<u8>> {
        None
    }

    /// Ends a [`receive`](Self::receive) that waits in another thread.
    fn waker(&self) -> Arc<dyn Wake>;
}

/// Names memory of this process to the host, which copies it by itself then.
pub trait Pinner: Send + Sync {
    /// Maximum number of bytes of one piece.
    fn most(&self) -> u64;

    /// Pins `length` bytes at `address`, for the host to read, or to write if
    /// `writable`. The number by which a call can name them until
    /// [`unpin`](Self::unpin); `None` if they cannot be pinned: go another
    /// way.
    fn pin(&self, address: u64, length: u64, writable: bool) -> Option<u32>;

    /// Lets memory go that no call uses any more.
    fn unpin(&self, list: u32);
}

/// Ends a waiting receive early.
pub trait Wake: Send + Sync {
    /// Makes the current or the next waiting `receive` (not [`Wait::Poll`])
    /// that finds no frame return `None`. Several calls before that `receive`
    /// count as one.
    fn wake(&self);
}
