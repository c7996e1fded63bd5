//! Program memory at raw addresses that were passed to CUDA.
//!
//! As with NVIDIA's library, the program is responsible for the validity of its pointers.
//! This code never accesses more than the sizes of the call allow.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use paragpu_communicator::Window;

use super::reservation::Reservation;

/// Granularity, in bytes, of the record of written memory.
pub(crate) const PAGE: usize = 4096;

/// Memory of the program that a call may read.
#[derive(Debug, Clone, Copy)]
pub struct HostSlice {
    address: *const u8,
    length: usize,
}

/// Memory of the program that a call may write: `slices × rows` rows of `width` bytes.
#[derive(Debug, Clone, Copy)]
pub struct HostRows {
    address: *mut u8,
    width: usize,
    rows: usize,
    slices: usize,
    pitch: usize,
    slice_pitch: usize,
    /// One byte for each [`PAGE`], set to 1 once part of it is written; or null.
    noted: *mut u8,
}

// SAFETY: the thread that created it waits until no thread uses it any more, or passes it
// to the threads of one copy. The program shares the bytes with the call.
unsafe impl Send for HostSlice {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for HostSlice {}
// SAFETY: as above; each writer writes a separate part.
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

    /// A whole buffer, which must outlive the use of this value.
    #[cfg(test)]
    pub(crate) fn of(buffer: &mut [u8]) -> Self {
        // SAFETY: the buffer is readable, and borrowed exclusively.
        unsafe { Self::new(buffer.as_mut_ptr().cast(), buffer.len()) }
    }

    /// `length` bytes at `offset` of a window, which must outlive the use of this value.
    /// `None` if they are not inside the window.
    pub(crate) fn of_window(window: &Window, offset: u64, length: u64) -> Option<Self> {
        let address = window.place(offset, length).ok()?;
        let length = usize::try_from(length).ok()?;
        // SAFETY: inside the window, readable and writable while it lives.
        Some(unsafe { Self::new(address.cast(), length) })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// The part of `length` bytes at `offset`, cut at the end of the memory.
    #[must_use]
    pub(crate) fn cut(&self, offset: usize, length: usize) -> Self {
        let offset = offset.min(self.length);
        Self {
            // SAFETY: inside, or one past the end.
            address: unsafe { self.address.add(offset) },
            length: length.min(self.length - offset),
        }
    }

    /// The rest after `offset` bytes.
    #[must_use]
    pub(crate) fn from(self, offset: usize) -> Self {
        let offset = offset.min(self.length);
        Self {
            // SAFETY: inside the memory, or its end.
            address: unsafe { self.address.add(offset) },
            length: self.length - offset,
        }
    }

    /// Writes `N` bytes at `offset` with one store if they fit. Only for memory that is
    /// writable as well, such as pinned memory.
    pub fn overwrite<const N: usize>(&self, offset: usize, bytes: [u8; N]) {
        if offset.checked_add(N).is_some_and(|end| end <= self.length) {
            // SAFETY: inside the memory, which is writable if it is pinned.
            unsafe {
                self.address
                    .add(offset)
                    .cast_mut()
                    .cast::<[u8; N]>()
                    .write_unaligned(bytes);
            }
        }
    }

    /// Fills it with zeros. Only for memory that is writable as well.
    pub(crate) fn clear(&self) {
        // SAFETY: as in `overwrite`.
        unsafe { self.address.cast_mut().write_bytes(0, self.length) };
    }

    /// The bytes of the part of `length` bytes at `offset`, cut at the end of the memory.
    #[must_use]
    pub fn part(&self, offset: usize, length: usize) -> &[u8] {
        let offset = offset.min(self.length);
        let length = length.min(self.length - offset);
        if length == 0 {
            return &[];
        }
        // SAFETY: inside the range that `new` promised readable. A thread of the program
        // that writes to it meanwhile violates CUDA's rules.
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
    /// They must stay writable, and must not be used otherwise, for as long as the value is
    /// used.
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

    /// A whole buffer, which must outlive the use of this value: the call that gets it
    /// returns only after the last write. `noted` becomes one byte for each [`PAGE`] of the
    /// buffer, 1 once part of it is written; it must live as long.
    #[must_use]
    pub(crate) fn of(buffer: &mut [u8], noted: &mut Vec<u8>) -> Self {
        noted.clear();
        noted.resize(buffer.len().div_ceil(PAGE), 0);
        Self {
            noted: noted.as_mut_ptr(),
            // SAFETY: the buffer is writable, and borrowed exclusively.
            ..unsafe { Self::new(buffer.as_mut_ptr().cast(), buffer.len()) }
        }
    }

    /// Records a write to `[at, at + length)`, which lies inside.
    fn note(&self, at: usize, length: usize) {
        if self.noted.is_null() || length == 0 {
            return;
        }
        for page in at / PAGE..=(at + length - 1) / PAGE {
            // SAFETY: `of` gave it a byte for each page of the buffer.
            unsafe { self.noted.add(page).write(1) };
        }
    }

    /// `slices` times `rows` rows of `width` bytes; rows begin `pitch` bytes
    /// apart, slices `slice_pitch`.
    ///
    /// # Safety
    /// As [`new`](Self::new), for all these rows.
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

    /// The first address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// Its length in bytes, without the gaps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.width * self.rows * self.slices
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its length in bytes if it is contiguous, which a single row is.
    #[must_use]
    pub(crate) fn contiguous(&self) -> Option<usize> {
        let one = self.rows == 1 && self.slices == 1;
        one.then_some(self.width)
    }

    /// The rest after `offset` bytes, of memory without gaps.
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

    /// Writes `bytes` at `offset`, which does not count gaps. If they do not fit, writes
    /// nothing and returns false.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(mut at) = self.starts(offset, bytes.len()) else {
            return false;
        };
        self.note(at, bytes.len());
        let mut rest = bytes;
        while !rest.is_empty() {
            let (place, room) = self.place(at);
            let (now, later) = rest.split_at(room.min(rest.len()));
            // SAFETY: `starts` checked that all bytes fit, and `room` that this run stays
            // in its row, which `new` or `rows` promised writable.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), place, now.len()) };
            at += now.len();
            rest = later;
        }
        true
    }

    /// Calls `read` with the memory for the last `length - at` of `length` bytes at
    /// `offset`, so that a receiver can read into it directly. Returns false if the bytes
    /// do not fit, or not into one row.
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
        // SAFETY: as in `write`; `room` says that all bytes are in one row. Nothing else
        // uses them meanwhile.
        read(unsafe { std::slice::from_raw_parts_mut(place, length - at) });
        true
    }

    /// Calls `fill` with consecutive runs of the bytes at `[offset, offset + length)`,
    /// until a call returns an error.
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
            // SAFETY: as in `write`; nothing else uses the bytes meanwhile.
            fill(unsafe { std::slice::from_raw_parts_mut(place, now) })?;
            at += now;
        }
        Ok(())
    }

    fn starts(&self, offset: u64, length: usize) -> Option<usize> {
        let offset = usize::try_from(offset).ok()?;
        (offset.checked_add(length)? <= self.len()).then_some(offset)
    }

    /// The address of a byte inside, and the number of bytes from there to the end of its
    /// row.
    fn place(&self, at: usize) -> (*mut u8, usize) {
        let (row, column) = (at / self.width, at % self.width);
        let (slice, row) = (row / self.rows, row % self.rows);
        let offset = slice * self.slice_pitch + row * self.pitch + column;
        // SAFETY: the byte is one of those that `new` or `rows` promised.
        (unsafe { self.address.add(offset) }, self.width - column)
    }
}

/// Zeroed private memory at a fixed address.
#[derive(Debug)]
pub struct Pages {
    address: NonNull<c_void>,
    length: usize,
    /// The reservation to which these addresses return, if they are part of one.
    reserved: Option<Arc<Reservation>>,
}

// SAFETY: the memory is used through checked copies only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `length` bytes at exactly `address`.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub fn new(address: u64, length: u64) -> std::io::Result<Self> {
        let length = usize::try_from(length).map_err(std::io::Error::other)?;
        map(address, length, libc::PROT_READ | libc::PROT_WRITE).map(|address| Self {
            address,
            length,
            reserved: None,
        })
    }

    /// As [`new`](Self::new), also for addresses of a reservation. There must be no other
    /// pages at these addresses.
    ///
    /// # Errors
    /// Errors of mmap(2) and mprotect(2).
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
        // SAFETY: the range belongs to the reservation, which maps nothing else there.
        if unsafe { libc::mprotect(place, size, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self {
            address: NonNull::new(place).ok_or(std::io::ErrorKind::AddrNotAvailable)?,
            length: size,
            reserved: Some(Arc::clone(reservation)),
        })
    }

    /// `length` bytes at `address`, which may span adjacent `pages`; these must outlive the
    /// use of the result. `None` if the pages have a gap or end before.
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
        // SAFETY: readable as long as the pages live, which have no gap between them.
        enough.then(|| unsafe { HostSlice::new(std::ptr::with_exposed_provenance(start), length) })
    }

    /// The first address.
    pub(crate) fn address(&self) -> u64 {
        self.address.as_ptr() as u64
    }

    /// Does not map them in processes that are forked from now on.
    pub(crate) fn hide_from_children(&self) {
        // SAFETY: the pages belong to this value; this process keeps them.
        unsafe { libc::madvise(self.address.as_ptr(), self.length, libc::MADV_DONTFORK) };
    }

    /// Takes whole pages away, also if the program has locked them. Who watches them provides
    /// them at the next access; otherwise they are zeros then. Returns whether all are gone;
    /// if not, some may be.
    pub(crate) fn discard(&self, offset: usize, length: usize) -> bool {
        if offset
            .checked_add(length)
            .is_none_or(|end| end > self.length)
        {
            return false;
        }
        let advise = |advice| {
            // SAFETY: inside the pages, which belong to this value. No reference to their
            // bytes exists: `HostSlice` gives out references for the time of one call only.
            let advised = unsafe {
                let from = self.address.as_ptr().byte_add(offset);
                libc::madvise(from, length, advice)
            };
            // ENOMEM: the program has unmapped some, and the others are gone.
            advised == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM)
        };
        if advise(libc::MADV_DONTNEED) || advise(libc::MADV_DONTNEED_LOCKED) {
            return true;
        }
        // Before Linux 5.18 locked pages stay. SAFETY: it changes no contents.
        unsafe { libc::munlock(self.address.as_ptr().byte_add(offset), length) };
        advise(libc::MADV_DONTNEED)
    }

    /// Ends every access to them with SIGSEGV from now on.
    pub(crate) fn forbid(&self) {
        // SAFETY: as in `discard`.
        unsafe { libc::mprotect(self.address.as_ptr(), self.length, libc::PROT_NONE) };
    }

    /// All of the memory; the pages must outlive the use of the result.
    pub(crate) fn bytes(&self) -> HostSlice {
        // SAFETY: readable as long as the pages live.
        unsafe { HostSlice::new(self.address.as_ptr(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.reserved.is_none() {
            // SAFETY: mapped by `new`; the program has freed the memory.
            unsafe { libc::munmap(self.address.as_ptr(), self.length) };
            return;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let none = libc::PROT_NONE;
        // SAFETY: the addresses belong to the reservation; the program has freed the
        // memory.
        unsafe { libc::mmap(self.address.as_ptr(), self.length, none, flags, -1, 0) };
    }
}

/// Maps private memory at exactly `address`, where nothing is mapped.
pub(super) fn map(
    address: u64,
    length: usize,
    protection: i32,
) -> std::io::Result<NonNull<c_void>> {
    let wanted = std::ptr::without_provenance_mut::<c_void>(address as usize);
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces no existing mapping.
    let got = unsafe { libc::mmap(wanted, length, protection, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    if got != wanted {
        // A kernel older than 4.17 treats the address as a hint. SAFETY: mapped just now.
        unsafe { libc::munmap(got, length) };
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    NonNull::new(got).ok_or_else(|| std::io::ErrorKind::AddrNotAvailable.into())
}

/// Frees the memory behind whole pages of a window that nobody uses any more.
pub(crate) fn discard(window: &Window, offset: u64, length: u64) {
    if let (Ok(pages), Ok(bytes)) = (window.place(offset, length), usize::try_from(length)) {
        // SAFETY: inside the window, which is mapped. It is the caller's to say that nobody uses
        // them; if one does, it reads zeros.
        unsafe { super::moved_pages::discard(pages.cast(), bytes) };
    }
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
    // SAFETY: inside the window, which outlives the result. The window begins at a page, so
    // the word is aligned, and both sides access it atomically.
    Some(unsafe { AtomicU32::from_ptr(word.cast()) })
}
