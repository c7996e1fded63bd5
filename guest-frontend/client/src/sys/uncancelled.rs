//! Parts of a call in which a thread cannot be cancelled (`pthread_cancel`).
//!
//! A cancelled thread ends inside the next function of the C library that may block, such as
//! open(2). glibc then unwinds the thread's frames, and Rust's frames abort the process. So a
//! thread that calls such functions is cancelled after its call of CUDA, like one that waits
//! for the GPU. Waits themselves make system calls without the C library.

use std::ffi::c_int;

const DISABLE: c_int = 1;

unsafe extern "C" {
    /// pthread_setcancelstate(3).
    safe fn pthread_setcancelstate(state: c_int, earlier: &mut c_int) -> c_int;
}

/// While it lives, the calling thread is not cancelled.
#[derive(Debug)]
pub(crate) struct Uncancelled {
    earlier: c_int,
    /// It belongs to its thread.
    _thread: std::marker::PhantomData<*mut ()>,
}

impl Uncancelled {
    /// Begins such a part.
    pub(crate) fn begin() -> Self {
        let mut earlier = DISABLE;
        // Succeeds for every known state.
        pthread_setcancelstate(DISABLE, &mut earlier);
        Self {
            earlier,
            _thread: std::marker::PhantomData,
        }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        pthread_setcancelstate(self.earlier, &mut 0);
    }
}

/// [`paragpu_communicator::processors`], in such a part.
pub(crate) fn processors() -> usize {
    let _uncancelled = Uncancelled::begin();
    paragpu_communicator::processors()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of the calling thread.
    fn state() -> c_int {
        let mut state = 0;
        pthread_setcancelstate(DISABLE, &mut state);
        pthread_setcancelstate(state, &mut 0);
        state
    }

    #[test]
    fn parts_nest() {
        let before = state();
        let outer = Uncancelled::begin();
        drop(Uncancelled::begin());
        assert_eq!(state(), DISABLE);
        drop(outer);
        assert_eq!(state(), before);
        assert!(processors() > 0);
    }
}
