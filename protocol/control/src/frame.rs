//! Encodes a message as a packet: a header and one JSON value.
//!
//! ```text
//!  0  u16 magic      0x6770, "pg"
//!  2  u16 version    [`VERSION`]; a frame of another version is refused
//!  4  u32 length     bytes of JSON, at most [`Message::MAX_LEN`]
//!  8  JSON
//! ```
//!
//! Numbers are little-endian. Decoding is total. It allocates at most a constant multiple of the
//! bytes received, whatever the header claims.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Version of all messages. It increases with every change that an earlier release
/// would misinterpret.
pub const VERSION: u16 = 1;
/// Size of a header in bytes.
pub const HEADER: usize = 8;
/// First bytes of every frame.
const MAGIC: u16 = u16::from_le_bytes(*b"pg");

/// Begins [`FrameError::Content`], by which a command recognizes that the daemon does not know
/// its request. Every release says this.
pub const NOT_UNDERSTOOD: &str = "bad message";

/// A value that travels in a frame.
pub trait Message: Serialize + DeserializeOwned {
    /// Maximum number of bytes of its JSON.
    const MAX_LEN: usize;
}

/// Why bytes are not a valid message.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The magic is missing.
    #[error("the peer does not speak paragpu's control protocol")]
    Foreign,
    /// The peer is of another release.
    #[error("the peer speaks version {0} of the control protocol, this side {VERSION}")]
    Version(u16),
    /// The length exceeds [`Message::MAX_LEN`].
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
    /// The packet or stream ends within a message, or continues after it.
    #[error("a message is incomplete")]
    Length,
    /// The frame is complete, but its JSON is not the expected message.
    #[error("{NOT_UNDERSTOOD}: {0}")]
    Content(#[from] serde_json::Error),
    /// The peer does not answer within this number of seconds.
    #[error("no answer came within {0} s")]
    Silent(u64),
    /// The stream failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
}

/// Encodes a message as a frame.
///
/// # Errors
/// [`FrameError::TooLong`]; [`FrameError::Content`] for values that JSON cannot
/// represent, such as a path that is not UTF-8.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; HEADER];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len().saturating_sub(HEADER);
    let stated = u32::try_from(length).map_err(|_| FrameError::TooLong(length))?;
    if length > M::MAX_LEN {
        return Err(FrameError::TooLong(length));
    }
    if let Some((header, _)) = frame.split_first_chunk_mut::<HEADER>() {
        let [m0, m1] = MAGIC.to_le_bytes();
        let [v0, v1] = VERSION.to_le_bytes();
        let [l0, l1, l2, l3] = stated.to_le_bytes();
        *header = [m0, m1, v0, v1, l0, l1, l2, l3];
    }
    Ok(frame)
}

/// Number of bytes of JSON after a header.
fn length<M: Message>(header: [u8; HEADER]) -> Result<usize, FrameError> {
    let [m0, m1, v0, v1, l0, l1, l2, l3] = header;
    if u16::from_le_bytes([m0, m1]) != MAGIC {
        return Err(FrameError::Foreign);
    }
    let version = u16::from_le_bytes([v0, v1]);
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    match usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])) {
        Ok(length) if length <= M::MAX_LEN => Ok(length),
        Ok(length) => Err(FrameError::TooLong(length)),
        Err(_) => Err(FrameError::TooLong(usize::MAX)),
    }
}

/// Decodes the message of a packet that contains one frame.
pub fn decode<M: Message>(packet: &[u8]) -> Result<M, FrameError> {
    let (header, json) = packet
        .split_first_chunk::<HEADER>()
        .ok_or(FrameError::Length)?;
    if length::<M>(*header)? != json.len() {
        return Err(FrameError::Length);
    }
    Ok(serde_json::from_slice(json)?)
}
