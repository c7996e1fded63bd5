//! The window of the PCI device, as `kernel-module/include/uapi/linux/paragpu.h` specifies
//! it; a test compares the two. Offsets and sizes are in bytes. The parts that both sides
//! of a channel use are in the ring crate's `layout`.

use paragpu_communicator_ring::layout::{VERSION_VALUE, device, list};

use crate::Error;

/// Bytes of the header.
pub const HEADER_SIZE: usize = device::STATE + device::MAX_CHANNELS as usize * 4;

/// The guest's peer number at the doorbell register.
pub const PEER_GUEST: u16 = 0;

/// The peer that serves `channel`.
#[must_use]
pub fn peer_of_channel(channel: u16) -> u16 {
    channel + 1
}

/// The control peer, which is told about every change of a state word.
#[must_use]
pub fn peer_of_control(channel_count: u16) -> u16 {
    channel_count + 1
}

/// Values of a channel's state word.
pub mod state {
    /// Scrubbed, with a header, and not in use.
    pub const FREE: u32 = 0;
    /// A guest process has it open.
    pub const OPEN: u32 = 1;
    /// The host has ended it; a guest process still has it open.
    pub const HOST_CLOSED: u32 = 2;
    /// No guest process has it open any more, and the host has not scrubbed it yet.
    pub const RELEASED: u32 = 3;
}

/// Alignment in bytes of channels, so that guests with pages of up to 64 KiB can map them.
const CHANNEL_ALIGNMENT: u64 = 64 * 1024;

/// Minimum size of a channel in bytes: its rings, and as much again for bulk data.
pub const MIN_CHANNEL_SIZE: u64 = 4 << 20;

/// Maximum size of a window in bytes. Firmware finds no address for a larger BAR.
pub const MAX_WINDOW_SIZE: u64 = 1 << 38;

/// The division of a window into channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Size of the window in bytes, a power of two.
    pub window_size: u64,
    /// Number of channels, 1 to [`device::MAX_CHANNELS`].
    pub channel_count: u16,
    /// Offset of channel 0.
    pub channel_offset: u64,
    /// Size in bytes of each channel, and the distance from one to the next.
    pub channel_size: u64,
    /// Offset of the page lists; 0 if there are none.
    pub list_offset: u64,
}

/// Bytes of a channel's page lists.
pub const LISTS_SIZE: u64 = list::SIZE * list::COUNT as u64;

impl Layout {
    /// Divides a window of `window_size` bytes into `channel_count` channels.
    ///
    /// # Errors
    /// [`Error::WindowSize`], [`Error::ChannelCount`], [`Error::ChannelSize`].
    pub fn new(window_size: u64, channel_count: u16) -> Result<Self, Error> {
        Self::divide(window_size, channel_count, 0)
    }

    /// As [`new`](Self::new), with page lists, for a host that can access the guest's
    /// memory.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_lists(window_size: u64, channel_count: u16) -> Result<Self, Error> {
        Self::divide(window_size, channel_count, LISTS_SIZE)
    }

    fn divide(window_size: u64, channel_count: u16, lists_size: u64) -> Result<Self, Error> {
        if !window_size.is_power_of_two() || window_size > MAX_WINDOW_SIZE {
            return Err(Error::WindowSize(window_size));
        }
        if channel_count == 0 || u32::from(channel_count) > device::MAX_CHANNELS {
            return Err(Error::ChannelCount(channel_count));
        }
        let channel_offset = CHANNEL_ALIGNMENT;
        let count = u64::from(channel_count);
        let share = window_size.saturating_sub(channel_offset) / count;
        let share = share.saturating_sub(lists_size);
        let channel_size = share - share % CHANNEL_ALIGNMENT;
        if channel_size < MIN_CHANNEL_SIZE {
            return Err(Error::ChannelSize {
                window_size,
                channel_count,
            });
        }
        Ok(Self {
            window_size,
            channel_count,
            channel_offset,
            channel_size,
            list_offset: match lists_size {
                0 => 0,
                _ => channel_offset + count * channel_size,
            },
        })
    }

    /// Offset of a channel's page lists in the window.
    #[must_use]
    pub fn lists_of(&self, channel: u16) -> Option<u64> {
        let first = self.list_offset;
        (first != 0).then_some(first + u64::from(channel) * LISTS_SIZE)
    }

    /// Offset of a channel in the window.
    #[must_use]
    pub fn offset_of(&self, channel: u16) -> u64 {
        self.channel_offset + u64::from(channel) * self.channel_size
    }

    /// The initial header of the window.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "the fields lie inside the header")]
    pub fn header(&self, generation: u32) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        let mut put = |at: usize, value: &[u8]| {
            bytes[at..at + value.len()].copy_from_slice(value);
        };
        put(device::MAGIC, &device::MAGIC_VALUE.to_le_bytes());
        put(device::VERSION, &VERSION_VALUE.to_le_bytes());
        put(
            device::CHANNEL_COUNT,
            &u32::from(self.channel_count).to_le_bytes(),
        );
        put(device::GENERATION, &generation.to_le_bytes());
        put(device::CHANNEL_OFFSET, &self.channel_offset.to_le_bytes());
        put(device::CHANNEL_SIZE, &self.channel_size.to_le_bytes());
        put(device::WINDOW_SIZE, &self.window_size.to_le_bytes());
        put(device::LIST_OFFSET, &self.list_offset.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_fill_the_window_without_meeting() {
        for bits in 24..=34 {
            for count in [1, 2, 3, 7, 32, 512] {
                let Ok(layout) = Layout::new(1 << bits, count) else {
                    assert!((1 << bits) < u64::from(count + 1) * MIN_CHANNEL_SIZE);
                    continue;
                };
                assert!(layout.offset_of(0) >= HEADER_SIZE as u64);
                assert!(layout.offset_of(count) <= layout.window_size);
                assert_eq!(layout.channel_size % CHANNEL_ALIGNMENT, 0);
            }
        }
    }

    #[test]
    fn lists_lie_behind_the_channels() {
        for (bits, count) in [(24, 3), (28, 32), (30, 32), (34, 512)] {
            let layout = Layout::with_lists(1 << bits, count).unwrap();
            assert_eq!(layout.lists_of(0), Some(layout.offset_of(count)));
            let last = layout.lists_of(count - 1).unwrap();
            assert!(last + LISTS_SIZE <= layout.window_size);
            assert_eq!(Layout::new(1 << bits, count).unwrap().lists_of(0), None);
        }
    }

    #[test]
    fn odd_sizes_are_refused() {
        assert!(matches!(
            Layout::new(100 << 20, 1),
            Err(Error::WindowSize(_))
        ));
        assert!(matches!(Layout::new(1 << 60, 1), Err(Error::WindowSize(_))));
        assert!(matches!(
            Layout::new(256 << 20, 0),
            Err(Error::ChannelCount(0))
        ));
        assert!(matches!(
            Layout::new(1 << 38, 513),
            Err(Error::ChannelCount(513))
        ));
        assert!(matches!(
            Layout::new(16 << 20, 16),
            Err(Error::ChannelSize { .. })
        ));
    }
}
