//! The call table and the wire of paragpu.
//!
//! No I/O and no unsafe code live here: bytes in, checked values out.
//! [`table`] declares every call once; [`frame`], [`handshake`] and [`reply`]
//! are what travels around them; [`layout`] is where addresses lie.

// This code parses untrusted input, so it must not panic.
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

pub mod call;
mod chain;
pub mod codec;
pub mod edge;
pub mod frame;
pub mod handle;
pub mod handshake;
pub mod jit;
pub mod layout;
pub mod reply;
pub mod status;
pub mod table;
pub mod types;
mod vm_name;

pub use chain::chain;
pub use vm_name::{MAX_VM_NAME, is_vm_name};

/// Gives every decoder of this crate `data`; for fuzzing. Whatever decodes must
/// encode to the same bytes again.
pub fn fuzz_protocol(data: &[u8]) {
    use codec::{Field, decode_all, encode_all};

    fn round_trip<'a, T: Field<'a>>(payload: &'a [u8]) {
        if let Ok(value) = decode_all::<T>(payload) {
            assert_eq!(encode_all(&value), payload);
        }
    }

    let Some((number, payload)) = data.split_first_chunk::<2>() else {
        return;
    };
    if let Ok(bytes) = table::recode(u16::from_le_bytes(*number), payload) {
        assert_eq!(bytes, payload);
    }
    if let Ok(header) = data.first_chunk().map_or(
        Err(frame::FrameError::Truncated { have: 0, need: 0 }),
        frame::FrameHeader::from_bytes,
    ) {
        assert!(header.payload_len() <= frame::MAX_PAYLOAD);
    }
    round_trip::<handshake::Hello>(payload);
    round_trip::<handshake::Welcome>(payload);
    round_trip::<handshake::Refusal<'_>>(payload);
    round_trip::<handshake::Attach<'_>>(payload);
    round_trip::<reply::Failure<'_>>(payload);
    let _ = reply::decode::<types::FunctionInfo<'_>>(payload);
    let _ = reply::decode::<types::DeviceSnapshot<'_>>(payload);
}

#[cfg(test)]
mod tests;
