//! Keeps the library's descriptors off the numbers of the standard streams.

use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};

/// The highest number of a standard stream.
const LAST: i32 = 2;

/// Placeholders for standard streams that the program has closed. While they exist, new
/// descriptors have higher numbers: what the program prints must not go into a connection.
#[derive(Debug)]
pub(crate) struct StandardStreams {
    _held: Vec<OwnedFd>,
}

impl StandardStreams {
    /// Holds the numbers that are free. Without descriptors to spare it holds none.
    pub(crate) fn hold() -> Self {
        // What other threads print meanwhile goes nowhere, as the kernel would have it fail.
        let new = || memfd_create(c"paragpu-placeholder", MemfdFlags::CLOEXEC).ok();
        let low = |file: &OwnedFd| file.as_raw_fd() <= LAST;
        Self {
            _held: std::iter::from_fn(new).take_while(low).collect(),
        }
    }
}
