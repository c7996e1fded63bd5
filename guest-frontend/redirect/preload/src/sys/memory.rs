//! Access to this process's objects, and allocation of pages.

use core::ptr;

use paragpu_redirect::image::Raw;

/// The objects that the loader mapped. Positions are addresses.
pub struct Process;

impl Raw for Process {
    fn read(&self, position: u64, into: &mut [u8]) -> bool {
        let Ok(address) = usize::try_from(position) else {
            return false;
        };
        // SAFETY: `Image` reads program headers, which the loader passes us, and file-backed
        // bytes of loaded segments. The loader keeps them mapped while it lists objects.
        unsafe { ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
        true
    }
}

/// Allocates zeroed pages; null if there is no memory.
pub fn pages(length: usize) -> *mut u8 {
    // SAFETY: a new mapping affects nothing that exists.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        ptr::null_mut()
    } else {
        address.cast()
    }
}

/// Frees pages.
///
/// # Safety
/// They came from [`pages`] or [`File::open`], with this length, and are no longer used.
pub unsafe fn release(address: *mut u8, length: usize) {
    // SAFETY: the caller upholds this.
    unsafe { libc::munmap(address.cast(), length) };
}

/// A file that is mapped read-only until it is released.
#[derive(Clone, Copy)]
pub struct File {
    address: *const u8,
    length: usize,
}

impl File {
    /// Maps a file; `path` ends with a zero.
    pub fn open(path: &[u8]) -> Option<Self> {
        if path.last() != Some(&0) {
            return None;
        }
        // SAFETY: the path is a C string; the descriptor is closed once.
        unsafe {
            let file = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
            if file < 0 {
                return None;
            }
            let mut status: libc::stat = core::mem::zeroed();
            let length = match libc::fstat(file, &mut status) {
                0 => usize::try_from(status.st_size).unwrap_or(0),
                _ => 0,
            };
            let mapped = if length == 0 {
                libc::MAP_FAILED
            } else {
                libc::mmap(
                    ptr::null_mut(),
                    length,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE,
                    file,
                    0,
                )
            };
            libc::close(file);
            (mapped != libc::MAP_FAILED).then_some(Self {
                address: mapped.cast_const().cast(),
                length,
            })
        }
    }

    /// A pointer to the bytes at an offset.
    pub fn place(&self, offset: u64) -> *const u8 {
        self.address
            .wrapping_add(usize::try_from(offset).unwrap_or(0).min(self.length))
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// Its bytes are no longer used.
    pub unsafe fn release(self) {
        // SAFETY: the caller upholds this.
        unsafe { release(self.address.cast_mut(), self.length) };
    }
}

impl Raw for File {
    fn read(&self, position: u64, into: &mut [u8]) -> bool {
        let inside = usize::try_from(position).ok().filter(|&start| {
            start
                .checked_add(into.len())
                .is_some_and(|end| end <= self.length)
        });
        let Some(start) = inside else {
            return false;
        };
        // SAFETY: the range lies in the mapping.
        unsafe {
            ptr::copy_nonoverlapping(self.address.add(start), into.as_mut_ptr(), into.len());
        }
        true
    }
}
