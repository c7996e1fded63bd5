//! The messages of vfio-user, version 0.1 (`docs/interop/vfio-user.rst` in
//! QEMU's sources), as far as a device that does no DMA of its own needs them.
//!
//! All numbers are in the host's byte order, which is little-endian wherever this project
//! runs. They are decoded by the protocol crate, which is total and does not allocate.

use paragpu_protocol::codec::Reader;
use rustix::io::Errno;

/// The supported version.
pub const VERSION: Version = Version { major: 0, minor: 1 };

/// Bytes of a [`Header`].
pub const HEADER_SIZE: usize = 16;

/// Maximum number of bytes of an access to a region.
pub const MAX_ACCESS: usize = 4096;

/// Maximum number of bytes of a message, which is an access or a client's capabilities.
pub const MAX_MESSAGE: usize = HEADER_SIZE + 16 + MAX_ACCESS;

/// Maximum number of descriptors with one message.
pub const MAX_FDS: usize = 8;

/// Maximum number of mapped ranges of guest memory.
pub const MAX_MAPPINGS: usize = 4096;

/// The encoded capabilities of this side, with the final zero.
pub fn capabilities() -> Vec<u8> {
    let text = format!(
        "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\
         \"max_data_xfer_size\":{MAX_ACCESS},\"max_dma_maps\":{MAX_MAPPINGS}}}}}\0"
    );
    text.into_bytes()
}

/// Numbers of the commands that a client sends.
pub mod command {
    /// The first command: version and capabilities.
    pub const VERSION: u16 = 1;
    /// The guest has memory at this range.
    pub const DMA_MAP: u16 = 2;
    /// The guest no longer has memory at this range.
    pub const DMA_UNMAP: u16 = 3;
    /// Returns the number of regions and interrupts.
    pub const GET_INFO: u16 = 4;
    /// Returns the properties of a region.
    pub const GET_REGION_INFO: u16 = 5;
    /// Returns the properties of an interrupt.
    pub const GET_IRQ_INFO: u16 = 7;
    /// Sets the eventfd that raises an interrupt.
    pub const SET_IRQS: u16 = 8;
    /// Reads from a region.
    pub const REGION_READ: u16 = 9;
    /// Writes to a region.
    pub const REGION_WRITE: u16 = 10;
    /// Resets the device to the state after power-on.
    pub const RESET: u16 = 13;
}

/// Bits of [`Header::flags`].
pub mod header_flags {
    /// Mask of the message's type.
    pub const TYPE: u32 = 0xf;
    /// Type: a command.
    pub const COMMAND: u32 = 0;
    /// Type: an answer.
    pub const REPLY: u32 = 1;
    /// The client does not wait for a reply.
    pub const NO_REPLY: u32 = 1 << 4;
    /// The command failed.
    pub const ERROR: u32 = 1 << 5;
}

/// Numbers of regions and interrupts of a PCI device, as in Linux's VFIO.
pub mod pci {
    /// Region: registers, [`super::super::config_space::REGISTERS_SIZE`] bytes.
    pub const BAR0: u32 = 0;
    /// Region: the window.
    pub const BAR2: u32 = 2;
    /// Region: configuration space.
    pub const CONFIG: u32 = 7;
    /// Number of regions; the others are empty.
    pub const REGIONS: u32 = 9;
    /// Interrupt: MSI.
    pub const MSI: u32 = 1;
    /// Number of interrupts; the others are empty.
    pub const INTERRUPTS: u32 = 5;
}

/// Flags of [`DeviceInfo`]: it can be reset; it is a PCI device.
pub const DEVICE_FLAGS: u32 = 1 | 1 << 1;

/// Bits of [`RegionInfo::flags`].
pub mod region_flags {
    /// It can be read.
    pub const READ: u32 = 1;
    /// It can be written.
    pub const WRITE: u32 = 1 << 1;
    /// Its descriptor can be mapped.
    pub const MMAP: u32 = 1 << 2;
    /// [`super::MappableArea`] follows.
    pub const CAPABILITIES: u32 = 1 << 3;
}

/// Flag of [`IrqInfo`]: it is raised through an eventfd.
pub const IRQ_EVENTFD: u32 = 1;

/// Bits of [`IrqSet::flags`].
pub mod irq_set_flags {
    /// No data: count 0 turns the interrupt off, another count raises it.
    pub const DATA_NONE: u32 = 1;
    /// An eventfd comes with the message; without one, the current one is removed.
    pub const DATA_EVENTFD: u32 = 1 << 2;
    /// The command sets how the interrupt is raised.
    pub const ACTION_TRIGGER: u32 = 1 << 5;
}

/// Bits of [`DmaMap::flags`].
pub mod dma_flags {
    /// The device may read.
    pub const READ: u32 = 1;
    /// The device may write.
    pub const WRITE: u32 = 1 << 1;
}

/// Flag of [`DmaUnmap`]: unmap everything; the range is ignored.
pub const UNMAP_ALL: u32 = 1 << 1;

paragpu_protocol::record! {
    /// The header of every message.
    Header {
        /// Chosen by the sender of a command, repeated in its answer.
        id: u16,
        /// See [`command`].
        command: u16,
        /// Bytes of the message, including this header.
        size: u32,
        /// See [`header_flags`].
        flags: u32,
        /// The errno of a failed command.
        error: u32,
    }

    /// [`command::VERSION`] and its answer; capabilities follow, as JSON and a
    /// zero.
    Version {
        /// The major version; both sides must have the same.
        major: u16,
        /// The minor version; the answer's is the lower one.
        minor: u16,
    }

    /// [`command::DMA_MAP`]. The file that contains the memory comes with the message, if
    /// it can be mapped.
    DmaMap {
        /// Bytes of this structure.
        argsz: u32,
        /// See [`dma_flags`].
        flags: u32,
        /// Offset of the range in the file, in bytes.
        offset: u64,
        /// Its first address as the device sees it.
        address: u64,
        /// Its size in bytes.
        size: u64,
    }

    /// [`command::DMA_UNMAP`]; answered with the same.
    DmaUnmap {
        /// Bytes of this structure.
        argsz: u32,
        /// 0 or [`UNMAP_ALL`].
        flags: u32,
        /// The first address.
        address: u64,
        /// Number of bytes.
        size: u64,
    }

    /// [`command::GET_INFO`] and its answer.
    DeviceInfo {
        /// Bytes of this structure.
        argsz: u32,
        /// [`DEVICE_FLAGS`].
        flags: u32,
        /// [`pci::REGIONS`].
        regions: u32,
        /// [`pci::INTERRUPTS`].
        interrupts: u32,
    }

    /// [`command::GET_REGION_INFO`] and its answer.
    RegionInfo {
        /// In the command: bytes for which the client has room. In the answer: bytes of the
        /// whole answer.
        argsz: u32,
        /// See [`region_flags`].
        flags: u32,
        /// The region.
        index: u32,
        /// Offset of [`MappableArea`] in the answer; 0 without one.
        capabilities: u32,
        /// Its size in bytes.
        size: u64,
        /// Its offset in the descriptor that comes with the answer.
        offset: u64,
    }

    /// The part of a region that can be mapped: a capability of one area.
    MappableArea {
        /// 1, the capability's number.
        id: u16,
        /// 1, its version.
        version: u16,
        /// 0: no other follows.
        next: u32,
        /// 1 area.
        count: u32,
        /// Always 0.
        reserved: u32,
        /// Its offset in the region.
        offset: u64,
        /// Its size in bytes.
        size: u64,
    }

    /// [`command::GET_IRQ_INFO`] and its answer.
    IrqInfo {
        /// Bytes of this structure.
        argsz: u32,
        /// [`IRQ_EVENTFD`].
        flags: u32,
        /// The interrupt.
        index: u32,
        /// Number of its vectors.
        count: u32,
    }

    /// [`command::SET_IRQS`].
    IrqSet {
        /// Bytes of this structure, and of data if the flags say that some follow.
        argsz: u32,
        /// See [`irq_set_flags`].
        flags: u32,
        /// The interrupt.
        index: u32,
        /// The first vector.
        start: u32,
        /// Number of vectors.
        count: u32,
    }

    /// [`command::REGION_READ`], [`command::REGION_WRITE`] and their answers;
    /// `count` bytes follow a write, and the answer to a read.
    Access {
        /// Offset of the first byte in the region.
        offset: u64,
        /// The region.
        region: u32,
        /// Number of bytes.
        count: u32,
    }
}

/// Bytes of a [`RegionInfo`].
pub const REGION_INFO_SIZE: u32 = 32;
/// Bytes of a [`MappableArea`].
pub const MAPPABLE_AREA_SIZE: u32 = 32;

/// Decodes the fields at the start of a command's payload. Returns them and the rest.
///
/// # Errors
/// [`Errno::INVAL`] if it is too short.
pub fn fields<'a, T: paragpu_protocol::codec::Field<'a>>(
    payload: &'a [u8],
) -> Result<(T, &'a [u8]), Errno> {
    let mut reader = Reader::new(payload);
    let value = reader.field().map_err(|_| Errno::INVAL)?;
    let rest = reader.bytes(reader.remaining()).map_err(|_| Errno::INVAL)?;
    Ok((value, rest))
}
