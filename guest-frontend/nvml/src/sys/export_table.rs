//! The table of unnamed functions that nvidia-smi requests from NVML.
//!
//! Its meaning was found by watching the arguments and results of native runs of
//! nvidia-smi 535, 550 and 580 with NVML 580.159 (tests/nvml/watch.c); for slot 23, by
//! the text that nvidia-smi prints for a result. Slots whose meaning became clear are
//! served. The others return NOT_SUPPORTED, which nvidia-smi shows as "N/A". They print
//! nothing, because a line on standard error would break a monitor's row.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;

use super::boundary::{Boundary, Text};
use super::{device, exports, guard, guard_before_init, pcie, process, put, put_list};
use crate::code::{Code, Result};
use crate::types::{nvmlDevice_t, nvmlReturn_t};

/// The table's identifier.
const ID: [u8; 16] = [
    0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4,
];
/// Number of words: the first is the size in bytes, the others are functions.
const WORDS: usize = 270;

/// A word of the table.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Word(*const c_void);

// SAFETY: a number, or the address of a function.
unsafe impl Sync for Word {}

static TABLE: [Word; WORDS] = {
    let mut table = [Word(unserved as *const c_void); WORDS];
    table[0] = Word(ptr::without_provenance(WORDS * size_of::<Word>()));
    table[23] = Word(ancestor as *const c_void);
    table[26] = Word(log as *const c_void);
    table[72] = Word(device_exists as *const c_void);
    table[108] = Word(enforced_power_limit as *const c_void);
    table[213] = Word(compute_processes as *const c_void);
    table[214] = Word(no_processes as *const c_void);
    table[215] = Word(no_processes as *const c_void);
    table[145] = Word(no_samples as *const c_void);
    table[81] = Word(bus_id as *const c_void);
    table
};

/// Returns the table with this identifier. There is only one.
///
/// # Safety
/// `table` is null or writable, `id` null or sixteen bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInternalGetExportTable(
    table: *mut *const c_void,
    id: *const [u8; 16],
) -> nvmlReturn_t {
    guard_before_init(|| {
        // SAFETY: the caller upholds this.
        let (table, id) = unsafe { (table.as_mut(), id.as_ref()) };
        let table = table.ok_or(Code::INVALID_ARGUMENT)?;
        *table = ptr::null();
        if id.ok_or(Code::INVALID_ARGUMENT)? != &ID {
            return Err(Code::NOT_FOUND);
        }
        *table = TABLE.as_ptr().cast();
        Ok(())
    })
}

/// A function that is not served.
extern "C" fn unserved() -> nvmlReturn_t {
    Code::NOT_SUPPORTED.0
}

/// The common ancestor of two devices, given by their bus addresses, for `topo -m`:
/// from 0, one bridge, to 4, another memory node; NVLink links follow.
///
/// # Safety
/// `one` and `other` are null or texts, `out` is null or writable.
unsafe extern "C" fn ancestor(
    one: *const c_char,
    other: *const c_char,
    out: *mut c_uint,
) -> nvmlReturn_t {
    const OTHER_NODE: c_uint = 4;
    guard(|| {
        for id in [one, other] {
            // SAFETY: the caller upholds this.
            let id: Text<'_> = unsafe { Boundary::take(id) };
            device::by_bus_id(id.get()?)?;
        }
        // SAFETY: the caller upholds this.
        unsafe { put(out, OTHER_NODE) }
    })
}

/// nvmlDeviceGetEnforcedPowerLimit, as used by --query-gpu.
///
/// # Safety
/// `out` is null or writable.
unsafe extern "C" fn enforced_power_limit(handle: nvmlDevice_t, out: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: the caller upholds this.
    unsafe { exports::nvmlDeviceGetEnforcedPowerLimit(handle, out) }
}

/// Receives each line that nvidia-smi has printed: a format, the name of the stream, and
/// the line.
extern "C" fn log() -> nvmlReturn_t {
    Code::SUCCESS.0
}

/// Called before dmon and pmon: 1 for an existing device.
///
/// # Safety
/// `out` is null or writable.
unsafe extern "C" fn device_exists(handle: nvmlDevice_t, out: *mut c_uint) -> nvmlReturn_t {
    guard(|| {
        device::ordinal(handle)?;
        // SAFETY: the caller upholds this.
        let out = unsafe { out.as_mut() };
        *out.ok_or(Code::INVALID_ARGUMENT)? = 1;
        Ok(())
    })
}

/// Process utilization since a point in time, for pmon. NVIDIA's library returns
/// NOT_FOUND if nothing ran; with any other code, pmon retries immediately.
extern "C" fn no_samples() -> nvmlReturn_t {
    Code::NOT_FOUND.0
}

/// Slot 213's record of a process: 4,128 bytes.
#[repr(C)]
struct Process {
    pid: c_uint,
    /// Bytes of the device's memory.
    memory: c_ulonglong,
    /// Its MIG instances: none.
    instances: [c_uint; 2],
    /// 0 in every observed record.
    unknown: c_ulonglong,
    /// Its arguments as in /proc, each terminated by a zero.
    arguments: [u8; 4096],
}

impl Process {
    fn new((pid, memory): (u32, u64)) -> Self {
        let mut arguments = [0; 4096];
        // A process that has exited has none.
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        // The last byte stays zero.
        for (out, byte) in arguments.iter_mut().take(4095).zip(line) {
            *out = byte;
        }
        Self {
            pid,
            memory,
            instances: [c_uint::MAX; 2],
            unknown: 0,
            arguments,
        }
    }
}

/// The VM's compute processes. `count` is the capacity, and on return the number of
/// processes.
///
/// # Safety
/// `count` is null or a readable and writable word; `out` is null or writable for as many
/// records as it says.
unsafe extern "C" fn compute_processes(
    handle: nvmlDevice_t,
    count: *mut c_uint,
    out: *mut Process,
) -> nvmlReturn_t {
    guard(|| {
        let list = process::processes(handle)?.into_iter().map(Process::new);
        // SAFETY: the caller upholds this.
        unsafe { put_list(out, count, list.collect()) }
    })
}

/// The number of graphics processes, or of MPS processes: none.
///
/// # Safety
/// `count` is null or writable.
unsafe extern "C" fn no_processes(handle: nvmlDevice_t, count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: the caller upholds this.
    guard(|| unsafe { put_none(handle, count) })
}

/// # Safety
/// `count` is null or writable.
unsafe fn put_none(handle: nvmlDevice_t, count: *mut c_uint) -> Result {
    device::ordinal(handle)?;
    // SAFETY: the caller upholds this.
    let count = unsafe { count.as_mut() };
    *count.ok_or(Code::INVALID_ARGUMENT)? = 0;
    Ok(())
}

/// Writes the PCI bus address of a device, with four domain digits, to `size` bytes at
/// `out`.
///
/// # Safety
/// `out` is null or has `size` bytes.
unsafe extern "C" fn bus_id(index: c_uint, out: *mut c_char, size: c_int) -> nvmlReturn_t {
    guard(|| {
        let room = usize::try_from(size).map_err(|_| Code::INVALID_ARGUMENT)?;
        if out.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let text = bus_id_of(index)?;
        if text.len() >= room {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        // SAFETY: shorter than what the caller promises, with the zero behind it.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), text.len());
            out.add(text.len()).write(0);
        }
        Ok(())
    })
}

fn bus_id_of(index: c_uint) -> Result<String> {
    if index >= super::init::devices().count()? {
        return Err(Code::INVALID_ARGUMENT);
    }
    Ok(pcie::place(index)?.legacy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_begins_with_its_size() {
        let mut table = ptr::null();
        // SAFETY: our own variables.
        let got = unsafe { nvmlInternalGetExportTable(&raw mut table, &ID) };
        assert_eq!(got, 0);
        // SAFETY: a table begins with its size.
        assert_eq!(unsafe { table.cast::<usize>().read() }, 8 * WORDS);
    }

    #[test]
    fn a_process_record_equals_a_native_one() {
        let own = std::process::id();
        let record = Process::new((own, 7));
        assert_eq!(size_of::<Process>(), 4128);
        assert_eq!(std::mem::offset_of!(Process, memory), 8);
        assert_eq!(std::mem::offset_of!(Process, instances), 16);
        assert_eq!(std::mem::offset_of!(Process, arguments), 32);
        let line = std::fs::read("/proc/self/cmdline").unwrap();
        assert_eq!((record.pid, record.memory), (own, 7));
        assert!(record.arguments.starts_with(&line[..line.len().min(4095)]));
        assert_eq!(record.arguments[4095], 0);
    }

    #[test]
    fn other_tables_do_not_exist() {
        let mut table = ptr::dangling();
        // SAFETY: our own variables.
        let got = unsafe { nvmlInternalGetExportTable(&raw mut table, &[0; 16]) };
        assert_eq!((got, table), (Code::NOT_FOUND.0, ptr::null()));
        // SAFETY: null is refused.
        let got = unsafe { nvmlInternalGetExportTable(ptr::null_mut(), ptr::null()) };
        assert_eq!(got, Code::INVALID_ARGUMENT.0);
    }

    #[test]
    fn other_functions_are_not_served() {
        for slot in [1, 231, 269] {
            // SAFETY: every number that is not served has a function of this type.
            let call: extern "C" fn() -> nvmlReturn_t =
                unsafe { std::mem::transmute(TABLE[slot].0) };
            assert_eq!(call(), Code::NOT_SUPPORTED.0);
        }
    }
}
