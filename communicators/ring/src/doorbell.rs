//! Doorbells: how one side wakes the other.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use paragpu_communicator::Error;

/// Why [`Doorbell::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The peer rang, or [`Doorbell::interrupt`] was called. The waiter must check again.
    Rang,
    /// The deadline passed.
    Deadline,
    /// The peer died or the device is gone. All later waits return this, too.
    Gone,
}

/// The doorbells between the two sides of a channel, one in each direction.
pub trait Doorbell: Send + Sync {
    /// Wakes the peer: its current or next [`wait`](Self::wait) returns.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Closed`] if the peer is gone.
    fn ring(&self) -> Result<(), Error>;

    /// Sleeps until the peer rings, this side is interrupted, the deadline passes, or the
    /// peer is gone. A ring before the call counts unless an earlier wait consumed it.
    /// Called by one thread at a time.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn wait(&self, deadline: Option<Instant>) -> Result<Event, Error>;

    /// Makes this side's current or next wait return.
    fn interrupt(&self);

    /// Whether the peer still lives. Does not wait.
    fn peer_lives(&self) -> bool;

    /// Tells the device, if the channel belongs to one, that this side has left. Called
    /// once, before the last ring.
    fn leave(&self) {}

    /// The socket over which the two processes pass files, if there is one.
    fn files(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
