//! Doorbells on descriptors: `shm`, and the host side of `pci`.
//!
//! A guest shares the open file descriptions of its doorbells, and may make them blocking.
//! So no operation of the host relies on `O_NONBLOCK` where the peer is a guest: an eventfd
//! is read with a flag of the call, and the host rings a socket, because a full eventfd
//! blocks its writer, and has no such flag for writes.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use paragpu_communicator::{Error, poll_until};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair, sockopt,
};

use crate::doorbell::{Doorbell, Event};
use crate::pci::DeviceSlot;

/// One direction of a doorbell. No operation blocks.
#[derive(Debug)]
pub(crate) enum Bell {
    /// An eventfd. Ringing it blocks if it is full and a peer has made it blocking, so a host
    /// must not ring an eventfd of a guest.
    Eventfd(OwnedFd),
    /// One end of a pair of sockets. The peer does not have this end's description.
    Socket(OwnedFd),
}

impl Bell {
    /// A doorbell that the other side created.
    pub(crate) fn of(fd: OwnedFd) -> Self {
        match sockopt::socket_type(&fd) {
            Ok(_) => Self::Socket(fd),
            Err(_) => Self::Eventfd(fd),
        }
    }

    fn ring(&self) -> Result<(), Error> {
        let socket = match self {
            Self::Eventfd(eventfd) => return signal(eventfd.as_fd()),
            Self::Socket(socket) => socket,
        };
        loop {
            return match send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                // A full one is already set. A peer that is gone needs no ring.
                Ok(_) | Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(Error::io("cannot ring the doorbell", errno)),
            };
        }
    }

    /// Consumes rings. Returns whether the peer still has its end.
    fn clear(&self) -> Result<bool, Error> {
        let socket = match self {
            Self::Eventfd(eventfd) => return clear(eventfd.as_fd()).map(|()| true),
            Self::Socket(socket) => socket,
        };
        let mut rings = [0; 512];
        loop {
            return match recv(socket, &mut rings, RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => Ok(false),
                Ok(_) | Err(Errno::AGAIN) => Ok(true),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(Error::io("cannot clear the doorbell", errno)),
            };
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Eventfd(fd) | Self::Socket(fd) => fd.as_fd(),
        }
    }
}

/// A doorbell with which the host wakes a guest: the host's end and the guest's. The guest
/// can send nothing through its end, least of all descriptors.
pub(crate) fn new_sockets() -> Result<(OwnedFd, OwnedFd), Error> {
    let failed = |errno| Error::io("cannot create a doorbell", errno);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (host, guest) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    shutdown(&host, Shutdown::Read).map_err(failed)?;
    Ok((host, guest))
}

/// The bells of the two directions, and a descriptor that reports the end of the peer.
#[derive(Debug)]
pub(crate) struct EventDoorbell {
    /// Wakes the peer.
    pub(crate) ring: Bell,
    /// The peer wakes this side.
    pub(crate) wait: Bell,
    /// This side wakes itself.
    pub(crate) interrupt: OwnedFd,
    /// Reports a hang-up when the peer is gone.
    pub(crate) liveness: Option<OwnedFd>,
    /// The channel's words in the device's header page; `None` with `shm`.
    pub(crate) slot: Option<DeviceSlot>,
}

/// A new eventfd that does not block, unless a peer that gets it changes that.
pub(crate) fn new_eventfd() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::io("cannot create an eventfd", errno))
}

/// Adds one to an eventfd. A full one is already set, and blocks only if a peer has made it
/// blocking.
pub(crate) fn signal(eventfd: BorrowedFd<'_>) -> Result<(), Error> {
    loop {
        return match rustix::io::write(eventfd, &1_u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(Error::io("cannot ring the doorbell", errno)),
        };
    }
}

/// Resets an eventfd. Never blocks, whatever flags its description has.
fn clear(eventfd: BorrowedFd<'_>) -> Result<(), Error> {
    let mut count = [0; 8];
    loop {
        let mut count = [IoSliceMut::new(&mut count)];
        // An eventfd has no position, which -1 stands for.
        let read = preadv2(eventfd, &mut count, u64::MAX, ReadWriteFlags::NOWAIT);
        return match read {
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
        self.ring.ring()
    }

    fn wait(&self, deadline: Option<Instant>) -> Result<Event, Error> {
        let mut fds = [
            PollFd::new(&self.wait, PollFlags::IN),
            PollFd::new(&self.interrupt, PollFlags::IN),
            PollFd::from_borrowed_fd(
                self.liveness
                    .as_ref()
                    .map_or_else(|| self.wait.as_fd(), AsFd::as_fd),
                PollFlags::RDHUP,
            ),
        ];
        if !poll_until(&mut fds, deadline, WAIT)? {
            return Ok(Event::Deadline);
        }
        let [wait, interrupt, liveness] = fds.each_ref().map(PollFd::revents);
        let held = !wait.contains(PollFlags::IN) || self.wait.clear()?;
        if interrupt.contains(PollFlags::IN) {
            clear(self.interrupt.as_fd())?;
        }
        let left = self.slot.as_ref().is_some_and(|slot| !slot.guest_has_it());
        if liveness.intersects(HANGUP) || left || !held {
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

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    use super::*;

    /// What a guest may do to a description that it shares.
    fn make_blocking(fd: impl AsFd) {
        let flags = fcntl_getfl(&fd).unwrap();
        fcntl_setfl(&fd, flags - OFlags::NONBLOCK).unwrap();
    }

    #[test]
    fn a_guest_blocks_no_ring() {
        let (host, guest) = new_sockets().unwrap();
        make_blocking(&guest);
        let bell = Bell::of(host);
        assert!(matches!(bell, Bell::Socket(_)));
        // More than any socket holds.
        for _ in 0..20_000 {
            bell.ring().unwrap();
        }
        let guest = Bell::of(guest);
        assert!(guest.clear().unwrap());
        bell.ring().unwrap();
        drop(guest);
        bell.ring().unwrap();
    }

    #[test]
    fn a_guest_sends_nothing_through_its_bell() {
        let (_host, guest) = new_sockets().unwrap();
        let sent = send(&guest, b"text", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        assert_eq!(sent, Err(Errno::PIPE));
    }

    #[test]
    fn a_guest_notices_that_the_host_is_gone() {
        let (host, guest) = new_sockets().unwrap();
        let guest = Bell::of(guest);
        Bell::of(host).ring().unwrap();
        assert!(guest.clear().unwrap());
        assert!(!guest.clear().unwrap());
    }

    #[test]
    fn a_guest_blocks_no_reading_of_its_rings() {
        let eventfd = new_eventfd().unwrap();
        make_blocking(&eventfd);
        signal(eventfd.as_fd()).unwrap();
        let bell = Bell::of(eventfd);
        assert!(matches!(bell, Bell::Eventfd(_)));
        // The second finds nothing.
        for _ in 0..2 {
            assert!(bell.clear().unwrap());
        }
    }
}
