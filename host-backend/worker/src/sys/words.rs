//! The token words at the start of the window's bulk area.

use std::sync::atomic::{AtomicU32, Ordering};

use paragpu_communicator::Window;

/// Sets the `u32` word at `offset` (a multiple of 4) of the window, after everything that
/// this process wrote before. Does nothing if the window has no such word.
pub fn store(window: &Window, offset: u64, value: u32) {
    let Ok(place) = window.place(offset, 4) else {
        return;
    };
    let word = place.cast::<AtomicU32>();
    if !word.is_aligned() {
        return;
    }
    // SAFETY: `place` checked that the word is inside the window, which is mapped while
    // borrowed. It is aligned, and every access to it by this process is atomic.
    unsafe { &*word }.store(value.to_le(), Ordering::Release);
}

/// The word at `offset`; 0 if there is none.
#[must_use]
pub fn load(window: &Window, offset: u64) -> u32 {
    let Ok(place) = window.place(offset, 4) else {
        return 0;
    };
    let word = place.cast::<AtomicU32>();
    if !word.is_aligned() {
        return 0;
    }
    // SAFETY: as in store.
    u32::from_le(unsafe { &*word }.load(Ordering::Acquire))
}
