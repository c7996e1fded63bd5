//! Shared memory that processes hand to each other: memfds that can neither grow nor shrink, so that nobody can take
//! the memory away under the other.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::pread;

/// The seals.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// `size` bytes that read as zero.
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

/// Such memory of another GPU, of which this process only reads.
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

    /// Whether these bytes are all of it.
    #[must_use]
    pub fn holds(&self, offset: u64, size: u64) -> bool {
        offset.checked_add(size).is_some_and(|end| end <= self.size)
    }

    /// Fills `out` with what it holds from `offset` on.
    ///
    /// # Errors
    /// Errors of the operating system; `UnexpectedEof` past its end.
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
