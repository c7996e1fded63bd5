//! Attributes of core dumps (CUDA Driver API, Coredump Attributes Control).

use std::ffi::{c_int, c_void};

use paragpu_protocol::status::Status;

use super::{Result, unsupported_use};
use crate::coredump::{Attributes, PATH, Value};
use crate::current;

/// Writes an attribute, or only its size if there is no buffer.
///
/// # Safety
/// `size` is null or contains the size of `out`, unless that is null.
unsafe fn give(value: &Value, out: *mut c_void, size: *mut usize) -> Result {
    // SAFETY: the pointer is null or writable, as the caller promises.
    let size = unsafe { size.as_mut() }.ok_or(Status::INVALID_VALUE)?;
    let bytes: Vec<u8> = match value {
        Value::Flag(flag) => vec![u8::from(*flag)],
        Value::Number(number) => number.to_le_bytes().to_vec(),
        Value::Path(path) => [path.as_bytes(), &[0]].concat(),
    };
    let needed = match value {
        Value::Path(_) => PATH,
        _ => bytes.len(),
    };
    if out.is_null() {
        *size = needed;
        return Ok(());
    }
    let fits = match value {
        Value::Path(_) => *size >= bytes.len(),
        // As natively.
        _ => *size == bytes.len(),
    };
    if !fits {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: `out` holds `*size` bytes, as the caller promises, and that is enough
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
    *size = bytes.len();
    Ok(())
}

/// Reads a value of the same kind as `kind`.
///
/// # Safety
/// `size` is null or contains the readable bytes at `from`.
unsafe fn read(kind: &Value, from: *const c_void, size: *const usize) -> Result<Value> {
    // SAFETY: the pointer is null or readable, as the caller promises.
    let size = *unsafe { size.as_ref() }.ok_or(Status::INVALID_VALUE)?;
    super::present(from)?;
    // SAFETY: `from` holds `size` bytes, as the caller promises
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size.min(PATH)) };
    match kind {
        Value::Flag(_) => match bytes {
            [flag] => Ok(Value::Flag(*flag != 0)),
            _ => Err(Status::INVALID_VALUE),
        },
        Value::Number(_) => match bytes.try_into() {
            Ok(bytes) => Ok(Value::Number(u32::from_le_bytes(bytes))),
            Err(_) => Err(Status::INVALID_VALUE),
        },
        Value::Path(_) => {
            let end = bytes.iter().position(|byte| *byte == 0);
            let text = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
            match std::str::from_utf8(text) {
                Ok(path) if size <= PATH && !path.is_empty() => Ok(Value::Path(path.to_owned())),
                _ => Err(Status::INVALID_VALUE),
            }
        }
    }
}

/// Changes an attribute.
///
/// # Safety
/// As for [`read`].
unsafe fn change(
    of: &mut Attributes,
    attribute: c_int,
    value: *const c_void,
    size: *const usize,
) -> Result {
    // SAFETY: the caller upholds the contract of `read`.
    let value = unsafe { read(&of.get(attribute)?, value, size) }?;
    match of.set(attribute, value) {
        Err(Status::NOT_SUPPORTED) => Err(unsupported_use!(
            "core dumps of a virtual GPU",
            "the host's driver would write them on the host"
        )),
        other => other,
    }
}

pub(crate) unsafe fn cuCoredumpGetAttribute(
    attribute: c_int,
    value: *mut c_void,
    size: *mut usize,
) -> Result {
    let found = current::current()?.coredump.lock().get(attribute)?;
    // SAFETY: the caller upholds the contract of `give`.
    unsafe { give(&found, value, size) }
}

pub(crate) unsafe fn cuCoredumpGetAttributeGlobal(
    attribute: c_int,
    value: *mut c_void,
    size: *mut usize,
) -> Result {
    let found = Attributes::with_global(|global| global.get(attribute))?;
    // SAFETY: the caller upholds the contract of `give`.
    unsafe { give(&found, value, size) }
}

pub(crate) unsafe fn cuCoredumpSetAttribute(
    attribute: c_int,
    value: *mut c_void,
    size: *mut usize,
) -> Result {
    let current = current::current()?;
    let mut of = current.coredump.lock();
    // SAFETY: the caller upholds the contract of `change`.
    unsafe { change(&mut of, attribute, value, size) }
}

pub(crate) unsafe fn cuCoredumpSetAttributeGlobal(
    attribute: c_int,
    value: *mut c_void,
    size: *mut usize,
) -> Result {
    // SAFETY: the caller upholds the contract of `change`.
    Attributes::with_global(|global| unsafe { change(global, attribute, value, size) })
}
