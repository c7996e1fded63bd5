//! Names and sentences of results (CUDA Driver API, Error Handling).

use std::ffi::c_char;

use paragpu_abi::{CUresult, driver_error_name, driver_error_string};
use paragpu_protocol::status::Status;

use super::boundary::Out;

pub(crate) fn cuGetErrorName(error: CUresult, name: Out<'_, *const c_char>) -> super::Result {
    let found = driver_error_name(error);
    name.put(found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
    found.map(|_| ()).ok_or(Status::INVALID_VALUE)
}

pub(crate) fn cuGetErrorString(error: CUresult, text: Out<'_, *const c_char>) -> super::Result {
    let found = driver_error_string(error);
    text.put(found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
    found.map(|_| ()).ok_or(Status::INVALID_VALUE)
}
