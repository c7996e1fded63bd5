//! The address ranges that the protocol gives each device.

use paragpu_client::virtual_memory::has_view;
use paragpu_protocol::layout::{ARENA_BASE, DEVICE_STRIDE, MAX_DEVICES, SHADOW_BASE, WINDOW_BASE};

/// The ordinal of the device whose address ranges hold an address.
#[must_use]
pub fn ordinal_of(address: u64) -> Option<u32> {
    let region = [WINDOW_BASE, SHADOW_BASE, ARENA_BASE]
        .into_iter()
        .find_map(|base| address.checked_sub(base))?;
    u32::try_from(region / DEVICE_STRIDE)
        .ok()
        .filter(|ordinal| *ordinal < MAX_DEVICES)
}

/// Whether an address belongs to device memory.
#[inline]
pub fn is_in_arena(address: u64) -> bool {
    address.wrapping_sub(ARENA_BASE) < DEVICE_STRIDE * MAX_DEVICES as u64
}

/// Whether an address belongs to device memory that the program cannot access.
#[inline]
pub fn is_device_only(address: u64) -> bool {
    is_in_arena(address) && !has_view(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_one_device() {
        assert_eq!(ordinal_of(ARENA_BASE), Some(0));
        assert_eq!(ordinal_of(ARENA_BASE + DEVICE_STRIDE), Some(1));
        assert_eq!(ordinal_of(SHADOW_BASE + 5), Some(0));
        assert_eq!(ordinal_of(WINDOW_BASE + 15 * DEVICE_STRIDE), Some(15));
        for elsewhere in [0, ARENA_BASE - 1, 0x5555_5555_0000, 0x7fff_0000_0000] {
            assert_eq!(ordinal_of(elsewhere), None, "{elsewhere:#x}");
            assert!(!is_device_only(elsewhere), "{elsewhere:#x}");
        }
        // The program can access the window, but not the arena.
        assert!(!is_device_only(WINDOW_BASE) && is_device_only(ARENA_BASE + 15 * DEVICE_STRIDE));
    }
}
