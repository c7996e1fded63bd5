//! The payload of a reply: a status, then what the call returns or why not.

use crate::codec::{DecodeError, Field, Reader, Text};
use crate::status::Status;

crate::record! {
    /// The part of a reply after a status other than success.
    Failure<'a> {
        /// Number of the call that failed: an earlier posted one, or the
        /// replied one itself.
        call: u16,
        /// Details for the user; may be empty.
        detail: Text<'a>,
    }
}

/// A decoded reply.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reply<'a, T> {
    /// Success and what the call returns.
    Done(T),
    /// Not.
    Failed(Status, Failure<'a>),
}

/// Reads a reply payload of a call that returns `T`.
pub fn decode<'a, T: Field<'a>>(payload: &'a [u8]) -> Result<Reply<'a, T>, DecodeError> {
    let mut reader = Reader::new(payload);
    let status: Status = reader.field()?;
    let reply = if status.is_success() {
        Reply::Done(reader.field()?)
    } else {
        Reply::Failed(status, reader.field()?)
    };
    reader.finish()?;
    Ok(reply)
}

/// Appends the head of a successful reply to `out`; returns the rest of it.
pub fn encode_done<'a, 's, T: Field<'a>>(value: &'s T, out: &mut Vec<u8>) -> &'s [u8] {
    let _ = Status::SUCCESS.encode(out);
    value.encode(out)
}

/// Appends a failed reply to `out`.
pub fn encode_failed(status: Status, call: u16, detail: &str, out: &mut Vec<u8>) {
    let _ = status.encode(out);
    let failure = Failure {
        call,
        detail: Text(detail),
    };
    let tail = failure.encode(out);
    out.extend_from_slice(tail);
}
