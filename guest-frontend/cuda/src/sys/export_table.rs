//! The driver's private tables (cuGetExportTable), as far as they have public
//! counterparts. NVIDIA's libraries request them.
//!
//! A table begins with its size in bytes; function `n` is the `n`-th word after it. A
//! function that is not served returns NOT_SUPPORTED and prints table and number once.
//! All other tables, including the runtime's integrity check, do not exist in this
//! driver.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicBool;

use paragpu_abi::{
    CU_STREAM_LEGACY, CUcontext, CUdevice, CUfunction, CUmodule, CUresult, CUstream,
};
use paragpu_protocol::status::Status;

use super::boundary::{Boundary, Out};
use super::exported::{TABLE_FUNCTION, guard, guard_before_init};
use super::{Result, compiled_code, to_malloc, unsupported};
use crate::{
    current, named_stream,
    sys::{device, module},
};

/// A table's identifier.
type Id = [u8; 16];

/// The tables that exist.
const IDS: [(&str, Id); 5] = [
    id("42d85a81-23f6-cb47-8298-f6e78a3aecdc"),
    id("21318c60-9714-3248-8ca6-41ff7324c8f2"),
    id("1734dc26-800d-4745-8726-c0f1e7dd8bca"),
    id("6e163fbe-b958-444d-835c-e182aff1991e"),
    id("da9151d3-3ae6-cc41-a5c0-4f26d533e328"),
];
/// Number of entries of the largest table, including 0.
const MAX_ENTRIES: usize = 64;

/// A function of a table.
#[repr(transparent)]
struct Function(*const c_void);

// SAFETY: the address of a function.
unsafe impl Sync for Function {}

/// A table with functions 1 to `N`.
#[repr(C)]
struct Table<const N: usize> {
    size: usize,
    functions: [Function; N],
}

impl<const N: usize> Table<N> {
    const fn new(functions: [Function; N]) -> Self {
        Self {
            size: size_of::<Self>(),
            functions,
        }
    }
}

/// Text and bytes of an identifier.
const fn id(text: &'static str) -> (&'static str, Id) {
    const fn digit(letter: u8) -> u8 {
        match letter {
            b'0'..=b'9' => letter - b'0',
            _ => letter - b'a' + 10,
        }
    }
    let letters = text.as_bytes();
    let (mut id, mut at, mut byte) = ([0; 16], 0, 0);
    while byte < 16 {
        if letters[at] == b'-' {
            at += 1;
        }
        id[byte] = digit(letters[at]) << 4 | digit(letters[at + 1]);
        (at, byte) = (at + 2, byte + 1);
    }
    (text, id)
}

/// The functions of table `$table` in order, `_` for those that are not served.
macro_rules! table {
    ($table:literal: $( $number:literal $( = $function:expr )? ),* $(,)?) => {
        Table::new([ $( table!(@ $table $number $( $function )?) ),* ])
    };
    (@ $table:literal $number:literal) => {
        Function(unserved::<$table, $number> as *const c_void)
    };
    (@ $table:literal $number:literal $function:expr) => {
        Function($function as *const c_void)
    };
}

static THREAD: Table<15> = table!(0:
    1, 2 = current_context, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
static CONTEXT: Table<63> = table!(1:
    1, 2, 3 = context_device, 4 = context_id, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
    17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39 = stream_number,
    40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51 = stream, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62,
    63);
static TOPOLOGY: Table<16> = table!(2:
    1, 2, 3, 4 = topology, 5, 6, 7, 8, 9, 10, 11, 12, 13 = free_topology, 14, 15, 16);
static MODULE: Table<15> =
    table!(3: 1, 2, 3, 4, 5, 6, 7 = module_functions, 8, 9, 10, 11, 12, 13, 14, 15);

/// The table through which NVRTC and nvJitLink cache compiled code.
static COMPILED: Table<6> = table!(4: 1 = compiled_code::open, 2 = compiled_code::close,
    3 = compiled_code::get, 4 = compiled_code::put, 5, 6 = compiled_code::free);

/// The table with this identifier.
pub(super) fn find(id: &Id) -> Option<*const c_void> {
    let tables = [
        (&raw const THREAD).cast(),
        (&raw const CONTEXT).cast(),
        (&raw const TOPOLOGY).cast(),
        (&raw const MODULE).cast(),
        (&raw const COMPILED).cast(),
    ];
    let known = IDS.iter().zip(tables);
    known
        .into_iter()
        .find_map(|((_, other), table)| (other == id).then_some(table))
}

/// A function that is not served.
extern "C" fn unserved<const TABLE: usize, const NUMBER: usize>() -> CUresult {
    // One flag for all instances of this function.
    static REPORTED: [[AtomicBool; MAX_ENTRIES]; IDS.len()] =
        [const { [const { AtomicBool::new(false) }; MAX_ENTRIES] }; IDS.len()];
    guard_before_init(TABLE_FUNCTION, || {
        let name = IDS.get(TABLE).map_or("", |(name, _)| name);
        let reported = REPORTED
            .get(TABLE)
            .and_then(|reported| reported.get(NUMBER));
        let reported = reported.ok_or(Status::NOT_SUPPORTED)?;
        Err(unsupported(
            &format!("function {NUMBER} of the private table {name}"),
            reported,
        ))
    })
}

/// As cuCtxGetCurrent.
///
/// # Safety
/// `context` is null or writable.
unsafe extern "C" fn current_context(context: *mut CUcontext) -> CUresult {
    guard(TABLE_FUNCTION, || {
        let handle = current::current_if_any().map(|context| context.handle());
        // SAFETY: the caller upholds this.
        unsafe { Out::take(context) }.put(handle.unwrap_or(std::ptr::null_mut()))
    })
}

/// As cuCtxGetDevice_v2.
///
/// # Safety
/// `out` is null or writable.
unsafe extern "C" fn context_device(context: CUcontext, out: *mut CUdevice) -> CUresult {
    guard(TABLE_FUNCTION, || {
        let found = current::find_or_current(context)?;
        // SAFETY: the caller upholds this.
        unsafe { Out::take(out) }.put(device::number(found.ordinal))
    })
}

/// As cuCtxGetId.
///
/// # Safety
/// `out` is null or writable.
unsafe extern "C" fn context_id(context: CUcontext, out: *mut u64) -> CUresult {
    guard(TABLE_FUNCTION, || {
        let found = current::find_or_current(context)?;
        // SAFETY: the caller upholds this.
        unsafe { Out::take(out) }.put(found.id())
    })
}

/// The stream of function 39 for this context: its handle. NVIDIA's
/// driver gives another pointer, which only that function reads.
///
/// # Safety
/// `out` is null or writable.
unsafe extern "C" fn stream(context: CUcontext, stream: CUstream, out: *mut CUstream) -> CUresult {
    guard(TABLE_FUNCTION, || {
        current::find_or_current(context)?;
        let handle = match stream.addr() {
            0 => CU_STREAM_LEGACY,
            _ => stream,
        };
        named_stream::named(handle)?;
        // SAFETY: the caller upholds this.
        unsafe { Out::take(out) }.put(handle)
    })
}

/// As cuStreamGetId, in 32 bits. Callers pass a larger buffer, which they clear.
///
/// # Safety
/// `out` is null or writable.
unsafe extern "C" fn stream_number(
    _context: CUcontext,
    stream: CUstream,
    out: *mut u32,
) -> CUresult {
    guard(TABLE_FUNCTION, || {
        let id = named_stream::named(stream)?.id()?;
        // SAFETY: the caller upholds this.
        unsafe { Out::take(out) }.put(id as u32)
    })
}

/// Two arrays with a byte for each TPC of the GPU: its cluster, and its number in the
/// cluster.
///
/// # Safety
/// `clusters` and `numbers` are null or writable.
unsafe extern "C" fn topology(clusters: *mut *mut u8, numbers: *mut *mut u8) -> CUresult {
    guard(TABLE_FUNCTION, || {
        // SAFETY: the caller upholds this.
        let (to_clusters, to_numbers) = unsafe { (Out::take(clusters), Out::take(numbers)) };
        let (to_clusters, to_numbers) = (to_clusters.present()?, to_numbers.present()?);
        let (clusters, numbers) = current::current()?.session.device().topology()?;
        to_clusters.put(to_malloc(&clusters)?)?;
        to_numbers.put(to_malloc(&numbers)?)
    })
}

/// Frees what [`topology`] allocated.
///
/// # Safety
/// Both are null, or from [`topology`] and not freed yet.
unsafe extern "C" fn free_topology(clusters: *mut u8, numbers: *mut u8) -> CUresult {
    guard(TABLE_FUNCTION, || {
        // SAFETY: the caller upholds this.
        unsafe {
            libc::free(clusters.cast());
            libc::free(numbers.cast());
        }
        Ok(())
    })
}

/// Calls back for each function of a module until the callback returns a nonzero value.
/// Then returns 1.
///
/// # Safety
/// `callback` is null or a function that may be called with `user` and functions.
unsafe extern "C" fn module_functions(
    context: CUcontext,
    module: CUmodule,
    callback: Option<unsafe extern "C" fn(*mut c_void, CUfunction) -> c_int>,
    user: *mut c_void,
) -> CUresult {
    /// The callback ended the enumeration.
    const ENDED: Status = Status(1);
    guard(TABLE_FUNCTION, || {
        let callback = callback.ok_or(Status::INVALID_VALUE)?;
        current::find_or_current(context)?;
        let ended = module::for_each_function(module, |function| {
            // SAFETY: the caller upholds this.
            unsafe { callback(user, function) != 0 }
        })?;
        if ended { Err(ENDED) } else { Ok(()) }
    })
}

/// Refuses null.
pub(super) fn known(id: Option<&Id>) -> Result<*const c_void> {
    id.and_then(find).ok_or(Status::NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_begin_with_their_size() {
        for (name, id) in &IDS {
            let table = find(id).unwrap();
            // SAFETY: a table begins with its size.
            let size = unsafe { table.cast::<usize>().read() };
            assert!(size.is_multiple_of(8) && size >= 7 * 8, "{name}: {size}");
        }
        assert_eq!(CONTEXT.size, 64 * 8);
        assert_eq!(TOPOLOGY.size, 17 * 8);
        assert_eq!(IDS[0].1[..4], [0x42, 0xd8, 0x5a, 0x81]);
    }

    #[test]
    fn other_tables_do_not_exist() {
        assert!(find(&[0; 16]).is_none());
        assert_eq!(known(None), Err(Status::NOT_FOUND));
    }

    #[test]
    fn an_unserved_function_returns_not_supported() {
        assert_eq!(unserved::<2, 4>(), 801);
        // SAFETY: functions of this type stand at every number that is not served.
        let call: extern "C" fn() -> CUresult =
            unsafe { std::mem::transmute(CONTEXT.functions[49].0) };
        assert_eq!(call(), 801);
    }

    #[test]
    fn before_initialisation_there_is_no_context() {
        let mut context = std::ptr::null_mut();
        // SAFETY: our own variable.
        assert_eq!(unsafe { current_context(&raw mut context) }, 3);
    }
}
