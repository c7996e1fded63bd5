//! One connection of the metrics endpoint: an HTTP request and its response.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use crate::metrics::CONTENT_TYPE;
use crate::received_fd::{PeerKind, ReceivedFd, receive_plainly};

/// Maximum number of bytes of a request.
const MAX_REQUEST: usize = 8192;
/// Maximum number of headers of a request.
const HEADERS: usize = 64;

/// A connection.
#[derive(Debug)]
pub struct Scrape {
    socket: ReceivedFd,
    /// When the daemon closes it.
    pub deadline: Instant,
    input: Vec<u8>,
    output: Vec<u8>,
    requested: bool,
}

/// The progress of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It waits for more bytes, or for room to write.
    More,
    /// The client requested the metrics.
    Asked,
    /// An error response is ready to be written.
    Answering,
    /// The connection can be closed.
    Over,
}

impl Scrape {
    /// Takes an accepted connection.
    #[must_use]
    pub fn new(socket: OwnedFd, deadline: Instant) -> Self {
        Self {
            socket: ReceivedFd::new(socket, PeerKind::Guest),
            deadline,
            input: Vec::new(),
            output: Vec::new(),
            requested: false,
        }
    }

    /// Whether there are bytes to write.
    #[must_use]
    pub fn writing(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether to read from it: only until it has sent a request.
    #[must_use]
    pub fn reading(&self) -> bool {
        !self.requested
    }

    /// Reads available bytes, without blocking.
    pub fn read(&mut self) -> Step {
        let mut bytes = [0; 1024];
        match receive_plainly(&self.socket, &mut bytes) {
            Ok(0) => return Step::Over,
            Ok(count) => self
                .input
                .extend_from_slice(bytes.get(..count).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => return Step::More,
            Err(_) => return Step::Over,
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let status = match request.parse(&self.input) {
            Ok(httparse::Status::Partial) if self.input.len() <= MAX_REQUEST => return Step::More,
            Ok(httparse::Status::Partial) => "431 Request Header Fields Too Large",
            Err(_) => "400 Bad Request",
            Ok(httparse::Status::Complete(_)) if request.method != Some("GET") => {
                "405 Method Not Allowed"
            }
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.unwrap_or_default();
                if path.split('?').next() == Some("/metrics") {
                    self.requested = true;
                    return Step::Asked;
                }
                "404 Not Found"
            }
        };
        self.requested = true;
        let sentence = format!("{status}: the metrics are at /metrics\n");
        self.respond(status, "text/plain; charset=utf-8", &sentence);
        Step::Answering
    }

    /// Queues the metrics as the response.
    pub fn answer(&mut self, metrics: &str) {
        self.respond("200 OK", CONTENT_TYPE, metrics);
    }

    fn respond(&mut self, status: &str, kind: &str, body: &str) {
        self.output = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes();
    }

    /// Writes as much as fits, without blocking. Returns [`Step::Over`] after the last byte
    /// or an error.
    pub fn write(&mut self) -> Step {
        while !self.output.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &self.output, flags) {
                Ok(count) => drop(self.output.drain(..count.min(self.output.len()))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Step::More,
                Err(_) => return Step::Over,
            }
        }
        // The client may be gone.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        Step::Over
    }
}

impl AsFd for Scrape {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
