//! A named page in /dev/shm that guest processes share. Its first word is used.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Bytes of the page.
const PAGE: usize = 4096;

/// A random number. It does not repeat in practice, across processes either.
#[must_use]
pub fn unique() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A mapping of a shared page.
#[derive(Debug)]
pub struct SharedPage {
    words: NonNull<AtomicU64>,
    name: u64,
    /// Whether to remove the file when this value is dropped.
    is_own: bool,
}

// SAFETY: it gives access to an atomic only.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

fn path(name: u64) -> PathBuf {
    PathBuf::from(format!("/dev/shm/paragpu-{name:016x}"))
}

/// Gives a new file its page. A page without memory would be SIGBUS where /dev/shm is full.
fn allocate(file: &File) -> std::io::Result<()> {
    // SAFETY: the call has no memory of ours.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, PAGE as libc::off_t) } {
        0 => Ok(()),
        errno => Err(std::io::Error::from_raw_os_error(errno)),
    }
}

impl SharedPage {
    /// Creates a page that only processes of this user can open.
    pub fn create() -> std::io::Result<Self> {
        let name = unique();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path(name))?;
        let page = allocate(&file).and_then(|()| Self::map(&file, name, true));
        if page.is_err() {
            let _ = std::fs::remove_file(path(name));
        }
        page
    }

    /// Opens the page with this name, which a process of the same user created.
    ///
    /// # Errors
    /// Errors of the operating system; `InvalidData` if the file does not have the size of
    /// a page.
    pub fn open(name: u64) -> std::io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path(name))?;
        if file.metadata()?.size() != PAGE as u64 {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        Self::map(&file, name, false)
    }

    fn map(file: &File, name: u64, is_own: bool) -> std::io::Result<Self> {
        // SAFETY: a new mapping at an address that the system chooses.
        let got = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if got == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let words = NonNull::new(got.cast()).ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        Ok(Self {
            words,
            name,
            is_own,
        })
    }

    /// The name by which another process opens it.
    #[must_use]
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Its first word.
    #[must_use]
    pub fn word(&self) -> &AtomicU64 {
        // SAFETY: mapped as long as this value lives. A page is sufficiently aligned, and
        // all processes access the word atomically.
        unsafe { self.words.as_ref() }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { libc::munmap(self.words.as_ptr().cast(), PAGE) };
        if self.is_own {
            let _ = std::fs::remove_file(path(self.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_one_writes_the_other_reads() {
        let one = SharedPage::create().unwrap();
        let other = SharedPage::open(one.name()).unwrap();
        one.word().store(7, Ordering::Release);
        assert_eq!(other.word().load(Ordering::Acquire), 7);
        let name = one.name();
        drop(one);
        other.word().store(8, Ordering::Release);
        assert!(SharedPage::open(name).is_err());
    }
}
