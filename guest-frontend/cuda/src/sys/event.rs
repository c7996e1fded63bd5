//! Events (CUDA Driver API, Event Management).

use std::ffi::c_uint;
use std::sync::Arc;

use paragpu_abi::{CU_EVENT_RECORD_EXTERNAL, CUevent, CUstream};
use paragpu_client::event::Event;
use paragpu_client::objects::edge::Edge;
use paragpu_client::objects::graph::Marked;
use paragpu_protocol::status::Status;

use super::boundary::Out;
use super::{Result, capture, unsupported_use};
use crate::current;
use crate::named_stream;
use crate::objects::{self, Found, InContext, Object, pool};

/// The event with this handle.
pub fn find(event: CUevent) -> Result<Found> {
    objects::find(event)
        .filter(|found| matches!(***found, Object::Event(_)))
        .ok_or_else(|| objects::missing(event))
}

/// The event in a lookup's result.
pub fn inner(found: &Found) -> Result<&InContext<Event>> {
    match &***found {
        Object::Event(inner) => Ok(inner),
        _ => Err(Status::INVALID_HANDLE),
    }
}

/// An event in a graph node's form.
pub fn marked(handle: CUevent) -> Result<Marked> {
    let found = find(handle)?;
    let inner = inner(&found)?;
    if inner.object.is_shared() {
        return Err(unsupported_use!(
            "an event of several processes in a graph",
            "each record of such an event has a number, and nodes do not count"
        ));
    }
    Ok(Marked {
        ordinal: inner.session.ordinal(),
        event: Arc::clone(&inner.object),
        handle: handle as u64,
    })
}

/// Records an event in a stream.
pub(super) fn record(handle: CUevent, stream: CUstream, flags: c_uint) -> Result {
    let by = named_stream::named(stream)?;
    let found = find(handle)?;
    let event = inner(&found)?;
    let (session, stream) = by.both()?;
    if !std::ptr::eq(session, event.session) || by.is_apart(|| Some(event.context)) {
        return Err(Status::INVALID_HANDLE);
    }
    if flags & CU_EVENT_RECORD_EXTERNAL != 0 {
        if !stream.is_capturing() {
            return Err(Status::ILLEGAL_STATE);
        }
        return stream.capture_external_record(marked(handle)?);
    }
    session.record_event(&event.object, stream)
}

/// Records the event of a launch that was just posted to `stream`. CUDA allows it
/// to be reached while the kernel runs; reaching it at the end is always correct.
pub(super) fn record_launched(handle: CUevent, stream: CUstream, edge: Edge) -> Result {
    let by = named_stream::named(stream)?;
    let captures = by.stream()?;
    if !captures.is_capturing() {
        return record(handle, stream, 0);
    }
    let found = find(handle)?;
    captures.capture_trigger(&inner(&found)?.object, edge)
}

pub(crate) fn cuEventCreate(event: Out<'_, CUevent>, flags: c_uint) -> Result {
    event.present()?;
    let current = current::current()?;
    let object = current.session.events().create(flags)?;
    event.put(objects::insert(Object::Event(InContext::new(
        &current, object,
    ))))
}

pub(crate) fn cuEventDestroy(event: CUevent) -> Result {
    let ended = objects::remove(event, |object| matches!(object, Object::Event(_)));
    match ended.as_deref() {
        Some(Object::Event(inner)) => inner.session.destroy_event(&inner.object),
        _ => Err(objects::missing(event)),
    }
}

pub(crate) fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) -> Result {
    if flags & !CU_EVENT_RECORD_EXTERNAL != 0 {
        return Err(Status::INVALID_VALUE);
    }
    record(event, stream, flags)
}

pub(crate) fn cuEventQuery(event: CUevent) -> Result {
    let found = find(event)?;
    let event = inner(&found)?;
    event.object.check_not_captured()?;
    capture::permit_unsafe()?;
    event.session.query_event(&event.object)
}

pub(crate) fn cuEventSynchronize(event: CUevent) -> Result {
    let found = find(event)?;
    let event = inner(&found)?;
    event.object.check_not_captured()?;
    capture::permit_unsafe()?;
    event.session.synchronize_event(&event.object)?;
    pool::waited(event.session)
}
