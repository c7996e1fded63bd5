//! One connection of the control socket.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::admin::{MAX_REQUEST, Request, Response};

/// One connection of the control socket.
#[derive(Debug)]
pub struct Console {
    socket: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// The client is gone, or does not speak the language.
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
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    /// Whether something waits to be written. A client that does not read is
    /// not listened to.
    #[must_use]
    pub fn writing(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn read(&mut self) -> Result<(), Gone> {
        let mut bytes = [0; MAX_REQUEST];
        match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(Gone),
            Ok((count, _)) => self
                .input
                .extend_from_slice(bytes.get(..count).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return Err(Gone),
        }
        let unfinished = self.input.rsplit(|byte| *byte == b'\n').next();
        if unfinished.is_some_and(|line| line.len() > MAX_REQUEST) {
            return Err(Gone);
        }
        Ok(())
    }

    /// The next request; an error is to be answered.
    pub fn request(&mut self) -> Option<Result<Request, String>> {
        let end = self.input.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.input.drain(..=end).collect();
        Some(serde_json::from_slice(&line).map_err(|error| format!("bad request: {error}")))
    }

    /// Appends a response.
    pub fn answer(&mut self, response: &Response) {
        match serde_json::to_writer(&mut self.output, response) {
            Ok(()) => self.output.push(b'\n'),
            Err(error) => tracing::error!(%error, "a response cannot be written"),
        }
    }

    /// Writes what the client takes.
    ///
    /// # Errors
    /// [`Gone`].
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
        Ok(())
    }
}
