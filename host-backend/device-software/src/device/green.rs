//! Green contexts. Kernels still run on any thread: a part has the requested size, but
//! limits nothing.

use super::{SoftwareDevice, handle};
use crate::error::invalid;
use paragpu_abi::{
    CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
    CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE,
};
use paragpu_device::green::{REMAINING, check_count, members};
use paragpu_device::{GreenDevice, GreenId, Result, StreamDevice, StreamId};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{SmGroups, SmResource, SmSplit};

/// The accepted flags of a split.
const FLAGS: u32 = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING
    | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;

/// A resource of this many threads. Each thread can be a part.
fn resource(count: u32) -> SmResource {
    SmResource {
        count,
        least: u32::from(count > 0),
        alignment: u32::from(count > 0),
    }
}

fn split(count: u32, groups: u32, flags: u32, least: u32) -> Result<SmGroups> {
    if flags & !FLAGS != 0 {
        return Err(invalid("flags of a split"));
    }
    if least > count {
        return Err(invalid("a group of more multiprocessors than there are"));
    }
    let size = least.max(1);
    let most = count / size;
    let made = if groups == 0 { most } else { groups.min(most) };
    Ok(SmGroups {
        groups: made,
        group: resource(if made == 0 { 0 } else { size }),
        remaining: resource(count - made * size),
    })
}

/// The number of threads after a split of `count` threads.
fn step(count: u32, step: &SmSplit) -> Result<u32> {
    let parts = split(count, step.groups.max(1), step.flags, step.least)?;
    let mut taken = 0;
    for member in members(step) {
        taken += match member {
            REMAINING => parts.remaining.count,
            group if group < parts.groups as usize => parts.group.count,
            _ => return Err(Status::INVALID_RESOURCE_CONFIGURATION.into()),
        };
    }
    match taken {
        0 => Err(Status::INVALID_RESOURCE_CONFIGURATION.into()),
        taken => Ok(taken),
    }
}

impl GreenDevice for SoftwareDevice {
    fn sm_resource(&mut self) -> Result<SmResource> {
        self.scheduler.check()?;
        Ok(resource(self.cores()))
    }

    fn sm_split(
        &mut self,
        of: Option<GreenId>,
        groups: u32,
        flags: u32,
        least: u32,
    ) -> Result<SmGroups> {
        self.scheduler.check()?;
        let count = match of {
            Some(green) => *handle(self.greens.get(&green.0))?,
            None => self.cores(),
        };
        split(count, groups, flags, least)
    }

    fn green_create(&mut self, way: &[SmSplit], count: u32) -> Result<(GreenId, SmResource)> {
        self.scheduler.check()?;
        let found = resource(way.iter().try_fold(self.cores(), step)?);
        check_count(found, count)?;
        let id = self.id();
        self.greens.insert(id, found.count);
        Ok((GreenId(id), found))
    }

    fn green_destroy(&mut self, green: GreenId) -> Result<()> {
        self.scheduler.check()?;
        handle(self.greens.remove(&green.0)).map(drop)
    }

    fn green_stream_create(&mut self, green: GreenId, priority: i32) -> Result<StreamId> {
        handle(self.greens.get(&green.0))?;
        self.stream_create(super::STREAM_NON_BLOCKING, priority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_of(groups: u32, least: u32, members: &[usize]) -> SmSplit {
        let mut bits = [0; 32];
        for member in members {
            bits[member / 8] |= 1 << (member % 8);
        }
        SmSplit {
            groups,
            flags: 0,
            least,
            members: bits,
        }
    }

    #[test]
    fn a_split_leaves_the_rest() {
        let parts = split(10, 2, 0, 4).unwrap();
        assert_eq!((parts.groups, parts.group.count), (2, 4));
        assert_eq!(parts.remaining.count, 2);
        assert_eq!(split(10, 0, 0, 3).unwrap().groups, 3);
        assert_eq!(split(10, 9, 0, 0).unwrap().remaining.count, 1);
        assert!(split(10, 1, 0, 11).is_err());
        assert!(split(10, 1, 4, 1).is_err());
    }

    #[test]
    fn steps_take_members_together() {
        assert_eq!(step(10, &first_of(2, 4, &[0, 1])).unwrap(), 8);
        assert_eq!(step(10, &first_of(2, 4, &[1, REMAINING])).unwrap(), 6);
        assert!(step(10, &first_of(2, 4, &[2])).is_err());
        assert!(step(10, &first_of(2, 4, &[])).is_err());
        assert!(step(8, &first_of(2, 4, &[REMAINING])).is_err());
    }
}
