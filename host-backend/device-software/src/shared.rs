//! Shared memory that processes hand to each other: memfds that can neither grow nor shrink, so that nobody can take
//! the memory away under the other.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};

/// What no process can do to it any more.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// `size` bytes that read as zero.
///
/// # Errors
/// What the system says.
pub fn make(size: u64) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("paragpu-device", flags)?;
    ftruncate(&memory, size)?;
    fcntl_add_seals(&memory, SEALS)?;
    Ok(memory)
}

/// Refuses what another process sent if it is not such memory of `size` bytes.
///
/// # Errors
/// `InvalidData`, or what the system says of a descriptor that is no memfd.
pub fn check(memory: &OwnedFd, size: u64) -> Result<()> {
    if !fcntl_get_seals(memory)?.contains(SEALS) {
        return Err(Error::new(ErrorKind::InvalidData, "it is not sealed"));
    }
    let there = fstat(memory)?.st_size;
    if u64::try_from(there) != Ok(size) {
        return Err(Error::new(
            ErrorKind::InvalidData,
            format!("it is {there} bytes"),
        ));
    }
    Ok(())
}
