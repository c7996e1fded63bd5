//! Limits of contexts (CUDA Driver API, cuCtxSetLimit).
//!
//! All contexts of a device share one context of the host. Its limits are the largest of
//! theirs, and each reports its own.

use std::collections::BTreeMap;

use paragpu_protocol::table::{CtxGetLimit, CtxSetLimit};
use parking_lot::Mutex;

use super::context::Context;
use super::{Object, for_each};
use crate::sys::Result;

/// The limits of new contexts, by device and number, of those that were set.
static INITIAL: Mutex<BTreeMap<(u32, u32), u64>> = Mutex::new(BTreeMap::new());

/// The value of a context's limit.
///
/// # Errors
/// Errors of the host, which knows the limits.
pub fn get(context: &Context, limit: u32) -> Result<u64> {
    context.usable()?;
    if let Some(own) = context.limits.lock().get(&limit) {
        return Ok(*own);
    }
    let initial = INITIAL.lock().get(&(context.ordinal, limit)).copied();
    initial.map_or_else(|| context.session.call(&CtxGetLimit { limit }), Ok)
}

/// Changes it.
///
/// # Errors
/// Errors of the host.
pub fn set(context: &Context, limit: u32, value: u64) -> Result {
    let before = get(context, limit);
    let mut largest = value;
    if let Ok(before) = before {
        let initial = *INITIAL
            .lock()
            .entry((context.ordinal, limit))
            .or_insert(before);
        for_each(|object| {
            if let Object::Context(other) = object
                && other.ordinal == context.ordinal
                && other.name != context.name
                && other.is_alive()
            {
                let own = other.limits.lock().get(&limit).copied();
                largest = largest.max(own.unwrap_or(initial));
            }
        });
    }
    context.session.call(&CtxSetLimit {
        limit,
        value: largest,
    })?;
    // The host may have rounded it.
    let own = match largest == value {
        true => context.session.call(&CtxGetLimit { limit })?,
        false => value,
    };
    context.limits.lock().insert(limit, own);
    Ok(())
}
