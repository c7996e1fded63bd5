//! Green contexts: parts of the device's multiprocessors.

use paragpu_protocol::status::Status;
use paragpu_protocol::types::{SmGroups, SmResource, SmSplit};

use crate::{Error, GreenId, Result, StreamId};

/// The index of the remainder of a split.
pub const REMAINING: usize = 255;

/// The members of a split that a step selects, ascending.
pub fn members(step: &SmSplit) -> impl Iterator<Item = usize> + '_ {
    (0..=REMAINING).filter(|member| {
        let byte = step.members.get(member / 8).copied().unwrap_or(0);
        byte >> (member % 8) & 1 != 0
    })
}

/// Refuses a part with fewer multiprocessors than CUDA reported to the program.
///
/// # Errors
/// `INVALID_RESOURCE_CONFIGURATION`.
pub fn check_count(found: SmResource, count: u32) -> Result<()> {
    if found.count >= count {
        return Ok(());
    }
    let why = format!(
        "a green context has {count} multiprocessors, its part of this GPU would have {}",
        found.count
    );
    Err(Error::new(Status::INVALID_RESOURCE_CONFIGURATION, why))
}

fn refused<T>() -> Result<T> {
    let why = "this device has no green contexts";
    Err(Error::new(Status::NOT_SUPPORTED, why))
}

/// Green contexts of a device. A device without them refuses.
pub trait GreenDevice {
    /// cuDeviceGetDevResource.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`; errors of the driver.
    fn sm_resource(&mut self) -> Result<SmResource> {
        refused()
    }

    /// cuDevSmResourceSplitByCount of a green context's resource, or of the whole device's,
    /// into at most `groups` groups. With 0 groups, returns how many there would be.
    ///
    /// # Errors
    /// As [`sm_resource`](Self::sm_resource).
    fn sm_split(
        &mut self,
        _of: Option<GreenId>,
        _groups: u32,
        _flags: u32,
        _least: u32,
    ) -> Result<SmGroups> {
        refused()
    }

    /// cuGreenCtxCreate of the part at the end of the steps, which must have at least
    /// `count` multiprocessors.
    ///
    /// # Errors
    /// As [`sm_resource`](Self::sm_resource);
    /// `INVALID_RESOURCE_CONFIGURATION` if it has fewer.
    fn green_create(&mut self, _way: &[SmSplit], _count: u32) -> Result<(GreenId, SmResource)> {
        refused()
    }

    /// cuGreenCtxDestroy. Its streams and their work continue.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn green_destroy(&mut self, _green: GreenId) -> Result<()> {
        refused()
    }

    /// cuGreenCtxStreamCreate.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; errors of the driver.
    fn green_stream_create(&mut self, _green: GreenId, _priority: i32) -> Result<StreamId> {
        refused()
    }
}
