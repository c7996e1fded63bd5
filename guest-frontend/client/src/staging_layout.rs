//! The location of the staging slots in a window: after the token words, before pinned
//! memory.

use paragpu_protocol::layout::{BULK_TOKEN_BYTES, STAGING_TOKENS};

/// Bytes of a slot.
pub(crate) const SLOT: usize = 512 << 10;
/// Maximum number of slots.
const SLOTS: usize = STAGING_TOKENS as usize;
/// Slots in a quarter of a window, if at least two fit.
pub(crate) fn slots(window: u64) -> usize {
    let room = usize::try_from(window).unwrap_or(usize::MAX) / 4;
    let count = (room / SLOT).min(SLOTS);
    if count < 2 { 0 } else { count }
}

/// Bytes of a window up to the end of `count` slots.
pub(crate) fn end(count: usize) -> u64 {
    BULK_TOKEN_BYTES + (count * SLOT) as u64
}

/// Bytes of a window that the session uses itself.
pub(crate) fn reach(window: u64) -> u64 {
    end(slots(window))
}
