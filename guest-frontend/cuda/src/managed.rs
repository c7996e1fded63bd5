//! Managed memory: memory that program and device access at one address.
//!
//! Large allocations migrate between program and device ([`ManagedMemory`]). Others are
//! pinned memory of the session's window if there is one, otherwise a shadow, coherent at
//! launches and waits like any pinned memory. Advice and prefetches are hints. The host as
//! preferred location has an effect on memory that migrates; the rest only changes what
//! cuMemRangeGetAttribute reports.
//!
//! [`ManagedMemory`]: paragpu_client::managed_memory::ManagedMemory

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::RwLock;

use paragpu_protocol::status::Status;

use crate::sys::Result;

/// CUmemLocation: a kind and, for a device or NUMA node, its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// CUmemLocationType.
    pub kind: i32,
    /// Ordinal of the device, or the node.
    pub id: i32,
}

impl Location {
    /// No location was given, or ranges differ.
    pub const INVALID: Self = Self { kind: 0, id: 0 };
    const DEVICE: i32 = 1;
    const HOST: i32 = 2;
    const HOST_NUMA: i32 = 3;

    /// A device of the guest, by its ordinal.
    #[must_use]
    pub fn device(ordinal: i32) -> Self {
        Self {
            kind: Self::DEVICE,
            id: ordinal,
        }
    }

    /// The host.
    #[must_use]
    pub fn host() -> Self {
        Self {
            kind: Self::HOST,
            id: 0,
        }
    }

    /// A NUMA node of the host.
    #[must_use]
    pub fn node(number: i32) -> Self {
        Self {
            kind: Self::HOST_NUMA,
            id: number,
        }
    }

    /// Whether it is a device.
    #[must_use]
    pub fn is_device(self) -> bool {
        self.kind == Self::DEVICE
    }

    /// Whether it is the host or one of its nodes.
    #[must_use]
    pub fn is_host(self) -> bool {
        !self.is_device() && self.kind != Self::INVALID_KIND
    }

    /// In the form of attributes older than locations: the device, -1 for the host
    /// (CU_DEVICE_CPU), -2 for none (CU_DEVICE_INVALID).
    #[must_use]
    pub fn as_device(self) -> i32 {
        match self.kind {
            Self::DEVICE => self.id,
            Self::INVALID_KIND => -2,
            _ => -1,
        }
    }

    const INVALID_KIND: i32 = 0;
}

/// The program's advice about a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// CU_MEM_ADVISE_SET_READ_MOSTLY.
    pub read_mostly: bool,
    /// CU_MEM_ADVISE_SET_PREFERRED_LOCATION.
    pub preferred: Location,
    /// CU_MEM_ADVISE_SET_ACCESSED_BY, ascending.
    pub accessed_by: Vec<i32>,
    /// The location of the last prefetch.
    pub prefetched: Location,
}

impl Default for Advice {
    fn default() -> Self {
        Self {
            read_mostly: false,
            preferred: Location::INVALID,
            accessed_by: Vec::new(),
            prefetched: Location::INVALID,
        }
    }
}

/// An allocation: its size, and the advice from each of some addresses on.
#[derive(Debug)]
struct Allocation {
    size: u64,
    /// The device of a module variable, which is freed only with its module.
    variable_of: Option<u32>,
    advice: BTreeMap<u64, Advice>,
}

static ALLOCATIONS: RwLock<BTreeMap<u64, Allocation>> = RwLock::new(BTreeMap::new());

/// Records an allocation.
pub fn insert(address: u64, size: u64) {
    note(address, size, None, Location::INVALID);
}

/// Records an allocation of a pool that prefers a location.
pub fn insert_preferring(address: u64, size: u64, preferred: Location) {
    note(address, size, None, preferred);
}

/// Records a variable of a device's module, unless it is recorded already.
pub fn insert_variable(address: u64, size: u64, ordinal: u32) {
    note(address, size, Some(ordinal), Location::INVALID);
}

fn note(address: u64, size: u64, variable_of: Option<u32>, preferred: Location) {
    let advice = Advice {
        preferred,
        ..Advice::default()
    };
    let mut all = ALLOCATIONS.write();
    all.entry(address).or_insert_with(|| Allocation {
        size,
        variable_of,
        advice: BTreeMap::from([(address, advice)]),
    });
}

/// Removes the allocation that begins at an address. Returns false if there is none.
#[must_use]
pub fn remove(address: u64) -> bool {
    forget(address, None)
}

/// Removes the variable at an address, if it is a device's.
pub fn remove_variable(address: u64, ordinal: u32) {
    forget(address, Some(ordinal));
}

fn forget(address: u64, variable_of: Option<u32>) -> bool {
    let mut all = ALLOCATIONS.write();
    let known = all
        .get(&address)
        .is_some_and(|one| one.variable_of == variable_of);
    known && all.remove(&address).is_some()
}

/// The variable that contains an address: start, size and device.
#[must_use]
pub fn variable(address: u64) -> Option<(u64, u64, u32)> {
    let all = ALLOCATIONS.read();
    let (start, size) = find(&all, address)?;
    let ordinal = all.get(&start)?.variable_of?;
    Some((start, size, ordinal))
}

/// Whether an address is managed memory.
#[must_use]
pub fn contains(address: u64) -> bool {
    find(&ALLOCATIONS.read(), address).is_some()
}

/// Start and size of the allocation that contains an address.
#[must_use]
pub fn allocation(address: u64) -> Option<(u64, u64)> {
    find(&ALLOCATIONS.read(), address)
}

fn find(all: &BTreeMap<u64, Allocation>, address: u64) -> Option<(u64, u64)> {
    let (start, found) = all.range(..=address).next_back()?;
    (address - start < found.size).then_some((*start, found.size))
}

/// The range, if all of it is in one allocation, and the start of the allocation.
fn within(all: &BTreeMap<u64, Allocation>, address: u64, size: u64) -> Result<(u64, Range<u64>)> {
    let (start, length) = find(all, address).ok_or(Status::INVALID_VALUE)?;
    let end = address.checked_add(size).ok_or(Status::INVALID_VALUE)?;
    if size == 0 || end > start + length {
        return Err(Status::INVALID_VALUE);
    }
    Ok((start, address..end))
}

/// Changes the advice about a range.
///
/// # Errors
/// `INVALID_VALUE` for an empty range, or one that is not inside one allocation.
pub fn advise(address: u64, size: u64, change: impl Fn(&mut Advice)) -> Result {
    let mut all = ALLOCATIONS.write();
    let (start, range) = within(&all, address, size)?;
    let Some(found) = all.get_mut(&start) else {
        return Err(Status::INVALID_VALUE);
    };
    let end = start + found.size;
    for cut in [range.start, range.end] {
        let before = found.advice.range(..=cut).next_back();
        let before = before.map(|(_, advice)| advice.clone()).unwrap_or_default();
        if cut < end {
            found.advice.entry(cut).or_insert(before);
        }
    }
    for (_, advice) in found.advice.range_mut(range) {
        change(advice);
    }
    Ok(())
}

/// Checks a range without changing anything.
///
/// # Errors
/// As [`advise`].
pub fn check(address: u64, size: u64) -> Result {
    within(&ALLOCATIONS.read(), address, size).map(|_| ())
}

/// The property `read` of the advice about a range, if it is the same for every byte.
///
/// # Errors
/// As [`advise`].
pub fn uniform<T: PartialEq>(
    address: u64,
    size: u64,
    read: impl Fn(&Advice) -> T,
) -> Result<Option<T>> {
    let all = ALLOCATIONS.read();
    let (start, range) = within(&all, address, size)?;
    let found = all.get(&start).ok_or(Status::INVALID_VALUE)?;
    let first = found.advice.range(..=range.start).next_back();
    let later = found.advice.range(range);
    let mut values = first
        .into_iter()
        .chain(later)
        .map(|(_, advice)| read(advice));
    let Some(value) = values.next() else {
        return Ok(None);
    };
    Ok(values.all(|other| other == value).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses that no other test uses.
    const BASE: u64 = 0x7000_0000_0000;

    #[test]
    fn advice_holds_for_its_range_alone() {
        insert(BASE, 0x4000);
        advise(BASE + 0x1000, 0x1000, |advice| advice.read_mostly = true).unwrap();
        let read_mostly = |address, size| uniform(address, size, |advice| advice.read_mostly);
        assert_eq!(read_mostly(BASE, 0x1000), Ok(Some(false)));
        assert_eq!(read_mostly(BASE + 0x1000, 0x1000), Ok(Some(true)));
        assert_eq!(read_mostly(BASE + 0x1800, 1), Ok(Some(true)));
        assert_eq!(read_mostly(BASE + 0x2000, 0x2000), Ok(Some(false)));
        assert_eq!(read_mostly(BASE, 0x4000), Ok(None));
        assert!(remove(BASE));
        assert!(!remove(BASE));
        assert_eq!(read_mostly(BASE, 1), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn a_range_outside_is_refused() {
        let base = BASE + 0x1_0000;
        insert(base, 100);
        for (address, size) in [
            (base - 1, 1),
            (base, 0),
            (base, 101),
            (base + 100, 1),
            (base + 50, u64::MAX),
        ] {
            assert_eq!(check(address, size), Err(Status::INVALID_VALUE));
        }
        assert_eq!(check(base, 100), Ok(()));
        assert_eq!(allocation(base + 99), Some((base, 100)));
        assert!(remove(base));
    }
}
