//! Shared memory that processes hand over to each other: memfds that can neither grow nor
//! shrink, so that neither side can remove memory that the other has mapped.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::pread;

/// The required seals.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Creates `size` zeroed bytes.
///
/// # Errors
/// Errors of the operating system.
pub fn make(size: u64) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("paragpu-device", flags)?;
    ftruncate(&memory, size)?;
    fcntl_add_seals(&memory, SEALS)?;
    Ok(memory)
}

/// Shared memory of another GPU, which this process only reads.
#[derive(Debug)]
pub struct Peer {
    memory: OwnedFd,
    size: u64,
}

impl Peer {
    /// # Errors
    /// As [`check`].
    pub fn new(memory: OwnedFd, size: u64) -> Result<Self> {
        check(&memory, size)?;
        Ok(Self { memory, size })
    }

    /// Whether all of these bytes are inside.
    #[must_use]
    pub fn holds(&self, offset: u64, size: u64) -> bool {
        offset.checked_add(size).is_some_and(|end| end <= self.size)
    }

    /// Fills `out` with the bytes from `offset`.
    ///
    /// # Errors
    /// Errors of the operating system; `UnexpectedEof` at its end.
    pub fn read(&self, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            let read = pread(&self.memory, &mut *out, offset)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            offset += read as u64;
            out = out.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Checks that a descriptor from another process is such memory of `size` bytes.
///
/// # Errors
/// `InvalidData`, or the system's error for a descriptor that is not a memfd.
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
