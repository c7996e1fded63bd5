//! Green contexts: each has eight multiprocessors, regardless of its splits.

use paragpu_device::green::check_count;
use paragpu_device::{GreenDevice, GreenId, Result, StreamDevice, StreamId};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{SmGroups, SmResource, SmSplit};

use super::TestDevice;

/// Multiprocessors of the device, and of each part.
const ALL: SmResource = SmResource {
    count: 8,
    least: 1,
    alignment: 1,
};

impl GreenDevice for TestDevice {
    fn sm_resource(&mut self) -> Result<SmResource> {
        self.enter("sm_resource").map(|_| ALL)
    }

    fn sm_split(&mut self, _: Option<GreenId>, groups: u32, _: u32, _: u32) -> Result<SmGroups> {
        drop(self.enter("sm_split")?);
        Ok(SmGroups {
            groups,
            group: ALL,
            remaining: ALL,
        })
    }

    fn green_create(&mut self, _: &[SmSplit], count: u32) -> Result<(GreenId, SmResource)> {
        let mut state = self.enter("green_create")?;
        check_count(ALL, count)?;
        let id = state.id();
        state.others.insert(id);
        Ok((GreenId(id), ALL))
    }

    fn green_destroy(&mut self, green: GreenId) -> Result<()> {
        let gone = self.enter("green_destroy")?.others.remove(&green.0);
        gone.then_some(()).ok_or(Status::INVALID_HANDLE.into())
    }

    fn green_stream_create(&mut self, green: GreenId, priority: i32) -> Result<StreamId> {
        let known = self.enter("green_stream_create")?.others.contains(&green.0);
        known.then_some(()).ok_or(Status::INVALID_HANDLE)?;
        self.stream_create(1, priority)
    }
}
