//! Green contexts.

use paragpu_protocol::codec::Reader;
use paragpu_protocol::handle::GreenHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    GreenCreate, GreenDestroy, GreenStreamCreate, SmResourceGet, SmResourceSplit,
};
use paragpu_protocol::types::{SmGroups, SmResource, SmSplit};

use crate::error::{Outcome, fail};
use crate::session::Session;

/// Most steps of a way.
const MOST_STEPS: usize = 8;

/// The steps of a way.
fn steps(way: &[u8]) -> Outcome<Vec<SmSplit>> {
    let mut reader = Reader::new(way);
    let mut steps = Vec::new();
    while reader.remaining() > 0 {
        let Ok(step) = reader.field() else {
            return fail(Status::INVALID_VALUE, "a step is cut short");
        };
        if steps.len() == MOST_STEPS {
            return fail(
                Status::INVALID_VALUE,
                format!("more than {MOST_STEPS} steps"),
            );
        }
        steps.push(step);
    }
    Ok(steps)
}

impl Session {
    pub(crate) fn sm_resource_get(&mut self, _: &SmResourceGet) -> Outcome<SmResource> {
        Ok(self.gpu.sm_resource()?)
    }

    pub(crate) fn sm_resource_split(&mut self, call: &SmResourceSplit) -> Outcome<SmGroups> {
        let of = match call.green == GreenHandle::default() {
            true => None,
            false => Some(self.objects.greens.id(call.green)?),
        };
        let (flags, least) = (call.flags, call.least);
        Ok(self.gpu.sm_split(of, call.groups, flags, least)?)
    }

    pub(crate) fn green_create(&mut self, call: &GreenCreate<'_>) -> Outcome<SmResource> {
        let way = steps(call.way.0)?;
        let greens = &mut self.objects.greens;
        greens.create(&mut self.gpu, call.green, &way, call.count)
    }

    pub(crate) fn green_destroy(&mut self, call: &GreenDestroy) -> Outcome<()> {
        // The calls that recreate a stream name its green context.
        if self.objects.streams.are_in(call.green) {
            return fail(Status::INVALID_HANDLE, "the green context has streams");
        }
        self.objects.greens.destroy(&mut self.gpu, call.green)
    }

    pub(crate) fn green_stream_create(&mut self, call: &GreenStreamCreate) -> Outcome<()> {
        let green = self.objects.greens.id(call.green)?;
        let streams = &mut self.objects.streams;
        streams.check_new(call.stream)?;
        let id = self.gpu.green_stream_create(green, call.priority)?;
        streams.insert(call.stream, id, call.green);
        Ok(())
    }
}
