//! Green contexts.

use super::{CudaDevice, OpenStream, find};
use crate::sys::{Context, Green, SmPart};
use paragpu_device::green::{REMAINING, check_count, members};
use paragpu_device::{GreenDevice, GreenId, Result, StreamId};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{SmGroups, SmResource, SmSplit};
use std::sync::Arc;

/// No multiprocessors.
const NONE: SmResource = SmResource {
    count: 0,
    least: 0,
    alignment: 0,
};

/// A green context. Its streams share it; it ends with the last of them.
pub(crate) struct OpenGreen {
    green: Green,
    /// The green contexts whose resources were split to create it.
    parents: Vec<Green>,
}

impl OpenGreen {
    fn destroy(self, context: &Context) -> Result<()> {
        context.green_destroy(self.green)?;
        let mut parents = self.parents.into_iter().rev();
        parents.try_for_each(|parent| context.green_destroy(parent))
    }
}

/// Destroys a green context if this was its last reference.
pub(super) fn release(context: &Context, green: Arc<OpenGreen>) -> Result<()> {
    match Arc::into_inner(green) {
        Some(green) => green.destroy(context),
        None => Ok(()),
    }
}

/// The parts of a resource that a step selects.
fn take(context: &Context, input: &SmPart, step: &SmSplit) -> Result<Vec<SmPart>> {
    let parts = context.split(input, step.groups.max(1), step.flags, step.least)?;
    let taken = members(step).map(|member| match member {
        REMAINING => Some(&parts.remaining),
        group => parts.groups.get(group),
    });
    let taken: Option<Vec<SmPart>> = taken.map(|part| part.cloned()).collect();
    match taken {
        Some(taken) if !taken.is_empty() => Ok(taken),
        _ => Err(Status::INVALID_RESOURCE_CONFIGURATION.into()),
    }
}

/// Creates the green context at the end of a list of splits. Only a green context's
/// resource can be split again, so each step but the last creates one.
fn make(context: &Context, way: &[SmSplit], parents: &mut Vec<Green>) -> Result<Green> {
    let mut resources = vec![context.device_resource()?];
    for (at, step) in way.iter().enumerate() {
        let input = if at == 0 {
            context.device_resource()?
        } else {
            let parent = context.green_create(&mut resources)?;
            let input = context.green_resource(&parent);
            parents.push(parent);
            input?
        };
        resources = take(context, &input, step)?;
    }
    context.green_create(&mut resources)
}

impl GreenDevice for CudaDevice {
    fn sm_resource(&mut self) -> Result<SmResource> {
        Ok(self.context.device_resource()?.multiprocessors())
    }

    fn sm_split(
        &mut self,
        of: Option<GreenId>,
        groups: u32,
        flags: u32,
        least: u32,
    ) -> Result<SmGroups> {
        let input = match of {
            Some(green) => {
                let open = find(&self.names.greens, green.0)?;
                self.context.green_resource(&open.green)?
            }
            None => self.context.device_resource()?,
        };
        let parts = self.context.split(&input, groups, flags, least)?;
        let group = parts.groups.first().map(SmPart::multiprocessors);
        Ok(SmGroups {
            groups: parts.count,
            group: group.unwrap_or(NONE),
            remaining: parts.remaining.multiprocessors(),
        })
    }

    fn green_create(&mut self, way: &[SmSplit], count: u32) -> Result<(GreenId, SmResource)> {
        let mut parents = Vec::new();
        let green = match make(&self.context, way, &mut parents) {
            Ok(green) => green,
            Err(error) => {
                for parent in parents.into_iter().rev() {
                    self.context.green_destroy(parent)?;
                }
                return Err(error);
            }
        };
        let open = OpenGreen { green, parents };
        let found = match self.context.green_resource(&open.green) {
            Ok(resource) => resource.multiprocessors(),
            Err(error) => {
                open.destroy(&self.context)?;
                return Err(error);
            }
        };
        if let Err(error) = check_count(found, count) {
            open.destroy(&self.context)?;
            return Err(error);
        }
        Ok((GreenId(self.names.greens.insert(Arc::new(open))?), found))
    }

    fn green_destroy(&mut self, green: GreenId) -> Result<()> {
        let open = self
            .names
            .greens
            .remove(green.0)
            .ok_or(Status::INVALID_HANDLE)?;
        release(&self.context, open)
    }

    fn green_stream_create(&mut self, green: GreenId, priority: i32) -> Result<StreamId> {
        let open = Arc::clone(find(&self.names.greens, green.0)?);
        let stream = self.context.green_stream_create(&open.green, priority)?;
        let opened = OpenStream {
            stream,
            blocking: false,
            green: Some(open),
        };
        Ok(StreamId(self.streams.insert(Arc::new(opened))?))
    }
}
