//! Writes into other objects: a jump over each public function.
//!
//! The pages are copied into a memfd, the jumps are written there, and the memfd is mapped
//! over the code, readable and executable. So no page is ever writable and executable, or
//! becomes executable after it was writable. This works in processes with
//! `MemoryDenyWriteExecute=`, and SELinux requires `execute` on a memfd instead of
//! `execmod` or `execmem`. If it is refused, or the limit of file sizes is too low, anonymous
//! memory takes the memfd's place, which needs `execmem`. The code is replaced only by a complete
//! copy that may execute: if both are refused, it stays as it was.

use core::ptr;

use super::entry::Entry;
use super::memory;

/// `mov r11, entry` and `jmp [r11]`.
const JUMP: usize = 13;
const PAGE: usize = 4096;

/// The jump through an entry.
fn jump(entry: &Entry) -> [u8; JUMP] {
    let [a, b, c, d, e, f, g, h] = ptr::from_ref(entry).addr().to_le_bytes();
    [0x49, 0xbb, a, b, c, d, e, f, g, h, 0x41, 0xff, 0x23]
}

/// Whether an entry's function begins with its jump.
///
/// # Safety
/// An object is mapped, readable, where the entry's function was.
pub unsafe fn is_patched(entry: &Entry) -> bool {
    // SAFETY: the caller upholds this.
    unsafe { (entry.address as *const [u8; JUMP]).read_unaligned() == jump(entry) }
}

/// The pages of all entries: address and bytes.
fn range(entries: &[Entry]) -> Option<(usize, usize)> {
    let low = entries.iter().map(|entry| entry.address).min()?;
    let high = entries.iter().map(|entry| entry.address).max()?;
    let start = low & !(PAGE - 1);
    let end = high.checked_add(JUMP)?.checked_next_multiple_of(PAGE)?;
    Some((start, end - start))
}

/// Writes the jumps. Returns false if the system refuses.
///
/// # Safety
/// Each entry's address is that of a function with room for a jump in one
/// object's code, which no thread executes now.
pub unsafe fn write(entries: &[Entry]) -> bool {
    let Some((start, length)) = range(entries) else {
        return false;
    };
    // SAFETY: the caller's promise, and the range is that of the entries.
    unsafe { by_file(entries, start, length) || by_memory(entries, start, length) }
}

/// Writes the jumps into a copy at `code` of the code at `start`.
///
/// # Safety
/// `code` is writable for the whole range of the entries.
unsafe fn write_jumps(entries: &[Entry], start: usize, code: *mut u8) {
    for entry in entries {
        // SAFETY: the entries' code lies in the range that is written.
        unsafe {
            code.add(entry.address - start)
                .cast::<[u8; JUMP]>()
                .write_unaligned(jump(entry))
        };
    }
}

/// Replaces the code by a private copy with the jumps, in a file.
///
/// # Safety
/// The range is mapped code that holds all entries, and nothing executes there.
unsafe fn by_file(entries: &[Entry], start: usize, length: usize) -> bool {
    if !may_create(length) {
        return false;
    }
    // SAFETY: the new mapping is ours until it is unmapped; the one at `start` has the same
    // bytes as before except for the jumps.
    unsafe {
        let name = c"paragpu-redirect".as_ptr();
        let file = libc::memfd_create(name, libc::MFD_CLOEXEC);
        if file < 0 {
            return false;
        }
        let complete = fill(file, entries, start, length) && {
            let flags = i64::from(libc::MAP_PRIVATE | libc::MAP_FIXED);
            let code = i64::from(libc::PROT_READ | libc::PROT_EXEC);
            let file = i64::from(file);
            // Not the C library's function: the thread sanitizer intercepts that, and writes to
            // its shadow of the code, which is read-only.
            libc::syscall(libc::SYS_mmap, start, length, code, flags, file, 0_i64) != -1
        };
        libc::close(file);
        complete
    }
}

/// Whether the process may create a file of `length` bytes. Beyond its limit, which counts for
/// memfds, too, SIGXFSZ would end it.
fn may_create(length: usize) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: it fills the structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    known && u64::try_from(length).is_ok_and(|length| length <= limit.rlim_cur)
}

/// Copies the code into the file and writes the jumps there.
///
/// # Safety
/// The range is readable and holds all entries.
unsafe fn fill(file: i32, entries: &[Entry], start: usize, length: usize) -> bool {
    let Ok(size) = libc::off_t::try_from(length) else {
        return false;
    };
    // SAFETY: the code is readable, and the mapping is as large and exclusively ours.
    unsafe {
        if libc::ftruncate(file, size) != 0 {
            return false;
        }
        let data = libc::PROT_READ | libc::PROT_WRITE;
        let copy = libc::mmap(ptr::null_mut(), length, data, libc::MAP_SHARED, file, 0);
        if copy == libc::MAP_FAILED {
            return false;
        }
        ptr::copy_nonoverlapping(start as *const u8, copy.cast::<u8>(), length);
        write_jumps(entries, start, copy.cast());
        libc::munmap(copy, length) == 0
    }
}

/// Replaces the code by a copy with the jumps, in anonymous memory.
///
/// # Safety
/// As [`by_file`].
unsafe fn by_memory(entries: &[Entry], start: usize, length: usize) -> bool {
    let copy = memory::pages(length);
    if copy.is_null() {
        return false;
    }
    // SAFETY: the code is readable, and the copy is as large and exclusively ours until it is
    // moved over the code.
    unsafe {
        ptr::copy_nonoverlapping(start as *const u8, copy, length);
        write_jumps(entries, start, copy);
        let code = libc::PROT_READ | libc::PROT_EXEC;
        let complete = libc::mprotect(copy.cast(), length, code) == 0 && {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let place = start as *mut libc::c_void;
            libc::mremap(copy.cast(), length, length, flags, place) != libc::MAP_FAILED
        };
        if !complete {
            memory::release(copy, length);
        }
        complete
    }
}
