//! The shape of a table entry.

use crate::codec::{DecodeError, Field};
use crate::handle::ObjectKind;

/// How a call crosses. Calls that are answered in the guest without
/// crossing are not in the table at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// One-way and batched; an error is delivered at a later synchronizing call.
    Posted,
    /// The guest thread waits for the reply.
    Synchronous,
    /// Synchronous, but asked at most once for the same arguments: the guest
    /// keeps the answer.
    Cached,
}

/// The effect of a call on its session's live objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing that would have to be recreated.
    None,
    /// An object with this handle exists from now on; the call's own bytes
    /// recreate it.
    Creates(ObjectKind, u64),
    /// The object is gone.
    Destroys(ObjectKind, u64),
    /// The object differs from how it was created; the call's own bytes
    /// repeat the change.
    Changes(ObjectKind, u64),
}

/// The capability that a session needs for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Every admitted session.
    Compute,
    /// Sessions whose communicator has a window.
    Window,
}

/// The declaration of one call.
#[derive(Debug, Clone, Copy)]
pub struct CallInfo {
    /// The number on the wire; fixed forever.
    pub number: u16,
    /// The name in this table.
    pub name: &'static str,
    /// How it crosses.
    pub class: Class,
    /// Repeating it changes nothing.
    pub idempotent: bool,
    /// Its reply reports the error of an earlier posted call: it waits for the
    /// device or asks about it, and creates nothing.
    pub reports: bool,
    /// It is answered after the context was lost.
    pub survives: bool,
    /// It may be executed before calls that were posted before it.
    pub early: bool,
    /// It can be a node of a graph.
    pub node: bool,
    /// Its requirements.
    pub capability: Capability,
    /// Parameters in order: name and type.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Type of the reply.
    pub reply: &'static str,
    /// What it does; the first line of its documentation names the CUDA
    /// functions that it serves.
    pub doc: &'static str,
}

/// A call that can be sent.
pub trait WireCall<'a>: Field<'a> {
    /// Its declaration.
    const INFO: &'static CallInfo;
    /// The fields of a successful reply.
    type Reply<'r>: Field<'r>;
}

/// The declaration with this number, if there is one.
#[must_use]
pub fn info(number: u16) -> Option<&'static CallInfo> {
    let calls = crate::table::CALLS;
    let index = calls
        .binary_search_by_key(&number, |call| call.number)
        .ok()?;
    calls.get(index).copied()
}

/// A payload that decodes to nothing is an error of this type.
pub type DecodeResult<T> = Result<T, DecodeError>;
