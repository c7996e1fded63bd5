//! One connection of the control socket.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::SendFlags;

use paragpu_control::admin::{Request, Response};
use paragpu_control::frame::FrameError;
use paragpu_control::json_lines::{self, Assembler};

use crate::received_fd::{PeerKind, ReceivedFd, receive_plainly};

/// Bytes per read.
const READ: usize = 4096;
/// Maximum bytes of queued requests.
const MAX_QUEUED: usize = 64 << 10;

/// One connection of the control socket.
#[derive(Debug)]
pub struct Console {
    /// Any user may connect to the lease socket, and send descriptors whose close blocks.
    socket: ReceivedFd,
    /// The user of the process that connected.
    pub user: u32,
    /// The user to whose limits it counts ([`Peer::Local`](crate::listener::Peer::Local)).
    pub owner: u32,
    /// When it connected or was last answered.
    pub active: Instant,
    /// Whether it is an agent on the lease socket.
    pub is_agent: bool,
    input: Assembler,
    output: Vec<u8>,
    /// The peer does not speak the protocol.
    is_lost: bool,
}

/// The client is gone, or does not speak the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

impl AsFd for Console {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Console {
    /// A new connection.
    #[must_use]
    pub fn new(socket: OwnedFd, user: u32, owner: u32) -> Self {
        Self {
            socket: ReceivedFd::new(socket, PeerKind::Guest),
            user,
            owner,
            active: Instant::now(),
            is_agent: false,
            input: Assembler::default(),
            output: Vec::new(),
            is_lost: false,
        }
    }

    /// The user, if it is an agent's connection.
    #[must_use]
    pub fn agent(&self) -> Option<u32> {
        self.is_agent.then_some(self.user)
    }

    /// Whether there is output to write. While there is, nothing is read from the
    /// client.
    #[must_use]
    pub fn writing(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads available bytes.
    pub fn read(&mut self) -> Result<(), Gone> {
        let mut bytes = [0; READ];
        match receive_plainly(&self.socket, &mut bytes) {
            Ok(0) => return Err(Gone),
            Ok(count) => self.input.push(bytes.get(..count).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return Err(Gone),
        }
        match self.input.pending() {
            0..=MAX_QUEUED => Ok(()),
            _ => Err(Gone),
        }
    }

    /// The next request. An error must be answered; if the stream is broken, the
    /// connection ends after the answer.
    pub fn request(&mut self) -> Option<Result<Request, String>> {
        if self.is_lost {
            return None;
        }
        let request = self.input.take().transpose()?;
        Some(request.map_err(|error| {
            self.is_lost = !matches!(error, FrameError::Content(_));
            error.to_string()
        }))
    }

    /// Appends a response.
    pub fn answer(&mut self, response: &Response) {
        self.active = Instant::now();
        let encoded = json_lines::encode(response).or_else(|error| {
            // For example, the listing is too long. Without an answer the client
            // would wait forever.
            tracing::error!(%error, "a response cannot be sent");
            let error = error.to_string();
            json_lines::encode(&Response::Error { error })
        });
        match encoded {
            Ok(line) => self.output.extend(line),
            Err(error) => tracing::error!(%error, "a response cannot be written"),
        }
    }

    /// Writes as much as the client accepts.
    pub fn write(&mut self) -> Result<(), Gone> {
        while !self.output.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &self.output, flags) {
                Ok(count) => drop(self.output.drain(..count.min(self.output.len()))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return Err(Gone),
            }
        }
        match self.is_lost && self.output.is_empty() {
            true => Err(Gone),
            false => Ok(()),
        }
    }
}
