//! Reconnecting guests.
//!
//! The daemon hands over a new connection at any time; the session switches to it
//! between two calls. The worker does not wait for a guest whose process has
//! ended.

use parking_lot::Mutex;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::Error;
use paragpu_protocol::layout::Regions;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::connect::Guest;
use crate::guest_life::GuestLife;
use crate::session::{Finds, Reconnect, Reconnected};
use paragpu_control::socket::ControlError;

/// How long to wait for a guest whose process cannot be watched, after its system closed
/// the connection. The process has most likely ended; a live one reconnects immediately.
const REDIAL: Duration = Duration::from_secs(3);

/// Whether the peer closed the connection instead of falling silent.
fn hung_up(lost: &Error) -> bool {
    match lost {
        Error::Closed => true,
        Error::Io { source, .. } => matches!(
            source.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof
        ),
        _ => false,
    }
}

/// A reconnected guest, passed from the daemon's thread to the session's.
#[derive(Debug)]
pub(crate) struct Waiting {
    guest: Mutex<Option<Guest>>,
    arrived: OwnedFd,
    /// Number of guests offered.
    came: AtomicU64,
}

/// The session's side.
#[derive(Debug)]
pub(crate) struct Host {
    waiting: Arc<Waiting>,
    life: GuestLife,
    regions: Regions,
    patience: Duration,
}

impl Waiting {
    pub(crate) fn new() -> Result<Self, ControlError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            guest: Mutex::new(None),
            arrived: eventfd(0, flags)?,
            came: AtomicU64::new(0),
        })
    }

    /// The side of a session that began with `guest`; `None` if the session ends
    /// with its connection.
    pub(crate) fn host(
        self: &Arc<Self>,
        guest: &Guest,
        regions: Regions,
        patience: Duration,
    ) -> Option<Host> {
        (!patience.is_zero()).then(|| Host {
            waiting: Arc::clone(self),
            life: guest.life(),
            regions,
            patience,
        })
    }

    /// The side of a session that arrived from elsewhere.
    pub(crate) fn host_of(
        self: &Arc<Self>,
        life: GuestLife,
        regions: Regions,
        patience: Duration,
    ) -> Host {
        Host {
            waiting: Arc::clone(self),
            life,
            regions,
            patience,
        }
    }

    /// Offers a reconnected guest. It replaces an earlier one that was not accepted.
    pub(crate) fn offer(&self, guest: Guest) {
        self.came.fetch_add(1, Ordering::Relaxed);
        // Store the guest before the event, so that the woken session finds it.
        *self.guest.lock() = Some(guest);
        // Writing to our own eventfd can only fail if it is full, which also wakes
        // the session.
        let _ = rustix::io::write(&self.arrived, &1_u64.to_ne_bytes());
    }

    /// Whether a guest waits.
    pub(crate) fn has_guest(&self) -> bool {
        self.guest.lock().is_some()
    }

    /// Number of guests offered so far.
    pub(crate) fn offered(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    /// Readable when a guest may have arrived.
    pub(crate) fn arrived(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }

    /// Counted frames that the waiting guest has received.
    pub(crate) fn received(&self) -> Option<u64> {
        let guest = self.guest.lock();
        guest.as_ref().map(Guest::received)
    }

    pub(crate) fn take(&self) -> Option<Guest> {
        // Clear the event before taking the guest. A guest that arrives in between
        // leaves the event set, and the next check finds no one. In the other order
        // its event would be lost, and it would wait for the whole timeout.
        let _ = rustix::io::read(&self.arrived, &mut [0; 8]);
        self.guest.lock().take()
    }
}

/// What ended a wait for a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    /// One may have arrived.
    Arrived,
    /// None will.
    Ended,
    /// The deadline.
    Late,
}

impl Host {
    /// How long to wait after the connection was `lost`.
    fn patience(&self, lost: &Error) -> Duration {
        match self.life {
            GuestLife::Unknown if hung_up(lost) => self.patience.min(REDIAL),
            _ => self.patience,
        }
    }

    /// Waits until a guest may have arrived.
    fn wait(&self, deadline: Instant) -> Waited {
        let process = match &self.life {
            GuestLife::Process(process) => Some(process),
            GuestLife::Unknown => None,
            GuestLife::Over | GuestLife::Channel => return Waited::Ended,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut fds = vec![PollFd::from_borrowed_fd(
            self.waiting.arrived.as_fd(),
            PollFlags::IN,
        )];
        fds.extend(process.map(|process| PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => Waited::Late,
            // If only the process's descriptor is ready, the process has ended.
            Ok(_) if fds.first().is_some_and(|fd| !fd.revents().is_empty()) => Waited::Arrived,
            Err(rustix::io::Errno::INTR) => Waited::Arrived,
            Ok(_) | Err(_) => Waited::Ended,
        }
    }
}

impl Reconnect for Host {
    fn next(&mut self, lost: &Error, taken: u64, finds: Finds<'_>) -> Option<Reconnected> {
        let deadline = Instant::now() + self.patience(lost);
        loop {
            let Some(guest) = self.waiting.take() else {
                match self.wait(deadline) {
                    Waited::Arrived => continue,
                    Waited::Ended | Waited::Late => return None,
                }
            };
            let (life, received) = (guest.life(), guest.received());
            let sharing = finds(guest.window());
            match guest.welcome_back(self.regions, taken, sharing) {
                Ok((connection, window)) => {
                    // The daemon logs it, rate-limited.
                    tracing::debug!(taken, received, "the guest reconnected");
                    self.life = life;
                    return Some(Reconnected {
                        connection,
                        window,
                        received,
                    });
                }
                // That is not the end: its process may reconnect until the deadline.
                Err(error) => tracing::debug!(%error, "a guest reconnected and disconnected"),
            }
        }
    }

    fn has_reconnected(&self) -> bool {
        self.waiting.has_guest()
    }

    fn stays_away(&self, lost: &Error, patience: Duration) -> bool {
        self.patience(lost) > patience && self.wait(Instant::now() + patience) == Waited::Late
    }
}
