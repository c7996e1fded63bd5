//! Work on large memory that several threads share.

use std::thread::Builder;

use paragpu_protocol::status::Status;

use crate::error::Result;
use crate::sys::uncancelled::{Uncancelled, processors};

/// Memory of at least this size is worth several threads.
const PARALLEL: usize = 8 << 20;

/// Processes `size` bytes on as many threads as are worthwhile. `process` receives the
/// number of its part and the number of parts. The calling thread does the parts for which no
/// thread can be started.
///
/// # Errors
/// The first error of `process`.
pub(crate) fn in_parts(
    size: usize,
    process: impl Fn(usize, usize) -> Result<()> + Sync,
) -> Result<()> {
    let parts = helpers(size) + 1;
    if parts == 1 {
        return process(0, 1);
    }
    // Waits for the threads in pthread_join(3).
    let _uncancelled = Uncancelled::begin();
    on_threads(parts, &process, |_| Builder::new())
}

/// Processes the parts, each but the first on a thread of `builder`.
fn on_threads(
    parts: usize,
    process: &(impl Fn(usize, usize) -> Result<()> + Sync),
    builder: impl Fn(usize) -> Builder,
) -> Result<()> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut own = vec![0];
        for part in 1..parts {
            match builder(part).spawn_scoped(scope, move || process(part, parts)) {
                Ok(thread) => threads.push(thread),
                // A limit of threads is no reason to fail.
                Err(_) => own.push(part),
            }
        }
        let own = own
            .into_iter()
            .map(|part| process(part, parts))
            .fold(Ok(()), Result::and);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(Err(Status::UNKNOWN)))
            .fold(own, Result::and)
    })
}

/// Number of threads, besides the caller's, that help with `size` bytes. The
/// other half of the processors is left to the host or the program.
fn helpers(size: usize) -> usize {
    if size < PARALLEL {
        return 0;
    }
    (processors() / 4).min(3)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_caller_does_the_parts_for_which_no_thread_starts() {
        for without in [0, 1, 3] {
            let done: [AtomicUsize; 4] = Default::default();
            let caller = std::thread::current().id();
            let of_caller = AtomicUsize::new(0);
            let process = |part: usize, parts: usize| {
                assert_eq!(parts, done.len());
                done[part].fetch_add(1, Ordering::Relaxed);
                if std::thread::current().id() == caller {
                    of_caller.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            };
            // No address space has room for such a stack.
            let builder = |part| match part <= without {
                true => Builder::new().stack_size(usize::MAX / 4),
                false => Builder::new(),
            };
            assert_eq!(on_threads(done.len(), &process, builder), Ok(()));
            let times = done.each_ref().map(|times| times.load(Ordering::Relaxed));
            assert_eq!(times, [1; 4]);
            assert_eq!(of_caller.into_inner(), without + 1);
        }
    }

    #[test]
    fn an_error_of_any_part_is_returned() {
        for failing in 0..4 {
            let process = |part, _| match part == failing {
                true => Err(Status::INVALID_VALUE),
                false => Ok(()),
            };
            let done = on_threads(4, &process, |_| Builder::new());
            assert_eq!(done, Err(Status::INVALID_VALUE));
        }
    }
}
