//! The address space of device memory in the program.
//!
//! A device has a fixed range, its arena. Before the session begins, the program may have mapped
//! memory there: V8 asks for random addresses of the lower 64 TiB, and Java's ZGC maps its heap at
//! the first arena. Such places are the reservation's holes. They stay the program's, and device
//! memory is placed around them.

use std::ffi::c_void;
use std::io::ErrorKind;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use paragpu_protocol::layout::{ARENA_BASE, CHUNK, DEVICE_STRIDE, MAX_DEVICES};
use parking_lot::RwLock;

use super::memory::map;
use crate::maps;

/// Attempts to reserve what is free, while other threads map memory there.
const ATTEMPTS: u32 = 16;
/// Bytes of an arena that must be free: 256 GiB.
const LEAST: u64 = DEVICE_STRIDE / 4;

/// The arenas that are reserved, one bit each.
static RESERVED: AtomicU32 = AtomicU32::new(0);
/// The arenas among them that have holes.
static WITH_HOLES: AtomicU32 = AtomicU32::new(0);
/// The holes of all arenas.
static HOLES: RwLock<Vec<Range<u64>>> = RwLock::new(Vec::new());

/// Whether an address is one of a reserved arena, outside its holes.
#[inline]
#[must_use]
pub fn is_reserved(address: u64) -> bool {
    let arena = bit_of(address);
    if RESERVED.load(Ordering::Acquire) & arena == 0 {
        return false;
    }
    WITH_HOLES.load(Ordering::Acquire) & arena == 0
        || !HOLES.read().iter().any(|hole| hole.contains(&address))
}

/// The bit of the arena that an address lies in; 0 if it lies in none.
fn bit_of(address: u64) -> u32 {
    let number = address.wrapping_sub(ARENA_BASE) / DEVICE_STRIDE;
    u32::try_from(number)
        .ok()
        .filter(|number| *number < MAX_DEVICES)
        .map_or(0, |number| 1 << number)
}

/// An arena, reserved so that nothing else is placed there.
#[derive(Debug)]
pub struct Reservation {
    parts: Vec<Part>,
    holes: Vec<Range<u64>>,
}

impl Reservation {
    /// Reserves the arena of one device, without access, except where the program has mapped
    /// memory.
    ///
    /// # Errors
    /// Errors of mmap(2); `EEXIST` if most of the arena is already mapped.
    pub fn new(arena: u64) -> std::io::Result<Self> {
        let whole = arena..arena + DEVICE_STRIDE;
        let parts = match Part::new(&whole) {
            Ok(part) => vec![part],
            Err(error) if error.kind() == ErrorKind::AlreadyExists => around(&whole)?,
            Err(error) => return Err(error),
        };
        let taken: Vec<_> = parts.iter().map(Part::range).collect();
        let holes = gaps(&taken, &whole);
        if !holes.is_empty() {
            HOLES.write().extend(holes.iter().cloned());
            WITH_HOLES.fetch_or(bit_of(arena), Ordering::Release);
        }
        RESERVED.fetch_or(bit_of(arena), Ordering::Release);
        Ok(Self { parts, holes })
    }

    /// The parts of the arena that are the program's, in order. They begin and end at multiples
    /// of [`CHUNK`].
    pub(crate) fn holes(&self) -> &[Range<u64>] {
        &self.holes
    }

    /// Whether a whole range is reserved.
    pub(super) fn holds(&self, address: u64, length: usize) -> bool {
        let end = address.checked_add(length as u64);
        let mut parts = self.parts.iter().map(Part::range);
        end.is_some_and(|end| parts.any(|part| part.start <= address && end <= part.end))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let arena = self
            .parts
            .first()
            .map_or(0, |part| bit_of(part.range().start));
        RESERVED.fetch_and(!arena, Ordering::Release);
        WITH_HOLES.fetch_and(!arena, Ordering::Release);
        HOLES.write().retain(|hole| bit_of(hole.start) & arena == 0);
    }
}

/// A reserved range of addresses.
#[derive(Debug)]
struct Part {
    address: NonNull<c_void>,
    length: usize,
}

// SAFETY: it only names a range of addresses.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Part {
    fn new(range: &Range<u64>) -> std::io::Result<Self> {
        let length = range.end.saturating_sub(range.start);
        let length = usize::try_from(length).map_err(std::io::Error::other)?;
        map(range.start, length, libc::PROT_NONE).map(|address| Self { address, length })
    }

    fn range(&self) -> Range<u64> {
        let start = self.address.as_ptr() as u64;
        start..start + self.length as u64
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: this value owns the range, and no `Pages` are left in it, which hold a
        // reference to the reservation.
        unsafe { libc::munmap(self.address.as_ptr(), self.length) };
    }
}

/// Reserves what is free of a range.
fn around(whole: &Range<u64>) -> std::io::Result<Vec<Part>> {
    for _ in 0..ATTEMPTS {
        let mapped = maps::overlapping(whole.start, whole.end - whole.start);
        let mapped: Vec<_> = mapped
            .ok_or(ErrorKind::AlreadyExists)?
            .iter()
            .map(|mapped| mapped.from / CHUNK * CHUNK..mapped.to.next_multiple_of(CHUNK))
            .collect();
        let free = gaps(&mapped, whole);
        if free.iter().map(|gap| gap.end - gap.start).sum::<u64>() < LEAST {
            break;
        }
        match free.iter().map(Part::new).collect() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            parts => return parts,
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// The parts of `whole` outside `taken`, whose ranges are in the order of their starts.
fn gaps(taken: &[Range<u64>], whole: &Range<u64>) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut next = whole.start;
    for range in taken {
        if range.start > next {
            found.push(next..range.start.min(whole.end));
        }
        next = next.max(range.end);
    }
    if next < whole.end {
        found.push(next..whole.end);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of the program at an address, until dropped.
    fn programs(address: u64, length: usize) -> NonNull<c_void> {
        map(address, length, libc::PROT_READ).unwrap()
    }

    #[test]
    fn memory_of_the_program_stays_in_the_arena() {
        let arena = ARENA_BASE + 14 * DEVICE_STRIDE;
        assert!(!is_reserved(arena));
        let (at, length) = (arena + 5 * CHUNK + 4096, 8192);
        let page = programs(at, length);
        let reserved = Reservation::new(arena).unwrap();
        let hole = arena + 5 * CHUNK..arena + 6 * CHUNK;
        assert_eq!(reserved.holes(), std::slice::from_ref(&hole));
        for inside in [arena, hole.start - 1, hole.end, arena + DEVICE_STRIDE - 1] {
            assert!(is_reserved(inside), "{inside:#x}");
        }
        for outside in [
            arena - 1,
            hole.start,
            at,
            hole.end - 1,
            arena + DEVICE_STRIDE,
        ] {
            assert!(!is_reserved(outside), "{outside:#x}");
        }
        assert!(reserved.holds(arena, 5 << 21));
        assert!(!reserved.holds(arena, (5 << 21) + 1));
        assert!(reserved.holds(hole.end, 4096));
        // Nobody else gets a part of it.
        let again = Reservation::new(arena).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        assert!(is_reserved(arena));
        drop(reserved);
        assert!(!is_reserved(arena));
        // SAFETY: mapped above. It must still be there.
        assert_eq!(unsafe { page.cast::<u8>().read_volatile() }, 0);
        // SAFETY: mapped above.
        unsafe { libc::munmap(page.as_ptr(), length) };
        assert!(Reservation::new(arena).unwrap().holes().is_empty());
    }

    #[test]
    fn an_arena_that_is_mostly_mapped_is_refused() {
        let arena = ARENA_BASE + 15 * DEVICE_STRIDE;
        let length = usize::try_from(DEVICE_STRIDE - LEAST + CHUNK).unwrap();
        let page = programs(arena, length);
        let refused = Reservation::new(arena).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        // SAFETY: mapped above.
        unsafe { libc::munmap(page.as_ptr(), length) };
    }

    #[test]
    fn gaps_lie_between_ranges_that_may_overlap() {
        let whole = 100..200;
        assert_eq!(gaps(&[], &whole), std::slice::from_ref(&whole));
        let taken = [90..110, 105..120, 106..110, 150..160, 190..210];
        assert_eq!(gaps(&taken, &whole), [120..150, 160..190]);
        assert_eq!(gaps(&[0..150, 150..300], &whole), []);
        assert_eq!(gaps(&[110..115, 115..120], &whole), [100..110, 120..200]);
    }
}
