//! The shared window: memory that both sides of a connection map.
//!
//! The peer may change it at any time, so no reference to it is ever given out. Data is
//! copied in and out, and the progress counter is atomic.
#![allow(unsafe_code)]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crate::Error;

/// A place outside the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at offset {offset} are not inside the window of {window} bytes")]
pub struct WindowError {
    /// First byte asked for, from the window's begin.
    pub offset: u64,
    /// Bytes asked for.
    pub length: u64,
    /// The window's length.
    pub window: u64,
}

/// The callback of [`Window::keep`].
pub type Keeper = Box<dyn Fn() -> Result<(), Error> + Send + Sync>;

/// A mapped region of memory shared with the peer, for bulk bytes.
pub struct Window {
    base: NonNull<u8>,
    length: usize,
    progress: NonNull<AtomicU64>,
    /// A word that stands as long as the memory does, and its value.
    mark: Option<(NonNull<AtomicU32>, u32)>,
    keeper: Option<Keeper>,
    kept: AtomicBool,
    /// Keeps what is mapped at `base`, `progress` and `mark` mapped.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is shared with another process anyway; this type reads
// and writes it only by copies through raw pointers and atomics.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("base", &self.base)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Window {
    #[must_use]
    /// A window of `length` bytes at `base`, with the channel's counter of
    /// completed bulk transfers at `progress`.
    ///
    /// # Safety
    /// While `owner` lives, the bytes and `progress` (aligned to 8) must be
    /// mapped readable and writable, and accessed by this process only through
    /// this window, other raw pointers, or a device.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        length: usize,
        progress: NonNull<AtomicU64>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            base,
            length,
            progress,
            mark: None,
            keeper: None,
            kept: AtomicBool::new(false),
            _owner: owner,
        }
    }

    /// The window of memory that may be taken away, as a guest's is with its
    /// device; `mark` is a word beside it that changes then.
    ///
    /// # Safety
    /// `mark` must be mapped and aligned to 4 bytes as long as the owner lives.
    #[must_use]
    pub unsafe fn with_mark(mut self, mark: NonNull<AtomicU32>) -> Self {
        // SAFETY: the caller's word.
        let value = unsafe { mark.as_ref() }.load(Ordering::Relaxed);
        self.mark = Some((mark, value));
        self
    }

    /// The window of memory that may be taken away, and what asks for its bytes
    /// to stay then.
    #[must_use]
    pub fn with_keeper(mut self, keeper: Keeper) -> Self {
        self.keeper = Some(keeper);
        self
    }

    /// Has all bytes of the window stay when its memory is taken away, as memory
    /// of this process alone. Until then the peer still sees them.
    ///
    /// # Errors
    /// [`Error::Closed`] where it was taken away already; as the system says.
    pub fn keep(&self) -> Result<(), Error> {
        let Some(keep) = &self.keeper else {
            return Ok(());
        };
        keep()?;
        if !self.is_there() {
            return Err(Error::Closed);
        }
        self.kept.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether what was copied out until now stood in the window.
    #[must_use]
    pub fn is_there(&self) -> bool {
        fence(Ordering::Acquire);
        self.mark.is_none_or(|(mark, value)| {
            // SAFETY: with_mark's contract.
            unsafe { mark.as_ref() }.load(Ordering::Relaxed) == value
        }) || self.kept.load(Ordering::Acquire)
    }

    /// First address. The same on both sides where a fixed address was asked
    /// for on both.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// First byte, for registering the window with a device or building
    /// pointers into it. The peer may write these bytes at any moment: make no
    /// references to them.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length as u64
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies `bytes` into the window at `offset`.
    ///
    /// # Errors
    /// [`WindowError`] where they do not fit; nothing is written then.
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), WindowError> {
        let at = self.place(offset, bytes.len() as u64)?;
        // SAFETY: `place` checked that the bytes lie inside the mapping, which
        // lives as long as self; a private slice cannot overlap it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        Ok(())
    }

    /// Fills `bytes` from the window at `offset`.
    ///
    /// # Errors
    /// [`WindowError`] where the window has not as many; nothing is read then.
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), WindowError> {
        let at = self.place(offset, bytes.len() as u64)?;
        // SAFETY: as in copy_in. The peer may write at the same time: the
        // bytes may then be a mixture, which is the peer's own loss.
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// The bytes at `offset..offset + length`, as a checked pointer. Valid
    /// while the window lives.
    ///
    /// # Errors
    /// [`WindowError`] where they are not inside the window.
    pub fn place(&self, offset: u64, length: u64) -> Result<*mut u8, WindowError> {
        let window = self.length as u64;
        match offset.checked_add(length) {
            // SAFETY: offset <= window, which is a usize.
            Some(end) if end <= window => Ok(unsafe { self.base.as_ptr().add(offset as usize) }),
            _ => Err(WindowError {
                offset,
                length,
                window,
            }),
        }
    }

    /// The offset of an address inside the window.
    #[must_use]
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        address
            .checked_sub(self.address())
            .filter(|offset| *offset < self.length as u64)
    }

    /// Count of bulk transfers completed by the host in this channel. What
    /// the host wrote into the window before its
    /// [`set_progress`](Self::set_progress) is visible after this.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.counter().load(Ordering::Acquire)
    }

    /// Host only: publishes the count of completed bulk transfers.
    pub fn set_progress(&self, completed: u64) {
        self.counter().store(completed, Ordering::Release);
    }

    fn counter(&self) -> &AtomicU64 {
        // SAFETY: from_raw's contract: mapped and aligned while self lives.
        unsafe { self.progress.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(length: usize) -> Window {
        let bytes = Box::leak(vec![0_u8; length].into_boxed_slice());
        let progress = Box::leak(Box::new(AtomicU64::new(0)));
        // SAFETY: both are leaked, and used nowhere else.
        unsafe {
            Window::from_raw(
                NonNull::new(bytes.as_mut_ptr()).unwrap(),
                length,
                NonNull::from(progress),
                Box::new(()),
            )
        }
    }

    #[test]
    fn bytes_go_in_and_out() {
        let window = window(100);
        window.copy_in(90, &[7; 10]).unwrap();
        let mut out = [0; 11];
        window.copy_out(89, &mut out).unwrap();
        assert_eq!(out, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    }

    #[test]
    fn nothing_outside_is_touched() {
        let window = window(100);
        for (offset, length) in [(101, 0), (100, 1), (u64::MAX, 1), (1, u64::MAX), (0, 101)] {
            assert!(window.place(offset, length).is_err(), "{offset} {length}");
        }
        assert!(window.place(100, 0).is_ok());
        assert_eq!(window.offset_of(window.address() + 99), Some(99));
        assert_eq!(window.offset_of(window.address() + 100), None);
        assert_eq!(window.offset_of(window.address().wrapping_sub(1)), None);
    }

    #[test]
    fn what_is_kept_in_time_is_there() {
        let marked = || {
            let mark = &*Box::leak(Box::new(AtomicU32::new(1)));
            // SAFETY: the mark is leaked.
            let window = unsafe { window(1).with_mark(NonNull::from(mark)) };
            (mark, window.with_keeper(Box::new(|| Ok(()))))
        };
        let (mark, window) = marked();
        window.keep().unwrap();
        mark.store(0, Ordering::Relaxed);
        assert!(window.is_there());

        let (mark, window) = marked();
        mark.store(0, Ordering::Relaxed);
        assert!(matches!(window.keep(), Err(Error::Closed)));
        assert!(!window.is_there());
    }

    #[test]
    fn progress_is_published() {
        let window = window(1);
        window.set_progress(9);
        assert_eq!(window.progress(), 9);
    }
}
