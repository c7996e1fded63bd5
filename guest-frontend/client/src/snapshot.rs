//! The constant facts about a device, fetched once.

use std::collections::HashMap;

use paragpu_abi as abi;
use paragpu_protocol::types::{DeviceSnapshot, pairs};

/// All that is constant about a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// cuDriverGetVersion.
    pub driver_version: i32,
    /// cuDeviceTotalMem, in bytes.
    pub total_memory: u64,
    /// cuDeviceGetUuid.
    pub uuid: [u8; 16],
    /// cuDeviceGetName.
    pub name: String,
    /// cuDeviceGetPCIBusId.
    pub pci_bus_id: String,
    attributes: HashMap<u32, i32>,
    /// The limits that each launch is checked against.
    pub limits: Limits,
}

/// The device attributes that each launch is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Threads in a block.
    pub threads: u32,
    /// Threads in a block, by dimension.
    pub block: [u32; 3],
    /// Blocks, by dimension.
    pub grid: [u32; 3],
    /// Registers that a block can have.
    pub registers: u32,
    /// Bytes of shared memory that a block has by default.
    pub shared: u32,
    /// Bytes of shared memory that a block can have.
    pub shared_optin: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Threads on a multiprocessor.
    pub threads_of_multiprocessor: u32,
    /// Threads in a warp.
    pub warp: u32,
    /// Whether kernels may be launched cooperatively.
    pub cooperative: bool,
    /// Whether a kernel may begin before the end of the one before it: compute
    /// capability 9.0 and newer.
    pub programmatic: bool,
}

/// Device attributes that the guest overrides, because they describe what this library
/// serves.
const OVERRIDES: &[(i32, i32)] = &[
    // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: registered memory is copied.
    (
        abi::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        0,
    ),
    // MANAGED_MEMORY is in the host. CONCURRENT_MANAGED_ACCESS: without a window it is a
    // copy, coherent at launches and waits only.
    (abi::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1),
    (abi::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0),
    // PAGEABLE_MEMORY_ACCESS and through the host's page tables, direct
    // managed access: the device is in another machine.
    (abi::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0),
    (
        abi::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        0,
    ),
    (
        abi::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
        0,
    ),
    // The first version of stream memory operations, whose answers differ.
    (abi::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 0),
    (abi::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 0),
    (abi::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 0),
    // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED and its handles for other
    // processes, descriptors alone: served here.
    (
        abi::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
        1,
    ),
    (
        abi::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        1,
    ),
    (
        abi::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED,
        0,
    ),
    (
        abi::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED,
        0,
    ),
    // Sharing with other processes: descriptors of pools, IPC events.
    (abi::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 1),
    (abi::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1),
    // Sharing with other devices: RDMA, DMA-BUF, fabric, multicast.
    (
        abi::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        0,
    ),
    (abi::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 0),
    (abi::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0),
    (abi::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0),
    (abi::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0),
    (abi::CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 0),
    // Sparse and deferred arrays.
    (abi::CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 0),
    (
        abi::CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
        0,
    ),
    // Served here.
    (abi::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
    (abi::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
    (abi::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
    (abi::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
    (abi::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 0),
    // Used by functions, flags and attributes that are not served: compressible memory,
    // timeline semaphores, flushing of RDMA writes and their order.
    (abi::CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 0),
    (
        abi::CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED,
        0,
    ),
    (
        abi::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
        0,
    ),
    (abi::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 0),
    // Unified function pointers, decompression.
    (abi::CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 0),
    (abi::CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK, 0),
    (abi::CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH, 0),
    // Virtual memory and pools in the host and its NUMA nodes: the guest's,
    // which has a node 0 whatever the device is next to. Allocations of
    // HOST_NUMA are not shared with other nodes of a multi-node system.
    (abi::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0),
    (
        abi::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        1,
    ),
    (abi::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1),
    (
        abi::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED,
        0,
    ),
    (abi::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 1),
    (
        abi::CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        1,
    ),
    // HOST_ALLOC_DMA_BUF_SUPPORTED.
    (abi::CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED, 0),
];

impl Snapshot {
    /// From the host's answer.
    #[must_use]
    pub fn from_wire(wire: &DeviceSnapshot<'_>) -> Self {
        let mut attributes: HashMap<u32, i32> = pairs(wire.attributes)
            .map(|(attribute, value)| (attribute, value.cast_signed()))
            .collect();
        let overrides = OVERRIDES.iter();
        attributes.extend(overrides.map(|&(attribute, value)| (attribute.cast_unsigned(), value)));
        let get = |attribute: i32, default: u32| {
            attributes
                .get(&attribute.cast_unsigned())
                .and_then(|value| u32::try_from(*value).ok())
                .unwrap_or(default)
        };
        let shared = get(
            abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
            48 << 10,
        );
        let limits = Limits {
            threads: get(abi::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
            block: [
                get(abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
                get(abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),
                get(abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
            ],
            grid: [
                get(abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fff_ffff),
                get(abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65_535),
                get(abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65_535),
            ],
            registers: get(abi::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65_536),
            shared,
            shared_optin: get(
                abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                shared,
            ),
            multiprocessors: get(abi::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1),
            threads_of_multiprocessor: get(
                abi::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                1024,
            ),
            warp: get(abi::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32).max(1),
            cooperative: get(abi::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0) != 0,
            programmatic: get(abi::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0) >= 9,
        };
        Self {
            driver_version: wire.driver_version,
            total_memory: wire.total_memory,
            uuid: wire.uuid,
            name: wire.name.0.to_owned(),
            pci_bus_id: wire.pci_bus_id.0.to_owned(),
            attributes,
            limits,
        }
    }

    /// A CUdevice_attribute, if the device knows it.
    #[must_use]
    pub fn attribute(&self, attribute: u32) -> Option<i32> {
        self.attributes.get(&attribute).copied()
    }
}
