//! The messages to a hypervisor: version 0 of the protocol of ivshmem servers
//! (`docs/specs/ivshmem-spec` in QEMU's sources).
//!
//! Each message is an `i64`, some with a file descriptor: the version, the client's own
//! number, -1 with the memory, each other peer's number with its eventfd, and at last the
//! client's own number again with the eventfd that raises its interrupt. The client never
//! sends anything.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};

use crate::layout::{PEER_GUEST, peer_of_channel, peer_of_control};

/// Version of the protocol.
const VERSION: i64 = 0;

/// The number of the memory message.
const MEMORY: i64 = -1;

/// The descriptors of one device instance, which a hypervisor receives.
pub trait Descriptors {
    /// The window.
    fn memory(&self) -> BorrowedFd<'_>;
    /// The eventfd that a channel's doorbell rings.
    fn channel(&self, channel: u16) -> Option<BorrowedFd<'_>>;
    /// The eventfd that the control peer's doorbell rings.
    fn control(&self) -> BorrowedFd<'_>;
    /// The eventfd that raises the guest's interrupt.
    fn interrupt(&self) -> BorrowedFd<'_>;
}

#[derive(Debug, Clone, Copy)]
enum Message {
    Version,
    Number,
    Memory,
    Channel(u16),
    Control(u16),
    Interrupt,
}

/// A hypervisor's connection.
#[derive(Debug)]
pub struct Hypervisor {
    socket: UnixStream,
    queue: VecDeque<Message>,
    /// Bytes of the first queued message that have been sent.
    sent: usize,
}

impl Hypervisor {
    /// Takes an accepted connection, which must be nonblocking.
    #[must_use]
    pub fn new(socket: UnixStream, channel_count: u16) -> Self {
        let queue = [Message::Version, Message::Number, Message::Memory]
            .into_iter()
            .chain((0..channel_count).map(Message::Channel))
            .chain([Message::Control(channel_count), Message::Interrupt])
            .collect();
        Self {
            socket,
            queue,
            sent: 0,
        }
    }

    /// Whether there are messages left to send.
    #[must_use]
    pub fn wants_to_send(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Sends as much as the socket accepts.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send(&mut self, descriptors: &dyn Descriptors) -> Result<(), Errno> {
        while let Some(message) = self.queue.front().copied() {
            match self.send_one(message, descriptors) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            }
            if self.sent >= size_of::<i64>() {
                self.sent = 0;
                self.queue.pop_front();
            }
        }
        Ok(())
    }

    fn send_one(&self, message: Message, from: &dyn Descriptors) -> Result<usize, Errno> {
        let (number, descriptor) = match message {
            Message::Version => (VERSION, None),
            Message::Number => (i64::from(PEER_GUEST), None),
            Message::Memory => (MEMORY, Some(from.memory())),
            Message::Channel(channel) => {
                (i64::from(peer_of_channel(channel)), from.channel(channel))
            }
            Message::Control(count) => (i64::from(peer_of_control(count)), Some(from.control())),
            Message::Interrupt => (i64::from(PEER_GUEST), Some(from.interrupt())),
        };
        let bytes = number.to_le_bytes();
        let rest = bytes.get(self.sent..).unwrap_or_default();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptor = descriptor.filter(|_| self.sent == 0);
        if let Some(descriptor) = &descriptor {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(
                descriptor,
            )));
        }
        sendmsg(
            &self.socket,
            &[IoSlice::new(rest)],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )
    }

    /// Whether the hypervisor is still connected, after the socket became readable. One
    /// that sends bytes violates the protocol, and counts as gone.
    #[must_use]
    pub fn is_there(&self) -> bool {
        matches!(
            recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut [0; 1])],
                &mut RecvAncillaryBuffer::new(&mut []),
                RecvFlags::DONTWAIT,
            ),
            Err(Errno::AGAIN | Errno::INTR)
        )
    }
}

impl AsFd for Hypervisor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
