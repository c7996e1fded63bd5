//! The native part: driver calls that a device executes unchanged, as listed in the
//! description of the driver (`protocol/interface`).

use paragpu_protocol::status::Status;

use crate::{Error, EventId, FunctionId, ModuleId, Result};

/// The error for a function that a device does not implement.
fn refused<T>(function: &str) -> Result<T> {
    let why = format!("this device has no {function}");
    Err(Error::new(Status::NOT_SUPPORTED, why))
}

include!(concat!(env!("OUT_DIR"), "/native.rs"));
