//! Names and sentences of results (CUDA Driver API, Error Handling).

use std::ffi::c_char;

use paragpu_abi::{CUresult, driver_error_name, driver_error_string};
use paragpu_protocol::status::Status;

use super::put;

api! {
    /// The name of a result.
    early fn cuGetErrorName(error: CUresult, name: *mut *const c_char) {
        let found = driver_error_name(error);
        put(name, found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
        found.map(|_| ()).ok_or(Status::INVALID_VALUE)
    }

    /// What a result means.
    early fn cuGetErrorString(error: CUresult, text: *mut *const c_char) {
        let found = driver_error_string(error);
        put(text, found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
        found.map(|_| ()).ok_or(Status::INVALID_VALUE)
    }
}
