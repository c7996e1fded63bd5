//! The life cycle of a channel in this process.
//!
//! ```text
//! Free ─ guest opens → Greeting ─ hello → Offering ─ daemon takes it → Serving
//!   ↑                      │                 │                          │    │
//!   │                      └── refused ──────┴──→ Closed ←─ worker gone ┘    │ guest
//!   │                                                │ guest releases        │ releases
//!   └──────────────────────── scrub ←────────────────┴──── Ending ←──────────┘
//! ```
//!
//! The guest can release a channel in each of these states. The state word that it writes
//! is only a request; the real state is kept here.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_communicator_ring::pci::IdleChannel;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::Error;
use crate::daemon::{Answer, Connection, Offer};
use crate::eventfd::EventFd;
use crate::layout::state;
use crate::rings;
use crate::vfio_user::guest_memory::GuestMemory;
use crate::window::Window;

/// How long to retry with a daemon that is too busy to take a channel.
const PATIENCE: Duration = Duration::from_secs(5);

/// State that all channels of a device share.
#[derive(Debug)]
pub struct Shared {
    /// The window.
    pub window: Window,
    /// The eventfd that raises the guest's interrupt.
    pub interrupt: EventFd,
    /// The VM's memory, if the hypervisor reports it.
    pub guest_memory: Option<Arc<Mutex<GuestMemory>>>,
}

impl Shared {
    /// The offset of a channel's page lists, and descriptors of the memory that they may
    /// name. 0 and none if the host cannot access the VM's memory.
    fn reach(&self, channel: u16) -> (u64, Vec<OwnedFd>) {
        let lists = self.window.layout().lists_of(channel);
        let (Some(lists), Some(memory)) = (lists, &self.guest_memory) else {
            return (0, Vec::new());
        };
        let mut memory = memory.lock();
        match memory.descriptors() {
            Ok(descriptors) if !descriptors.is_empty() => (lists, descriptors),
            Ok(_) => (0, Vec::new()),
            Err(error) => {
                tracing::warn!(%error, "the VM's memory cannot be passed to workers");
                (0, Vec::new())
            }
        }
    }
}

/// The daemon to which channels are handed over.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The VM's name.
    pub vm: &'a str,
    /// The daemon's socket.
    pub daemon: &'a Path,
}

/// The state of a channel.
#[derive(Debug)]
pub enum Phase {
    /// Scrubbed, and not in use.
    Free,
    /// Opened by a guest process, which has not sent its hello.
    Greeting,
    /// The guest has sent its hello, and the daemon has not taken the channel yet.
    Offering {
        /// The guest's message.
        hello: Vec<u8>,
        /// When to give up.
        until: Instant,
    },
    /// A worker serves it.
    Serving(Connection),
    /// The host's side has ended; a guest process still has it open.
    Closed,
    /// The guest's side has ended; a worker still uses it.
    Ending(Connection),
    /// It could not be scrubbed, and is never used again.
    Lost,
}

/// One channel.
#[derive(Debug)]
pub struct Channel {
    number: u16,
    memory: IdleChannel,
    doorbell: EventFd,
    phase: Phase,
}

impl Channel {
    /// A free channel of a new window.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn new(window: &Window, number: u16) -> Result<Self, Error> {
        let memory = window.channel(number)?;
        rings::initialise(&memory, window.place(number))?;
        Ok(Self {
            number,
            memory,
            doorbell: EventFd::new()?,
            phase: Phase::Free,
        })
    }

    /// Its state.
    #[must_use]
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The eventfd that the guest rings. This process polls it only in [`Phase::Greeting`];
    /// afterwards the process that serves the channel does.
    #[must_use]
    pub fn doorbell(&self) -> &EventFd {
        &self.doorbell
    }

    /// Handles a change of the state word by the guest.
    pub fn guest_changed(&mut self, shared: &Shared, target: Target<'_>, now: Instant) {
        let word = self.memory.state();
        match (&self.phase, word) {
            (Phase::Free, state::OPEN) => {
                self.phase = Phase::Greeting;
                self.forward_hello(shared, target, now);
            }
            (Phase::Free, state::RELEASED) => self.recycle(shared),
            (Phase::Free | Phase::Ending(_) | Phase::Lost, _)
            | (_, state::OPEN | state::HOST_CLOSED) => {}
            _ => self.guest_released(shared),
        }
    }

    /// In [`Phase::Greeting`]: takes the guest's hello, if it has arrived.
    pub fn forward_hello(&mut self, shared: &Shared, target: Target<'_>, now: Instant) {
        if !matches!(self.phase, Phase::Greeting) {
            return;
        }
        self.doorbell.clear();
        match rings::take_hello(&self.memory) {
            Ok(None) => {}
            Ok(Some(hello)) => {
                let until = now + PATIENCE;
                self.phase = Phase::Offering { hello, until };
                self.offer(shared, target, now);
            }
            Err(error) => {
                let channel = self.number;
                tracing::debug!(channel, %error, "the first frame is not a valid hello");
                self.refuse(shared, "this program did not send a valid hello");
            }
        }
    }

    /// In [`Phase::Offering`]: offers the channel to the daemon.
    pub fn offer(&mut self, shared: &Shared, target: Target<'_>, now: Instant) {
        let Phase::Offering { hello, until } = &self.phase else {
            return;
        };
        let place = shared.window.place(self.number);
        let (lists, memory) = shared.reach(self.number);
        let offer = Offer {
            vm: target.vm,
            channel: self.number,
            offset: place.offset,
            size: place.size,
            lists,
            hello,
            descriptors: [
                shared.window.as_fd(),
                self.doorbell.as_fd(),
                shared.interrupt.as_fd(),
            ],
            memory: &memory,
        };
        match Connection::offer(target.daemon, &offer) {
            Ok(connection) => {
                tracing::debug!(channel = self.number, "handed to the daemon");
                self.phase = Phase::Serving(connection);
            }
            Err(Errno::AGAIN) if now < *until => {}
            Err(Errno::AGAIN) => {
                self.refuse(shared, "the paragpu daemon on the host is too busy");
            }
            Err(error) => {
                let daemon = target.daemon.display();
                tracing::warn!(%daemon, %error, "the daemon cannot be reached");
                let reason =
                    format!("no paragpu daemon runs on the host of this VM ({daemon}: {error})");
                self.refuse(shared, &reason);
            }
        }
    }

    /// Handles an answer of the daemon, or the end of the worker.
    pub fn host_spoke(&mut self, shared: &Shared) {
        let answer = match &mut self.phase {
            Phase::Serving(connection) | Phase::Ending(connection) => connection.poll(),
            _ => return,
        };
        match (answer, &self.phase) {
            (Answer::Nothing, _) => {}
            (_, Phase::Ending(_)) => self.recycle(shared),
            (Answer::Refused(reason), _) => self.refuse(shared, &reason),
            (Answer::Gone, _) => self.close(shared),
        }
    }

    /// Gives up the channel, because the VM is gone or replaced by another one.
    pub fn abandon(&mut self, shared: &Shared) {
        if let Phase::Serving(connection) = &self.phase {
            self.tell_worker(shared);
            connection.end();
        }
        self.phase = Phase::Lost;
    }

    fn tell_worker(&self, shared: &Shared) {
        if let Err(error) = shared.window.set_closed_by_guest(self.number) {
            let channel = self.number;
            tracing::error!(channel, %error, "cannot notify the worker that the guest is gone");
        }
        self.doorbell.ring();
    }

    fn guest_released(&mut self, shared: &Shared) {
        match std::mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Serving(connection) => {
                self.tell_worker(shared);
                connection.end();
                self.phase = Phase::Ending(connection);
            }
            _ => self.recycle(shared),
        }
    }

    /// Sends a refusal to the guest, then closes the channel.
    fn refuse(&mut self, shared: &Shared, reason: &str) {
        tracing::debug!(channel = self.number, reason, "refused");
        let place = shared.window.place(self.number);
        let sent = rings::refuse(
            shared.window.as_fd(),
            &self.doorbell,
            &shared.interrupt,
            place,
            reason,
        );
        if let Err(error) = sent {
            tracing::debug!(channel = self.number, %error, "the refusal could not be sent");
        }
        self.close(shared);
    }

    fn close(&mut self, shared: &Shared) {
        self.phase = Phase::Closed;
        if let Err(error) = self.memory.end(&shared.interrupt) {
            tracing::error!(channel = self.number, %error, "cannot notify the guest");
        }
        // The guest may have released the channel just before, without seeing that it was
        // closed.
        if self.memory.state() == state::RELEASED {
            self.recycle(shared);
        }
    }

    /// Makes the channel free for the next opener.
    fn recycle(&mut self, shared: &Shared) {
        self.doorbell.clear();
        if let Err(error) = self.scrub(shared) {
            tracing::error!(channel = self.number, %error, "the channel is lost");
            self.phase = Phase::Lost;
            return;
        }
        self.phase = Phase::Free;
        self.memory.set_state(state::FREE);
        shared.interrupt.ring();
    }

    fn scrub(&self, shared: &Shared) -> Result<(), Error> {
        shared.window.erase(self.number)?;
        let place = shared.window.place(self.number);
        Ok(rings::initialise(&self.memory, place)?)
    }
}
