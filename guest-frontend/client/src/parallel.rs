//! Work on large memory that several threads share.

use paragpu_protocol::status::Status;

use crate::error::Result;

/// Memory of at least this size is worth several threads.
const PARALLEL: usize = 8 << 20;

/// Processes `size` bytes on as many threads as are worthwhile. `process` receives the
/// number of its part and the number of parts.
pub(crate) fn in_parts(
    size: usize,
    process: impl Fn(usize, usize) -> Result<()> + Sync,
) -> Result<()> {
    let parts = helpers(size) + 1;
    if parts == 1 {
        return process(0, 1);
    }
    let process = &process;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..parts)
            .map(|part| scope.spawn(move || process(part, parts)))
            .collect();
        let own = process(0, parts);
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
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors / 4).min(3)
}
