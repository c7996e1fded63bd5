//! Options of a load or a link (CUjit_option) in the driver's format.

use core::ffi::{c_int, c_uint, c_void};
use std::ptr;

use paragpu_device::Result;
use paragpu_protocol::jit;
use paragpu_protocol::status::Status;

const INFO_LOG: c_int = 3;
const INFO_LOG_SIZE: c_int = 4;
const ERROR_LOG: c_int = 5;
const ERROR_LOG_SIZE: c_int = 6;

/// The options: numbers, and buffers for the log.
pub(super) struct Options {
    pub(super) names: Vec<c_int>,
    pub(super) values: Vec<*mut c_void>,
}

impl Options {
    /// Refuses options that are not numbers.
    pub(super) fn of(options: &[(u32, u32)]) -> Result<Self> {
        if jit::refused(options).is_some() {
            return Err(Status::INVALID_VALUE.into());
        }
        let name = |&(name, _): &(u32, u32)| name.cast_signed();
        // A number is passed in the place of a pointer.
        let value = |&(_, value): &(u32, u32)| ptr::without_provenance_mut(value as usize);
        Ok(Self {
            names: options.iter().map(name).collect(),
            values: options.iter().map(value).collect(),
        })
    }

    /// Has the driver write its log to these buffers, which must live as long as it may.
    pub(super) fn log_to(&mut self, information: &mut [u8], errors: &mut [u8]) {
        for (log, size, buffer) in [
            (INFO_LOG, INFO_LOG_SIZE, information),
            (ERROR_LOG, ERROR_LOG_SIZE, errors),
        ] {
            self.names.extend([log, size]);
            let length = ptr::without_provenance_mut(buffer.len());
            self.values.extend([buffer.as_mut_ptr().cast(), length]);
        }
    }

    pub(super) fn len(&self) -> c_uint {
        c_uint::try_from(self.names.len()).unwrap_or(c_uint::MAX)
    }
}
