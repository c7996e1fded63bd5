//! Events: none is forwarded, so a wait for one times out.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::boundary::Out;
use super::device;
use crate::code::{Code, Result};
use crate::types::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};

/// The handles of existing event sets.
static SETS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn check_set(set: nvmlEventSet_t) -> Result {
    let known = SETS.lock().contains(&(set as usize));
    known.then_some(()).ok_or(Code::INVALID_ARGUMENT)
}

pub(crate) fn nvmlEventSetCreate(set: Out<'_, nvmlEventSet_t>) -> Result {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let set = set.present()?;
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    SETS.lock().insert(handle);
    set.put(std::ptr::without_provenance_mut(handle))
}

pub(crate) fn nvmlEventSetFree(set: nvmlEventSet_t) -> Result {
    let was = SETS.lock().remove(&(set as usize));
    was.then_some(()).ok_or(Code::INVALID_ARGUMENT)
}

pub(crate) fn nvmlDeviceGetSupportedEventTypes(
    handle: nvmlDevice_t,
    types: Out<'_, c_ulonglong>,
) -> Result {
    device(handle)?;
    types.put(0)
}

pub(crate) fn nvmlDeviceRegisterEvents(
    handle: nvmlDevice_t,
    types: c_ulonglong,
    set: nvmlEventSet_t,
) -> Result {
    device(handle)?;
    check_set(set)?;
    match types {
        0 => Ok(()),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

pub(crate) fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: Out<'_, nvmlEventData_t>,
    milliseconds: c_uint,
) -> Result {
    check_set(set)?;
    data.present()?;
    std::thread::sleep(Duration::from_millis(milliseconds.into()));
    Err(Code::TIMEOUT)
}
