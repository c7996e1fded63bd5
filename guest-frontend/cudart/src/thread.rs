//! State of the calling thread: current device, last error, and the launch
//! configurations that `<<<>>>` pushed.
//!
//! The cells have no destructor, so a thread may call the runtime even from its
//! destructors, and access needs neither a lock nor an allocation.

use paragpu_abi::{CUcontext, CUstream, cudaError_t, cudaErrorNotReady, cudaSuccess, dim3};
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Maximum number of pushed launch configurations. More than one is needed only if the
/// evaluation of a kernel's argument launches another kernel.
const DEPTH: usize = 16;

/// Number of last errors that a thread keeps, one per carrier; see [`Thread::fail`].
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

/// The context that the runtime made current on a thread.
#[derive(Clone, Copy)]
pub struct Binding {
    /// The device's primary context; null before the first binding.
    pub context: CUcontext,
    /// The device's ordinal.
    pub device: c_int,
    /// The device's reset count at that time.
    pub resets: u32,
}

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

/// One thread's state.
pub struct Thread {
    /// Ordinal of the current device; `None` until the thread sets one.
    device: Cell<Option<c_int>>,
    /// The context that the runtime has made current.
    pub binding: Cell<Binding>,
    last_errors: [Cell<LastError>; CARRIERS],
    depth: Cell<usize>,
    configurations: [Cell<CallConfiguration>; DEPTH],
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            device: Cell::new(None),
            binding: Cell::new(Binding { context: ptr::null_mut(), device: 0, resets: 0 }),
            last_errors: [const { Cell::new(NO_ERROR) }; CARRIERS],
            depth: Cell::new(0),
            configurations: [const { Cell::new(EMPTY) }; DEPTH],
        }
    };
}

/// Runs `action` on the calling thread's state.
pub fn with<R>(action: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(action)
}

/// The default device of threads (cudaSetValidDevices).
static FIRST: AtomicI32 = AtomicI32::new(0);

/// Sets the default device of threads.
pub fn set_first(device: c_int) {
    FIRST.store(device, Ordering::Relaxed);
}

impl Thread {
    /// Ordinal of the current device.
    pub fn device(&self) -> c_int {
        let set = self.device.get();
        set.unwrap_or_else(|| FIRST.load(Ordering::Relaxed))
    }

    /// Sets the current device.
    pub fn set_device(&self, device: c_int) {
        self.device.set(Some(device));
    }

    /// Stores an error for the carrier's `cudaGetLastError`. `cudaErrorNotReady` is a
    /// result and not an error: like NVIDIA's runtime, this does not store it.
    ///
    /// Carriers that share a slot overwrite each other's errors, but none reads
    /// another's. Callers without a carrier (zero) have their own.
    pub fn fail(&self, carrier: u32, code: cudaError_t) {
        if code != cudaErrorNotReady {
            self.last_error(carrier).set(LastError { carrier, code });
        }
    }

    /// The carrier's last error.
    pub fn peek(&self, carrier: u32) -> cudaError_t {
        let last = self.last_error(carrier).get();
        if last.carrier == carrier {
            last.code
        } else {
            cudaSuccess
        }
    }

    /// Takes the carrier's last error.
    pub fn take(&self, carrier: u32) -> cudaError_t {
        let code = self.peek(carrier);
        if code != cudaSuccess {
            self.last_error(carrier).set(NO_ERROR);
        }
        code
    }

    fn last_error(&self, carrier: u32) -> &Cell<LastError> {
        let [first, others @ ..] = &self.last_errors;
        match usize::try_from(carrier) {
            Ok(0) | Err(_) => first,
            Ok(number) => &others[number % others.len()],
        }
    }

    /// Pushes a launch configuration; false if too many are pending.
    pub fn push(&self, configuration: CallConfiguration) -> bool {
        let depth = self.depth.get();
        let Some(cell) = self.configurations.get(depth) else {
            return false;
        };
        cell.set(configuration);
        self.depth.set(depth + 1);
        true
    }

    /// Pops the configuration pushed last, if there is one.
    pub fn pop(&self) -> Option<CallConfiguration> {
        let depth = self.depth.get().checked_sub(1)?;
        let configuration = self.configurations.get(depth)?.get();
        self.depth.set(depth);
        Some(configuration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_error_is_per_thread_and_taken_once() {
        with(|thread| thread.fail(0, 1));
        with(|thread| thread.fail(0, cudaErrorNotReady));
        std::thread::spawn(|| assert_eq!(with(|thread| thread.peek(0)), cudaSuccess))
            .join()
            .expect("thread");
        assert_eq!(with(|thread| thread.peek(0)), 1);
        assert_eq!(with(|thread| thread.take(0)), 1);
        assert_eq!(with(|thread| thread.take(0)), cudaSuccess);
    }

    #[test]
    fn carriers_never_get_the_errors_of_others() {
        let place = u32::try_from(CARRIERS - 1).expect("small");
        with(|thread| {
            thread.fail(0, 1);
            thread.fail(2, 7);
            assert_eq!((thread.peek(0), thread.peek(2), thread.peek(3)), (1, 7, 0));
            // The same slot as 2.
            assert_eq!(thread.take(2 + place), cudaSuccess);
            assert_eq!(thread.peek(2), 7);
            thread.fail(2 + place, 9);
            assert_eq!((thread.peek(2), thread.take(2 + place)), (cudaSuccess, 9));
            assert_eq!(thread.take(0), 1);
        });
    }

    #[test]
    fn configurations_nest_and_are_bounded() {
        with(|thread| {
            assert!(thread.pop().is_none());
            for shared in 0..DEPTH {
                assert!(thread.push(CallConfiguration { shared, ..EMPTY }));
            }
            assert!(!thread.push(EMPTY));
            for shared in (0..DEPTH).rev() {
                assert_eq!(thread.pop().map(|top| top.shared), Some(shared));
            }
            assert!(thread.pop().is_none());
        });
    }
}
