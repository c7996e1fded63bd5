//! Hands over channels to the host's daemon.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use paragpu_protocol::codec::{Bytes, Text, decode_all, encode_all};
use paragpu_protocol::frame::{Control, FrameHeader, HEADER_LEN};
use paragpu_protocol::handshake::{
    ATTACH, ATTACH_FDS, Attach, MAGIC, Refusal, VERSION, device_socket,
};
use rustix::io::{Errno, read};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, shutdown, socket_with,
};

/// Maximum number of bytes of a refusal by the daemon.
const MAX_ANSWER: usize = 4096;

/// The message to the daemon about a channel.
#[derive(Debug)]
pub struct Offer<'a> {
    /// The VM's name.
    pub vm: &'a str,
    /// Number of the channel.
    pub channel: u16,
    /// The offset of the channel in the window.
    pub offset: u64,
    /// The size of the channel in bytes.
    pub size: u64,
    /// The offset of the channel's page lists in the window; 0 for none.
    pub lists: u64,
    /// The guest's hello.
    pub hello: &'a [u8],
    /// The window, the eventfd that the guest rings, the eventfd that
    /// interrupts the guest.
    pub descriptors: [BorrowedFd<'a>; 3],
    /// With page lists: the table of the VM's memory, and its files.
    pub memory: &'a [OwnedFd],
}

/// The connection over which a channel was handed over. It stays open as long as a process
/// serves the channel.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    answer: Vec<u8>,
}

/// A message received over a [`Connection`].
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing complete yet.
    Nothing,
    /// The daemon refuses the channel, for this reason.
    Refused(String),
    /// No process serves the channel any more.
    Gone,
}

impl Connection {
    /// Offers a channel to the daemon whose socket for guests is at `path`,
    /// without waiting.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] if the daemon's backlog is full; retry later. Any other error:
    /// there is no daemon.
    pub fn offer(path: &Path, offer: &Offer<'_>) -> Result<Self, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(device_socket(path))?)?;

        let payload = encode_all(&Attach {
            magic: MAGIC,
            version: VERSION,
            vm: Text(offer.vm),
            channel: u32::from(offer.channel),
            channel_offset: offer.offset,
            channel_size: offer.size,
            list_offset: offer.lists,
            hello: Bytes(offer.hello),
        });
        let header = FrameHeader::new(ATTACH, 0, 0, payload.len()).map_err(|_| Errno::MSGSIZE)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ATTACH_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let memory = offer.memory.iter().map(AsFd::as_fd);
        let descriptors: Vec<_> = offer.descriptors.into_iter().chain(memory).collect();
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(Errno::MSGSIZE);
        }
        let sent = sendmsg(
            &socket,
            &[IoSlice::new(&header.to_bytes()), IoSlice::new(&payload)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        // A new socket has room for far more.
        if sent < HEADER_LEN + payload.len() {
            return Err(Errno::MSGSIZE);
        }
        Ok(Self {
            socket,
            answer: Vec::new(),
        })
    }

    /// Reads an answer, without waiting.
    pub fn poll(&mut self) -> Answer {
        let mut bytes = [0; 1024];
        loop {
            match read(&self.socket, &mut bytes) {
                Ok(0) => return Answer::Gone,
                Ok(count) => {
                    self.answer
                        .extend_from_slice(bytes.get(..count).unwrap_or_default());
                    if let Some(answer) = self.refusal() {
                        return answer;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Answer::Nothing,
                Err(_) => return Answer::Gone,
            }
        }
    }

    fn refusal(&self) -> Option<Answer> {
        if self.answer.len() > MAX_ANSWER {
            return Some(Answer::Gone);
        }
        let (header, rest) = self.answer.split_first_chunk::<HEADER_LEN>()?;
        let Ok(header) = FrameHeader::from_bytes(header) else {
            return Some(Answer::Gone);
        };
        if Control::from_kind(header.kind) != Some(Control::Refusal) {
            return Some(Answer::Gone);
        }
        let payload = rest.get(..header.payload_len())?;
        Some(match decode_all::<Refusal<'_>>(payload) {
            Ok(refusal) => Answer::Refused(refusal.reason.0.to_owned()),
            Err(_) => Answer::Gone,
        })
    }

    /// Tells the process that serves the channel that the guest is gone.
    pub fn end(&self) {
        // Fails only if the other end is already gone.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
