//! The guest's green contexts.

use paragpu_device::GreenId;
use paragpu_protocol::handle::GreenHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{SmResource, SmSplit};

use super::gpu::Gpu;
use crate::error::{Outcome, fail};
use crate::handles::Table;

/// The green contexts of a session.
#[derive(Debug)]
pub(crate) struct Greens(Table<GreenId>);

impl Greens {
    pub(crate) fn new() -> Self {
        Self(Table::new("green context"))
    }

    /// The device's name of it.
    pub(crate) fn id(&self, green: GreenHandle) -> Outcome<GreenId> {
        self.0.get(green.0).copied()
    }

    pub(crate) fn create(
        &mut self,
        gpu: &mut Gpu,
        green: GreenHandle,
        way: &[SmSplit],
        count: u32,
    ) -> Outcome<SmResource> {
        if green == GreenHandle::default() {
            return fail(Status::INVALID_HANDLE, "0 names no green context");
        }
        self.0.check_free(green.0)?;
        let made = gpu.green_create(way, count).map_err(|mut error| {
            if error.detail.is_empty() {
                error.detail = format!("a green context of {count} multiprocessors");
            }
            error
        });
        let (id, resource) = made?;
        self.0.insert(green.0, id);
        Ok(resource)
    }

    pub(crate) fn destroy(&mut self, gpu: &mut Gpu, green: GreenHandle) -> Outcome<()> {
        let id = self.0.remove(green.0)?;
        Ok(gpu.green_destroy(id)?)
    }
}
