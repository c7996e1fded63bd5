//! The few operations of this process on a channel's rings: it initializes them, takes the
//! guest's hello, and sends a refusal if no daemon takes the channel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use paragpu_communicator as communicator;
use paragpu_communicator_ring::layout::{MIN_RING_SIZE, PAGE};
use paragpu_communicator_ring::pci::{HostChannel, IdleChannel, attach_host};
use paragpu_communicator_ring::shm::Options;
use paragpu_protocol::codec::{Text, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{HELLO_LEN, Refusal, VERSION};
use rustix::io::Errno;

/// Bytes of each ring of a large channel.
const LARGE_RING_SIZE: u64 = 4 * MIN_RING_SIZE;

/// Channels from this size on, in bytes, have large rings.
const LARGE_CHANNEL_SIZE: u64 = 8 * LARGE_RING_SIZE + PAGE;

/// The place of a channel in a window.
#[derive(Debug, Clone, Copy)]
pub struct ChannelExtent {
    /// Its number.
    pub channel: u16,
    /// Its offset in bytes.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// Duplicates a descriptor.
///
/// # Errors
/// If the process has too many.
pub fn duplicate(descriptor: BorrowedFd<'_>) -> Result<OwnedFd, communicator::Error> {
    descriptor
        .try_clone_to_owned()
        .map_err(|source| communicator::Error::Io {
            context: "cannot duplicate a file descriptor",
            source,
        })
}

/// Writes the header of a channel: two empty rings; the rest is bulk area.
///
/// # Errors
/// If the channel is too small, which the layout of the window rules out.
pub fn initialise(channel: &IdleChannel, place: ChannelExtent) -> Result<(), communicator::Error> {
    let ring_size = if place.size >= LARGE_CHANNEL_SIZE {
        LARGE_RING_SIZE
    } else {
        MIN_RING_SIZE
    };
    channel.initialise(ring_size).map(drop)
}

/// Takes the guest's hello from a channel. `None` if the guest has sent nothing yet; it
/// then rings when it does.
///
/// # Errors
/// If the first frame is not a hello, or the channel's header or indices are invalid.
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
/// If the channel's header or indices are invalid, so that nothing can be sent.
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
