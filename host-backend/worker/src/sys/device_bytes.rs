//! Device memory that is mapped in this process.

use std::ptr::NonNull;

use paragpu_device::{Device, StreamId};

/// Device memory that this process reads and writes itself, instead of submitting work to
/// a stream that is idle.
///
/// Kernels of other streams may use the same bytes at the same time. That is a race in
/// the guest's program; nothing here depends on the values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceBytes {
    base: NonNull<u8>,
    address: u64,
    length: usize,
}

// SAFETY: an address in memory that any thread may use. A holder that keeps it longer
// than the work that it replaces drops it before the memory is unmapped.
unsafe impl Send for DeviceBytes {}
// SAFETY: as above.
unsafe impl Sync for DeviceBytes {}

impl DeviceBytes {
    /// `length` bytes at `address`, if `stream` can be bypassed.
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

    /// The first `count` bytes; empty if there are fewer.
    pub(crate) fn first(&self, count: usize) -> &[u8] {
        if count > self.length {
            return &[];
        }
        // SAFETY: the device reported that these bytes are mapped in this process for
        // reading. The owner of the value keeps them mapped.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), count) }
    }

    /// Lets `fill` write the bytes from `offset` on. Only the user of this value may
    /// write them meanwhile.
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
