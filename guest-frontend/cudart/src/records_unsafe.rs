//! Last errors and pushed launch configurations of the calling thread.
//!
//! They are too large for the library's TLS segment: its carrier word has a fixed offset
//! from the thread pointer, so the segment lies in the static block, and the C library has
//! some 1.6 KB there for all libraries that are opened later. So they are allocated when a
//! thread first needs them and freed when it ends, by the destructor of a key. A destructor
//! that runs even later may call the runtime, which allocates them again.

use paragpu_abi::{CUstream, cudaError_t, cudaErrorNotReady, cudaSuccess, dim3};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

/// Maximum number of pushed launch configurations. More than one is needed only if the
/// evaluation of a kernel's argument launches another kernel.
const DEPTH: usize = 16;

/// Number of last errors that a thread keeps, one per carrier; see [`fail`].
const CARRIERS: usize = 64;

/// The arguments of `<<<grid, block, shared, stream>>>`.
#[derive(Clone, Copy)]
pub struct CallConfiguration {
    /// Blocks of the grid.
    pub grid: dim3,
    /// Threads of a block.
    pub block: dim3,
    /// Dynamic shared memory, in bytes.
    pub shared: usize,
    /// The stream.
    pub stream: CUstream,
}

const EMPTY: CallConfiguration = CallConfiguration {
    grid: dim3 { x: 1, y: 1, z: 1 },
    block: dim3 { x: 1, y: 1, z: 1 },
    shared: 0,
    stream: ptr::null_mut(),
};

/// The last error of one carrier.
#[derive(Clone, Copy)]
struct LastError {
    carrier: u32,
    code: cudaError_t,
}

const NO_ERROR: LastError = LastError {
    carrier: 0,
    code: cudaSuccess,
};

/// One thread's records.
struct Records {
    last_errors: [Cell<LastError>; CARRIERS],
    depth: Cell<usize>,
    configurations: [Cell<CallConfiguration>; DEPTH],
}

thread_local! {
    /// Null until the thread needs them. It has no destructor, so it may be used until the
    /// thread is gone.
    static RECORDS: Cell<*mut Records> = const { Cell::new(ptr::null_mut()) };
}

/// Runs `action` on the thread's records if it has some.
fn existing<R>(action: impl FnOnce(&Records) -> R) -> Option<R> {
    // SAFETY: null, or this thread's box, which is freed when no action runs.
    unsafe { RECORDS.get().as_ref() }.map(action)
}

/// Runs `action` on the thread's records, which are created if needed.
fn with<R>(action: impl FnOnce(&Records) -> R) -> R {
    if RECORDS.get().is_null() {
        allocate();
    }
    // SAFETY: this thread's box, which is freed when no action runs.
    action(unsafe { &*RECORDS.get() })
}

#[cold]
fn allocate() {
    let records = Box::into_raw(Box::new(Records {
        last_errors: [const { Cell::new(NO_ERROR) }; CARRIERS],
        depth: Cell::new(0),
        configurations: [const { Cell::new(EMPTY) }; DEPTH],
    }));
    RECORDS.set(records);
    if let Some(key) = key() {
        // SAFETY: the key exists. If the value cannot be stored, the box is not freed.
        unsafe { libc::pthread_setspecific(key, records.cast_const().cast()) };
    }
}

/// The key whose destructor frees a thread's records. `None` if the process has no key left;
/// then they are not freed.
fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: writes the key. The library is never unloaded, so its destructor stays.
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(free)) };
        (made == 0).then_some(key)
    })
}

/// The key's destructor.
extern "C" fn free(records: *mut c_void) {
    RECORDS.set(ptr::null_mut());
    // SAFETY: the box of this thread, which nothing else points to.
    drop(unsafe { Box::from_raw(records.cast::<Records>()) });
}

impl Records {
    fn last_error(&self, carrier: u32) -> &Cell<LastError> {
        let [first, others @ ..] = &self.last_errors;
        match usize::try_from(carrier) {
            Ok(0) | Err(_) => first,
            Ok(number) => &others[number % others.len()],
        }
    }

    fn code(&self, carrier: u32) -> cudaError_t {
        let last = self.last_error(carrier).get();
        if last.carrier == carrier {
            last.code
        } else {
            cudaSuccess
        }
    }
}

/// Stores an error for the carrier's `cudaGetLastError`. `cudaErrorNotReady` is a result and
/// not an error: like NVIDIA's runtime, this does not store it.
///
/// Carriers that share a slot overwrite each other's errors, but none reads another's.
/// Callers without a carrier (zero) have their own.
pub fn fail(carrier: u32, code: cudaError_t) {
    if code != cudaErrorNotReady {
        with(|records| records.last_error(carrier).set(LastError { carrier, code }));
    }
}

/// The carrier's last error.
pub fn peek(carrier: u32) -> cudaError_t {
    existing(|records| records.code(carrier)).unwrap_or(cudaSuccess)
}

/// Takes the carrier's last error.
pub fn take(carrier: u32) -> cudaError_t {
    let taken = existing(|records| {
        let code = records.code(carrier);
        if code != cudaSuccess {
            records.last_error(carrier).set(NO_ERROR);
        }
        code
    });
    taken.unwrap_or(cudaSuccess)
}

/// Pushes a launch configuration; false if too many are pending.
pub fn push(configuration: CallConfiguration) -> bool {
    with(|records| {
        let depth = records.depth.get();
        let Some(cell) = records.configurations.get(depth) else {
            return false;
        };
        cell.set(configuration);
        records.depth.set(depth + 1);
        true
    })
}

/// Pops the configuration pushed last, if there is one.
pub fn pop() -> Option<CallConfiguration> {
    existing(|records| {
        let depth = records.depth.get().checked_sub(1)?;
        let configuration = records.configurations.get(depth)?.get();
        records.depth.set(depth);
        Some(configuration)
    })?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn last_error_is_per_thread_and_taken_once() {
        fail(0, 1);
        fail(0, cudaErrorNotReady);
        std::thread::spawn(|| assert_eq!(peek(0), cudaSuccess))
            .join()
            .expect("thread");
        assert_eq!(peek(0), 1);
        assert_eq!(take(0), 1);
        assert_eq!(take(0), cudaSuccess);
    }

    #[test]
    fn carriers_never_get_the_errors_of_others() {
        let place = u32::try_from(CARRIERS - 1).expect("small");
        fail(0, 1);
        fail(2, 7);
        assert_eq!((peek(0), peek(2), peek(3)), (1, 7, 0));
        // The same slot as 2.
        assert_eq!(take(2 + place), cudaSuccess);
        assert_eq!(peek(2), 7);
        fail(2 + place, 9);
        assert_eq!((peek(2), take(2 + place)), (cudaSuccess, 9));
        assert_eq!(take(0), 1);
    }

    #[test]
    fn configurations_nest_and_are_bounded() {
        assert!(pop().is_none());
        for shared in 0..DEPTH {
            assert!(push(CallConfiguration { shared, ..EMPTY }));
        }
        assert!(!push(EMPTY));
        for shared in (0..DEPTH).rev() {
            assert_eq!(pop().map(|top| top.shared), Some(shared));
        }
        assert!(pop().is_none());
    }

    #[test]
    fn a_thread_allocates_late_frees_and_may_call_even_from_later_destructors() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn late(_: *mut c_void) {
            // This key's destructor runs after that of the records, as its number is higher.
            assert!(RECORDS.get().is_null(), "they were not freed");
            assert_eq!((peek(0), pop().is_none()), (cudaSuccess, true));
            assert!(RECORDS.get().is_null(), "a question allocates nothing");
            fail(0, 3);
            assert_eq!(take(0), 3);
            CALLS.fetch_add(1, Ordering::Relaxed);
        }
        assert!(key().is_some());
        let mut later = 0;
        // SAFETY: writes the key; the destructor is a function of the program.
        let made = unsafe { libc::pthread_key_create(&raw mut later, Some(late)) };
        assert_eq!(made, 0);
        std::thread::spawn(move || {
            assert_eq!(take(0), cudaSuccess);
            assert!(RECORDS.get().is_null());
            fail(0, 1);
            // SAFETY: the key exists; nothing follows the value.
            let set = unsafe { libc::pthread_setspecific(later, ptr::dangling()) };
            assert_eq!(set, 0);
        })
        .join()
        .expect("thread");
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    }
}
