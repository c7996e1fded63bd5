//! Green contexts, and the parts of a device from which they are created.
//!
//! A CUdevResource is memory of the program. It contains the name of a part that is
//! stored here. Equal parts have the same name and equal descriptions, because CUDA has
//! no function that destroys them.

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::sync::{Arc, LazyLock};

use paragpu_client::Result;
use paragpu_client::green::Green;
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::SmSplit;
use parking_lot::Mutex;

use super::{Object, as_handle, context::Context};

/// The member of a split for the remaining multiprocessors.
pub const REMAINING: u8 = 255;

/// A green context.
#[derive(Debug)]
pub struct GreenContext {
    /// The host's green context.
    pub green: Arc<Green>,
    /// The primary context with its resources.
    pub context: Arc<Context>,
    /// The primary context.
    pub primary: Arc<Context>,
    /// The encoded steps to its resource.
    pub way: Vec<u8>,
}

/// A split, and one of the resources that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Member {
    /// Requested groups.
    pub groups: u32,
    /// CUdevSmResourceSplit_flags.
    pub flags: u32,
    /// Minimum number of multiprocessors of a group.
    pub least: u32,
    /// The number of a group, or [`REMAINING`].
    pub number: u8,
}

/// Multiprocessors of a device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Part {
    /// The device.
    pub ordinal: u32,
    /// Handle of the green context that has them, or whose resource was split; 0 for the
    /// whole device.
    pub green: u64,
    /// The encoded steps to the green context or the split resource.
    pub way: Vec<u8>,
    /// Their position in a split.
    pub member: Option<Member>,
    /// Their number, the minimum of a part, and the required multiple.
    pub numbers: [u32; 3],
}

/// The resources from which a green context can be created.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Description {
    /// The device.
    pub ordinal: u32,
    /// The encoded steps.
    pub way: Vec<u8>,
    /// The number of multiprocessors.
    pub count: u32,
}

static PARTS: LazyLock<Mutex<HashMap<Part, u64>>> = LazyLock::new(Mutex::default);
static DESCRIPTIONS: LazyLock<Mutex<HashMap<Description, u64>>> = LazyLock::new(Mutex::default);

fn name<T: Clone + Eq + std::hash::Hash>(
    names: &Mutex<HashMap<T, u64>>,
    of: T,
    object: impl FnOnce(Arc<T>) -> Object,
) -> u64 {
    let mut names = names.lock();
    if let Some(name) = names.get(&of) {
        return *name;
    }
    let name = super::insert(object(Arc::new(of.clone()))) as u64;
    names.insert(of, name);
    name
}

impl Part {
    /// Its name.
    pub fn name(self) -> u64 {
        name(&PARTS, self, Object::Part)
    }
}

impl Description {
    /// Its handle.
    pub fn handle(self) -> *mut c_void {
        as_handle(name(&DESCRIPTIONS, self, Object::Description))
    }

    /// The description of a part that is not from a split, or of several parts of one
    /// split.
    ///
    /// # Errors
    /// `INVALID_RESOURCE_CONFIGURATION` for other parts.
    pub fn of(parts: &[Arc<Part>]) -> Result<Self> {
        let (first, others) = parts.split_first().ok_or(Status::INVALID_VALUE)?;
        let mut description = Self {
            ordinal: first.ordinal,
            way: first.way.clone(),
            count: 0,
        };
        let Some(split) = first.member else {
            if !others.is_empty() {
                return Err(Status::INVALID_RESOURCE_CONFIGURATION);
            }
            description.count = first.numbers[0];
            return Ok(description);
        };
        let mut numbers = BTreeSet::new();
        let mut members = [0; 32];
        for part in parts {
            let same =
                (part.ordinal, part.green, &part.way) == (first.ordinal, first.green, &first.way);
            let member = part.member.filter(|member| {
                same && *member
                    == Member {
                        number: member.number,
                        ..split
                    }
            });
            let number = member.ok_or(Status::INVALID_RESOURCE_CONFIGURATION)?.number;
            if !numbers.insert(number) {
                return Err(Status::INVALID_RESOURCE_CONFIGURATION);
            }
            if let Some(byte) = members.get_mut(usize::from(number / 8)) {
                *byte |= 1 << (number % 8);
            }
            description.count += part.numbers[0];
        }
        let step = SmSplit {
            groups: split.groups,
            flags: split.flags,
            least: split.least,
            members,
        };
        description.way.extend(encode_all(&step));
        Ok(description)
    }
}

/// Removes the parts of a destroyed green context.
pub fn forget_parts(green: u64) {
    PARTS.lock().retain(|part, name| {
        if part.green != green {
            return true;
        }
        super::remove(as_handle(*name), |_| true);
        false
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(groups: u32, number: Option<u8>) -> Arc<Part> {
        Arc::new(Part {
            ordinal: 0,
            green: 0,
            way: Vec::new(),
            member: number.map(|number| Member {
                groups,
                flags: 0,
                least: 4,
                number,
            }),
            numbers: [4, 1, 1],
        })
    }

    #[test]
    fn a_description_is_of_one_split() {
        let two = Description::of(&[part(2, Some(0)), part(2, Some(REMAINING))]).unwrap();
        assert_eq!((two.count, two.way.len()), (8, 44));
        assert_eq!((two.way[12], two.way[43]), (1, 0x80));
        assert!(Description::of(&[part(0, None)]).unwrap().way.is_empty());
        for wrong in [
            vec![part(2, Some(0)), part(3, Some(1))],
            vec![part(2, Some(0)), part(2, Some(0))],
            vec![part(2, Some(0)), part(0, None)],
            vec![part(0, None), part(0, None)],
            vec![],
        ] {
            assert!(Description::of(&wrong).is_err());
        }
    }

    #[test]
    fn equal_parts_have_one_name() {
        let one = (*part(7, Some(3))).clone();
        assert_eq!(one.clone().name(), one.clone().name());
        let two = (*part(7, Some(4))).clone();
        assert_ne!(one.name(), two.name());
    }
}
