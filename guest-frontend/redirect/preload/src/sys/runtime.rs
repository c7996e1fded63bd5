//! paragpu's runtimes, loaded on demand.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use paragpu_redirect::Interface;

use super::say::{LossyText, say};

/// The supported version of [`Table`].
const VERSION: u32 = 1;
/// Longest path of a library.
const PATH: usize = 4096;

/// The interface of paragpu's runtime for this library (`cudart/src/sys/carrier.rs`).
#[repr(C)]
pub struct Table {
    version: u32,
    /// Records a failure of a carrier's call on this thread.
    pub fail: extern "C" fn(carrier: u32, code: c_int),
    /// Offset from the thread pointer at which a call finds its carrier.
    pub slot: isize,
}

/// A loaded runtime.
#[derive(Clone, Copy)]
pub struct Runtime {
    handle: *mut c_void,
    /// Its interface.
    pub table: &'static Table,
}

static HANDLES: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
static TABLES: [AtomicPtr<Table>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
/// Whether loading failed: it is reported once and not retried.
static FAILED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

fn index(interface: Interface) -> usize {
    match interface {
        Interface::Cuda12 => 0,
        Interface::Cuda13 => 1,
    }
}

impl Runtime {
    /// The runtime of an interface, if it is loaded.
    pub fn loaded(interface: Interface) -> Option<Self> {
        let table = TABLES.get(index(interface))?.load(Ordering::Acquire);
        let handle = HANDLES.get(index(interface))?.load(Ordering::Relaxed);
        // SAFETY: a table that was stored is the library's, which stays loaded.
        let table = unsafe { table.as_ref()? };
        Some(Self { handle, table })
    }

    /// Loads the runtime of an interface, and reports failures.
    pub fn load(interface: Interface, caller: &[u8]) -> Option<Self> {
        let index = index(interface);
        let failed = FAILED.get(index)?;
        if let Some(loaded) = Self::loaded(interface) {
            return Some(loaded);
        }
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        match open(interface) {
            Ok((handle, table)) => {
                HANDLES.get(index)?.store(handle, Ordering::Relaxed);
                TABLES
                    .get(index)?
                    .store(table.cast_mut(), Ordering::Release);
                Self::loaded(interface)
            }
            Err(why) => {
                if !failed.swap(true, Ordering::Relaxed) {
                    say(format_args!(
                        "{} carries a CUDA runtime, but {} cannot be loaded: {}; its calls fail",
                        LossyText(caller),
                        interface.library(),
                        LossyText(why),
                    ));
                }
                None
            }
        }
    }

    /// Looks up a public function. `name` is zero-terminated.
    pub fn function(&self, name: &[u8]) -> usize {
        if name.last() != Some(&0) {
            return 0;
        }
        // SAFETY: the handle is never closed; the name is a C string.
        unsafe { libc::dlsym(self.handle, name.as_ptr().cast()) as usize }
    }
}

/// Loads the library from this library's directory, regardless of others of its name.
fn open(interface: Interface) -> Result<(*mut c_void, *const Table), &'static [u8]> {
    let mut path = [0u8; PATH];
    let folder = folder(&mut path).ok_or(&b"its folder is not known"[..])?;
    let name = interface.library().as_bytes();
    let place = path
        .get_mut(folder..folder + name.len())
        .ok_or(&b"a long path"[..])?;
    place.copy_from_slice(name);
    // SAFETY: the buffer ends with zeros; the symbol has this type in paragpu's
    // runtime, and only there (`symbols::OWN_MARKER`).
    unsafe {
        let handle = libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            let why = libc::dlerror();
            return Err(if why.is_null() {
                b"unknown"
            } else {
                CStr::from_ptr(why).to_bytes()
            });
        }
        let show = libc::dlsym(handle, c"paragpu_runtime_interface".as_ptr());
        if show.is_null() {
            return Err(b"it is not paragpu's");
        }
        let show: extern "C" fn() -> *const Table = core::mem::transmute(show);
        let table = show();
        if table.is_null() || (*table).version != VERSION {
            return Err(b"it is of another version");
        }
        Ok((handle, table))
    }
}

/// Writes the path of this library's directory, with its last slash, and returns the
/// length.
fn folder(path: &mut [u8; PATH]) -> Option<usize> {
    // SAFETY: the address is this library's; the loader keeps the name.
    let own = unsafe {
        let mut place: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(open as *const c_void, &mut place) == 0 || place.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(place.dli_fname.cast::<c_char>()).to_bytes()
    };
    let length = own.iter().rposition(|&byte| byte == b'/')? + 1;
    path.get_mut(..length)?.copy_from_slice(own.get(..length)?);
    Some(length)
}
