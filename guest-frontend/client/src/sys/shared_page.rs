//! Two words of a page that guest processes share.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Bytes of it.
const PAGE: usize = 4096;

/// A number that nothing else has.
#[must_use]
pub fn unique() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A page with a name.
#[derive(Debug)]
pub struct SharedPage {
    words: NonNull<AtomicU64>,
    name: u64,
    /// The file goes with this value.
    is_own: bool,
}

// SAFETY: only atomics are reached through it.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

fn path(name: u64) -> PathBuf {
    PathBuf::from(format!("/dev/shm/paragpu-{name:016x}"))
}

impl SharedPage {
    /// A new one.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn create() -> std::io::Result<Self> {
        let name = unique();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path(name))?;
        let page = file
            .set_len(PAGE as u64)
            .and_then(|()| Self::map(&file, name, true));
        if page.is_err() {
            let _ = std::fs::remove_file(path(name));
        }
        page
    }

    /// One that another process of the same user made.
    ///
    /// # Errors
    /// Errors of the operating system; `InvalidData` where it is none.
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

    /// The handle by which another process opens it.
    #[must_use]
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Its first word.
    #[must_use]
    pub fn word(&self) -> &AtomicU64 {
        // SAFETY: mapped as long as this value; a page is aligned for it, and all
        // processes use it atomically.
        unsafe { self.words.as_ref() }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping.
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
