//! Doorbells on eventfds: `shm`, and the host side of `pci`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use paragpu_communicator::{Error, poll_until};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::doorbell::{Doorbell, Event};
use crate::pci::DeviceSlot;

/// Two eventfds for the two directions, and a descriptor that reports the end of the peer.
#[derive(Debug)]
pub(crate) struct EventDoorbell {
    /// Wakes the peer.
    pub(crate) ring: OwnedFd,
    /// The peer wakes this side.
    pub(crate) wait: OwnedFd,
    /// This side wakes itself.
    pub(crate) interrupt: OwnedFd,
    /// Reports a hang-up when the peer is gone.
    pub(crate) liveness: Option<OwnedFd>,
    /// The channel's words in the device's header page; `None` with `shm`.
    pub(crate) slot: Option<DeviceSlot>,
}

/// A new eventfd that never blocks.
pub(crate) fn new_eventfd() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::io("cannot create an eventfd", errno))
}

/// Adds one to an eventfd. A full one is already set.
pub(crate) fn signal(eventfd: BorrowedFd<'_>) -> Result<(), Error> {
    loop {
        return match rustix::io::write(eventfd, &1_u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(Error::io("cannot ring the doorbell", errno)),
        };
    }
}

fn clear(eventfd: BorrowedFd<'_>) -> Result<(), Error> {
    let mut count = [0; 8];
    loop {
        return match rustix::io::read(eventfd, &mut count) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(Error::io("cannot clear the doorbell", errno)),
        };
    }
}

/// The operation of waiting for a doorbell, for errors.
pub(crate) const WAIT: &str = "cannot wait for the doorbell";

const HANGUP: PollFlags = PollFlags::RDHUP
    .union(PollFlags::HUP)
    .union(PollFlags::ERR)
    .union(PollFlags::NVAL);

impl Doorbell for EventDoorbell {
    fn ring(&self) -> Result<(), Error> {
        if let Some(slot) = &self.slot {
            slot.set_pending();
        }
        signal(self.ring.as_fd())
    }

    fn wait(&self, deadline: Option<Instant>) -> Result<Event, Error> {
        let mut fds = [
            PollFd::new(&self.wait, PollFlags::IN),
            PollFd::new(&self.interrupt, PollFlags::IN),
            PollFd::new(
                self.liveness.as_ref().unwrap_or(&self.wait),
                PollFlags::RDHUP,
            ),
        ];
        if !poll_until(&mut fds, deadline, WAIT)? {
            return Ok(Event::Deadline);
        }
        let [wait, interrupt, liveness] = fds.each_ref().map(PollFd::revents);
        if wait.contains(PollFlags::IN) {
            clear(self.wait.as_fd())?;
        }
        if interrupt.contains(PollFlags::IN) {
            clear(self.interrupt.as_fd())?;
        }
        let left = self.slot.as_ref().is_some_and(|slot| !slot.guest_has_it());
        if liveness.intersects(HANGUP) || left {
            return Ok(Event::Gone);
        }
        Ok(Event::Rang)
    }

    fn interrupt(&self) {
        // Writing to an own eventfd fails only if it is full, and so already set.
        let _ = signal(self.interrupt.as_fd());
    }

    fn peer_lives(&self) -> bool {
        if self.slot.as_ref().is_some_and(|slot| !slot.guest_has_it()) {
            return false;
        }
        let Some(liveness) = &self.liveness else {
            return true;
        };
        let mut fds = [PollFd::new(liveness, PollFlags::RDHUP)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let polled = poll(&mut fds, Some(&now));
        let [liveness] = fds;
        !(polled.is_ok() && liveness.revents().intersects(HANGUP))
    }

    fn leave(&self) {
        if let Some(slot) = &self.slot {
            slot.close_by_host();
        }
    }

    fn files(&self) -> Option<BorrowedFd<'_>> {
        // With a slot, `liveness` leads to the device process, not to the guest.
        let socket = self.liveness.as_ref().filter(|_| self.slot.is_none());
        socket.map(AsFd::as_fd)
    }
}
