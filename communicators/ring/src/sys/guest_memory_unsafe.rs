//! Maps a file of a VM's memory to copy from and to it.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use paragpu_communicator::Error;

use crate::sys::mapping_unsafe::Mapping;

/// A whole file of guest memory. It cannot shrink, because its seals were checked.
#[derive(Debug)]
pub(crate) struct Ram {
    mapping: Mapping,
}

impl Ram {
    /// Maps `length` bytes of `file`.
    pub(crate) fn new(file: BorrowedFd<'_>, length: u64) -> Result<Self, Error> {
        let mapping = Mapping::new(file, 0, length, None)?;
        Ok(Self { mapping })
    }

    fn place(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length as u64)?;
        // SAFETY: offset <= end <= the mapping's length.
        (end <= self.mapping.len())
            .then(|| unsafe { self.mapping.base().as_ptr().add(offset as usize) })
    }

    /// Fills `to` from `offset`. Returns false if the range is outside the file.
    #[must_use]
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        let Some(from) = self.place(offset, to.len()) else {
            return false;
        };
        // SAFETY: `place` checked the range. If the guest writes at the same time, the copy
        // may be torn; the bytes are never interpreted.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        true
    }

    /// Writes `from` at `offset`. Returns false if the range is outside the file.
    #[must_use]
    pub(crate) fn write(&self, offset: u64, from: &[u8]) -> bool {
        let Some(to) = self.place(offset, from.len()) else {
            return false;
        };
        // SAFETY: as in read.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        true
    }
}
