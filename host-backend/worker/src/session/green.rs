//! The guest's green contexts.

use paragpu_device::GreenId;
use paragpu_protocol::handle::GreenHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{SmResource, SmSplit};

use super::gpu::Gpu;
use crate::error::{Outcome, fail};
use crate::handles::Table;

/// Most steps of all ways together: the device makes a green context for each,
/// in memory that no limit counts.
const MOST: usize = 256;

/// A green context.
#[derive(Debug)]
struct Green {
    id: GreenId,
    /// Those that the device made for it.
    made: usize,
}

/// The green contexts of a session.
#[derive(Debug)]
pub(crate) struct Greens {
    table: Table<Green>,
    /// Those that the device made for all.
    made: usize,
}

impl Greens {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new("green context"),
            made: 0,
        }
    }

    /// The device's name of it.
    pub(crate) fn id(&self, green: GreenHandle) -> Outcome<GreenId> {
        Ok(self.table.get(green.0)?.id)
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
        self.table.check_free(green.0)?;
        let more = way.len().max(1);
        if self.made + more > MOST {
            let why = format!("the session's green contexts have {MOST} steps");
            return fail(Status::OUT_OF_MEMORY, why);
        }
        let made = gpu.green_create(way, count).map_err(|mut error| {
            if error.detail.is_empty() {
                error.detail = format!("a green context of {count} multiprocessors");
            }
            error
        });
        let (id, resource) = made?;
        self.made += more;
        self.table.insert(green.0, Green { id, made: more });
        Ok(resource)
    }

    pub(crate) fn destroy(&mut self, gpu: &mut Gpu, green: GreenHandle) -> Outcome<()> {
        let ended = self.table.remove(green.0)?;
        self.made -= ended.made;
        Ok(gpu.green_destroy(ended.id)?)
    }
}
