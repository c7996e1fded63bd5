//! State of the calling thread: current device, last error, and the launch
//! configurations that `<<<>>>` pushed.
//!
//! The cells have no destructor, so a thread may call the runtime until its
//! very end, and reading them takes neither a lock nor an allocation.

use paragpu_abi::{CUcontext, CUstream, cudaError_t, cudaErrorNotReady, cudaSuccess, dim3};
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

/// Launch configurations that may be pushed before the first is popped. More
/// than one is needed only where a kernel's argument itself launches.
const DEPTH: usize = 16;

/// What `<<<grid, block, shared, stream>>>` gives.
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
    /// How often the device had been reset.
    pub resets: u32,
}

/// One thread's state.
pub struct Thread {
    /// Ordinal of the current device.
    pub device: Cell<c_int>,
    /// The context that the runtime made current.
    pub binding: Cell<Binding>,
    last_error: Cell<cudaError_t>,
    depth: Cell<usize>,
    configurations: [Cell<CallConfiguration>; DEPTH],
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            device: Cell::new(0),
            binding: Cell::new(Binding { context: ptr::null_mut(), device: 0, resets: 0 }),
            last_error: Cell::new(cudaSuccess),
            depth: Cell::new(0),
            configurations: [const { Cell::new(EMPTY) }; DEPTH],
        }
    };
}

/// Runs `action` on the calling thread's state.
pub fn with<R>(action: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(action)
}

impl Thread {
    /// Remembers an error for `cudaGetLastError`. That work is not over yet is
    /// an answer and no error: NVIDIA's runtime does not remember it.
    pub fn fail(&self, code: cudaError_t) {
        if code != cudaErrorNotReady {
            self.last_error.set(code);
        }
    }

    /// The last error, which stays.
    pub fn peek(&self) -> cudaError_t {
        self.last_error.get()
    }

    /// The last error, which is forgotten.
    pub fn take(&self) -> cudaError_t {
        self.last_error.replace(cudaSuccess)
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
        with(|thread| thread.fail(1));
        with(|thread| thread.fail(cudaErrorNotReady));
        std::thread::spawn(|| assert_eq!(with(Thread::peek), cudaSuccess))
            .join()
            .expect("thread");
        assert_eq!(with(Thread::peek), 1);
        assert_eq!(with(Thread::take), 1);
        assert_eq!(with(Thread::take), cudaSuccess);
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
