//! The guest's green contexts.

use paragpu_device::GreenId;
use paragpu_protocol::codec::Reader;
use paragpu_protocol::handle::GreenHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::GreenCreate;
use paragpu_protocol::types::{SmResource, SmSplit};

use super::gpu::Gpu;
use crate::error::{Outcome, fail};
use crate::handles::Table;

/// Maximum number of splits of all green contexts together. The device creates a green
/// context for each, in memory that no other limit covers.
const MAX_SPLITS: usize = 256;

/// Decodes the splits that lead from the whole device to a green context.
fn steps(way: &[u8]) -> Outcome<Vec<SmSplit>> {
    let mut reader = Reader::new(way);
    let mut steps = Vec::new();
    while reader.remaining() > 0 {
        let Ok(step) = reader.field() else {
            return fail(Status::INVALID_VALUE, "a step is truncated");
        };
        if steps.len() == GreenCreate::MAX_STEPS {
            return fail(
                Status::INVALID_VALUE,
                format!("more than {} steps", GreenCreate::MAX_STEPS),
            );
        }
        steps.push(step);
    }
    Ok(steps)
}

/// A green context.
#[derive(Debug)]
struct Green {
    id: GreenId,
    /// Green contexts that the device created for it.
    made: usize,
}

/// The green contexts of a session.
#[derive(Debug)]
pub(crate) struct Greens {
    table: Table<Green>,
    /// Green contexts that the device created in total.
    made: usize,
}

impl Greens {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new("green context"),
            made: 0,
        }
    }

    /// The device's identifier of it.
    pub(crate) fn id(&self, green: GreenHandle) -> Outcome<GreenId> {
        Ok(self.table.get(green.0)?.id)
    }

    pub(crate) fn green_create(
        &mut self,
        gpu: &mut Gpu,
        call: &GreenCreate<'_>,
    ) -> Outcome<SmResource> {
        let (green, count) = (call.green, call.count);
        let way = steps(call.way.0)?;
        if green == GreenHandle::default() {
            return fail(Status::INVALID_HANDLE, "0 is not a green context");
        }
        self.table.check_free(green.0)?;
        let more = way.len().max(1);
        if self.made + more > MAX_SPLITS {
            let why = format!("the session's green contexts have {MAX_SPLITS} steps");
            return fail(Status::OUT_OF_MEMORY, why);
        }
        let made = gpu.green_create(&way, count).map_err(|mut error| {
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
