//! The layout of the shared window, version 1.1: the Rust mirror of the device's
//! specification (the kernel module's `linux/paragpu.h`).
//!
//! All integers are little-endian. A *channel region* serves one session; with `shm`, the
//! memory file is one region; with `pci`, the device window (BAR2) contains a device header
//! page and then `channel_count` regions.
//!
//! Ring indices count bytes and only increase; offsets are indices modulo the ring's size.
//! A record is a frame header and its payload, padded to 16 bytes. A record never wraps. If
//! it would, a pad record (kind [`PAD_KIND`], length up to the ring's end) fills the rest
//! of the ring.

use paragpu_communicator::Error;
use paragpu_protocol::frame::{HEADER_LEN, MAX_PAYLOAD};

/// The device window (`pci` only): offsets from the start of BAR2.
pub mod device {
    /// u32: [`MAGIC`](self::MAGIC_VALUE).
    pub const MAGIC: usize = 0x000;
    /// u32: major << 16 | minor.
    pub const VERSION: usize = 0x004;
    /// u32: number of channels, 1..=[`MAX_CHANNELS`].
    pub const CHANNEL_COUNT: usize = 0x008;
    /// u32: changes whenever the host side restarts.
    pub const GENERATION: usize = 0x00c;
    /// u64: offset of channel 0.
    pub const CHANNEL_OFFSET: usize = 0x010;
    /// u64: bytes from one channel to the next.
    pub const CHANNEL_SIZE: usize = 0x018;
    /// u64: bytes of the whole window.
    pub const WINDOW_SIZE: usize = 0x020;
    /// u64: offset of the page lists ([`super::list`]), after the channels; 0 if the host
    /// cannot access the guest's memory.
    pub const LIST_OFFSET: usize = 0x028;
    /// u32: not 0 once the host has ended the device, which a new one replaces; it has closed all
    /// channels and opens none.
    pub const HOST_GONE: usize = 0x030;
    /// u64[8]: the host sets bit c before it fires the vector for channel c's guest; the
    /// guest's interrupt handler takes and clears the words.
    pub const PENDING: usize = 0x080;
    /// u32[512]: the state of channel c, one of the `STATE_` values.
    pub const STATE: usize = 0x100;
    /// "PGPU".
    pub const MAGIC_VALUE: u32 = 0x5550_4750;
    /// Maximum number of channels of a device.
    pub const MAX_CHANNELS: u32 = 512;
    /// Bytes of the header page.
    pub const HEADER_SIZE: u64 = 4096;
    /// No guest process has the channel.
    pub const STATE_CLOSED: u32 = 0;
    /// A guest process has the channel open.
    pub const STATE_OPEN: u32 = 1;
    /// The host ended the channel; the guest's poll reports a hang-up.
    pub const STATE_CLOSED_BY_HOST: u32 = 2;
}

/// u32: [`MAGIC_VALUE`].
pub const MAGIC: usize = 0x000;
/// u32: [`VERSION_VALUE`].
pub const VERSION: usize = 0x004;
/// u64: bytes of the region.
pub const REGION_SIZE: usize = 0x008;
/// u64: offset of the ring guest → host.
pub const TO_HOST_OFFSET: usize = 0x010;
/// u64: its size, a power of two.
pub const TO_HOST_SIZE: usize = 0x018;
/// u64: offset of the ring host → guest.
pub const TO_GUEST_OFFSET: usize = 0x020;
/// u64: its size, a power of two.
pub const TO_GUEST_SIZE: usize = 0x028;
/// u64: offset of the bulk area.
pub const BULK_OFFSET: usize = 0x030;
/// u64: its size; may be 0.
pub const BULK_SIZE: usize = 0x038;
/// The indices of the ring guest → host ([`index`]).
pub const TO_HOST: usize = 0x080;
/// The indices of the ring host → guest ([`index`]).
pub const TO_GUEST: usize = 0x180;
/// u64, host writes: number of completed bulk transfers.
pub const BULK_DONE: usize = 0x280;
/// u32, guest writes: 1 once it has closed the connection.
pub const CLOSED_BY_GUEST: usize = 0x2c0;
/// u32, host writes: 1 once it has closed the connection.
pub const CLOSED_BY_HOST: usize = 0x300;

/// The indices of one ring, as offsets from [`TO_HOST`] or [`TO_GUEST`], each in its own
/// cache line.
pub mod index {
    /// u64, producer writes: bytes ever produced.
    pub const TAIL: usize = 0x00;
    /// u64, consumer writes: bytes ever consumed.
    pub const HEAD: usize = 0x40;
    /// u32: the consumer sets it to 1 before it sleeps; the producer sets it to 0 and
    /// rings.
    pub const CONSUMER_WAITS: usize = 0x80;
    /// u32: the producer sets it to 1 before it sleeps; the consumer sets it to 0 and
    /// rings.
    pub const PRODUCER_WAITS: usize = 0xc0;
}

/// A page list: memory of the guest that the host copies directly. Each channel has
/// [`COUNT`](list::COUNT) of them, outside the part that a process can map.
pub mod list {
    /// u32: [`FREE`], [`READY`] or [`BUSY`].
    pub const STATE: usize = 0x00;
    /// u32: number of entries.
    pub const COUNT_OF: usize = 0x04;
    /// u32: offset of the first byte in the first entry's memory.
    pub const OFFSET: usize = 0x08;
    /// u32: 0 or [`WRITABLE`].
    pub const FLAGS: usize = 0x0c;
    /// u64: number of bytes that the list names.
    pub const LENGTH: usize = 0x10;
    /// u64[[`ENTRIES`]]: address, a multiple of 4096, plus the number of further pages of
    /// 4096 bytes.
    pub const ENTRY: usize = 0x40;
    /// The list names no memory; the guest's kernel may write it.
    pub const FREE: u32 = 0;
    /// The list names pinned pages.
    pub const READY: u32 = 1;
    /// The host is reading or writing the pages.
    pub const BUSY: u32 = 2;
    /// Flag: the host may write to the pages.
    pub const WRITABLE: u32 = 1;
    /// Bytes of a list.
    pub const SIZE: u64 = 16384;
    /// Maximum number of entries.
    pub const ENTRIES: usize = 2040;
    /// Number of lists of a channel.
    pub const COUNT: u32 = 4;
    /// Maximum number of bytes of memory that one list names.
    pub const PIN_MAX: u64 = 4 << 20;
}

/// "PGCH".
pub const MAGIC_VALUE: u32 = 0x4843_4750;
/// 1.1.
pub const VERSION_VALUE: u32 = 0x0001_0001;
/// Bytes of the header before the rings.
pub const HEADER_SIZE: u64 = 4096;
/// Alignment in bytes of the rings and the bulk area.
pub const PAGE: u64 = 4096;
/// Kind of the pad record at a ring's end. No frame has it.
pub const PAD_KIND: u16 = 0xffff;
/// Alignment in bytes of records.
pub const RECORD_ALIGN: u64 = 16;
/// Minimum size of a ring in bytes: the largest record and the padding before it fit twice.
pub const MIN_RING_SIZE: u64 = 1 << 20;
/// Maximum size of a ring in bytes.
pub const MAX_RING_SIZE: u64 = 1 << 30;

/// Bytes that a frame with `length` payload bytes takes in a ring, without padding before
/// it.
#[must_use]
pub fn record_size(length: usize) -> u64 {
    (HEADER_LEN as u64 + length as u64).next_multiple_of(RECORD_ALIGN)
}

/// The place of a ring or the bulk area in its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset from the start of the region.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// The checked layout of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the region.
    pub region_size: u64,
    /// The ring guest → host.
    pub to_host: Extent,
    /// The ring host → guest.
    pub to_guest: Extent,
    /// The bulk area, after the rings.
    pub bulk: Extent,
}

impl Layout {
    /// Two rings of `ring_size` bytes each; the rest is bulk area.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the sizes are out of range or do not fit.
    pub fn new(region_size: u64, ring_size: u64) -> Result<Self, Error> {
        let region_size = region_size - region_size % PAGE;
        let rings = ring_size
            .checked_mul(2)
            .and_then(|r| r.checked_add(HEADER_SIZE));
        let Some(bulk) = rings.filter(|end| *end <= region_size) else {
            return Err(Error::protocol(format!(
                "a region of {region_size} bytes has no room for two rings of {ring_size} bytes"
            )));
        };
        Self {
            region_size,
            to_host: Extent {
                offset: HEADER_SIZE,
                size: ring_size,
            },
            to_guest: Extent {
                offset: HEADER_SIZE + ring_size,
                size: ring_size,
            },
            bulk: Extent {
                offset: bulk,
                size: region_size - bulk,
            },
        }
        .checked(region_size)
    }

    /// Checks that every part is inside `mapped` bytes, after the header, and does not
    /// overlap another.
    ///
    /// # Errors
    /// [`Error::Protocol`] with the reason.
    pub fn checked(self, mapped: u64) -> Result<Self, Error> {
        if self.region_size > mapped || self.region_size < HEADER_SIZE {
            return Err(Error::protocol(format!(
                "region of {} bytes in a mapping of {mapped}",
                self.region_size
            )));
        }
        for ring in [self.to_host, self.to_guest] {
            if !ring.size.is_power_of_two() || !(MIN_RING_SIZE..=MAX_RING_SIZE).contains(&ring.size)
            {
                return Err(Error::protocol(format!("ring of {} bytes", ring.size)));
            }
        }
        let parts = [self.to_host, self.to_guest, self.bulk];
        for part in parts {
            let end = part.offset.checked_add(part.size);
            if part.offset < HEADER_SIZE
                || !part.offset.is_multiple_of(PAGE)
                || !part.size.is_multiple_of(PAGE)
                || end.is_none_or(|end| end > self.region_size)
            {
                return Err(Error::protocol(format!(
                    "{} bytes at offset {} of a region of {}",
                    part.size, part.offset, self.region_size
                )));
            }
        }
        let apart =
            |a: Extent, b: Extent| a.offset + a.size <= b.offset || b.offset + b.size <= a.offset;
        let [a, b, c] = parts;
        if !(apart(a, b) && apart(b, c) && apart(a, c)) {
            return Err(Error::protocol("parts of the region overlap"));
        }
        Ok(self)
    }

    /// Bytes from the start of the region to the end of the rings.
    #[must_use]
    pub fn framing_size(&self) -> u64 {
        let end = |place: Extent| place.offset + place.size;
        end(self.to_host).max(end(self.to_guest))
    }
}

const _: () = assert!(MIN_RING_SIZE >= 2 * (HEADER_LEN as u64 + MAX_PAYLOAD as u64 + RECORD_ALIGN));
const _: () = assert!(MAX_PAYLOAD.is_multiple_of(RECORD_ALIGN as usize));

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_plain_layout_is_accepted() {
        let layout = Layout::new(64 << 20, 1 << 20).unwrap();
        assert_eq!(layout.bulk.offset, 4096 + (2 << 20));
        assert_eq!(layout.bulk.offset + layout.bulk.size, 64 << 20);
        assert_eq!(layout.framing_size(), layout.bulk.offset);
    }

    #[test]
    fn bad_layouts_are_refused() {
        assert!(Layout::new(1 << 20, 1 << 20).is_err());
        assert!(Layout::new(u64::MAX, u64::MAX / 2).is_err());
        assert!(Layout::new(64 << 20, 3 << 20).is_err());
        assert!(Layout::new(64 << 20, 1 << 12).is_err());
        let good = Layout::new(64 << 20, 1 << 20).unwrap();
        assert!(good.checked((64 << 20) - 1).is_err());
        for change in [
            |l: &mut Layout| l.to_host.offset = 0,
            |l: &mut Layout| l.to_host.offset = 4097,
            |l: &mut Layout| l.to_host.offset = u64::MAX - 4095,
            |l: &mut Layout| l.to_guest.offset = l.to_host.offset,
            |l: &mut Layout| l.to_guest.size = 1 << 29,
            |l: &mut Layout| l.bulk.size += 4096,
            |l: &mut Layout| l.bulk.offset -= 4096,
            |l: &mut Layout| l.bulk.size = u64::MAX,
            |l: &mut Layout| l.region_size = 0,
        ] {
            let mut bad = good;
            change(&mut bad);
            assert!(bad.checked(64 << 20).is_err(), "{bad:?}");
        }
    }
}
