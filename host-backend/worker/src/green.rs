//! Green contexts.

use paragpu_protocol::handle::GreenHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{GreenDestroy, GreenStreamCreate, SmResourceGet, SmResourceSplit};
use paragpu_protocol::types::{SmGroups, SmResource};

use crate::error::{Outcome, fail};
use crate::session::gpu::Gpu;
use crate::session::objects::Objects;

impl Gpu {
    pub(crate) fn sm_resource_get(&mut self, _: &SmResourceGet) -> Outcome<SmResource> {
        Ok(self.sm_resource()?)
    }
}

impl Objects {
    pub(crate) fn sm_resource_split(
        &mut self,
        gpu: &mut Gpu,
        call: &SmResourceSplit,
    ) -> Outcome<SmGroups> {
        let of = match call.green == GreenHandle::default() {
            true => None,
            false => Some(self.greens.id(call.green)?),
        };
        let (flags, least) = (call.flags, call.least);
        Ok(gpu.sm_split(of, call.groups, flags, least)?)
    }

    pub(crate) fn green_destroy(&mut self, gpu: &mut Gpu, call: &GreenDestroy) -> Outcome<()> {
        // The calls that recreate a stream refer to its green context.
        if self.streams.are_in(call.green) {
            return fail(Status::INVALID_HANDLE, "the green context has streams");
        }
        self.greens.destroy(gpu, call.green)
    }

    pub(crate) fn green_stream_create(
        &mut self,
        gpu: &mut Gpu,
        call: &GreenStreamCreate,
    ) -> Outcome<()> {
        let green = self.greens.id(call.green)?;
        let streams = &mut self.streams;
        streams.check_new(call.stream)?;
        let id = gpu.green_stream_create(green, call.priority)?;
        streams.insert(call.stream, id, call.green);
        Ok(())
    }
}
