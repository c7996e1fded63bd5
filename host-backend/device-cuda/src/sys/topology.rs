//! Where the GPU's TPCs lie: a function of NVIDIA's driver without a public
//! counterpart, as a native run of NVIDIA's matrix library calls it.

use core::ffi::{c_int, c_void};
use std::ptr;

use paragpu_abi::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use paragpu_device::{Error, Result};
use paragpu_protocol::status::Status;

use super::context::Context;
use super::driver::check;

/// 1734dc26-800d-4745-8726-c0f1e7dd8bca.
const TABLE: [u8; 16] = [
    0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca,
];
/// Allocates two arrays with a byte for each TPC: its cluster, its number there.
const ARRAYS: usize = 4;
/// Frees them.
const FREE: usize = 13;
/// Maximum number of TPCs.
const MAX_TPCS: usize = 128;

type Allocate = unsafe extern "C" fn(*mut *mut u8, *mut *mut u8) -> c_int;
type Free = unsafe extern "C" fn(*mut u8, *mut u8) -> c_int;

impl Context {
    /// The cluster of each TPC, and its number there.
    pub fn topology(&self) -> Result<[u8; 256]> {
        let unknown = || Error::new(Status::NOT_SUPPORTED, "the topology of this device");
        let mut multiprocessors = 0;
        // SAFETY: an out-parameter; the device is the context's.
        check(unsafe {
            (self.driver.cuDeviceGetAttribute)(
                &mut multiprocessors,
                CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                self.device,
            )
        })?;
        // A TPC has two.
        let count = usize::try_from(multiprocessors).unwrap_or(0) / 2;
        let mut table = ptr::null::<c_void>();
        // SAFETY: an out-parameter, and 16 bytes that name a table.
        check(unsafe { (self.driver.cuGetExportTable)(&mut table, TABLE.as_ptr().cast()) })
            .map_err(|_| unknown())?;
        let words = table.cast::<usize>();
        // SAFETY: a table begins with its size in bytes and lives as the driver.
        let size = unsafe { words.as_ref() }.copied().unwrap_or(0);
        if size <= FREE * size_of::<usize>() || !(1..=MAX_TPCS).contains(&count) {
            return Err(unknown());
        }
        // SAFETY: both words lie in the table and are functions of these types, or null.
        let (allocate, free) = unsafe {
            let allocate = words.add(ARRAYS).cast::<Option<Allocate>>().read();
            let free = words.add(FREE).cast::<Option<Free>>().read();
            (allocate.ok_or_else(unknown)?, free.ok_or_else(unknown)?)
        };
        let (mut clusters, mut numbers) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: two out-parameters.
        check(unsafe { allocate(&mut clusters, &mut numbers) })?;
        if clusters.is_null() || numbers.is_null() {
            return Err(unknown());
        }
        let mut topology = [0; 2 * MAX_TPCS];
        let (first, second) = topology.split_at_mut(MAX_TPCS);
        // SAFETY: the driver allocated a byte for each TPC in both, and frees them.
        unsafe {
            ptr::copy_nonoverlapping(clusters, first.as_mut_ptr(), count);
            ptr::copy_nonoverlapping(numbers, second.as_mut_ptr(), count);
            free(clusters, numbers);
        }
        Ok(topology)
    }
}
