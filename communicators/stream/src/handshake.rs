//! Single frames, optionally with file descriptors, on a socket that is not a connection yet.
//!
//! Nothing beyond the frame is read, so the next owner of the socket finds the rest. Pass a
//! socket to [`over`](crate::over) only afterwards.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use paragpu_communicator::{Error, poll_until};
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN, MAX_PAYLOAD};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors with one frame.
pub const MAX_FDS: usize = 16;

/// A frame with its payload, and the descriptors that came with it.
#[derive(Debug)]
pub struct Received {
    /// The header, its length checked.
    pub header: FrameHeader,
    /// The payload.
    pub payload: Vec<u8>,
    /// The descriptors, in the order they were sent; close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// Writes one frame, and waits at most until `deadline`.
///
/// # Errors
/// [`Error::Closed`], [`Error::Protocol`] for an oversized payload,
/// [`Error::Io`]; `TimedOut` past the deadline.
pub fn send_frame(
    socket: impl AsFd,
    kind: u16,
    slot: u16,
    sequence: u64,
    payload: &[u8],
    deadline: Option<Instant>,
) -> Result<(), Error> {
    send_with_fds(socket, kind, slot, sequence, payload, &[], deadline)
}

/// Writes one frame with descriptors (unix sockets only), and waits at most until
/// `deadline`.
///
/// # Errors
/// As [`send_frame`]; [`Error::Protocol`] for more than [`MAX_FDS`].
pub fn send_with_fds(
    socket: impl AsFd,
    kind: u16,
    slot: u16,
    sequence: u64,
    payload: &[u8],
    fds: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
) -> Result<(), Error> {
    let header = FrameHeader::new(kind, slot, sequence, payload.len())
        .map_err(|error| Error::protocol(error.to_string()))?
        .to_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fits = fds.len() <= MAX_FDS
        && (fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    if !fits {
        return Err(Error::protocol(format!(
            "{} descriptors with one frame",
            fds.len()
        )));
    }
    let total = HEADER_LEN + payload.len();
    let mut written = 0;
    while written < total {
        let head = header.get(written..).unwrap_or(&[]);
        let body = payload
            .get(written.saturating_sub(HEADER_LEN)..)
            .unwrap_or(&[]);
        let slices = [IoSlice::new(head), IoSlice::new(body)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&socket, &slices, &mut ancillary, flags) {
            Ok(more) => {
                written += more;
                // The descriptors were sent with the first byte.
                ancillary.clear();
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => await_ready(socket.as_fd(), PollFlags::OUT, deadline)?,
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(Error::Closed),
            Err(errno) => return Err(Error::io("cannot write to the socket", errno)),
        }
    }
    Ok(())
}

/// Reads exactly one frame of at most `max` payload bytes, and waits at most until
/// `deadline`. Descriptors sent with it are closed.
///
/// # Errors
/// [`Error::Closed`] if the connection ends before the frame, [`Error::Protocol`] if it
/// ends inside the frame or the frame is too large, [`Error::Io`]; `TimedOut` past the
/// deadline.
pub fn receive_exact_frame(
    socket: impl AsFd,
    max: usize,
    deadline: Option<Instant>,
) -> Result<(FrameHeader, Vec<u8>), Error> {
    let received = receive_with_fds(socket, max, deadline)?;
    Ok((received.header, received.payload))
}

/// As [`receive_exact_frame`], but keeps the descriptors.
///
/// # Errors
/// As [`receive_exact_frame`]; [`Error::Protocol`] for more than [`MAX_FDS`] descriptors;
/// `EMFILE` if the process may not open as many.
pub fn receive_with_fds(
    socket: impl AsFd,
    max: usize,
    deadline: Option<Instant>,
) -> Result<Received, Error> {
    let socket = socket.as_fd();
    let mut fds = Vec::new();
    let mut bytes = [0; HEADER_LEN];
    read_exact(socket, &mut bytes, &mut fds, deadline, false)?;
    let header = header_of(&bytes, max)?;
    let mut payload = vec![0; header.payload_len()];
    read_exact(socket, &mut payload, &mut fds, deadline, true)?;
    Ok(Received {
        header,
        payload,
        fds,
    })
}

/// The header of a frame of at most `max` payload bytes.
///
/// # Errors
/// [`Error::Protocol`] if it is no header, or the frame is too large.
pub fn header_of(bytes: &[u8; HEADER_LEN], max: usize) -> Result<FrameHeader, Error> {
    let header =
        FrameHeader::from_bytes(bytes).map_err(|error| Error::protocol(error.to_string()))?;
    if header.payload_len() > max.min(MAX_PAYLOAD) {
        return Err(Error::protocol(format!(
            "frame of {} bytes where at most {max} are expected",
            header.length
        )));
    }
    Ok(header)
}

fn read_exact(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    deadline: Option<Instant>,
    inside: bool,
) -> Result<(), Error> {
    let mut read = 0;
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(rest)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut slices, &mut ancillary, flags) {
            Ok(message) => {
                for received in ancillary.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = received {
                        fds.extend(rights);
                    }
                }
                let is_cut = message.flags.contains(rustix::net::ReturnFlags::CTRUNC);
                if is_cut && fds.len() < MAX_FDS {
                    // There was room for more, so the process could not have them.
                    return Err(Error::io(FEW, Errno::MFILE));
                }
                if is_cut || fds.len() > MAX_FDS {
                    return Err(Error::protocol("too many descriptors with one frame"));
                }
                if message.bytes == 0 {
                    return if inside || read > 0 {
                        Err(Error::cut())
                    } else {
                        Err(Error::Closed)
                    };
                }
                read += message.bytes;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => await_ready(socket, PollFlags::IN, deadline)?,
            Err(Errno::CONNRESET | Errno::NOTCONN | Errno::PIPE) => return Err(Error::Closed),
            Err(errno) => return Err(Error::io("cannot read from the socket", errno)),
        }
    }
    Ok(())
}

/// The kernel drops descriptors beyond the process's limit without an error.
const FEW: &str = "cannot receive descriptors; raise the limit of open files (ulimit -n)";

/// The operation of waiting for a socket, for errors.
pub(crate) const WAIT: &str = "cannot wait for the socket";

pub(crate) fn await_ready(
    socket: BorrowedFd<'_>,
    what: PollFlags,
    deadline: Option<Instant>,
) -> Result<(), Error> {
    match poll_until(&mut [PollFd::new(&socket, what)], deadline, WAIT)? {
        true => Ok(()),
        false => Err(Error::io(
            "the peer did not answer in time",
            std::io::Error::from(std::io::ErrorKind::TimedOut),
        )),
    }
}
