//! The constant facts about a device, fetched once.

use std::collections::HashMap;

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
const OVERRIDES: &[(u32, i32)] = &[
    // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: registered memory is copied.
    (91, 0),
    // MANAGED_MEMORY is in the host. CONCURRENT_MANAGED_ACCESS: without a window it is a
    // copy, coherent at launches and waits only.
    (83, 1),
    (89, 0),
    // PAGEABLE_MEMORY_ACCESS and through the host's page tables, direct
    // managed access: the device is in another machine.
    (88, 0),
    (100, 0),
    (101, 0),
    // The first version of stream memory operations, whose answers differ.
    (92, 0),
    (93, 0),
    (94, 0),
    // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED and its handles for other
    // processes, descriptors alone: served here.
    (102, 1),
    (103, 1),
    (104, 0),
    (105, 0),
    // Sharing with other processes: descriptors of pools, IPC events.
    (119, 1),
    (125, 1),
    // Sharing with other devices: RDMA, DMA-BUF, fabric, multicast.
    (110, 0),
    (116, 0),
    (124, 0),
    (128, 0),
    (132, 0),
    // COOPERATIVE_MULTI_DEVICE_LAUNCH.
    (96, 0),
    // Sparse and deferred arrays.
    (112, 0),
    (121, 0),
    // UNIFIED_ADDRESSING, CAN_MAP_HOST_MEMORY, HOST_REGISTER_SUPPORTED,
    // MEMORY_POOLS_SUPPORTED: served here.
    (41, 1),
    (19, 1),
    (99, 1),
    (115, 1),
    // HOST_NATIVE_ATOMIC_SUPPORTED.
    (86, 0),
    // Used by functions, flags and attributes that are not served: compressible memory,
    // timeline semaphores, flushing of RDMA writes and their order.
    (107, 0),
    (114, 0),
    (117, 0),
    (118, 0),
    // Unified function pointers, decompression.
    (129, 0),
    (136, 0),
    (137, 0),
    // Virtual memory and pools in the host and its NUMA nodes: the guest's,
    // which has a node 0 whatever the device is next to. Allocations of
    // HOST_NUMA are not shared with other nodes of a multi-node system.
    (134, 0),
    (141, 1),
    (142, 1),
    (143, 0),
    (144, 1),
    (145, 1),
    // HOST_ALLOC_DMA_BUF_SUPPORTED.
    (146, 0),
];

impl Snapshot {
    /// From the host's answer.
    #[must_use]
    pub fn from_wire(wire: &DeviceSnapshot<'_>) -> Self {
        let mut attributes: HashMap<u32, i32> = pairs(wire.attributes)
            .map(|(attribute, value)| (attribute, value.cast_signed()))
            .collect();
        attributes.extend(OVERRIDES.iter().copied());
        let get = |attribute: u32, default: u32| {
            attributes
                .get(&attribute)
                .and_then(|value| u32::try_from(*value).ok())
                .unwrap_or(default)
        };
        let shared = get(8, 48 << 10);
        let limits = Limits {
            threads: get(1, 1024),
            block: [get(2, 1024), get(3, 1024), get(4, 64)],
            grid: [get(5, 0x7fff_ffff), get(6, 65_535), get(7, 65_535)],
            registers: get(12, 65_536),
            shared,
            shared_optin: get(97, shared),
            multiprocessors: get(16, 1),
            threads_of_multiprocessor: get(39, 1024),
            warp: get(10, 32).max(1),
            cooperative: get(95, 0) != 0,
            programmatic: get(75, 0) >= 9,
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
