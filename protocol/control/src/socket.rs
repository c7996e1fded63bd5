//! A worker's control socket: a `SOCK_SEQPACKET` pair. One packet is one [`frame`], possibly with
//! descriptors.
#![forbid(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use thiserror::Error;

use crate::frame::{self, FrameError, Message};

/// Maximum number of bytes of one packet.
pub const MAX_PACKET: usize = 64 * 1024;
/// Maximum number of file descriptors per packet.
pub const MAX_FDS: usize = 9;
/// Most file descriptors that the kernel passes with one packet.
const SCM_MAX_FD: usize = 253;

/// Errors of the control socket.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The other process is gone.
    #[error("the other end of the control socket is gone")]
    Closed,
    /// Not a message of this version.
    #[error("a message on the control socket is not understood")]
    Message(#[from] FrameError),
    /// The message is too long, or has too many file descriptors.
    #[error("a message on the control socket is too long")]
    TooLong,
    /// The other end's socket buffer is full.
    #[error("the other process does not read its control socket")]
    Full,
    /// The operating system reported an error.
    #[error("the control socket failed")]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for ControlError {
    fn from(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Closed,
            Errno::AGAIN => Self::Full,
            other => Self::Io(other.into()),
        }
    }
}

/// Result of [`Control::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// A packet is in the [`Inbox`].
    Packet,
    /// Nothing arrived yet; only returned if `wait` is false.
    Nothing,
}

/// A buffer for a received packet and its descriptors, reused between packets.
#[derive(Debug, Default)]
pub struct Inbox {
    packet: Vec<u8>,
    /// File descriptors of the packet, in order. The next `receive` closes those that
    /// were not taken out.
    pub fds: Vec<OwnedFd>,
}

impl Inbox {
    /// Decodes the packet: `ToWorker` in a worker, `FromWorker` in a daemon.
    ///
    /// # Errors
    /// [`ControlError::Message`].
    pub fn message<M: Message>(&self) -> Result<M, ControlError> {
        Ok(frame::decode(&self.packet)?)
    }
}

/// One end of a control socket. Any thread may send and receive.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
}

impl AsFd for Control {
    /// For polling: readable when [`Control::receive`] would not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Control {
    /// Creates a pair: one end for the daemon, one for the worker.
    ///
    /// # Errors
    /// [`ControlError::Io`].
    pub fn pair() -> Result<(Self, Self), ControlError> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self { socket: a }, Self { socket: b }))
    }

    /// Takes an inherited end.
    #[must_use]
    pub fn from_fd(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// The socket itself, to pass to another process.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }

    /// Sends one message. Blocks while the other end's socket buffer is full.
    pub fn send<M: Message>(
        &self,
        message: &M,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        self.send_flagged(message, fds, SendFlags::NOSIGNAL)
    }

    /// [`send`](Self::send), but fails instead of blocking: the daemon's event loop
    /// never waits for a peer.
    ///
    /// # Errors
    /// [`ControlError`]; [`ControlError::Full`].
    pub fn try_send<M: Message>(
        &self,
        message: &M,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        self.send_flagged(message, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_flagged<M: Message>(
        &self,
        message: &M,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), ControlError> {
        let packet = frame::encode(message)?;
        if fds.len() > MAX_FDS {
            return Err(ControlError::TooLong);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ControlError::TooLong);
        }
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(
                &self.socket,
                &[io::IoSlice::new(&packet)],
                &mut ancillary,
                flags,
            )
        })?;
        Ok(())
    }

    /// Receives one packet, and blocks for it if `wait` is set.
    ///
    /// # Errors
    /// [`ControlError::Closed`] when the other end is gone; [`ControlError::TooLong`],
    /// with the descriptors in the inbox.
    pub fn receive(&self, inbox: &mut Inbox, wait: bool) -> Result<Received, ControlError> {
        inbox.fds.clear();
        inbox.packet.resize(MAX_PACKET, 0);
        // Room for all that may come: the kernel closes the rest at once, and a hostile
        // peer sends descriptors whose close blocks.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut flags = RecvFlags::CMSG_CLOEXEC;
        flags.set(RecvFlags::DONTWAIT, !wait);
        let received = loop {
            match rustix::net::recvmsg(
                &self.socket,
                &mut [io::IoSliceMut::new(&mut inbox.packet)],
                &mut ancillary,
                flags,
            ) {
                Ok(received) => break received,
                // If the peer is gone and had not read all, the kernel says so once, before what
                // the peer had sent.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
                Err(rustix::io::Errno::AGAIN) if !wait => return Ok(Received::Nothing),
                Err(errno) => return Err(errno.into()),
            }
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                inbox.fds.extend(fds);
            }
        }
        if received.bytes == 0 {
            return Err(ControlError::Closed);
        }
        let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
        if received.flags.intersects(cut) || inbox.fds.len() > MAX_FDS {
            return Err(ControlError::TooLong);
        }
        inbox.packet.truncate(received.bytes);
        Ok(Received::Packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{FromWorker, ToWorker};

    #[test]
    fn messages_and_descriptors_cross() {
        let (daemon, worker) = Control::pair().unwrap();
        let (end, _other) = Control::pair().unwrap();
        let mut inbox = Inbox::default();
        assert_eq!(
            worker.receive(&mut inbox, false).unwrap(),
            Received::Nothing
        );
        let quota = ToWorker::Quota {
            slot: 7,
            gpu: Some(2),
        };
        daemon.send(&quota, &[end.as_fd(), end.as_fd()]).unwrap();
        daemon.send(&ToWorker::Query, &[]).unwrap();
        worker.receive(&mut inbox, true).unwrap();
        assert_eq!(inbox.message::<ToWorker>().unwrap(), quota);
        assert_eq!(inbox.fds.len(), 2);
        worker.receive(&mut inbox, true).unwrap();
        assert_eq!(inbox.message::<ToWorker>().unwrap(), ToWorker::Query);
        assert!(inbox.fds.is_empty());
        assert!(inbox.message::<FromWorker>().is_err());
        drop(daemon);
        assert!(matches!(
            worker.receive(&mut inbox, true),
            Err(ControlError::Closed)
        ));
        assert!(matches!(
            worker.send(&FromWorker::Started { session: 7 }, &[]),
            Err(ControlError::Closed)
        ));
    }

    #[test]
    fn the_last_words_of_a_peer_that_left_messages_unread_arrive() {
        let (daemon, worker) = Control::pair().unwrap();
        daemon.send(&ToWorker::Query, &[]).unwrap();
        for session in [7, 8] {
            worker.send(&FromWorker::Started { session }, &[]).unwrap();
        }
        drop(worker);
        let mut inbox = Inbox::default();
        for session in [7, 8] {
            let received = daemon.receive(&mut inbox, false).unwrap();
            assert_eq!(received, Received::Packet);
            let message = inbox.message::<FromWorker>().unwrap();
            assert_eq!(message, FromWorker::Started { session });
        }
        assert!(matches!(
            daemon.receive(&mut inbox, false),
            Err(ControlError::Closed)
        ));
    }

    #[test]
    fn the_longest_message_fits_a_packet() {
        let (daemon, worker) = Control::pair().unwrap();
        let empty = frame::encode(&FromWorker::Failed {
            reason: String::new(),
        });
        let failed = |more: usize| FromWorker::Failed {
            reason: "x".repeat(MAX_PACKET - empty.as_ref().unwrap().len() + more),
        };
        worker.send(&failed(0), &[]).unwrap();
        let mut inbox = Inbox::default();
        daemon.receive(&mut inbox, true).unwrap();
        assert_eq!(inbox.message::<FromWorker>().unwrap(), failed(0));
        let refused = worker.send(&failed(1), &[]);
        assert!(matches!(
            refused,
            Err(ControlError::Message(FrameError::TooLong(_)))
        ));
    }
}
