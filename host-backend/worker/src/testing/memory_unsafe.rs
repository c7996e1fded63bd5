//! Registered host memory, as a device accesses it.
#![allow(unsafe_code)]

/// Reads registered memory.
pub(crate) fn read(address: u64, bytes: &mut [u8]) {
    // SAFETY: the device checked that the range is registered, and its owner keeps it
    // mapped until it is unregistered.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) }
}

/// Writes registered memory.
pub(crate) fn write(address: u64, bytes: &[u8]) {
    // SAFETY: as in read.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
}
