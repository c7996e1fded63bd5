//! The log of errors (CUDA Driver API, Error Log Management).

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::sync::Arc;

use paragpu_abi::{CU_LOG_LEVEL_ERROR, CUlogIterator, CUlogsCallback, CUlogsCallbackHandle};
use paragpu_protocol::status::Status;

use super::Result;
use super::boundary::{Out, Text};
use crate::log;

/// A callback of the program.
struct Callback {
    function: unsafe extern "C" fn(*mut c_void, c_int, *mut c_char, usize),
    data: *mut c_void,
}
// SAFETY: the program registered it for messages of all threads.
unsafe impl Send for Callback {}
// SAFETY: as above; it is immutable.
unsafe impl Sync for Callback {}

impl Callback {
    fn call(&self, message: &str) {
        let Ok(text) = CString::new(message) else {
            return;
        };
        let text = text.into_raw();
        // SAFETY: the program registered the function for such calls. The text ends with
        // a zero after `length` bytes, and is freed after the call.
        unsafe {
            (self.function)(self.data, CU_LOG_LEVEL_ERROR, text, message.len());
            drop(CString::from_raw(text));
        }
    }
}

fn none(flags: c_uint) -> Result {
    if flags == 0 {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

pub(crate) unsafe fn cuLogsRegisterCallback(
    callback: CUlogsCallback,
    data: *mut c_void,
    handle: Out<'_, CUlogsCallbackHandle>,
) -> Result {
    let function = callback.ok_or(Status::INVALID_VALUE)?;
    let callback = Callback { function, data };
    let number = log::listen(Arc::new(move |message| callback.call(message)));
    handle.put_if(std::ptr::without_provenance_mut(number));
    Ok(())
}

pub(crate) fn cuLogsUnregisterCallback(handle: CUlogsCallbackHandle) -> Result {
    if log::end(handle.addr()) {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

pub(crate) fn cuLogsCurrent(iterator: Out<'_, CUlogIterator>, _flags: c_uint) -> Result {
    // NVIDIA's driver ignores the flags here.
    iterator.put(log::with(log::Messages::next))
}

/// The messages since the iterator, if they fit in `room` bytes; the iterator then advances
/// to the end.
///
/// # Safety
/// `iterator` is null or readable and writable.
unsafe fn take(iterator: *mut CUlogIterator, room: usize) -> Option<String> {
    log::with(|messages| {
        // SAFETY: the pointer is null or readable, as the caller promises.
        let from = unsafe { iterator.as_ref() }.copied();
        let text = messages.since(from, room)?;
        // SAFETY: the pointer is null or writable, as the caller promises.
        if let Some(iterator) = unsafe { iterator.as_mut() } {
            *iterator = messages.next();
        }
        Some(text)
    })
}

pub(crate) unsafe fn cuLogsDumpToFile(
    iterator: *mut CUlogIterator,
    path: Text<'_>,
    flags: c_uint,
) -> Result {
    none(flags)?;
    let mut options = std::fs::OpenOptions::new();
    // SAFETY: the caller upholds the contract of `take`.
    let text = unsafe { take(iterator, usize::MAX) }.ok_or(Status::INVALID_VALUE)?;
    let file = options.append(true).create(true).open(path.get()?);
    let mut file = file.map_err(|_| Status::INVALID_VALUE)?;
    file.write_all(text.as_bytes())
        .map_err(|_| Status::INVALID_VALUE)
}

pub(crate) unsafe fn cuLogsDumpToMemory(
    iterator: *mut CUlogIterator,
    buffer: *mut c_char,
    size: *mut usize,
    flags: c_uint,
) -> Result {
    super::present(buffer)?;
    // SAFETY: the pointer is null or writable, as the caller promises.
    let size = unsafe { size.as_mut() }.ok_or(Status::INVALID_VALUE)?;
    // The size is 0 after an error.
    let given = std::mem::take(size);
    none(flags)?;
    // One byte is for the zero at the end.
    let room = given.checked_sub(1).ok_or(Status::INVALID_VALUE)?;
    // SAFETY: the caller upholds the contract of `take`.
    let text = unsafe { take(iterator, room) }.ok_or(Status::INVALID_VALUE)?;
    if text.is_empty() {
        return Ok(());
    }
    *size = text.len();
    // SAFETY: `buffer` holds `*size` bytes, as the caller promises, and `take` limited the
    // text to one less.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(())
}
