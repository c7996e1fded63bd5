//! The shape of a table entry.

use crate::codec::Field;
use crate::handle::ObjectKind;

/// The class of a call. Calls that the guest answers itself are not in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// One-way and batched; a later synchronizing call reports its error.
    Posted,
    /// The guest thread waits for the reply.
    Synchronous,
    /// Synchronous, but sent at most once for the same arguments: the guest caches the
    /// reply.
    Cached,
}

/// The effect of a call on its session's live objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// None that would have to be recreated.
    None,
    /// Creates the object with this handle; the call's own bytes recreate it.
    Creates(ObjectKind, u64),
    /// Destroys the object.
    Destroys(ObjectKind, u64),
    /// Changes the object; the call's own bytes repeat the change.
    Changes(ObjectKind, u64),
}

/// The capability that a session needs for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// None: every admitted session may send it.
    Compute,
    /// A communicator with a window.
    Window,
}

/// The declaration of one call.
#[derive(Debug, Clone, Copy)]
pub struct CallInfo {
    /// The number on the wire; fixed forever.
    pub number: u16,
    /// The name in this table.
    pub name: &'static str,
    /// Its class.
    pub class: Class,
    /// Whether it is idempotent.
    pub idempotent: bool,
    /// Whether its reply reports the error of an earlier posted call. Such calls wait for or
    /// query the device, and create nothing.
    pub reports: bool,
    /// Whether it is answered after the context was lost.
    pub survives: bool,
    /// Whether it may overtake calls that were posted earlier.
    pub early: bool,
    /// Whether it can be a graph node.
    pub node: bool,
    /// The capability that it requires.
    pub capability: Capability,
    /// Parameters in order: name and type.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Type of the reply.
    pub reply: &'static str,
    /// Its documentation; the first line names the CUDA functions that it serves.
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
