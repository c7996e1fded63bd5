//! Dispatch: from a call's number to its code.
//!
//! The build script derives a handler for each call from its description in
//! `protocol/interface/driver` or `protocol/interface/calls`. The handler decodes the
//! call, calls the function of that name in the part of the session that the description
//! selects, replies as the call's shape requires, and records the effect on objects. Only
//! that function is written by hand, in the file of its chapter. A call that the driver answers unchanged has no
//! function: the handler looks up its handles and the device executes it.
//!
//! Each library has a separate table, a block of 2,048 numbers. The session and the
//! driver have the first two. A further library gets another block, without changes to
//! the others.

use paragpu_device::{EventId, FunctionId, ModuleId};
use paragpu_protocol::call::{CallInfo, Capability, Effect, WireCall};
use paragpu_protocol::codec::{DecodeError, decode_all};
use paragpu_protocol::handle::{self, EventHandle, FunctionHandle, ModuleHandle, ObjectKind};
use paragpu_protocol::status::Status;
use paragpu_protocol::table;

use crate::error::{Fault, Outcome, SessionEnd, fail};
use crate::live::{Change, Name, Recorded};
use crate::session::Session;
use crate::session::graph::NodeWork;
use crate::session::link::At;
use crate::session::objects::Objects;

/// Call numbers in a block.
const BLOCK: usize = 2048;

/// Creates the work of a call from its payload.
type MakeWork = fn(&Objects, &[u8]) -> Outcome<NodeWork<'static>>;

/// How a call is handled.
pub(crate) struct Handler {
    /// Its declaration.
    pub(crate) info: &'static CallInfo,
    /// Executes a call with this payload and answers it, or makes it pending.
    /// Returns whether it succeeded.
    pub(crate) execute: fn(&mut Session, At, &[u8]) -> Result<bool, Fault>,
    /// The effect on an object of a call with this payload.
    pub(crate) change: fn(&[u8]) -> Result<Option<Change>, DecodeError>,
    /// Its work as a node of a graph, if it can be one.
    pub(crate) node: Option<MakeWork>,
}

/// A call that is executed here.
pub(crate) trait Handle<'a>: WireCall<'a> {
    /// Executes and answers it.
    fn handle(&self, session: &mut Session, at: At) -> Result<bool, Fault>;

    /// Its effect on an object.
    fn change(&self) -> Option<Change> {
        None
    }

    /// Its bulk token; 0 for none.
    fn token(&self) -> u32 {
        0
    }
}

/// A guest handle of an object for which the device has an identifier.
trait Named {
    type Id;

    /// The device's identifier of it.
    fn id(self, objects: &Objects) -> Outcome<Self::Id>;
}

impl Named for EventHandle {
    type Id = EventId;

    fn id(self, objects: &Objects) -> Outcome<EventId> {
        objects.events.id(self)
    }
}

impl Named for ModuleHandle {
    type Id = ModuleId;

    fn id(self, objects: &Objects) -> Outcome<ModuleId> {
        objects.modules.id(self.0)
    }
}

impl Named for FunctionHandle {
    type Id = FunctionId;

    fn id(self, objects: &Objects) -> Outcome<FunctionId> {
        Ok(objects.modules.kernel(self.0)?.id)
    }
}

include!(concat!(env!("OUT_DIR"), "/handlers.rs"));

/// The handlers of a library.
struct Library {
    handlers: &'static [Handler],
    /// By number in its blocks: one more than the index in `handlers`, or 0.
    places: &'static [u8],
    /// Number of its first block.
    first: usize,
}

/// The session's calls and the driver's.
static DRIVER: Library = Library {
    handlers: HANDLERS,
    places: PLACES,
    first: 0,
};

/// By block.
static LIBRARIES: &[&Library] = &[&DRIVER, &DRIVER];

/// The handler of the call with this number.
pub(crate) fn handler(number: u16) -> Option<&'static Handler> {
    let number = usize::from(number);
    let library = LIBRARIES.get(number / BLOCK)?;
    let place = *library.places.get(number - library.first * BLOCK)?;
    library.handlers.get(usize::from(place).checked_sub(1)?)
}

/// Executes a decoded call and records its effect. `payload` is its encoded form.
pub(crate) fn execute<'a, C: Handle<'a>>(
    session: &mut Session,
    at: At,
    call: &C,
    payload: &[u8],
) -> Result<bool, Fault> {
    if let Some(lost) = session.replies.errors.sticky()
        && !C::INFO.survives
    {
        let lost = lost.clone();
        session.copies.tokens.fail(call.token(), lost.clone());
        session.replies.fail(at, &lost)?;
        return Ok(false);
    }
    if C::INFO.capability == Capability::Window && session.host.window().is_none() {
        let why = format!("{} needs a window", C::INFO.name);
        return session.replies.answer::<()>(
            &mut session.gpu,
            at,
            fail(Status::NOT_SUPPORTED, why),
        );
    }
    let Some(change) = call.change() else {
        return call.handle(session, at);
    };
    let (objects, gpu) = (&mut session.objects, &mut session.gpu);
    if let Err(fault) = objects.admit(gpu, &change, C::INFO.number, payload.len()) {
        return session.replies.answer::<()>(gpu, at, Err(fault));
    }
    let done = call.handle(session, at);
    let (objects, gpu) = (&mut session.objects, &mut session.gpu);
    match done {
        Ok(true) => objects.apply(gpu, &change, C::INFO.number, payload)?,
        _ => objects.live.dismiss(&change, payload.len()),
    }
    done
}

impl Session {
    /// Stalls a call that lacks memory while another worker may keep what it lacks.
    fn unless_memory_is_kept<T>(&mut self, outcome: Outcome<T>) -> Outcome<T> {
        match outcome {
            Err(Fault::Call(error))
                if error.status == Status::OUT_OF_MEMORY
                    && self.transfer.shortage.stalls(self.replies.link.executed()) =>
            {
                Err(Fault::Stall)
            }
            other => other,
        }
    }
}

/// Decodes a call. A malformed one ends the session.
fn decode<'a, C: WireCall<'a>>(payload: &'a [u8]) -> Result<C, Fault> {
    decode_all(payload).map_err(|source| {
        Fault::End(SessionEnd::Malformed {
            name: C::INFO.name,
            number: C::INFO.number,
            source,
        })
    })
}

/// Decodes a call that is a node of a graph.
fn node<'a, C: WireCall<'a>>(payload: &'a [u8]) -> Outcome<C> {
    match decode_all(payload) {
        Ok(call) => Ok(call),
        Err(error) => fail(Status::INVALID_VALUE, format!("a node: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_protocol::call::Class;
    use paragpu_protocol::table::CALLS;

    fn zeros(info: &CallInfo) -> Option<Change> {
        let zeros = [0; 256];
        let handler = handler(info.number).unwrap();
        (0..zeros.len())
            .find_map(|length| (handler.change)(&zeros[..length]).ok())
            .unwrap()
    }

    #[test]
    fn every_call_has_its_handler_and_no_other_number_has_one() {
        for number in 0..=u16::MAX {
            let declared = CALLS.iter().find(|info| info.number == number);
            let served = handler(number).map(|handler| handler.info.name);
            assert_eq!(served, declared.map(|info| info.name));
        }
    }

    #[test]
    fn reporting_calls_create_nothing() {
        for info in CALLS.iter().filter(|info| info.reports) {
            assert_eq!(info.class, Class::Synchronous, "{}", info.name);
            assert!(zeros(info).is_none(), "{}", info.name);
        }
    }

    #[test]
    fn what_is_created_is_destroyed_or_goes_with_its_parent() {
        for info in CALLS {
            let Some(change) = zeros(info) else { continue };
            if let Effect::Creates(kind, handle) = change.effect {
                let Some(destroy) = destroying((kind, handle)) else {
                    assert!(change.parent.is_some_and(|(kind, _)| holds_others(kind)));
                    continue;
                };
                let destroyed = destroy.change().unwrap().unwrap();
                assert_eq!(destroyed.effect, Effect::Destroys(kind, handle));
            }
        }
    }

    #[test]
    fn only_posted_calls_are_nodes() {
        for info in CALLS {
            let is_node = handler(info.number).unwrap().node.is_some();
            assert_eq!(is_node, info.node, "{}", info.name);
            assert!(!is_node || info.class == Class::Posted, "{}", info.name);
        }
    }
}
