//! Device memory that is memory of this process.

use std::ptr::NonNull;

use paragpu_device::{Device, StreamId};

/// Device memory that this process reads and writes itself, in the place of
/// work of a stream of which all work is complete.
///
/// Kernels of other streams may use the same bytes at the same time: that is a
/// race of the program that launched them, whose values nothing here looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceBytes {
    base: NonNull<u8>,
    address: u64,
    length: usize,
}

// SAFETY: a place in memory that any thread may use; who keeps one past the
// work that it stands for gives it up before the memory is unmapped.
unsafe impl Send for DeviceBytes {}
// SAFETY: as above.
unsafe impl Sync for DeviceBytes {}

impl DeviceBytes {
    /// `length` bytes at `address`, where `stream` may be done without.
    pub(crate) fn of(
        device: &mut dyn Device,
        address: u64,
        length: u64,
        stream: StreamId,
    ) -> Option<Self> {
        let base = device.host_access(address, length, stream)?;
        Some(Self {
            base,
            address,
            length: usize::try_from(length).ok()?,
        })
    }

    /// The device's address of the byte at `offset`.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    /// The first `count` bytes; none if there are fewer.
    pub(crate) fn first(&self, count: usize) -> &[u8] {
        if count > self.length {
            return &[];
        }
        // SAFETY: the device said that these bytes are mapped in this process
        // for reading; the owner of the value keeps them so.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), count) }
    }

    /// Lets `fill` write the bytes from `offset` on, which only this value's
    /// user is to write meanwhile.
    pub(crate) fn fill(&self, offset: usize, fill: impl FnOnce(&mut [u8])) {
        let offset = offset.min(self.length);
        // SAFETY: as in `first`, for writing; `offset` is inside.
        fill(unsafe {
            std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), self.length - offset)
        });
    }
}

impl AsRef<[u8]> for DeviceBytes {
    fn as_ref(&self) -> &[u8] {
        self.first(self.length)
    }
}
