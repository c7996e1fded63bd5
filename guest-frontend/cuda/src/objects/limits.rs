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

/// The limits of new contexts, by device and number, of those that were asked for: libraries
/// ask before each launch of some kernels.
static INITIAL: Mutex<BTreeMap<(u32, u32), u64>> = Mutex::new(BTreeMap::new());

/// Held while a limit changes: the host has the largest of those that contexts report.
static CHANGING: Mutex<()> = Mutex::new(());

/// The value of a context's limit.
///
/// # Errors
/// Errors of the host, which knows the limits.
pub fn get(context: &Context, limit: u32) -> Result<u64> {
    context.usable()?;
    if let Some(own) = context.limits.lock().get(&limit) {
        return Ok(*own);
    }
    initial(context, limit)
}

/// The limit of new contexts of the device. The host is asked before one is set, and once.
fn initial(context: &Context, limit: u32) -> Result<u64> {
    let key = (context.ordinal, limit);
    let known = INITIAL.lock().get(&key).copied();
    match known {
        Some(known) => Ok(known),
        None => {
            let value = context.session.call(&CtxGetLimit { limit })?;
            // Another thread may have asked before it set one.
            Ok(*INITIAL.lock().entry(key).or_insert(value))
        }
    }
}

/// Changes it.
///
/// # Errors
/// Errors of the host.
pub fn set(context: &Context, limit: u32, value: u64) -> Result {
    context.usable()?;
    let _changing = CHANGING.lock();
    let mut largest = value;
    // The host refuses limits that it does not know when one is set, too.
    if let Ok(initial) = initial(context, limit) {
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
