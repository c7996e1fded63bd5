//! The address ranges that the protocol gives each device.

use paragpu_client::sys::reservation::is_reserved;
use paragpu_client::virtual_memory::has_view;
use paragpu_protocol::layout::{ARENA_BASE, DEVICE_STRIDE, MAX_DEVICES, SHADOW_BASE, WINDOW_BASE};

/// The ordinal of the device whose address ranges hold an address.
#[must_use]
pub fn ordinal_of(address: u64) -> Option<u32> {
    let base = [WINDOW_BASE, SHADOW_BASE, ARENA_BASE]
        .into_iter()
        .find(|base| address >= *base)?;
    if base == ARENA_BASE && !is_in_arena(address) {
        return None;
    }
    u32::try_from((address - base) / DEVICE_STRIDE)
        .ok()
        .filter(|ordinal| *ordinal < MAX_DEVICES)
}

/// Whether an address belongs to device memory. The program may have mapped memory in the arenas
/// of devices without a session, and in holes of the others.
#[inline]
pub fn is_in_arena(address: u64) -> bool {
    is_reserved(address)
}

/// Whether an address belongs to device memory that the program cannot access.
#[inline]
pub fn is_device_only(address: u64) -> bool {
    is_in_arena(address) && !has_view(address)
}

#[cfg(test)]
mod tests {
    use paragpu_client::sys::reservation::Reservation;

    use super::*;

    #[test]
    fn an_address_belongs_to_one_device() {
        let arenas = [ARENA_BASE, ARENA_BASE + DEVICE_STRIDE];
        assert_eq!(arenas.map(ordinal_of), [None, None]);
        let reserved = arenas.map(|arena| Reservation::new(arena).unwrap());
        assert_eq!(arenas.map(ordinal_of), [Some(0), Some(1)]);
        // The program can access the window, but not the arena.
        assert!(!is_device_only(WINDOW_BASE) && is_device_only(ARENA_BASE));
        drop(reserved);
        assert!(!is_device_only(ARENA_BASE));
        assert_eq!(ordinal_of(SHADOW_BASE + 5), Some(0));
        assert_eq!(ordinal_of(WINDOW_BASE + 15 * DEVICE_STRIDE), Some(15));
        for elsewhere in [0, ARENA_BASE - 1, 0x5555_5555_0000, 0x7fff_0000_0000] {
            assert_eq!(ordinal_of(elsewhere), None, "{elsewhere:#x}");
            assert!(!is_device_only(elsewhere), "{elsewhere:#x}");
        }
    }
}
