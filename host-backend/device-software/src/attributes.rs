//! The properties of the software GPU: device attributes, limits, occupancy.

use paragpu_abi as abi;
use paragpu_device::{Error, Snapshot};
use paragpu_protocol::status::Status;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::invalid;
use crate::heap;

/// Settings of a software GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Number of devices of this platform.
    pub devices: u32,
    /// Device memory of each, in bytes.
    pub memory: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Number of multiprocessors, which are threads that run blocks.
    pub cores: u32,
    /// Whether mapped memory can be handed over to another process. It is then shared
    /// memory, which gets huge pages only if
    /// `/sys/kernel/mm/transparent_hugepage/shmem_enabled` allows it. Without them, random
    /// access is slower.
    pub shareable: bool,
}

impl Default for Options {
    /// One device of compute capability 12.1, with a thread for each core and 4 GiB of
    /// memory, or half of the host's memory if that is less.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let half = host_memory().map_or(u64::MAX, |bytes| bytes / 2);
        let memory = half.min(4 << 30) & !(paragpu_protocol::layout::CHUNK - 1);
        Self {
            devices: 1,
            memory,
            compute_capability: (12, 1),
            cores,
            shareable: false,
        }
    }
}

fn host_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.trim()
        .trim_end_matches(" kB")
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib << 10)
}

/// Pairs of an attribute and its value, which is a `u32`; `A | B = value` are two.
macro_rules! attributes {
    ($( $($name:ident)|+ = $value:expr, )*) => {
        vec![$( $( (abi::$name.cast_unsigned(), u32::cast_signed($value)), )+ )*]
    };
}

/// The prefix of the attributes among the interface's constants.
const ATTRIBUTE: &str = "CU_DEVICE_ATTRIBUTE_";

/// Maximum number of threads of a block.
pub const MAX_THREADS: u32 = 1024;
/// Maximum bytes of shared memory of a block by default.
pub const SHARED: u32 = 48 << 10;
/// Maximum bytes of shared memory that a block may request.
pub const SHARED_OPTIN: u32 = 227 << 10;
/// Bytes of shared memory of a multiprocessor.
pub const SHARED_SM: u32 = 228 << 10;
/// Maximum number of elements of a texture in linear memory.
pub const LINEAR_ELEMENTS: u32 = 1 << 28;
/// Maximum number of elements of a row of a texture in pitched memory.
pub const PITCHED_WIDTH: u32 = 131_072;
/// Maximum number of its rows.
pub const PITCHED_HEIGHT: u32 = 65_000;
/// Maximum number of bytes from one of its rows to the next.
pub const PITCHED_PITCH: u32 = 2_097_120;
/// Bytes of a block's shared memory that CUDA's libraries have for themselves, as on
/// compute capability 8.0 and later: groups of several warps (cooperative groups)
/// synchronize there.
pub const RESERVED_SHARED: u16 = 1024;
/// Bytes of the units in which blocks get shared memory (`cuda_occupancy.h`).
pub const SHARED_UNIT: u32 = 128;
/// Domain of its PCI address. It is one in which no machine has devices, because NCCL looks
/// up the address in the guest's sysfs, and domain 0 has a host bridge at 0000:00:00.0.
pub const PCI_DOMAIN: u32 = 0x7067;
/// Width of the memory bus in bits.
pub const MEMORY_BUS_WIDTH: u32 = 64;
/// Maximum number of threads of a multiprocessor.
pub const THREADS_SM: u32 = 2048;
/// Maximum number of blocks of a multiprocessor.
pub const BLOCKS_SM: u32 = 32;
/// Number of registers of a thread that every kernel reports. It has no meaning on this
/// device.
pub const REGISTERS: u32 = 32;
/// Driver version that this device reports: CUDA 13.0.
pub const DRIVER_VERSION: i32 = 13_000;

/// Maximum number of bytes of local memory of a thread.
pub const MAX_LOCAL: u32 = 512 << 10;
/// CU_LIMIT_STACK_SIZE.
pub const STACK_LIMIT: u32 = 0;
/// The limits of a context that it has from the beginning, by CUlimit.
const LIMITS: [(u32, u64); 7] = [
    (STACK_LIMIT, 1024),
    (1, 1 << 20),
    (heap::LIMIT, 8 << 20),
    (5, 64),
    (6, 0),
    (7, SHARED_OPTIN as u64),
    (8, 0),
];

/// The limits of a context (cuCtxSetLimit).
#[derive(Debug)]
pub struct Limits(BTreeMap<u32, AtomicU64>);

impl Default for Limits {
    fn default() -> Self {
        Self(LIMITS.map(|(limit, value)| (limit, value.into())).into())
    }
}

impl Limits {
    /// The value of a limit; `None` if this device has no such limit.
    #[must_use]
    pub fn get(&self, limit: u32) -> Option<u64> {
        let value = self.0.get(&limit)?;
        Some(value.load(Ordering::Relaxed))
    }

    /// Sets a limit.
    ///
    /// # Errors
    /// `UNSUPPORTED_LIMIT`; `INVALID_VALUE` for a value out of range.
    pub fn set(&self, limit: u32, value: u64) -> Result<(), Error> {
        let most = match limit {
            STACK_LIMIT => u64::from(MAX_LOCAL),
            5 => 128,
            6 => 0,
            _ => u64::MAX,
        };
        let slot = self.0.get(&limit).ok_or(Status::UNSUPPORTED_LIMIT)?;
        if value > most {
            return Err(invalid("limit too large"));
        }
        slot.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// What kernels may ask about their device.
#[derive(Debug)]
pub struct Properties {
    /// CUdevice_attributes and values, in order.
    attributes: Vec<(u32, i32)>,
    /// The context's limits.
    pub limits: Limits,
}

impl Properties {
    /// The value of a CUdevice_attribute.
    #[must_use]
    pub fn attribute(&self, attribute: u32) -> Option<i32> {
        let found = self.attributes.binary_search_by_key(&attribute, |a| a.0);
        Some(self.attributes.get(found.ok()?)?.1)
    }
}

impl Options {
    /// Compute capability times ten.
    #[must_use]
    pub fn arch(&self) -> u32 {
        self.compute_capability.0 * 10 + self.compute_capability.1
    }

    /// The facts about device `index`.
    ///
    /// # Errors
    /// `INVALID_DEVICE` for an index out of range.
    pub fn snapshot(&self, index: u32) -> Result<Snapshot, Error> {
        if index >= self.devices {
            return Err(Status::INVALID_DEVICE.into());
        }
        let mut uuid = *b"paragpu-software";
        uuid[15] = index as u8;
        Ok(Snapshot {
            driver_version: DRIVER_VERSION,
            total_memory: self.memory,
            uuid,
            name: "paragpu software GPU".to_owned(),
            pci_bus_id: format!("{PCI_DOMAIN:04X}:{index:02X}:00.0"),
            attributes: self.attributes(index),
        })
    }

    /// The properties of device `index`.
    #[must_use]
    pub fn properties(&self, index: u32) -> Properties {
        Properties {
            attributes: self.attributes(index),
            limits: Limits::default(),
        }
    }

    /// Every CUdevice_attribute with its value, in order.
    fn attributes(&self, index: u32) -> Vec<(u32, i32)> {
        let mut list = attributes! {
            CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = MAX_THREADS,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 1024,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y = 1024,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z = 64,
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = i32::MAX as u32,
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 65535,
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 65535,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = SHARED,
            CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY = 64 << 10,
            CU_DEVICE_ATTRIBUTE_WARP_SIZE = 32,
            CU_DEVICE_ATTRIBUTE_MAX_PITCH = i32::MAX as u32,
            CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK = 65536,
            // Clock rates in kHz: an instruction of a thread each nanosecond.
            CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 1_000_000,
            CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT = 512,
            CU_DEVICE_ATTRIBUTE_GPU_OVERLAP = 1,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = self.cores,
            CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 1,
            CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT = 512,
            CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS = 1,
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = index,
            CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 1_000_000,
            CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = MEMORY_BUS_WIDTH,
            CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 1 << 20,
            CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = THREADS_SM,
            CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 1,
            CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 1,
            CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER = 1,
            CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = PCI_DOMAIN,
            CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT = 32,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = self.compute_capability.0,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = self.compute_capability.1,
            CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED = 1,
            CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED = 1,
            CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED = 1,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = SHARED_SM,
            CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 65536,
            CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID = index,
            CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED = 1,
            CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO = 2,
            CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED = 1,
            CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 1,
            CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH = 1,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = SHARED_OPTIN,
            CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 1,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = BLOCKS_SM,
            CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK = RESERVED_SHARED.into(),
            // Stream memory operations of 64 bits, and waits for NOR.
            CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 1,
            CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR = 1,
            CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT = 1,
            CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS = 1,
            CU_DEVICE_ATTRIBUTE_NUMA_ID = u32::MAX,
            CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = u32::MAX,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH = LINEAR_ELEMENTS,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH = PITCHED_WIDTH,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT = PITCHED_HEIGHT,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH = PITCHED_PITCH,
            // Sizes of textures and surfaces; all arrays are plain memory here.
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH
            = 32768,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH
            = 16384,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS
            = 2048,
            // Layers of arrays of cubes.
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS
            = 2046,
            // Launches of clusters, tensor maps.
            CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
            | CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED
            = u32::from(self.arch() >= 90),
        };
        // All other features are absent.
        for (name, n) in abi::constants() {
            let n = n as u32;
            if name.starts_with(ATTRIBUTE) && !list.iter().any(|&(m, _)| m == n) {
                list.push((n, 0));
            }
        }
        list.sort_unstable();
        list
    }
}

/// The number of blocks with `threads` threads and `shared` bytes that fit on a
/// multiprocessor.
#[must_use]
pub fn occupancy(threads: u32, shared: u64) -> u32 {
    if threads == 0 || threads > MAX_THREADS {
        return 0;
    }
    let warps = threads.div_ceil(32);
    let each = (shared + u64::from(RESERVED_SHARED)).next_multiple_of(SHARED_UNIT.into());
    let by_shared = u64::from(SHARED_SM) / each;
    BLOCKS_SM.min(THREADS_SM / 32 / warps).min(by_shared as u32)
}

/// Bytes of shared memory for each of `blocks` blocks of `threads` threads if a
/// multiprocessor runs all of them; 0 if it cannot.
#[must_use]
pub fn shared_of_each(blocks: u32, threads: u32) -> u32 {
    if blocks == 0 || occupancy(threads, 0) < blocks {
        return 0;
    }
    let each = (SHARED_SM / blocks) & !(SHARED_UNIT - 1);
    each.saturating_sub(RESERVED_SHARED.into())
        .min(SHARED_OPTIN)
}
