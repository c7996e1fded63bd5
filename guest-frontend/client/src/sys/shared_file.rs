//! Finds and opens the file behind a shared mapping of the program.

use std::fs::{File, OpenOptions};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use rustix::fs::OFlags;

use crate::maps::{self, Mapped};

/// Maximum number of descriptors of the process that are searched.
const MAX_DESCRIPTORS: usize = 4096;

/// Pages of a file that the program maps shared, readable and writable.
#[derive(Debug)]
pub(crate) struct SharedPages {
    /// The file, open for reading and writing.
    pub(crate) file: OwnedFd,
    /// The offset of the first page in it.
    pub(crate) offset: u64,
}

/// Opens the file that the program maps in a range of whole pages. `None` if the range is
/// not a contiguous shared, readable and writable mapping of one file, or if the file
/// cannot be opened.
pub(crate) fn find(address: u64, length: u64) -> Option<SharedPages> {
    let mappings = maps::overlapping(address, length)?;
    let first = mappings.first()?;
    let offset = first.offset_of(address);
    let one_file = mappings.iter().all(|mapped| {
        mapped.protection.starts_with("rw")
            && mapped.protection.ends_with('s')
            && mapped.is_same_file(first)
            && mapped.offset == offset.wrapping_add(mapped.from.wrapping_sub(address))
    });
    if first.inode == 0 || !one_file || !maps::cover(&mappings, address, length) {
        return None;
    }
    let file = by_mapping(first)
        .or_else(|| by_path(first))
        .or_else(|| by_descriptor(first))?;
    Some(SharedPages { file, offset })
}

/// Whether metadata is that of a mapping's file.
fn is_of(metadata: &std::fs::Metadata, mapped: &Mapped) -> bool {
    let device = (
        rustix::fs::major(metadata.dev()),
        rustix::fs::minor(metadata.dev()),
    );
    metadata.is_file() && (device, metadata.ino()) == (mapped.device, mapped.inode)
}

fn open(path: &str, mapped: &Mapped) -> Option<OwnedFd> {
    // Checked before opening, because opening a device or a FIFO can have side effects.
    if !is_of(&std::fs::metadata(path).ok()?, mapped) {
        return None;
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    is_of(&file.metadata().ok()?, mapped).then(|| file.into())
}

/// Opens the file through the mapping itself, which requires privileges. Also finds
/// unlinked files and anonymous shared memory.
fn by_mapping(mapped: &Mapped) -> Option<OwnedFd> {
    let path = format!("/proc/self/map_files/{:x}-{:x}", mapped.from, mapped.to);
    open(&path, mapped)
}

/// Opens the file by its name, if that still refers to it.
fn by_path(mapped: &Mapped) -> Option<OwnedFd> {
    mapped.name.starts_with('/').then_some(())?;
    open(&mapped.name, mapped)
}

/// Duplicates a descriptor that the program has open, such as that of a memfd.
fn by_descriptor(mapped: &Mapped) -> Option<OwnedFd> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?;
    open.take(MAX_DESCRIPTORS).find_map(|entry| {
        let entry = entry.ok()?;
        if !is_of(&std::fs::metadata(entry.path()).ok()?, mapped) {
            return None;
        }
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        // SAFETY: it was open just now. If another thread has closed it or reused its
        // number meanwhile, duplicating it fails or yields a file that is refused below.
        let copy = unsafe { BorrowedFd::borrow_raw(number) };
        let copy = copy.try_clone_to_owned().ok()?;
        let mode = rustix::fs::fcntl_getfl(&copy).ok()? & OFlags::RWMODE;
        let copy = File::from(copy);
        let same = is_of(&copy.metadata().ok()?, mapped);
        (same && mode == OFlags::RDWR).then(|| copy.into())
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};

    use super::*;
    use crate::sys::memory::PAGE;

    const LENGTH: usize = 8 * PAGE;

    fn map(file: impl AsFd, flags: MapFlags) -> u64 {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), LENGTH, protection, flags, file, 0) };
        base.unwrap() as u64
    }

    fn inode(file: impl AsFd) -> u64 {
        fstat(file).unwrap().st_ino
    }

    #[test]
    fn a_memfd_is_found_through_its_descriptor() {
        let file = memfd_create("shared", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LENGTH as u64).unwrap();
        let base = map(&file, MapFlags::SHARED);
        let page = PAGE as u64;
        let found = find(base + page, 2 * page).unwrap();
        assert_eq!(found.offset, page);
        assert_eq!(inode(&found.file), inode(&file));
        assert!(find(base + 7 * page, 2 * page).is_none(), "past its end");
        let private = map(&file, MapFlags::PRIVATE);
        assert!(find(private, page).is_none());
        // SAFETY: mapped above, and not used any more.
        unsafe {
            mprotect(base as *mut _, PAGE, MprotectFlags::READ).unwrap();
            assert!(find(base, page).is_none(), "it cannot be written");
            munmap(base as *mut _, LENGTH).unwrap();
            munmap(private as *mut _, LENGTH).unwrap();
        }
    }

    #[test]
    fn a_named_file_is_found_though_nobody_has_it_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a name with blanks");
        let file = File::create_new(&path).unwrap();
        file.set_len(LENGTH as u64).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let wanted = inode(&file);
        let base = map(&file, MapFlags::SHARED);
        drop(file);
        // Some file systems have other numbers for mappings than for files.
        if let Some(found) = find(base, LENGTH as u64) {
            assert_eq!(inode(&found.file), wanted);
        }
        // Another file with the same name is refused.
        std::fs::remove_file(&path).unwrap();
        File::create_new(&path)
            .unwrap()
            .set_len(LENGTH as u64)
            .unwrap();
        if let Some(found) = find(base, LENGTH as u64) {
            assert_eq!(inode(&found.file), wanted);
        }
        // SAFETY: mapped above, and not used any more.
        unsafe { munmap(base as *mut _, LENGTH).unwrap() };
    }
}
