//! Functions of the program that the library calls in threads of its own: host functions, and
//! destructors of user objects. They must not call CUDA.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    // Nothing is dropped, so it exists until the thread is gone.
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs such a function.
#[inline]
#[must_use]
pub fn in_callback() -> bool {
    IS_RUNNING.with(Cell::get)
}

/// Runs such a function. If it panics, it ends, but not its caller.
pub(crate) fn run_callback(function: impl FnOnce()) {
    let outer = IS_RUNNING.replace(true);
    let _ = catch_unwind(AssertUnwindSafe(function));
    IS_RUNNING.set(outer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_of_a_callback_runs_one() {
        assert!(!in_callback());
        run_callback(|| {
            assert!(in_callback());
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(!in_callback()));
            });
            run_callback(|| panic!("a panic of the program's function"));
            assert!(in_callback());
        });
        assert!(!in_callback());
    }
}
