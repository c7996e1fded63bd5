//! Memory of the GPU that another worker keeps from the program.
//!
//! A move that hands memory over has it mapped in two workers, and the GPU frees what the program
//! frees once neither maps it. So a call that lacks memory stalls until the other worker has let
//! go of all that it may, and fails only if that did not help:
//!
//! ```text
//!   Nobody ──▶ Destination ◀────▶ Awaited    a call lacks memory, until the destination has
//!     ▲             │                │       let go of what the program has freed
//!     │             ▼                │
//!     └────────── Ending ◀───────────┘       the move is over, and the other worker exits
//! ```

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long the other worker may take to exit. A driver takes up to a second.
const EXIT: Duration = Duration::from_secs(10);

/// Which worker keeps memory that the program may lack.
#[derive(Debug, Default)]
pub(crate) enum Shortage {
    /// None.
    #[default]
    Nobody,
    /// The destination of a move that hands memory over.
    Destination {
        /// The last call for which it has let go of memory.
        tried: Option<u64>,
    },
    /// This call waits for the destination to let go.
    Awaited(u64),
    /// The other end of this link, which closes when that worker exits, until this time.
    Ending(UnixStream, Instant),
}

impl Shortage {
    /// The other worker has memory of the session.
    pub(crate) fn begin(&mut self) {
        if matches!(self, Self::Nobody | Self::Ending(..)) {
            *self = Self::Destination { tried: None };
        }
    }

    /// The other worker exits, and thereby closes its end of this link. Closes this end, if only
    /// for what it sends while that worker may keep memory.
    pub(crate) fn end_with(&mut self, link: UnixStream) {
        if let Self::Destination { .. } | Self::Awaited(_) = self {
            // If that fails, the link is closed.
            let _ = link.shutdown(Shutdown::Write);
            *self = Self::Ending(link, Instant::now() + EXIT);
        }
    }

    /// Whether a call, by its position, stalls because it lacks memory that another worker may
    /// keep.
    pub(crate) fn stalls(&mut self, call: u64) -> bool {
        match self {
            Self::Nobody => return false,
            Self::Destination { tried } if *tried == Some(call) => return false,
            Self::Destination { .. } => *self = Self::Awaited(call),
            Self::Awaited(_) => {}
            // Once more after the end.
            Self::Ending(link, until) => {
                if *until <= Instant::now() || is_closed(link) {
                    *self = Self::Nobody;
                }
            }
        }
        true
    }

    /// Whether a call waits for the destination to let go.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(self, Self::Awaited(_))
    }

    /// The destination has let go of what the program has freed.
    pub(crate) fn let_go(&mut self) {
        if let Self::Awaited(call) = *self {
            *self = Self::Destination { tried: Some(call) };
        }
    }
}

/// Whether both directions of a link are closed.
fn is_closed(link: &UnixStream) -> bool {
    let mut fds = [PollFd::new(link, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    let [link] = fds;
    polled.is_ok() && link.revents().contains(PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_fails_after_the_destination_has_let_go() {
        let mut shortage = Shortage::default();
        assert!(!shortage.stalls(7));
        shortage.begin();
        for call in [7, 8, 7] {
            assert!(shortage.stalls(call) && shortage.is_awaited());
            assert!(shortage.stalls(call), "nothing has been let go");
            shortage.begin();
            shortage.let_go();
            assert!(!shortage.is_awaited());
            assert!(!shortage.stalls(call));
        }
    }

    #[test]
    fn a_worker_that_has_no_memory_is_not_waited_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut shortage = Shortage::default();
        shortage.end_with(ours);
        assert!(is_closed(&theirs) && !shortage.stalls(7));
    }

    #[test]
    fn a_call_fails_after_the_other_worker_has_exited() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut shortage = Shortage::default();
        shortage.begin();
        shortage.end_with(ours);
        assert!(shortage.stalls(7) && shortage.stalls(7));
        // What it sent last does not matter.
        std::io::Write::write_all(&mut &theirs, b"unread").unwrap();
        assert!(shortage.stalls(7) && shortage.stalls(7));
        drop(theirs);
        assert!(shortage.stalls(7), "what it had is free now");
        assert!(!shortage.stalls(7));
    }
}
