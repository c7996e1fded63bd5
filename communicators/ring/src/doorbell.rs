//! Doorbells: how one side wakes the other.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use paragpu_communicator::Error;

/// Why [`Doorbell::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The peer rang, or [`Doorbell::interrupt`] was called: look again.
    Rang,
    /// The deadline passed.
    Deadline,
    /// The peer died or the device is gone. Lasting.
    Gone,
}

/// A doorbell each way between the two sides of a channel.
pub trait Doorbell: Send + Sync {
    /// Wakes the peer: its current or next [`wait`](Self::wait) returns.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Closed`] if there is no peer any more.
    fn ring(&self) -> Result<(), Error>;

    /// Sleeps until the peer rings (also before the call, if no earlier wait
    /// saw it), this side is interrupted, the deadline passes, or the peer is
    /// gone. Called by one thread at a time.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn wait(&self, deadline: Option<Instant>) -> Result<Event, Error>;

    /// Makes the current or next wait of this side return.
    fn interrupt(&self);

    /// Whether the peer still lives; does not wait.
    fn peer_lives(&self) -> bool;

    /// Tells what watches over the channel that this side has left it. Called
    /// once, before the last ring.
    fn leave(&self) {}

    /// The socket over which the two processes pass files, if there is one.
    fn files(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
