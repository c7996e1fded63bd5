//! Frames: the unit that communicators carry, in both directions.
//!
//! A frame is a 16-byte header followed by `length` bytes of payload. All integers are
//! little-endian. `protocol/README.md` describes the whole protocol.

use thiserror::Error;

/// Size of the header in bytes.
pub const HEADER_LEN: usize = 16;

/// Maximum payload of one frame in bytes. Bulk data is split into frames of at most this
/// size, or goes through a shared window.
pub const MAX_PAYLOAD: usize = 256 * 1024;

/// The bit of `kind` that marks a reply.
pub const REPLY: u16 = 0x8000;

/// First `kind` of the control frames (`0x7f00..=0x7fff`); lower kinds are
/// call numbers.
pub const CONTROL: u16 = 0x7f00;

/// The 16 bytes before every payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameHeader {
    /// Number of payload bytes; at most [`MAX_PAYLOAD`].
    pub length: u32,
    /// Call number, call number with [`REPLY`] set, or a [`Control`] kind.
    pub kind: u16,
    /// Reply slot of the calling guest thread; 0 for a posted call. A reply has the slot of
    /// its call.
    pub slot: u16,
    /// Guest to host: sequence number of this call in its session, from 1 without gaps. Host
    /// to guest: the highest sequence number executed so far.
    pub sequence: u64,
}

/// Why bytes are not a valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The length field exceeds [`MAX_PAYLOAD`].
    #[error("frame of {0} bytes exceeds the limit of {MAX_PAYLOAD}")]
    Oversized(u32),
    /// Fewer bytes than a header, or than its length field says.
    #[error("frame ends after {have} of {need} bytes")]
    Truncated {
        /// Number of bytes present.
        have: usize,
        /// Number of bytes required.
        need: usize,
    },
}

impl FrameHeader {
    /// Creates the header of a frame with `length` payload bytes.
    ///
    /// # Errors
    /// [`FrameError::Oversized`] above [`MAX_PAYLOAD`].
    pub fn new(kind: u16, slot: u16, sequence: u64, length: usize) -> Result<Self, FrameError> {
        let length32 = u32::try_from(length).unwrap_or(u32::MAX);
        if length > MAX_PAYLOAD {
            return Err(FrameError::Oversized(length32));
        }
        Ok(Self {
            length: length32,
            kind,
            slot,
            sequence,
        })
    }

    /// Encodes the header.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0..4].copy_from_slice(&self.length.to_le_bytes());
        out[4..6].copy_from_slice(&self.kind.to_le_bytes());
        out[6..8].copy_from_slice(&self.slot.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out
    }

    /// Decodes a header, and refuses a length above [`MAX_PAYLOAD`].
    ///
    /// # Errors
    /// [`FrameError::Oversized`].
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let [l0, l1, l2, l3, k0, k1, s0, s1, sequence @ ..] = *bytes;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if length as usize > MAX_PAYLOAD {
            return Err(FrameError::Oversized(length));
        }
        Ok(Self {
            length,
            kind: u16::from_le_bytes([k0, k1]),
            slot: u16::from_le_bytes([s0, s1]),
            sequence: u64::from_le_bytes(sequence),
        })
    }

    /// The payload's length as a `usize`.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.length as usize
    }

    /// The call this frame answers, if it is a reply.
    #[must_use]
    pub fn replied_call(&self) -> Option<u16> {
        (self.kind & REPLY != 0).then_some(self.kind & !REPLY)
    }
}

/// Frames that are not calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Control {
    /// Guest to host, first frame of a connection: [`crate::handshake::Hello`].
    Hello = 0x7f00,
    /// Host to guest, answer to a hello: [`crate::handshake::Welcome`].
    Welcome = 0x7f01,
    /// Host to guest, instead of a welcome: [`crate::handshake::Refusal`].
    Refusal = 0x7f02,
    /// Host to guest: part of the bytes that the call in `slot` requested: `u64` offset from
    /// the call's destination, then the bytes.
    Data = 0x7f03,
    /// Host to guest: run the host function with this `u64` number (cuLaunchHostFunc). The
    /// guest answers with the call `HostFuncDone`.
    HostFunc = 0x7f04,
    /// Host to guest: a human-readable line printed by a kernel (printf) or a
    /// failed assertion, to be written to the program's standard output
    /// (`u32` 1) or standard error (`u32` 2), then the bytes.
    Output = 0x7f05,
    /// Either direction: this side ends the session in an orderly way; no payload.
    Goodbye = 0x7f06,
    /// Guest to host: `u64`, the number of counted frames ([`is_counted`]) of the session
    /// that it has received. The host can discard these.
    Received = 0x7f07,
    /// Host to guest: `u64`, the highest call sequence number received. The guest can
    /// discard the calls up to it.
    Taken = 0x7f08,
    /// Host to guest: [`crate::handshake::Move`].
    Move = 0x7f09,
    /// Host to guest: [`crate::handshake::Move`]: where to reconnect once this connection is
    /// lost. The connection stays open.
    Home = 0x7f0a,
    /// Guest to host, after a [`Move`](Self::Move) that it could not follow:
    /// [`crate::handshake::Stays`].
    Stays = 0x7f0b,
    /// Guest to host, first on a connection whose welcome
    /// [requires](crate::handshake::Welcome::wants_pinned) it: contents of pinned memory,
    /// `u64` first address, then the bytes; the last frame has no bytes. Host to guest, no
    /// payload: all of them arrived.
    Pinned = 0x7f0c,
}

impl Control {
    /// The control frame with this kind, if there is one.
    #[must_use]
    pub fn from_kind(kind: u16) -> Option<Self> {
        Some(match kind {
            0x7f00 => Self::Hello,
            0x7f01 => Self::Welcome,
            0x7f02 => Self::Refusal,
            0x7f03 => Self::Data,
            0x7f04 => Self::HostFunc,
            0x7f05 => Self::Output,
            0x7f06 => Self::Goodbye,
            0x7f07 => Self::Received,
            0x7f08 => Self::Taken,
            0x7f09 => Self::Move,
            0x7f0a => Self::Home,
            0x7f0b => Self::Stays,
            0x7f0c => Self::Pinned,
            _ => return None,
        })
    }

    /// The value of `kind` on the wire.
    #[must_use]
    pub fn kind(self) -> u16 {
        self as u16
    }
}

/// Whether a frame of this kind from the host is counted: kept until the guest
/// acknowledges it ([`Received`](Control::Received)), and resent on the next connection.
/// Replies and frames for the program are counted; frames that concern only the
/// connection are not.
#[must_use]
pub fn is_counted(kind: u16) -> bool {
    kind & REPLY != 0
        || matches!(
            Control::from_kind(kind),
            Some(Control::Data | Control::HostFunc | Control::Output)
        )
}

/// Number of bytes, including headers, after which a side must acknowledge received
/// frames ([`Control::Received`], [`Control::Taken`]).
pub const ACKNOWLEDGE_EVERY: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trip() {
        let header = FrameHeader::new(7, 3, u64::MAX - 1, 4096).unwrap();
        assert_eq!(FrameHeader::from_bytes(&header.to_bytes()), Ok(header));
    }

    #[test]
    fn oversized_is_refused_both_ways() {
        assert!(FrameHeader::new(1, 0, 1, MAX_PAYLOAD + 1).is_err());
        let mut bytes = FrameHeader::default().to_bytes();
        bytes[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(
            FrameHeader::from_bytes(&bytes),
            Err(FrameError::Oversized(u32::MAX))
        );
    }

    #[test]
    fn every_control_kind_is_read_back() {
        for kind in 0..=u16::MAX {
            if let Some(control) = Control::from_kind(kind) {
                assert_eq!(control.kind(), kind);
                assert!(kind >= CONTROL && kind & REPLY == 0);
            }
        }
    }
}
