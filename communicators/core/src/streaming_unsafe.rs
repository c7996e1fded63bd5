//! Copies past the processor's caches, for much data that is not read again soon.
//!
//! A store to a line that is not cached reads the line first, and puts it into the cache in
//! place of another. The C library avoids both for a single large copy. It cannot for a large
//! copy that comes in parts, each from a slot of the window: the part is in the caches, where
//! the peer has just written it, and its place in the program's memory is not.
#![allow(unsafe_code)]

/// Copies `length` bytes, and makes them visible to other threads before later stores.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
pub unsafe fn copy_past_caches(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller upholds it; x86-64 has SSE2.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        lines::copy(from, to, length);
    }
    // SAFETY: the caller upholds it.
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, length);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod lines {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// Bytes of a cache line.
    const LINE: usize = 64;
    /// Bytes of a store.
    const STORE: usize = size_of::<__m128i>();

    /// Whole lines are written past the caches, what is before and behind them as usual.
    ///
    /// # Safety
    /// As for [`std::ptr::copy_nonoverlapping`].
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
        let before = to.align_offset(LINE).min(length);
        let lines = (length - before) / LINE * LINE;
        // SAFETY: the three parts add up to `length`, and each store in the second is aligned.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, before);
            for at in (before..before + lines).step_by(LINE) {
                for part in (at..at + LINE).step_by(STORE) {
                    let value = _mm_loadu_si128(from.add(part).cast());
                    _mm_stream_si128(to.add(part).cast(), value);
                }
            }
            let behind = before + lines;
            std::ptr::copy_nonoverlapping(from.add(behind), to.add(behind), length - behind);
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_copied_and_no_others() {
        let source: Vec<u8> = (0..512).map(|at| at as u8 | 1).collect();
        for start in (0..70).chain([127, 128]) {
            for length in (0..140).chain([200, 256, 300]) {
                let mut target = vec![0; 512];
                // SAFETY: both ranges are inside their buffers.
                unsafe {
                    let from = source.as_ptr().add(start / 3);
                    copy_past_caches(from, target.as_mut_ptr().add(start), length);
                }
                let copied = &source[start / 3..start / 3 + length];
                assert_eq!(&target[start..start + length], copied, "{start} {length}");
                target[start..start + length].fill(0);
                assert!(target.iter().all(|byte| *byte == 0), "{start} {length}");
            }
        }
    }
}
