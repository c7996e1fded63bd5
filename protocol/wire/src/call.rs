//! The shape of a table entry, and the macro that turns the table into types.

use crate::codec::{DecodeError, Field};
use crate::handle::ObjectKind;

/// How a call crosses (D3). Calls that are answered in the guest without
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

/// What a call does to the live objects of its session (D9).
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

/// What a session must have been granted before the worker executes a call.
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
    /// The number on the wire; fixed for ever.
    pub number: u16,
    /// The name in this table.
    pub name: &'static str,
    /// How it crosses.
    pub class: Class,
    /// Repeating it changes nothing.
    pub idempotent: bool,
    /// What it needs.
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
    /// What the reply carries after a status of success.
    type Reply<'r>: Field<'r>;
}

/// Turns the table into one struct a call, the enum [`crate::table::Call`] of
/// all, and [`crate::table::CALLS`].
#[macro_export]
macro_rules! calls {
    ($all:lifetime; $(
        $(#[doc = $doc:literal])*
        $number:literal $name:ident $(<$life:lifetime>)?
        [$class:ident $(, $flag:ident)* $(; $effect:ident $kind:ident ($handle:ident))?]
        { $( $(#[$field_meta:meta])* $field:ident : $type:ty ),* $(,)? } -> $reply:ty
    )*) => {
        $crate::record! {$(
            $(#[doc = $doc])*
            $name $(<$life>)? { $( $(#[$field_meta])* $field : $type ),* }
        )*}

        $(
            impl<$all> $crate::call::WireCall<$all> for $name $(<$life>)? {
                const INFO: &'static $crate::call::CallInfo = &$crate::call::CallInfo {
                    number: $number,
                    name: stringify!($name),
                    class: $crate::call::Class::$class,
                    idempotent: $crate::calls!(@idempotent $($flag)*),
                    capability: $crate::calls!(@capability $($flag)*),
                    parameters: &[$( (stringify!($field), stringify!($type)) ),*],
                    reply: stringify!($reply),
                    doc: concat!($($doc, "\n"),*),
                };
                type Reply<'r> = $reply;
            }
        )*

        /// Any call, decoded.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum Call<$all> {
            $( $(#[doc = $doc])* $name($name $(<$life>)?) ),*
        }

        /// Every call there is, in order of number.
        pub const CALLS: &[&$crate::call::CallInfo] = &[$( <$name as $crate::call::WireCall>::INFO ),*];

        impl<$all> Call<$all> {
            /// Reads the call with this number from a whole payload.
            ///
            /// # Errors
            /// [`DecodeError`] where the number or the payload is not one of
            /// the table's.
            pub fn decode(number: u16, payload: &$all [u8]) -> Result<Self, DecodeError> {
                Ok(match number {
                    $( $number => Self::$name($crate::codec::decode_all(payload)?), )*
                    other => return Err(DecodeError::UnknownCall(other)),
                })
            }

            /// The call's declaration.
            #[must_use]
            pub fn info(&self) -> &'static CallInfo {
                match self { $( Self::$name(_) => <$name as $crate::call::WireCall>::INFO, )* }
            }

            /// What the call does to the session's objects.
            #[must_use]
            pub fn effect(&self) -> Effect {
                match self { $(
                    #[allow(unused_variables)]
                    Self::$name(call) => $crate::calls!(@effect call $(; $effect $kind ($handle))?),
                )* }
            }

            /// Appends the payload to `out`, except for what is returned; the
            /// payload is both, one after the other.
            pub fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
                match self { $( Self::$name(call) => call.encode(out), )* }
            }
        }
    };
    (@idempotent) => { false };
    (@idempotent idempotent $($rest:ident)*) => { true };
    (@idempotent $other:ident $($rest:ident)*) => { $crate::calls!(@idempotent $($rest)*) };
    (@capability) => { $crate::call::Capability::Compute };
    (@capability window $($rest:ident)*) => { $crate::call::Capability::Window };
    (@capability $other:ident $($rest:ident)*) => { $crate::calls!(@capability $($rest)*) };
    (@effect $call:ident) => { Effect::None };
    (@effect $call:ident; creates $kind:ident ($handle:ident)) => { Effect::Creates(ObjectKind::$kind, $call.$handle.0) };
    (@effect $call:ident; destroys $kind:ident ($handle:ident)) => { Effect::Destroys(ObjectKind::$kind, $call.$handle.0) };
    (@effect $call:ident; changes $kind:ident ($handle:ident)) => { Effect::Changes(ObjectKind::$kind, $call.$handle.0) };
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
