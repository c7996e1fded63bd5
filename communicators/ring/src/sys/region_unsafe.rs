//! A channel region in a mapping: its header, its rings, its bulk area.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use paragpu_communicator::{Error, Window};
use paragpu_protocol::frame::HEADER_LEN;

use crate::channel::{Region, Side};
use crate::layout::{self, Extent, Layout, index};
use crate::ring::Ring;
use crate::sys::mapping_unsafe::Mapping;

/// A part of a mapping that begins with a channel's header.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    mapping: Arc<Mapping>,
    at: u64,
}

impl Base {
    /// The region that begins `at` bytes into the mapping.
    pub(crate) fn new(mapping: Arc<Mapping>, at: u64) -> Result<Self, Error> {
        let fits = at
            .checked_add(layout::HEADER_SIZE)
            .is_some_and(|end| end <= mapping.len());
        if !fits || !at.is_multiple_of(layout::PAGE) {
            return Err(Error::protocol(format!("a channel at offset {at}")));
        }
        Ok(Self { mapping, at })
    }

    /// Number of bytes mapped from the start of the region.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapping.len() - self.at
    }

    /// The address of `length` bytes at `offset` of the region.
    fn pointer(&self, offset: u64, length: u64) -> NonNull<u8> {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.mapped()));
        // SAFETY: inside the mapping, by the assertion.
        unsafe { self.mapping.base().add((self.at + offset) as usize) }
    }

    pub(crate) fn u32(&self, offset: usize) -> &AtomicU32 {
        let place = self.pointer(offset as u64, 4).cast::<AtomicU32>();
        assert!(place.is_aligned());
        // SAFETY: mapped while self lives, and aligned. If the peer's accesses are not
        // atomic, that harms only the peer.
        unsafe { place.as_ref() }
    }

    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        let place = self.pointer(offset as u64, 8).cast::<AtomicU64>();
        assert!(place.is_aligned());
        // SAFETY: as in u32.
        unsafe { place.as_ref() }
    }

    /// Writes a new header: empty rings, nothing closed. The magic is written last, so that
    /// a reader that sees it also sees the rest.
    pub(crate) fn initialise(&self, layout: &Layout) {
        self.u32(layout::MAGIC).store(0, Ordering::SeqCst);
        for offset in (0x80..0x340).step_by(8) {
            self.u64(offset).store(0, Ordering::Relaxed);
        }
        // No consumer polls the ring yet, so the guest's first record must ring.
        self.u32(layout::TO_HOST + index::CONSUMER_WAITS)
            .store(1_u32.to_le(), Ordering::Relaxed);
        let words = [
            (layout::REGION_SIZE, layout.region_size),
            (layout::TO_HOST_OFFSET, layout.to_host.offset),
            (layout::TO_HOST_SIZE, layout.to_host.size),
            (layout::TO_GUEST_OFFSET, layout.to_guest.offset),
            (layout::TO_GUEST_SIZE, layout.to_guest.size),
            (layout::BULK_OFFSET, layout.bulk.offset),
            (layout::BULK_SIZE, layout.bulk.size),
        ];
        for (offset, value) in words {
            self.u64(offset).store(value.to_le(), Ordering::Relaxed);
        }
        self.u32(layout::VERSION)
            .store(layout::VERSION_VALUE.to_le(), Ordering::Relaxed);
        self.u32(layout::MAGIC)
            .store(layout::MAGIC_VALUE.to_le(), Ordering::Release);
    }

    /// Reads the header once and checks that the layout fits into `limit` bytes.
    pub(crate) fn layout(&self, limit: u64) -> Result<Layout, Error> {
        let magic = u32::from_le(self.u32(layout::MAGIC).load(Ordering::Acquire));
        if magic != layout::MAGIC_VALUE {
            return Err(Error::protocol(format!(
                "no channel here: magic {magic:#x}"
            )));
        }
        let version = u32::from_le(self.u32(layout::VERSION).load(Ordering::Relaxed));
        if version >> 16 != layout::VERSION_VALUE >> 16 {
            return Err(Error::protocol(format!(
                "channel layout version {}.{}, this side knows {}.x",
                version >> 16,
                version & 0xffff,
                layout::VERSION_VALUE >> 16
            )));
        }
        let word = |offset| u64::from_le(self.u64(offset).load(Ordering::Relaxed));
        Layout {
            region_size: word(layout::REGION_SIZE),
            to_host: Extent {
                offset: word(layout::TO_HOST_OFFSET),
                size: word(layout::TO_HOST_SIZE),
            },
            to_guest: Extent {
                offset: word(layout::TO_GUEST_OFFSET),
                size: word(layout::TO_GUEST_SIZE),
            },
            bulk: Extent {
                offset: word(layout::BULK_OFFSET),
                size: word(layout::BULK_SIZE),
            },
        }
        .checked(limit)
    }

    /// The rings of a layout whose header and rings are mapped.
    pub(crate) fn region(&self, layout: &Layout, side: Side) -> MappedRegion {
        let ring = |place: Extent, indices: usize| MappedRing {
            data: self.pointer(place.offset, place.size),
            size: place.size,
            indices: self.pointer(indices as u64, 0x100),
        };
        let to_host = ring(layout.to_host, layout::TO_HOST);
        let to_guest = ring(layout.to_guest, layout::TO_GUEST);
        let (outgoing, incoming) = match side {
            Side::Guest => (to_host, to_guest),
            Side::Host => (to_guest, to_host),
        };
        MappedRegion {
            base: self.clone(),
            side,
            outgoing,
            incoming,
        }
    }

    /// Creates a window on the bulk area, which begins `at` bytes into `bulk`. The window
    /// keeps `tenure` open.
    pub(crate) fn window(
        &self,
        bulk: Arc<Mapping>,
        at: u64,
        length: u64,
        tenure: Option<OwnedFd>,
    ) -> Window {
        assert!(at.checked_add(length).is_some_and(|end| end <= bulk.len()));
        let progress = self.pointer(layout::BULK_DONE as u64, 8).cast();
        // SAFETY: inside the mapping, by the assertion.
        let base = unsafe { bulk.base().add(at as usize) };
        let owner = Box::new((bulk, Arc::clone(&self.mapping), tenure));
        // SAFETY: both mappings live as long as the owner. Ring accesses use no references
        // to the bulk area.
        let window = unsafe { Window::from_raw(base, length as usize, progress, owner) };
        let magic = self.pointer(layout::MAGIC as u64, 4).cast();
        // SAFETY: in the mapping of the header, which the owner keeps.
        unsafe { window.with_mark(magic) }
    }
}

/// Number of cache lines to prefetch for the next record: a launch with a dozen parameters.
#[cfg(target_arch = "x86_64")]
const PREPARED: usize = 4;

/// One ring in mapped memory.
#[derive(Debug)]
pub(crate) struct MappedRing {
    data: NonNull<u8>,
    size: u64,
    indices: NonNull<u8>,
}

// SAFETY: the memory is shared with the peer in any case. Accesses are atomic or copies
// with raw pointers, and the region keeps the mapping alive.
unsafe impl Send for MappedRing {}
// SAFETY: as above.
unsafe impl Sync for MappedRing {}

impl MappedRing {
    fn u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `indices` points to 0x100 mapped bytes, aligned to 64. Offsets are the
        // constants of `index`.
        unsafe { self.indices.add(offset).cast::<AtomicU64>().as_ref() }
    }

    fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in u64.
        unsafe { self.indices.add(offset).cast::<AtomicU32>().as_ref() }
    }

    fn place(&self, offset: u64, length: usize) -> NonNull<u8> {
        let fits = offset <= self.size && length as u64 <= self.size - offset;
        assert!(fits, "a ring access outside the ring");
        // SAFETY: inside the ring, by the assertion.
        unsafe { self.data.add(offset as usize) }
    }
}

impl Ring for MappedRing {
    #[inline]
    fn size(&self) -> u64 {
        self.size
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        self.u64(index::TAIL)
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        self.u64(index::HEAD)
    }

    #[inline]
    fn consumer_waits(&self) -> &AtomicU32 {
        self.u32(index::CONSUMER_WAITS)
    }

    #[inline]
    fn producer_waits(&self) -> &AtomicU32 {
        self.u32(index::PRODUCER_WAITS)
    }

    #[inline]
    fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.place(offset, bytes.len());
        if let Ok(header) = <&[u8; HEADER_LEN]>::try_from(bytes) {
            // SAFETY: `place` checked that 16 bytes are there.
            unsafe { to.cast::<[u8; HEADER_LEN]>().write(*header) };
            return;
        }
        // SAFETY: `place` checked the length; a private slice cannot overlap
        // the ring.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    #[inline]
    fn read(&self, offset: u64, bytes: &mut [u8]) {
        let from = self.place(offset, bytes.len());
        // SAFETY: as in write. A peer that writes meanwhile only changes the copy, and
        // nothing is decoded before the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len());
        }
    }

    #[inline]
    fn prepare(&self, offset: u64) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..PREPARED {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            let at = self.data.as_ptr().wrapping_add(offset as usize + line * 64);
            // SAFETY: a prefetch has no architectural effect, and never faults (Intel SDM
            // volume 2, PREFETCHW).
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }
}

/// One side's view of a channel region in mapped memory.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    base: Base,
    side: Side,
    outgoing: MappedRing,
    incoming: MappedRing,
}

impl Region for MappedRegion {
    type Ring = MappedRing;

    fn outgoing(&self) -> &MappedRing {
        &self.outgoing
    }

    fn incoming(&self) -> &MappedRing {
        &self.incoming
    }

    fn closed_here(&self) -> &AtomicU32 {
        self.base.u32(match self.side {
            Side::Guest => layout::CLOSED_BY_GUEST,
            Side::Host => layout::CLOSED_BY_HOST,
        })
    }

    fn closed_there(&self) -> &AtomicU32 {
        self.base.u32(match self.side {
            Side::Guest => layout::CLOSED_BY_HOST,
            Side::Host => layout::CLOSED_BY_GUEST,
        })
    }

    #[inline]
    fn is_there(&self) -> bool {
        // Orders the reads before this check before it.
        fence(Ordering::Acquire);
        self.base.u32(layout::MAGIC).load(Ordering::Relaxed) == layout::MAGIC_VALUE.to_le()
    }
}
