//! The communicators over stream sockets: `unix`, `tcp` and `vsock`, and
//! whatever else gives a connected stream socket.
//!
//! [`over`] makes a [`Connection`] of a connected socket. Frames are batched
//! as they come: a thread that flushes writes what all threads enqueued, and
//! while a write is under way the next batch gathers. [`sockets`] connects and
//! listens, [`handshake`] carries single frames, and file descriptors with
//! them, before a connection is made of the socket.

// What others send is read here, so nothing may panic.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
#![forbid(unsafe_code)]

mod background;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod handshake;
mod link;
mod parser;
mod receiver;
mod sender;
pub mod sockets;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use paragpu_communicator::{Connection, Error, Polling};
use paragpu_protocol::frame::{HEADER_LEN, MAX_PAYLOAD};

use link::{Life, Link};

/// How a connection uses its socket.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long the receiver polls before it sleeps.
    pub polling: Polling,
    /// Bytes that may wait to be written, from one frame of the largest size
    /// up. Allocated twice, once.
    pub buffer: usize,
    /// Most bytes in one write; on a vsock at most
    /// [`LARGEST_VSOCK_WRITE`](sockets::LARGEST_VSOCK_WRITE), whatever is said
    /// here.
    pub largest_write: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            polling: Polling::default(),
            buffer: 1 << 20,
            largest_write: usize::MAX,
        }
    }
}

/// A connection over a connected stream socket. TCP sockets are set to send
/// at once (`TCP_NODELAY`).
///
/// # Errors
/// [`Error::Io`] where the socket or the system refuses.
pub fn over(socket: impl Into<OwnedFd>, options: Options) -> Result<Connection, Error> {
    take_over(socket, options, &[])
}

/// The same for a socket that another process stopped serving: its sender had
/// settled, and its receiver left the bytes `unfinished`.
///
/// # Errors
/// As [`over`]; [`Error::Protocol`] for more unfinished bytes than a frame has.
pub fn take_over(
    socket: impl Into<OwnedFd>,
    options: Options,
    unfinished: &[u8],
) -> Result<Connection, Error> {
    let socket = socket.into();
    sockets::send_at_once(&socket)?;
    sockets::widen(&socket)?;
    let options = Options {
        buffer: options.buffer.max(HEADER_LEN + MAX_PAYLOAD),
        largest_write: options
            .largest_write
            .clamp(1, sockets::largest_write(&socket)?),
        ..options
    };
    let link = Arc::new(Link::new(socket, options)?);
    background::start(Arc::clone(&link))?;
    let life = Arc::new(Life::new(Arc::clone(&link)));
    let sender = sender::StreamSender::new(Arc::clone(&link), Arc::clone(&life));
    let mut receiver = receiver::StreamReceiver::new(link, life, options.polling);
    if !receiver.begin_with(unfinished) {
        return Err(Error::protocol("more unfinished bytes than a frame has"));
    }
    Ok(Connection {
        pinner: None,
        sender: Arc::new(sender),
        receiver: Box::new(receiver),
        window: None,
    })
}
