//! Receives whole messages from a socket, and sends answers.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use paragpu_protocol::codec::{Field, decode_all};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::wire::{HEADER_SIZE, Header, MAX_FDS, MAX_MESSAGE, header_flags};

/// Why a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionEnd {
    /// The client has closed it, or is gone.
    #[error("the connection was closed")]
    Closed,
    /// The client violates the protocol.
    #[error("{0}")]
    Broken(&'static str),
}

/// A client's connection. It reads without waiting. Sending an answer blocks on a client
/// that does not read, which delays only that client.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    bytes: Box<[u8; MAX_MESSAGE]>,
    filled: usize,
    descriptors: Vec<OwnedFd>,
    out: Vec<u8>,
}

/// A received command.
#[derive(Debug)]
pub struct Command<'a> {
    /// Its header.
    pub header: Header,
    /// The bytes after the header.
    pub payload: &'a [u8],
    /// Descriptors received with it.
    pub descriptors: Vec<OwnedFd>,
}

/// The reply to a command.
#[derive(Debug, Default)]
pub struct Reply<'a> {
    /// The bytes after the header.
    pub payload: Vec<u8>,
    /// Descriptors to send with it.
    pub descriptor: Option<BorrowedFd<'a>>,
}

impl Connection {
    /// Takes a blocking socket.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            bytes: Box::new([0; MAX_MESSAGE]),
            filled: 0,
            descriptors: Vec::new(),
            out: Vec::new(),
        }
    }

    /// The next command, if it has arrived completely.
    pub fn receive(&mut self) -> Result<Option<Command<'_>>, ConnectionEnd> {
        loop {
            let size = self.size()?;
            let missing = size.unwrap_or(HEADER_SIZE).saturating_sub(self.filled);
            if missing == 0 {
                break;
            }
            match self.read(missing) {
                Ok(0) => return Err(ConnectionEnd::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::MSGSIZE) => {
                    return Err(ConnectionEnd::Broken("too many descriptors"));
                }
                Err(_) => return Err(ConnectionEnd::Closed),
            }
        }
        let all = self.bytes.get(..self.filled).unwrap_or_default();
        self.filled = 0;
        let (header, payload) = split(all)?;
        if header.flags & header_flags::TYPE != header_flags::COMMAND {
            return Err(ConnectionEnd::Broken("a reply without a command"));
        }
        Ok(Some(Command {
            header,
            payload,
            descriptors: std::mem::take(&mut self.descriptors),
        }))
    }

    /// Size of the message being received, once its header has arrived.
    fn size(&self) -> Result<Option<usize>, ConnectionEnd> {
        if self.filled < HEADER_SIZE {
            return Ok(None);
        }
        let (header, _) = split(self.bytes.get(..self.filled).unwrap_or_default())?;
        match usize::try_from(header.size) {
            Ok(size @ HEADER_SIZE..=MAX_MESSAGE) => Ok(Some(size)),
            _ => Err(ConnectionEnd::Broken("a message with an invalid length")),
        }
    }

    fn read(&mut self, missing: usize) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = self.bytes.get_mut(self.filled..self.filled + missing);
        let received = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(room.unwrap_or_default())],
            &mut control,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                self.descriptors.extend(passed);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > MAX_FDS {
            return Err(Errno::MSGSIZE);
        }
        self.filled += received.bytes;
        Ok(received.bytes)
    }

    /// Replies to a command, unless it has [`NO_REPLY`](header_flags::NO_REPLY).
    ///
    /// # Errors
    /// [`ConnectionEnd::Closed`].
    pub fn answer(
        &mut self,
        command: &Header,
        reply: Result<Reply<'_>, Errno>,
    ) -> Result<(), ConnectionEnd> {
        if command.flags & header_flags::NO_REPLY != 0 {
            return Ok(());
        }
        let (payload, descriptor, error) = match reply {
            Ok(reply) => (reply.payload, reply.descriptor, 0),
            Err(errno) => (Vec::new(), None, errno.raw_os_error().unsigned_abs()),
        };
        let failed = if error == 0 { 0 } else { header_flags::ERROR };
        let header = Header {
            id: command.id,
            command: command.command,
            size: u32::try_from(HEADER_SIZE + payload.len()).unwrap_or(0),
            flags: header_flags::REPLY | failed,
            error,
        };
        self.out.clear();
        header.encode(&mut self.out);
        self.out.extend_from_slice(&payload);
        self.send(descriptor)
    }

    fn send(&self, descriptor: Option<BorrowedFd<'_>>) -> Result<(), ConnectionEnd> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(descriptor) = &descriptor {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(
                descriptor,
            )));
        }
        let mut rest = self.out.as_slice();
        while !rest.is_empty() {
            let bytes = [IoSlice::new(rest)];
            match sendmsg(&self.socket, &bytes, &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    rest = rest.get(sent..).unwrap_or_default();
                    control.clear();
                }
                Err(Errno::INTR) => {}
                Err(_) => return Err(ConnectionEnd::Closed),
            }
        }
        Ok(())
    }
}

fn split(message: &[u8]) -> Result<(Header, &[u8]), ConnectionEnd> {
    let (header, payload) = message
        .split_first_chunk::<HEADER_SIZE>()
        .ok_or(ConnectionEnd::Broken("a message without a header"))?;
    let header = decode_all(header).map_err(|_| ConnectionEnd::Broken("an invalid header"))?;
    Ok((header, payload))
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
