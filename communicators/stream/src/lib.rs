//! Communicators over stream sockets: `unix`, `tcp`, `vsock`, and any other connected stream
//! socket.
//!
//! [`over`] makes a [`Connection`] from a connected socket. Frames are batched: a thread that
//! flushes writes what all threads have enqueued, and the next batch accumulates during the
//! write. [`sockets`] connects and listens. [`handshake`] transfers single frames with file
//! descriptors before the socket becomes a connection.

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

use link::{Life, Link};

/// How a connection uses its socket.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long the receiver polls before it sleeps.
    pub polling: Polling,
    /// Bytes that may wait to be written, from one frame of the largest size
    /// up. Allocated twice, once.
    pub buffer: usize,
    /// Maximum number of bytes in one write; on a vsock at most
    /// [`LARGEST_VSOCK_WRITE`](sockets::LARGEST_VSOCK_WRITE), whatever is said
    /// here.
    pub largest_write: usize,
    /// How long nothing is written before a frame is that says nothing, so that
    /// a peer that is gone is noticed; `None` for what the socket needs.
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

/// A connection over a connected stream socket. TCP sockets are set to send
/// at once (`TCP_NODELAY`).
///
/// # Errors
/// [`Error::Io`] where the socket or the system refuses.
pub fn over(socket: impl Into<OwnedFd>, options: Options) -> Result<Connection, Error> {
    take_over(socket, options, &[], None)
}

/// The same for a socket whose bytes TLS protects.
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

/// The same for a socket that another process stopped serving: its sender had
/// settled, and its receiver left the bytes `unfinished` and, where TLS
/// protects the connection, its [state](paragpu_communicator::Receiver::secured).
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
    let life = Arc::new(Life::new(Arc::clone(&link)));
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
