//! userfaultfd(2): the kernel lets a thread wait that accesses an absent or write-protected
//! page, also inside a system call, until the page is provided or the protection lifted.
//!
//! Faults of system calls need a privilege: CAP_SYS_PTRACE, the sysctl
//! vm.unprivileged_userfaultfd, or access to /dev/userfaultfd.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::standard_streams::StandardStreams;

/// UFFD_FEATURE_PAGEFAULT_FLAG_WP and UFFD_FEATURE_WP_HUGETLBFS_SHMEM.
const WRITE_PROTECTION: u64 = 1;
const OF_SHARED_MEMORY: u64 = 1 << 12;

// The ioctls of linux/userfaultfd.h.
const API: libc::c_ulong = 0xc018_aa3f;
const REGISTER: libc::c_ulong = 0xc020_aa00;
const WAKE: libc::c_ulong = 0x8010_aa02;
const COPY: libc::c_ulong = 0xc028_aa03;
const PROTECT: libc::c_ulong = 0xc018_aa06;
/// USERFAULTFD_IOC_NEW of /dev/userfaultfd.
const NEW: libc::c_ulong = 0xaa00;

const PAGEFAULT: u8 = 0x12;
const FAULT_IS_WRITE: u64 = 1;

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RegisterRequest {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeRequest {
    start: u64,
    length: u64,
}

#[repr(C)]
struct CopyRequest {
    destination: u64,
    source: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct ProtectRequest {
    start: u64,
    length: u64,
    mode: u64,
}

/// struct uffd_msg with a page fault.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    _reserved: [u8; 7],
    flags: u64,
    address: u64,
    _thread: u64,
}

/// The accesses that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Writes to write-protected pages of any memory.
    Writes,
    /// Also all accesses to absent pages of private memory.
    Absent,
}

/// An access that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageFault {
    pub(crate) address: u64,
    pub(crate) is_write: bool,
}

/// A userfaultfd. Threads that wait continue when it is closed.
#[derive(Debug)]
pub(crate) struct Userfault {
    file: OwnedFd,
    watch: Watch,
}

impl Userfault {
    /// `None` without the privilege, or if the kernel cannot watch such accesses.
    pub(crate) fn new(watch: Watch) -> Option<Self> {
        let _kept = StandardStreams::hold();
        let opened = Self {
            file: open()?,
            watch,
        };
        let mut request = ApiRequest {
            api: 0xaa,
            features: match watch {
                Watch::Writes => WRITE_PROTECTION | OF_SHARED_MEMORY,
                Watch::Absent => WRITE_PROTECTION,
            },
            ioctls: 0,
        };
        // SAFETY: the structure has the layout of linux/userfaultfd.h.
        unsafe { opened.control(API, &mut request) }.then_some(opened)
    }

    /// # Safety
    /// `request` is the structure of the ioctl, and describes memory that may be changed in
    /// that way.
    unsafe fn control<T>(&self, number: libc::c_ulong, request: &mut T) -> bool {
        // SAFETY: the caller upholds this.
        unsafe { libc::ioctl(self.file.as_raw_fd(), number, std::ptr::from_mut(request)) == 0 }
    }

    /// Watches whole pages, which are mapped.
    pub(crate) fn watch(&self, start: u64, length: u64) -> bool {
        const ABSENT: u64 = 1;
        const PROTECTED: u64 = 2;
        let mut request = RegisterRequest {
            start,
            length,
            mode: match self.watch {
                Watch::Writes => PROTECTED,
                Watch::Absent => PROTECTED | ABSENT,
            },
            ioctls: 0,
        };
        // SAFETY: watching changes no contents. Threads that wait are served by the owner.
        unsafe { self.control(REGISTER, &mut request) }
    }

    /// Write-protects present pages, or lifts the protection and lets writers continue. Returns
    /// whether that succeeded on all of them.
    pub(crate) fn protect(&self, start: u64, length: u64, is_protected: bool) -> bool {
        const PAGE: u64 = super::memory::PAGE as u64;
        let mut request = ProtectRequest {
            start,
            length,
            mode: u64::from(is_protected),
        };
        // SAFETY: it changes no contents.
        if unsafe { self.control(PROTECT, &mut request) } {
            return true;
        }
        let reason = std::io::Error::last_os_error().raw_os_error();
        if reason != Some(libc::ENOENT) || length <= PAGE {
            return false;
        }
        // Older kernels: only inside one mapping. mlock(2) divides mappings.
        let half = (length / 2).next_multiple_of(PAGE);
        let first = self.protect(start, half, is_protected);
        self.protect(start + half, length - half, is_protected) && first
    }

    /// Lets threads retry their accesses to a range.
    pub(crate) fn wake(&self, start: u64, length: u64) {
        let mut request = RangeRequest { start, length };
        // SAFETY: it changes no contents.
        unsafe { self.control(WAKE, &mut request) };
    }

    /// Provides absent pages at `start` with these bytes, whole pages, and lets threads
    /// continue that wait for them. A page that is present keeps its contents.
    pub(crate) fn provide(&self, start: u64, bytes: &[u8], is_protected: bool) -> bool {
        const PAGE: usize = super::memory::PAGE;
        let mut at = 0;
        let mut most = usize::MAX;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let length = rest.len().min(most);
            let mut request = CopyRequest {
                destination: start + at as u64,
                source: rest.as_ptr() as u64,
                length: length as u64,
                mode: if is_protected { 2 } else { 0 },
                copied: 0,
            };
            // SAFETY: the kernel writes only to absent pages of memory that is watched.
            if unsafe { self.control(COPY, &mut request) } {
                at += length;
                most = usize::MAX;
                continue;
            }
            let reason = std::io::Error::last_os_error().raw_os_error();
            match (usize::try_from(request.copied), reason) {
                (Ok(copied @ 1..), _) => at += copied,
                (_, Some(libc::EEXIST)) => at += PAGE,
                (_, Some(libc::EAGAIN)) => {}
                // Only inside one mapping. mlock(2) divides mappings.
                (_, Some(libc::ENOENT)) if length > PAGE => {
                    most = (length / 2).next_multiple_of(PAGE);
                }
                _ => return false,
            }
        }
        true
    }

    /// The next accesses that wait, at most `timeout` later; without one, whenever they come.
    /// Empty if there is none.
    pub(crate) fn faults(&self, timeout: Option<Duration>) -> Vec<PageFault> {
        let milliseconds = timeout.map_or(-1, |time| {
            i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
        });
        let mut poll = libc::pollfd {
            fd: self.file.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut messages = [Message::default(); 16];
        // SAFETY: both get one structure of their own, or a buffer with its size.
        let read = unsafe {
            match libc::poll(&raw mut poll, 1, milliseconds) {
                1 => libc::read(
                    self.file.as_raw_fd(),
                    messages.as_mut_ptr().cast(),
                    size_of_val(&messages),
                ),
                _ => 0,
            }
        };
        let count = usize::try_from(read).unwrap_or(0) / size_of::<Message>();
        let faults = messages.iter().take(count);
        faults
            .filter(|message| message.event == PAGEFAULT)
            .map(|message| PageFault {
                address: message.address,
                is_write: message.flags & FAULT_IS_WRITE != 0,
            })
            .collect()
    }
}

fn open() -> Option<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: it creates a descriptor, or fails without the privilege.
    let file = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    let file = i32::try_from(file).ok().filter(|file| *file >= 0);
    let file = file.or_else(|| {
        let device = std::fs::File::open("/dev/userfaultfd").ok()?;
        // SAFETY: as above.
        let file = unsafe { libc::ioctl(device.as_raw_fd(), NEW, flags) };
        (file >= 0).then_some(file)
    })?;
    // SAFETY: a new descriptor that nothing else owns.
    Some(unsafe { OwnedFd::from_raw_fd(file) })
}
