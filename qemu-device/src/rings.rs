//! The little that this process does with a channel's rings: it makes them,
//! takes the guest's hello out of them, and refuses where nobody serves it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use paragpu_communicator as communicator;
use paragpu_communicator_ring::layout::{MIN_RING_SIZE, PAGE};
use paragpu_communicator_ring::pci::{HostChannel, IdleChannel, attach_host};
use paragpu_communicator_ring::shm::Options;
use paragpu_protocol::codec::{Text, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{HELLO_LEN, Refusal, VERSION};
use rustix::io::Errno;

/// Bytes of each ring where the channel is large.
const LARGE_RING_SIZE: u64 = 4 * MIN_RING_SIZE;

/// Channels from this size on, in bytes, have large rings.
const LARGE_CHANNEL_SIZE: u64 = 8 * LARGE_RING_SIZE + PAGE;

/// Where a channel lies in a window.
#[derive(Debug, Clone, Copy)]
pub struct ChannelExtent {
    /// Its number.
    pub channel: u16,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
}

/// A descriptor of our own for the same file.
///
/// # Errors
/// If there are too many.
pub fn duplicate(descriptor: BorrowedFd<'_>) -> Result<OwnedFd, communicator::Error> {
    descriptor
        .try_clone_to_owned()
        .map_err(|source| communicator::Error::Io {
            context: "cannot duplicate a file descriptor",
            source,
        })
}

/// Writes the header of a channel: two empty rings, the rest bulk area.
///
/// # Errors
/// If the channel is too small, which its layout rules out.
pub fn initialise(channel: &IdleChannel, place: ChannelExtent) -> Result<(), communicator::Error> {
    let ring_size = if place.size >= LARGE_CHANNEL_SIZE {
        LARGE_RING_SIZE
    } else {
        MIN_RING_SIZE
    };
    channel.initialise(ring_size).map(drop)
}

/// Takes the hello out of a channel, as the guest sent it; `None` if it has
/// sent nothing yet, and rings when it does.
///
/// # Errors
/// If the first frame is no hello, or the channel's words make no sense.
pub fn take_hello(channel: &IdleChannel) -> Result<Option<Vec<u8>>, communicator::Error> {
    let Some((header, payload)) = channel.take_frame()? else {
        return Ok(None);
    };
    if Control::from_kind(header.kind) != Some(Control::Hello) || payload.len() != HELLO_LEN {
        return Err(communicator::Error::Protocol(
            "the first frame is not a hello".to_owned(),
        ));
    }
    Ok(Some(payload))
}

/// Sends a refusal to the guest and closes the channel from this side.
///
/// # Errors
/// If the channel's words make no sense, so that nothing can be sent.
pub fn refuse(
    memory: BorrowedFd<'_>,
    doorbell: impl AsFd,
    interrupt: impl AsFd,
    place: ChannelExtent,
    reason: &str,
) -> Result<(), communicator::Error> {
    let host = HostChannel {
        memory: duplicate(memory)?,
        doorbell: duplicate(doorbell.as_fd())?,
        interrupt: duplicate(interrupt.as_fd())?,
        liveness: None,
        channel: u32::from(place.channel),
        offset: place.offset,
        size: place.size,
    };
    let connection = attach_host(host, Options::default())?;
    let payload = encode_all(&Refusal {
        version: VERSION,
        reason: Text(reason),
    });
    let kind = Control::Refusal.kind();
    connection.sender.try_send(kind, 0, Some(0), &[&payload])?;
    Ok(())
}

impl From<communicator::Error> for crate::Error {
    fn from(error: communicator::Error) -> Self {
        let source = match error {
            communicator::Error::Io { source, .. } => {
                Errno::from_io_error(&source).unwrap_or(Errno::IO)
            }
            _ => Errno::PROTO,
        };
        Self::System {
            action: "set up a channel",
            source,
        }
    }
}
