//! Communicators over stream sockets: `unix`, `tcp`, `vsock`, and any other connected stream
//! socket.
//!
//! [`over`] makes a [`Connection`] from a connected socket. Frames are batched: a thread that
//! flushes writes what all threads have enqueued, and the next batch accumulates during the
//! write. [`sockets`] connects and listens. [`handshake`] transfers single frames with file
//! descriptors before the socket becomes a connection.

// This crate reads data from peers, so it must not panic.
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
mod path;
mod receiver;
#[cfg(feature = "relay")]
pub mod relay;
mod seal;
pub mod secured;
mod sender;
pub mod sockets;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use paragpu_communicator::{Connection, Error, Polling};
use paragpu_communicator_secure::Secured;
use paragpu_protocol::frame::{HEADER_LEN, MAX_PAYLOAD};

use link::{CloseOnDrop, Link};

/// How a connection uses its socket.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long the receiver polls before it sleeps.
    pub polling: Polling,
    /// Maximum number of bytes that wait to be written; at least a frame of the largest
    /// size. Two buffers of this size are allocated when the connection begins.
    pub buffer: usize,
    /// Maximum number of bytes in one write; on a vsock,
    /// [`LARGEST_VSOCK_WRITE`](sockets::LARGEST_VSOCK_WRITE) is the limit in any case.
    pub largest_write: usize,
    /// Time without writes after which a heartbeat frame is written, so that a lost peer is
    /// detected. `None`: the default of the socket's family.
    pub heartbeat: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            polling: Polling::default(),
            buffer: 1 << 20,
            largest_write: usize::MAX,
            heartbeat: None,
        }
    }
}

/// Creates a connection over a connected stream socket. Sets `TCP_NODELAY` on TCP sockets.
///
/// # Errors
/// [`Error::Io`] if a system call fails.
pub fn over(socket: impl Into<OwnedFd>, options: Options) -> Result<Connection, Error> {
    take_over(socket, options, &[], None)
}

/// As [`over`], for a socket that TLS protects.
///
/// # Errors
/// As [`over`].
pub fn over_secured(
    socket: impl Into<OwnedFd>,
    options: Options,
    secured: Secured,
) -> Result<Connection, Error> {
    take_over(socket, options, &[], Some(secured))
}

/// As [`over`], for a socket that another process has stopped serving. Its sender must have
/// settled. Its receiver left the bytes `unfinished` and, if TLS protects the connection,
/// its [state](paragpu_communicator::Receiver::secured).
///
/// # Errors
/// As [`over`]; [`Error::Protocol`] for more unfinished bytes than a frame has.
pub fn take_over(
    socket: impl Into<OwnedFd>,
    options: Options,
    unfinished: &[u8],
    secured: Option<Secured>,
) -> Result<Connection, Error> {
    let socket = socket.into();
    sockets::send_at_once(&socket)?;
    sockets::widen(&socket)?;
    sockets::notice_loss_of_guest(&socket)?;
    let options = Options {
        buffer: options.buffer.max(HEADER_LEN + MAX_PAYLOAD),
        largest_write: options
            .largest_write
            .clamp(1, sockets::largest_write(&socket)?),
        heartbeat: match options.heartbeat {
            None => sockets::heartbeat(&socket)?,
            given => given,
        },
        ..options
    };
    let (sealer, opener) =
        secured.map_or((None, None), |both| (Some(both.sealer), Some(both.opener)));
    let link = Arc::new(Link::new(socket, options, sealer)?);
    background::start(Arc::clone(&link))?;
    let life = Arc::new(CloseOnDrop::new(Arc::clone(&link)));
    let sender = sender::StreamSender::new(Arc::clone(&link), Arc::clone(&life));
    let mut receiver = receiver::StreamReceiver::new(link, life, options.polling, opener);
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
