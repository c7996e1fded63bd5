//! Program memory at raw addresses that were passed to CUDA.
//!
//! As with NVIDIA's library, the program is responsible for the validity of its pointers.
//! This code ensures that no more is accessed than the call's sizes say.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use paragpu_communicator::Window;

/// Unit of what is noted about bytes that came.
pub(crate) const PAGE: usize = 4096;

/// Bytes of the program that a call may read.
#[derive(Debug, Clone, Copy)]
pub struct HostSlice {
    address: *const u8,
    length: usize,
}

/// Bytes of the program that a call may write: `slices × rows` rows of
/// `width` bytes.
#[derive(Debug, Clone, Copy)]
pub struct HostRows {
    address: *mut u8,
    width: usize,
    rows: usize,
    slices: usize,
    pitch: usize,
    slice_pitch: usize,
    /// One byte for each page of it, set where something was written; or null.
    noted: *mut u8,
}

// SAFETY: the thread that made it waits until nobody uses it any more, or
// hands it to the threads of one copy; the bytes are the program's to share.
unsafe impl Send for HostSlice {}
// SAFETY: as above; it is only read.
unsafe impl Sync for HostSlice {}
// SAFETY: as above; a writer has exclusive use of its part.
unsafe impl Send for HostRows {}
// SAFETY: as above.
unsafe impl Sync for HostRows {}

impl HostSlice {
    /// `length` bytes at `address`.
    ///
    /// # Safety
    /// They must stay readable for as long as the value is used.
    #[must_use]
    pub unsafe fn new(address: *const c_void, length: usize) -> Self {
        Self {
            address: address.cast(),
            length,
        }
    }

    /// All of a buffer, which must outlive the value's use.
    #[cfg(test)]
    pub(crate) fn of(buffer: &mut [u8]) -> Self {
        // SAFETY: the buffer is readable and borrowed by nobody else.
        unsafe { Self::new(buffer.as_mut_ptr().cast(), buffer.len()) }
    }

    /// `length` bytes at `offset` of a window, to be used no longer than the
    /// window lives; `None` if they are not inside it.
    pub(crate) fn of_window(window: &Window, offset: u64, length: u64) -> Option<Self> {
        let address = window.place(offset, length).ok()?;
        let length = usize::try_from(length).ok()?;
        // SAFETY: inside the window, readable and writable while it lives.
        Some(unsafe { Self::new(address.cast(), length) })
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// No bytes?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// As much of it as [`part`](Self::part) gives.
    #[must_use]
    pub(crate) fn cut(&self, offset: usize, length: usize) -> Self {
        let offset = offset.min(self.length);
        Self {
            // SAFETY: inside, or one past the end.
            address: unsafe { self.address.add(offset) },
            length: length.min(self.length - offset),
        }
    }

    /// The rest after the first `offset` bytes.
    #[must_use]
    pub(crate) fn from(self, offset: usize) -> Self {
        let offset = offset.min(self.length);
        Self {
            // SAFETY: inside the memory, or its end.
            address: unsafe { self.address.add(offset) },
            length: self.length - offset,
        }
    }

    /// Writes bytes at `offset` in one go, where they fit. Only for memory that
    /// the program gave to be written as well (pinned memory).
    pub fn overwrite<const N: usize>(&self, offset: usize, bytes: [u8; N]) {
        if offset.checked_add(N).is_some_and(|end| end <= self.length) {
            // SAFETY: inside the memory; that it is writable is what pinning
            // means.
            unsafe {
                self.address
                    .add(offset)
                    .cast_mut()
                    .cast::<[u8; N]>()
                    .write_unaligned(bytes);
            }
        }
    }

    /// Makes zeros of all of it, which the program gave to be written.
    pub(crate) fn clear(&self) {
        // SAFETY: as in `overwrite`.
        unsafe { self.address.cast_mut().write_bytes(0, self.length) };
    }

    /// The part of `length` bytes at `offset`, cut to what there is.
    #[must_use]
    pub fn part(&self, offset: usize, length: usize) -> &[u8] {
        let offset = offset.min(self.length);
        let length = length.min(self.length - offset);
        if length == 0 {
            return &[];
        }
        // SAFETY: inside what `new` promised readable; another thread of the
        // program that writes it meanwhile breaks CUDA's own rules.
        unsafe { std::slice::from_raw_parts(self.address.add(offset), length) }
    }
}

impl AsRef<[u8]> for HostSlice {
    fn as_ref(&self) -> &[u8] {
        self.part(0, self.length)
    }
}

impl HostRows {
    /// `length` bytes at `address`.
    ///
    /// # Safety
    /// They must stay writable and used by nobody else for as long as the
    /// value is used.
    #[must_use]
    pub unsafe fn new(address: *mut c_void, length: usize) -> Self {
        Self {
            address: address.cast(),
            width: length,
            rows: 1,
            slices: 1,
            pitch: length,
            slice_pitch: length,
            noted: std::ptr::null_mut(),
        }
    }

    /// All of a buffer, which must outlive the value's use: the call it is
    /// given to returns only when nobody writes any more. `noted` becomes one
    /// byte for each page of the buffer, not 0 where something was written;
    /// it must live as long.
    #[must_use]
    pub(crate) fn of(buffer: &mut [u8], noted: &mut Vec<u8>) -> Self {
        noted.clear();
        noted.resize(buffer.len().div_ceil(PAGE), 0);
        Self {
            noted: noted.as_mut_ptr(),
            // SAFETY: the buffer is writable and borrowed by nobody else.
            ..unsafe { Self::new(buffer.as_mut_ptr().cast(), buffer.len()) }
        }
    }

    /// Something is written at `[at, at + length)`, which lies inside.
    fn note(&self, at: usize, length: usize) {
        if self.noted.is_null() || length == 0 {
            return;
        }
        for page in at / PAGE..=(at + length - 1) / PAGE {
            // SAFETY: `of` made it as long as the buffer has pages.
            unsafe { self.noted.add(page).write(1) };
        }
    }

    /// `slices` times `rows` rows of `width` bytes; rows begin `pitch` bytes
    /// apart, slices `slice_pitch`.
    ///
    /// # Safety
    /// As [`new`](Self::new), for all those rows.
    #[must_use]
    pub unsafe fn rows(
        address: *mut c_void,
        [width, rows, slices]: [usize; 3],
        pitch: usize,
        slice_pitch: usize,
    ) -> Self {
        Self {
            address: address.cast(),
            width,
            rows,
            slices,
            pitch,
            slice_pitch,
            noted: std::ptr::null_mut(),
        }
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// Bytes that fit.
    #[must_use]
    pub fn len(&self) -> usize {
        self.width * self.rows * self.slices
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes lie without gaps, where all do.
    #[must_use]
    pub(crate) fn straight(&self) -> Option<usize> {
        let one = self.rows == 1 && self.slices == 1;
        one.then_some(self.width)
    }

    /// Of bytes without gaps, what is left after the first `offset`.
    #[must_use]
    pub(crate) fn from(self, offset: usize) -> Self {
        let offset = offset.min(self.width);
        Self {
            // SAFETY: inside the memory, or its end.
            address: unsafe { self.address.add(offset) },
            width: self.width - offset,
            ..self
        }
    }

    /// Writes `bytes` at `offset`, counted as if the rows lay without gaps.
    /// False, and nothing written, where they do not fit.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(mut at) = self.starts(offset, bytes.len()) else {
            return false;
        };
        self.note(at, bytes.len());
        let mut rest = bytes;
        while !rest.is_empty() {
            let (place, room) = self.place(at);
            let (now, later) = rest.split_at(room.min(rest.len()));
            // SAFETY: `starts` checked that all bytes fit, `place` that this
            // run stays in its row, which `new` or `rows` promised writable.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), place, now.len()) };
            at += now.len();
            rest = later;
        }
        true
    }

    /// Calls `read` with what is left from the `at`-th of `length` bytes at
    /// `offset` on. False where these do not fit, or have gaps between them.
    pub(crate) fn land(
        &self,
        offset: u64,
        length: usize,
        at: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        let Some(start) = self.starts(offset, length).filter(|_| at < length) else {
            return false;
        };
        let (_, room) = self.place(start);
        if room < length {
            return false;
        }
        let (place, _) = self.place(start + at);
        self.note(start, length);
        // SAFETY: as in `write`; `room` says that all is in one row. Nobody
        // else uses the bytes meanwhile.
        read(unsafe { std::slice::from_raw_parts_mut(place, length - at) });
        true
    }

    /// Calls `fill` with consecutive runs of the bytes at
    /// `[offset, offset + length)`, until one call is refused.
    pub fn fill<E>(
        &self,
        offset: usize,
        length: usize,
        mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(mut at) = self.starts(offset as u64, length) else {
            return Ok(());
        };
        let end = at + length;
        while at < end {
            let (place, room) = self.place(at);
            let now = room.min(end - at);
            // SAFETY: as in `write`; nobody else uses the bytes meanwhile.
            fill(unsafe { std::slice::from_raw_parts_mut(place, now) })?;
            at += now;
        }
        Ok(())
    }

    fn starts(&self, offset: u64, length: usize) -> Option<usize> {
        let offset = usize::try_from(offset).ok()?;
        (offset.checked_add(length)? <= self.len()).then_some(offset)
    }

    /// Address of a byte that exists, and how many follow in its row.
    fn place(&self, at: usize) -> (*mut u8, usize) {
        let (row, column) = (at / self.width, at % self.width);
        let (slice, row) = (row / self.rows, row % self.rows);
        let offset = slice * self.slice_pitch + row * self.pitch + column;
        // SAFETY: the byte is one of those promised.
        (unsafe { self.address.add(offset) }, self.width - column)
    }
}

/// A range of address space reserved so that nothing else is placed there.
#[derive(Debug)]
pub struct Reservation {
    address: NonNull<c_void>,
    length: usize,
}

// SAFETY: only names a range of addresses.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves exactly `[address, address + length)`, inaccessible.
    ///
    /// # Errors
    /// What mmap says; `EEXIST` where something is there already.
    pub fn new(address: u64, length: u64) -> std::io::Result<Self> {
        let length = usize::try_from(length).map_err(std::io::Error::other)?;
        map(address, length, libc::PROT_NONE).map(|address| Self { address, length })
    }

    /// Whether the whole range is reserved.
    fn holds(&self, address: u64, length: usize) -> bool {
        let offset = address.checked_sub(self.address.as_ptr() as u64);
        let end = offset.and_then(|offset| offset.checked_add(length as u64));
        end.is_some_and(|end| end <= self.length as u64)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own; nothing was placed in it.
        unsafe { libc::munmap(self.address.as_ptr(), self.length) };
    }
}

/// Zeroed memory of the program's own at a fixed address.
#[derive(Debug)]
pub struct Pages {
    address: NonNull<c_void>,
    length: usize,
    /// The reservation that has these addresses, which they go back to.
    reserved: Option<Arc<Reservation>>,
}

// SAFETY: memory is used through checked copies only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `length` bytes at exactly `address`.
    ///
    /// # Errors
    /// Errors of mmap.
    pub fn new(address: u64, length: u64) -> std::io::Result<Self> {
        let length = usize::try_from(length).map_err(std::io::Error::other)?;
        map(address, length, libc::PROT_READ | libc::PROT_WRITE).map(|address| Self {
            address,
            length,
            reserved: None,
        })
    }

    /// The same, where the addresses may be reserved. Nobody else has pages there.
    ///
    /// # Errors
    /// Errors of mmap and mprotect.
    pub(crate) fn within(
        reservation: &Arc<Reservation>,
        address: u64,
        length: u64,
    ) -> std::io::Result<Self> {
        let size = usize::try_from(length).map_err(std::io::Error::other)?;
        if !reservation.holds(address, size) {
            return Self::new(address, length);
        }
        let place = usize::try_from(address).map_err(std::io::Error::other)?;
        let place = std::ptr::with_exposed_provenance_mut::<c_void>(place);
        // SAFETY: the range is the reservation's, which places nothing there itself.
        if unsafe { libc::mprotect(place, size, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self {
            address: NonNull::new(place).ok_or(std::io::ErrorKind::AddrNotAvailable)?,
            length: size,
            reserved: Some(Arc::clone(reservation)),
        })
    }

    /// `length` bytes at `address`, which lie in pages that follow on each other;
    /// to be used no longer than these live. `None` if they do not.
    pub(crate) fn span<'a>(
        pages: impl IntoIterator<Item = &'a Self>,
        address: u64,
        length: usize,
    ) -> Option<HostSlice> {
        let mut end = address;
        for one in pages {
            let first = one.address.as_ptr() as u64;
            if first > end {
                return None;
            }
            end = first + one.length as u64;
        }
        let start = usize::try_from(address).ok()?;
        let enough = end.checked_sub(address)? >= length as u64;
        // SAFETY: readable as long as the pages live, which have no gap.
        enough.then(|| unsafe { HostSlice::new(std::ptr::with_exposed_provenance(start), length) })
    }

    /// All of it, to be used no longer than the pages live.
    pub(crate) fn bytes(&self) -> HostSlice {
        // SAFETY: readable as long as the pages live.
        unsafe { HostSlice::new(self.address.as_ptr(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.reserved.is_none() {
            // SAFETY: made by `new`; the program gave the memory back.
            unsafe { libc::munmap(self.address.as_ptr(), self.length) };
            return;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let none = libc::PROT_NONE;
        // SAFETY: the addresses are the reservation's; the program gave the memory back.
        unsafe { libc::mmap(self.address.as_ptr(), self.length, none, flags, -1, 0) };
    }
}

fn map(address: u64, length: usize, protection: i32) -> std::io::Result<NonNull<c_void>> {
    let wanted = std::ptr::without_provenance_mut::<c_void>(address as usize);
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE touches no mapping that exists.
    let got = unsafe { libc::mmap(wanted, length, protection, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    if got != wanted {
        // A kernel older than 4.17 takes the address for a hint.
        // SAFETY: just mapped here.
        unsafe { libc::munmap(got, length) };
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    NonNull::new(got).ok_or_else(|| std::io::ErrorKind::AddrNotAvailable.into())
}

/// Loads the word of a bulk token; 0 if the window has no such word.
#[must_use]
pub fn load_token(window: &Window, index: usize) -> u32 {
    token(window, index).map_or(0, |word| u32::from_le(word.load(Ordering::Acquire)))
}

/// Stores the word of a bulk token.
pub fn store_token(window: &Window, index: usize, value: u32) {
    if let Some(word) = token(window, index) {
        word.store(value.to_le(), Ordering::Release);
    }
}

fn token(window: &Window, index: usize) -> Option<&AtomicU32> {
    let word = window.place(4 * index as u64, 4).ok()?;
    // SAFETY: inside the window, which lives as long as the result; the window
    // begins at a page, so the word is aligned. Both sides use it atomically.
    Some(unsafe { AtomicU32::from_ptr(word.cast()) })
}
