//! The two halves of a connection.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use paragpu_protocol::frame::FrameHeader;

use crate::{Error, Landing};

/// How long [`Receiver::receive`] may wait for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all. Detects a peer that closed the connection. A peer that died may be
    /// detected only after many calls.
    Poll,
    /// Until this time.
    Until(Instant),
    /// Until a frame, the end of the connection, or a [`Wake`].
    Forever,
}

/// One received frame. The payload is in private memory of the receiver, so the peer cannot
/// change it any more.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The header, its length already checked.
    pub header: FrameHeader,
    /// `header.length` bytes, without those that landed elsewhere.
    pub payload: &'a [u8],
    /// Number of bytes after `payload` that [`Receiver::receive_into`] wrote to their
    /// destination.
    pub landed: usize,
}

/// The sending half, which all threads of a process share.
pub trait Sender: Send + Sync {
    /// Appends one frame, its payload gathered from `payload`, and returns the sequence
    /// number it carries: `sequence` if given (a host's acknowledgement), else the next one
    /// of this session, counted from 1. Frames leave in the order of these numbers. Never
    /// waits for the peer. May buffer: a frame with `slot` 0 is transmitted soon after by
    /// itself; one with another slot possibly only with the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::Full`] if the frame would have to wait for the peer (nothing was sent; call
    /// [`wait_for_room`](Self::wait_for_room) and retry), [`Error::Closed`],
    /// [`Error::Protocol`] for an oversized payload or the reserved kind 0xffff,
    /// [`Error::Io`].
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

    /// Whether frames are buffered until [`flush`](Self::flush). Otherwise each is
    /// transmitted when it is sent.
    fn gathers(&self) -> bool {
        true
    }

    /// Ensures that all frames sent so far reach the peer without a further call. Never
    /// waits for the peer.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Io`].
    fn flush(&self) -> Result<(), Error>;

    /// Waits until the system has accepted all frames, so that another process can continue
    /// writing after them. Returns false if `deadline` passed first.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Io`].
    fn settle(&self, _deadline: Instant) -> Result<bool, Error> {
        Ok(true)
    }

    /// Ends the connection in both directions. This side's waiting calls return
    /// [`Error::Closed`]; the peer receives the frames flushed before, then
    /// [`Error::Closed`].
    fn close(&self);

    /// As [`try_send`](Self::try_send), but waits for room as long as it takes. For bulk
    /// data: streams write large payloads directly from the caller's memory.
    ///
    /// A side that sends bulk data must have a thread that receives. Otherwise two peers
    /// that are blocked here deadlock.
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

    /// Passes an open file to the peer's [`take_file`](Self::take_file), outside the frames
    /// and without waiting. `number` identifies it; numbers must increase.
    ///
    /// # Errors
    /// [`Error::Io`]: `Unsupported` if the communicator cannot pass descriptors; also if
    /// the socket is full.
    fn pass_file(&self, _number: u64, _file: BorrowedFd<'_>) -> Result<(), Error> {
        Err(Error::passes_no_files())
    }

    /// Takes the file that the peer passed as `number`, and closes those with lower
    /// numbers. Returns `None` if it has not arrived. Never waits.
    ///
    /// # Errors
    /// [`Error::Protocol`], [`Error::Io`].
    fn take_file(&self, _number: u64) -> Result<Option<OwnedFd>, Error> {
        Ok(None)
    }
}

/// The receiving half, for one thread at a time. Dropping it ends the connection.
pub trait Receiver: Send {
    /// Returns the next frame, or `None` if `wait` is over or a [`Wake`] arrived.
    ///
    /// # Errors
    /// [`Error::Closed`] after the last frame sent before the end, [`Error::Protocol`],
    /// [`Error::Io`]. After an error every further call fails.
    fn receive(&mut self, wait: Wait) -> Result<Option<Frame<'_>>, Error>;

    /// As [`receive`](Self::receive), but receives large payloads directly at their
    /// destination if that saves a copy. A frame may have landed in part between two calls.
    /// Before a call with another `landing`, or with none, call [`recall`](Self::recall).
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

    /// Moves the landed part of an incomplete frame back into the receiver's buffer.
    fn recall(&mut self, _landing: &dyn Landing) {}

    /// Sets whether waits poll before they sleep. They do at first.
    fn set_polls(&mut self, polls: bool);

    /// Lets another receiver take over the connection behind the last frame received. It begins
    /// with the bytes returned, which were already read from the connection. If it does not take
    /// over, this one can continue.
    fn hand_over(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// If TLS protects the connection, the state with which another process continues it
    /// once this sender has settled. It contains the connection's keys.
    fn secured(&self) -> Option<Vec<u8>> {
        None
    }

    /// Returns a handle that ends a [`receive`](Self::receive) waiting in another thread.
    fn waker(&self) -> Arc<dyn Wake>;
}

/// Names memory of this process to the host, which then copies it directly.
pub trait Pinner: Send + Sync {
    /// Maximum number of bytes per call of [`pin`](Self::pin).
    fn most(&self) -> u64;

    /// Pins `length` bytes at `address` for the host to read, and to write if `writable`.
    /// Returns the number by which a call names them until [`unpin`](Self::unpin). `None`
    /// if they cannot be pinned; the caller must then copy differently.
    fn pin(&self, address: u64, length: u64, writable: bool) -> Option<u32>;

    /// Unpins memory. No call may use it any more.
    fn unpin(&self, list: u32);
}

/// Ends a waiting receive early.
pub trait Wake: Send + Sync {
    /// Makes the current or the next waiting `receive` (not [`Wait::Poll`])
    /// that finds no frame return `None`. Several calls before that `receive`
    /// count as one.
    fn wake(&self);
}
