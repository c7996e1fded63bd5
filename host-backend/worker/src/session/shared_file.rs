//! Pages of files that guest and worker both map: host memory that needs no copy.
//!
//! The guest passes the descriptor, so the file may be of any kind, and its owner may
//! truncate it at any time. Only files in memory (tmpfs, memfd) are mapped: a page fault
//! in a FUSE or network file waits for a server, which may be the guest's, and so do
//! fstat(2) and fstatfs(2). Whether a file has seals is known without its server, and only
//! files in memory have them. Pages that a file loses are replaced by pages of zeros
//! ([`crate::sys::lost_pages`]).

use std::os::fd::AsFd;

use paragpu_protocol::status::Status;
use rustix::fs::{FileType, fcntl_get_seals, fstat, fstatfs};

use super::host_account::Charge;
use super::shadow::PAGE;
use crate::error::{Outcome, fail};
use crate::sys::mapping::FilePages;

/// TMPFS_MAGIC of linux/magic.h.
const TMPFS: u64 = 0x0102_1994;

/// A range of a file, mapped for the device.
#[derive(Debug)]
pub(super) struct SharedFile {
    pages: FilePages,
    /// Charged as if the session had allocated the pages, because it keeps them in
    /// memory.
    _held: Charge,
}

impl SharedFile {
    /// Maps `size` bytes of `file` from `offset` at exactly `address`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is not a range of pages of a regular file, `OUT_OF_MEMORY`
    /// if the system refuses.
    pub(super) fn map(
        address: u64,
        size: u64,
        file: impl AsFd,
        offset: u64,
        held: Charge,
    ) -> Outcome<Self> {
        const WHICH: &str = "only regular files in memory are shared";
        // First: with seals it is of tmpfs or hugetlbfs, which have no server.
        if fcntl_get_seals(&file).is_err() {
            return fail(Status::INVALID_VALUE, WHICH);
        }
        let status = match fstat(&file) {
            Ok(status) => status,
            Err(errno) => {
                let why = format!("the file cannot be inspected: {errno}");
                return fail(Status::INVALID_VALUE, why);
            }
        };
        let in_memory =
            fstatfs(&file).is_ok_and(|system| u64::try_from(system.f_type) == Ok(TMPFS));
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile || !in_memory {
            return fail(Status::INVALID_VALUE, WHICH);
        }
        let length = u64::try_from(status.st_size).unwrap_or(0);
        let length = length.checked_next_multiple_of(PAGE).unwrap_or(0);
        let end = offset.checked_add(size);
        if !offset.is_multiple_of(PAGE) || end.is_none_or(|end| end > length) {
            return fail(
                Status::INVALID_VALUE,
                format!("{size} bytes at {offset:#x} are not pages of the file"),
            );
        }
        match FilePages::at(address, size, file, offset) {
            Ok(pages) => Ok(Self { pages, _held: held }),
            Err(errno) => fail(
                Status::OUT_OF_MEMORY,
                format!("the file cannot be mapped at {address:#x}: {errno}"),
            ),
        }
    }

    /// The address after its last byte.
    pub(super) fn end(&self) -> u64 {
        self.pages.end()
    }
}
