//! Single frames under TLS, before the socket becomes a connection.

use std::os::fd::AsFd;
use std::time::Instant;

use paragpu_communicator::Error;
use paragpu_communicator_secure::{Error as SecureError, Handshake, Secured};
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN, MAX_PAYLOAD};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::handshake::await_ready;
use crate::seal::broken;

/// Why a guest did not reach its host.
#[derive(Debug)]
pub enum ConnectError {
    /// They do not trust each other, or the host violates TLS.
    Secure(SecureError),
    /// The host's first bytes are not TLS, or it closed the connection without any.
    NoTls,
    /// The host closed the connection after its first bytes of TLS.
    Closed,
    /// The connection failed.
    Lost(Error),
}

/// `silent` if the host has sent nothing.
fn unmet(error: SecureError, silent: bool) -> ConnectError {
    match error {
        SecureError::Plain => ConnectError::NoTls,
        // A host without TLS closes the connection with the unread hello, which resets it.
        SecureError::Ended | SecureError::Io(Errno::CONNRESET | Errno::PIPE) => match silent {
            true => ConnectError::NoTls,
            false => ConnectError::Closed,
        },
        SecureError::Io(errno) => ConnectError::Lost(Error::io("cannot use the socket", errno)),
        error => ConnectError::Secure(error),
    }
}

/// Writes one frame, and waits at most until `deadline`.
///
/// # Errors
/// As [`send_frame`](crate::handshake::send_frame).
pub fn send_frame(
    socket: impl AsFd,
    secured: &mut Secured,
    kind: u16,
    payload: &[u8],
    deadline: Option<Instant>,
) -> Result<(), Error> {
    let header = header(kind, payload)?;
    let mut records = Vec::new();
    secured
        .sealer
        .seal(&[&header, payload], &mut records)
        .map_err(broken)?;
    let mut left = records.as_slice();
    while !left.is_empty() {
        match send(&socket, left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => left = left.get(count..).unwrap_or(&[]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => await_ready(socket.as_fd(), PollFlags::OUT, deadline)?,
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(Error::Closed),
            Err(errno) => return Err(Error::io("cannot write to the socket", errno)),
        }
    }
    Ok(())
}

fn header(kind: u16, payload: &[u8]) -> Result<[u8; HEADER_LEN], Error> {
    FrameHeader::new(kind, 0, 0, payload.len())
        .map(|header| header.to_bytes())
        .map_err(|error| Error::protocol(error.to_string()))
}

/// Does the handshake, sends one frame, and receives the answer. Waits at most until
/// `deadline`.
pub fn exchange(
    socket: impl AsFd,
    mut handshake: Handshake,
    kind: u16,
    payload: &[u8],
    deadline: Option<Instant>,
) -> Result<(FrameHeader, Vec<u8>, Secured), ConnectError> {
    let socket = socket.as_fd();
    let mut frame = header(kind, payload).map_err(ConnectError::Lost)?.to_vec();
    frame.extend_from_slice(payload);
    let ready = |what| await_ready(socket, what, deadline).map_err(ConnectError::Lost);
    let mut sent = handshake.write(socket, &frame);
    let mut answer = Vec::new();
    let (header, payload) = loop {
        match sent {
            Ok(()) => {}
            Err(SecureError::Io(Errno::AGAIN)) => {
                ready(PollFlags::OUT)?;
                sent = handshake.flush(socket);
                continue;
            }
            Err(error) => return Err(unmet(error, handshake.is_silent())),
        }
        let wanted = match answer.split_first_chunk::<HEADER_LEN>() {
            None => HEADER_LEN - answer.len(),
            Some((header, payload)) => {
                let header = FrameHeader::from_bytes(header)
                    .map_err(|error| ConnectError::Lost(Error::protocol(error.to_string())))?;
                if header.payload_len() > MAX_PAYLOAD {
                    return Err(ConnectError::Lost(Error::protocol(
                        "an answer of impossible length",
                    )));
                }
                match header.payload_len().saturating_sub(payload.len()) {
                    0 => break (header, payload.to_vec()),
                    wanted => wanted,
                }
            }
        };
        match handshake.read(socket, wanted, &mut answer) {
            Ok(_) => {}
            Err(SecureError::Io(Errno::AGAIN)) => ready(PollFlags::IN)?,
            Err(SecureError::Io(Errno::INTR)) => {}
            Err(error) => return Err(unmet(error, handshake.is_silent())),
        }
    };
    let secured = handshake.finish().map_err(|error| unmet(error, false))?;
    Ok((header, payload, secured))
}
