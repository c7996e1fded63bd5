//! Placement of the driver's address reservations: `mmap` of this process.
//!
//! A module's variables lie in ranges that the driver reserves on demand, as inaccessible
//! memory without a fixed address. The kernel would place a range in any gap of the
//! process's other memory. The address would depend on, for example, a thread's stack, and
//! a session could not move to a worker whose threads started at a different time. Here
//! the ranges are placed in a separate part of the address space, each in the highest gap.
//! So addresses depend only on the ranges that the driver reserved before.
//!
//! The driver is loaded at run time and calls `mmap` by name. An executable that exports
//! the functions below (a linker option, see the worker's build script) precedes the C
//! library in symbol resolution.

use core::ffi::{c_int, c_void};

use paragpu_protocol::layout::DRIVER_END;

/// Distance of two addresses that are tried: the driver's alignment.
const STEP: u64 = 32 << 20;
/// Size of the part in bytes.
const PART: u64 = 8 << 40;
/// Minimum size of a range that is placed. The driver reserves no smaller ones.
const MIN_RANGE: usize = 1 << 20;

/// mmap(2). Places reservations; passes other calls to the kernel.
///
/// # Safety
/// As in mmap(2): a fixed range must not be in use.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: i64,
) -> *mut c_void {
    let anywhere = address.is_null() && flags & libc::MAP_ANONYMOUS != 0;
    if anywhere
        && protection == libc::PROT_NONE
        && length >= MIN_RANGE
        && let Some(place) = reserve(length, flags)
    {
        return place;
    }
    let (protection, flags) = (i64::from(protection), i64::from(flags));
    let (call, descriptor) = (libc::SYS_mmap, i64::from(descriptor));
    // SAFETY: the caller's promise; the arguments have the kernel's types.
    let mapped =
        unsafe { libc::syscall(call, address, length, protection, flags, descriptor, offset) };
    mapped as *mut c_void
}

/// mmap64 of the C library. The same as [`mmap`].
///
/// # Safety
/// As [`mmap`].
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mmap(address, length, protection, flags, descriptor, offset) }
}

/// Reserves `length` bytes at the highest free address of the part.
fn reserve(length: usize, flags: c_int) -> Option<*mut c_void> {
    let room = u64::try_from(length).ok()?.checked_next_multiple_of(STEP)?;
    let protection = i64::from(libc::PROT_NONE);
    let flags = i64::from(flags | libc::MAP_FIXED_NOREPLACE);
    let mut place = DRIVER_END.checked_sub(room)?;
    while place >= DRIVER_END - PART {
        let wanted = usize::try_from(place).ok()? as *mut c_void;
        let (call, none) = (libc::SYS_mmap, -1_i64);
        // SAFETY: the kernel refuses a place where something is; the arguments have
        // its types.
        let mapped = unsafe { libc::syscall(call, wanted, length, protection, flags, none, 0_i64) };
        let mapped = mapped as *mut c_void;
        if mapped == wanted {
            return Some(mapped);
        }
        if mapped != libc::MAP_FAILED {
            // A kernel without the flag treated the address as a hint.
            // SAFETY: it was just mapped, and nothing refers to it.
            unsafe { libc::munmap(mapped, length) };
            return None;
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EEXIST) {
            return None;
        }
        place -= STEP;
    }
    None
}

/// Whether the driver calls the functions above.
pub fn are_placed() -> bool {
    // SAFETY: a C string; the answer is only compared.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"mmap".as_ptr()) };
    found == mmap as *mut c_void
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The driver's request.
    fn reserved(length: usize) -> u64 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: at no particular place.
        let place = unsafe { mmap64(std::ptr::null_mut(), length, 0, flags, -1, 0) };
        assert_ne!(place, libc::MAP_FAILED);
        place as u64
    }

    fn freed(place: u64, length: usize) {
        // SAFETY: the test reserved it.
        assert_eq!(unsafe { libc::munmap(place as *mut c_void, length) }, 0);
    }

    #[test]
    fn reservations_follow_each_other_down_and_fill_gaps() {
        const UNIT: usize = STEP as usize;
        let first = reserved(UNIT);
        assert_eq!(first, DRIVER_END - STEP);
        let second = reserved(3 * UNIT - 4096);
        assert_eq!(second, first - 3 * STEP);
        let third = reserved(MIN_RANGE);
        assert_eq!(third, second - STEP);
        freed(second, 3 * UNIT - 4096);
        let gap = reserved(2 * UNIT);
        assert_eq!(gap, first - 2 * STEP);
        let below = reserved(2 * UNIT);
        assert_eq!(below, third - 2 * STEP);
        for (place, length) in [
            (first, UNIT),
            (third, MIN_RANGE),
            (gap, 2 * UNIT),
            (below, 2 * UNIT),
        ] {
            freed(place, length);
        }
    }

    #[test]
    fn other_mappings_are_the_kernels() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        for (protection, length) in [(libc::PROT_READ, 4 << 20), (libc::PROT_NONE, 4096)] {
            // SAFETY: at no particular place.
            let place = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
            assert!(!(DRIVER_END - PART..DRIVER_END).contains(&(place as u64)));
            freed(place as u64, length);
        }
        // SAFETY: the kernel refuses it.
        let none = unsafe { mmap(std::ptr::null_mut(), 0, 0, flags, -1, 0) };
        assert_eq!(none, libc::MAP_FAILED);
    }
}
