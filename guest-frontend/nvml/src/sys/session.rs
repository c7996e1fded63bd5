//! The sessions that `libcuda.so.1` of the same process has (cuda/src/sys/internal.rs).

use std::ffi::{CStr, c_void};
use std::mem;

use paragpu_client::monitor::Monitor;

type Devices = unsafe extern "C" fn(u32) -> u32;
type Call = unsafe extern "C" fn(u32, u16, *const u8, usize, *mut u8, usize) -> isize;

/// Replies up to this size arrive at the first attempt. All are smaller today.
const REPLY: usize = 64 << 10;

/// Queries a device over the session that the process has of it. Nothing if it has none, or
/// if its `libcuda.so.1` is not ours.
pub(crate) fn monitor(ordinal: u32) -> Option<Monitor> {
    let (devices, call) = functions()?;
    // SAFETY: the function takes a number.
    let count = unsafe { devices(ordinal) };
    let query = move |number: u16, fields: &[u8]| {
        let mut reply = vec![0; REPLY];
        // SAFETY: the fields are readable, and the reply has room for its length.
        let size = unsafe {
            let room = reply.len();
            call(
                ordinal,
                number,
                fields.as_ptr(),
                fields.len(),
                reply.as_mut_ptr(),
                room,
            )
        };
        let size = usize::try_from(size).ok().filter(|size| *size <= REPLY)?;
        reply.truncate(size);
        Some(reply)
    };
    (count > 0).then(|| Monitor::over_session(Box::new(query), ordinal, count))
}

/// The functions of a `libcuda.so.1` that is loaded.
fn functions() -> Option<(Devices, Call)> {
    // SAFETY: finds a library without loading one. Programs never unload ours: it has
    // destructors of threads.
    let library = unsafe {
        libc::dlopen(
            c"libcuda.so.1".as_ptr(),
            libc::RTLD_LAZY | libc::RTLD_NOLOAD,
        )
    };
    if library.is_null() {
        return None;
    }
    // SAFETY: a lookup in a loaded library.
    let find = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let found = (
        find(c"paragpu_session_devices"),
        find(c"paragpu_session_call"),
    );
    // SAFETY: the names are ours alone, so the types are, too; null is none.
    unsafe {
        Some((
            mem::transmute::<*mut c_void, Option<Devices>>(found.0)?,
            mem::transmute::<*mut c_void, Option<Call>>(found.1)?,
        ))
    }
}
