//! Memory of this process: to read objects from, and of our own.

use core::ptr;

use paragpu_redirect::image::Raw;

/// Objects that the loader mapped. Positions are addresses.
pub struct Process;

impl Raw for Process {
    fn read(&self, position: u64, into: &mut [u8]) -> bool {
        let Ok(address) = usize::try_from(position) else {
            return false;
        };
        // SAFETY: `Image` asks for program headers, which the loader shows us,
        // and for bytes of loaded segments that the file backs. The loader
        // holds them mapped while it lists objects.
        unsafe { ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
        true
    }
}

/// Fresh pages, zeroed; null if there are none.
pub fn pages(length: usize) -> *mut u8 {
    // SAFETY: a new mapping touches nothing that exists.
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

/// Gives pages back.
///
/// # Safety
/// They came from [`pages`] or [`File::open`], with this length, and nobody
/// uses them any more.
pub unsafe fn release(address: *mut u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(address.cast(), length) };
}

/// A file, mapped to be read. It stays mapped until it is released.
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

    /// Where the bytes from an offset on are.
    pub fn place(&self, offset: u64) -> *const u8 {
        self.address
            .wrapping_add(usize::try_from(offset).unwrap_or(0).min(self.length))
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// Nobody uses what it holds any more.
    pub unsafe fn release(self) {
        // SAFETY: the caller's promise.
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
