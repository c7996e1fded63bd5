//! The properties of the software GPU: device attributes, limits, occupancy.

use paragpu_device::{Error, Snapshot};
use paragpu_protocol::status::Status;

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

/// Maximum number of threads of a block.
pub const MAX_THREADS: u32 = 1024;
/// Maximum bytes of shared memory of a block by default.
pub const SHARED: u32 = 48 << 10;
/// Maximum bytes of shared memory that a block may request.
pub const SHARED_OPTIN: u32 = 227 << 10;
/// Bytes of shared memory of a multiprocessor.
pub const SHARED_SM: u32 = 228 << 10;
/// Bytes of shared memory that the system reserves in each block.
pub const SHARED_RESERVED: u32 = 1 << 10;
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

    /// Every CUdevice_attribute with its value.
    fn attributes(&self, index: u32) -> Vec<(u32, i32)> {
        let at = |n: u32, v: u32| (n, v as i32);
        let mut list = vec![
            at(1, MAX_THREADS),
            at(2, 1024),
            at(3, 1024),
            at(4, 64),
            at(5, i32::MAX as u32),
            at(6, 65535),
            at(7, 65535),
            at(8, SHARED),
            at(9, 64 << 10),
            at(10, 32),
            at(11, i32::MAX as u32),
            at(12, 65536),
            // Clock rates in kHz: an instruction of a thread each nanosecond.
            at(13, 1_000_000),
            at(14, 512),
            at(15, 1),
            at(16, self.cores),
            at(17, 0),
            at(18, 0),
            at(19, 1),
            at(20, 0),
            at(30, 512),
            at(31, 1),
            at(32, 0),
            at(33, index),
            at(34, 0),
            at(35, 0),
            at(36, 1_000_000),
            at(37, MEMORY_BUS_WIDTH),
            at(38, 1 << 20),
            at(39, THREADS_SM),
            at(40, 1),
            at(41, 1),
            at(44, 1),
            at(50, PCI_DOMAIN),
            at(51, 32),
            at(75, self.compute_capability.0),
            at(76, self.compute_capability.1),
            at(78, 1),
            at(79, 1),
            at(80, 1),
            at(81, SHARED_SM),
            at(82, 65536),
            at(83, 0),
            at(84, 0),
            at(85, index),
            at(86, 1),
            at(87, 2),
            at(88, 0),
            at(89, 0),
            at(90, 1),
            at(91, 1),
            at(95, 1),
            at(97, SHARED_OPTIN),
            at(99, 1),
            at(106, BLOCKS_SM),
            at(111, SHARED_RESERVED),
            // Stream memory operations of 64 bits, and waits for NOR.
            at(122, 1),
            at(123, 1),
            at(126, 1),
            at(129, 1),
            at(131, u32::MAX),
            at(134, u32::MAX),
        ];
        // Sizes of textures and surfaces; all arrays are plain memory here.
        for n in [
            21, 22, 23, 27, 28, 42, 45, 46, 52, 53, 55, 56, 57, 61, 63, 64, 66, 67, 73, 74, 77,
        ] {
            list.push(at(n, 32768));
        }
        for n in [24, 25, 26, 47, 48, 49, 58, 59, 60] {
            list.push(at(n, 16384));
        }
        for n in [29, 43, 62, 65] {
            list.push(at(n, 2048));
        }
        // Layers of arrays of cubes.
        for n in [54, 68] {
            list.push(at(n, 2046));
        }
        list.extend([
            at(69, 1 << 28),
            at(70, 131_072),
            at(71, 65000),
            at(72, 2_097_120),
        ]);
        // Launches of clusters, tensor maps.
        for n in [120, 127] {
            list.push(at(n, u32::from(self.arch() >= 90)));
        }
        // All other features are absent.
        for n in 1..=147 {
            if !list.iter().any(|&(m, _)| m == n) {
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
    let by_shared =
        u64::from(SHARED_SM) / (shared + u64::from(SHARED_RESERVED)).next_multiple_of(128);
    BLOCKS_SM.min(THREADS_SM / 32 / warps).min(by_shared as u32)
}

/// Bytes of shared memory for each of `blocks` blocks of `threads` threads if a
/// multiprocessor runs all of them; 0 if it cannot.
#[must_use]
pub fn shared_of_each(blocks: u32, threads: u32) -> u32 {
    if blocks == 0 || occupancy(threads, 0) < blocks {
        return 0;
    }
    let each = (SHARED_SM / blocks) & !127;
    each.saturating_sub(SHARED_RESERVED).min(SHARED_OPTIN)
}
