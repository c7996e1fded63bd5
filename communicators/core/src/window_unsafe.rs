//! The shared window: memory that both sides of a connection map.
//!
//! The peer may change it at any time, so there are no references to it. Data is copied in
//! and out, and the progress counter is atomic.
#![allow(unsafe_code)]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crate::{Error, copy_past_caches};

/// A range outside the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at offset {offset} are not inside the window of {window} bytes")]
pub struct WindowError {
    /// The requested offset from the start of the window.
    pub offset: u64,
    /// The requested length in bytes.
    pub length: u64,
    /// The length of the window in bytes.
    pub window: u64,
}

/// The callback of [`Window::keep`].
pub type Keeper = Box<dyn Fn() -> Result<(), Error> + Send + Sync>;

/// A mapped region of memory shared with the peer, for bulk data.
pub struct Window {
    base: NonNull<u8>,
    length: usize,
    progress: NonNull<AtomicU64>,
    /// A word that changes when the memory is taken away, and its value until then.
    mark: Option<(NonNull<AtomicU32>, u32)>,
    keeper: Option<Keeper>,
    kept: AtomicBool,
    /// Keeps the mappings at `base`, `progress` and `mark` alive.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is shared with another process in any case. This type accesses it only
// through atomics and copies with raw pointers.
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
    /// Creates a window of `length` bytes at `base`, with the channel's counter of
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

    /// Marks the memory as one that may be taken away, as a guest's is when its device is
    /// removed. `mark` is a word beside it whose value changes then.
    ///
    /// # Safety
    /// `mark` must be mapped and aligned to 4 bytes as long as the owner lives.
    #[must_use]
    pub unsafe fn with_mark(mut self, mark: NonNull<AtomicU32>) -> Self {
        // SAFETY: the caller promises that it is mapped and aligned.
        let value = unsafe { mark.as_ref() }.load(Ordering::Relaxed);
        self.mark = Some((mark, value));
        self
    }

    /// Sets the callback that asks for the contents to stay when the memory is taken away.
    #[must_use]
    pub fn with_keeper(mut self, keeper: Keeper) -> Self {
        self.keeper = Some(keeper);
        self
    }

    /// Ensures that the contents of the window stay, as private memory of this process,
    /// when its memory is taken away. Until then it remains shared.
    ///
    /// # Errors
    /// [`Error::Closed`] if it has already been taken away; errors of the callback.
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

    /// Whether all data copied out so far came from the window, and not from replacement
    /// pages.
    #[must_use]
    pub fn is_there(&self) -> bool {
        fence(Ordering::Acquire);
        self.mark.is_none_or(|(mark, value)| {
            // SAFETY: with_mark's contract.
            unsafe { mark.as_ref() }.load(Ordering::Relaxed) == value
        }) || self.kept.load(Ordering::Acquire)
    }

    /// The first address. It is the same on both sides if both requested a fixed address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The first byte, for registering the window with a device and for pointers into it.
    /// The peer may write at any time, so no references may be made.
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
    /// [`WindowError`] if they do not fit; nothing is written then.
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), WindowError> {
        let at = self.place(offset, bytes.len() as u64)?;
        // SAFETY: `place` checked that the bytes are inside the mapping, which lives as
        // long as self. A private slice cannot overlap it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        Ok(())
    }

    /// Fills `bytes` from the window at `offset`.
    ///
    /// # Errors
    /// [`WindowError`] if the range is not inside the window; nothing is read then.
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), WindowError> {
        let at = self.place(offset, bytes.len() as u64)?;
        // SAFETY: as in copy_in. If the peer writes at the same time, the copy may be torn,
        // which harms only the peer's own session.
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// As [`copy_out`](Self::copy_out), past the caches.
    ///
    /// # Errors
    /// As [`copy_out`](Self::copy_out).
    pub fn stream_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), WindowError> {
        let at = self.place(offset, bytes.len() as u64)?;
        // SAFETY: as in copy_out.
        unsafe { copy_past_caches(at, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Returns a pointer to the checked range `offset..offset + length`. It is valid while
    /// the window lives.
    ///
    /// # Errors
    /// [`WindowError`] if the range is not inside the window.
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

    /// The offset of an address in the window; `None` outside.
    #[must_use]
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        address
            .checked_sub(self.address())
            .filter(|offset| *offset < self.length as u64)
    }

    /// The number of bulk transfers that the host has completed in this channel. All that
    /// the host wrote to the window before [`set_progress`](Self::set_progress) is visible
    /// afterwards.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.counter().load(Ordering::Acquire)
    }

    /// Host only: publishes the number of completed bulk transfers.
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
    use std::sync::Arc;

    use super::*;

    fn window(length: usize) -> Window {
        let mut bytes = vec![0_u8; length];
        let progress = Arc::new(AtomicU64::new(0));
        let (base, done) = (NonNull::new(bytes.as_mut_ptr()), NonNull::from(&*progress));
        // SAFETY: the owner keeps both, which are used nowhere else.
        unsafe { Window::from_raw(base.unwrap(), length, done, Box::new((bytes, progress))) }
    }

    #[test]
    fn bytes_go_in_and_out() {
        let window = window(100);
        window.copy_in(90, &[7; 10]).unwrap();
        let mut out = [0; 11];
        window.copy_out(89, &mut out).unwrap();
        assert_eq!(out, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
        let mut streamed = [0; 11];
        window.stream_out(89, &mut streamed).unwrap();
        assert_eq!(streamed, out);
        assert!(window.stream_out(90, &mut streamed).is_err());
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
            let mark = Arc::new(AtomicU32::new(1));
            // SAFETY: the caller drops the mark after the window.
            let window = unsafe { window(1).with_mark(NonNull::from(&*mark)) };
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
