//! Threads with a queue of jobs each.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::transfer::state::StateError;

const GONE: StateError = StateError::Order("a thread of it is gone");

/// Minimum number of threads, which a disk needs, and maximum: more do not help, since memory
/// limits them.
const RANGE: [usize; 2] = [4, 16];

/// Number of threads for this machine.
pub(super) fn count() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.clamp(RANGE[0], RANGE[1])
}

/// The threads. They end when this is dropped, after the jobs that were given.
#[derive(Debug)]
pub(super) struct Threads<J, R> {
    jobs: Vec<Sender<J>>,
    results: Receiver<R>,
    threads: Vec<JoinHandle<()>>,
    /// Jobs whose results were not taken.
    busy: usize,
}

impl<J: Send + 'static, R: Send + 'static> Threads<J, R> {
    /// Starts `count` threads that run `work`.
    ///
    /// # Errors
    /// The operating system's, if no thread starts.
    pub(super) fn new(
        count: usize,
        work: impl Fn(J) -> R + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let (to, results) = channel();
        let work = Arc::new(work);
        let (mut jobs, mut threads) = (Vec::new(), Vec::new());
        for number in 0..count {
            let (give, queue) = channel::<J>();
            let (work, to) = (Arc::clone(&work), to.clone());
            let body = move || {
                for job in queue {
                    if to.send(work(job)).is_err() {
                        return;
                    }
                }
            };
            let name = format!("checkpoint-{number}");
            match std::thread::Builder::new().name(name).spawn(body) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(error),
                Err(_) => break,
            }
            jobs.push(give);
        }
        Ok(Self {
            jobs,
            results,
            threads,
            busy: 0,
        })
    }

    /// Queues a job with the thread of a slot. A slot has the same thread each time, in whose
    /// processor's cache it may still be.
    ///
    /// # Errors
    /// [`StateError::Order`] if the thread has ended.
    pub(super) fn give(&mut self, slot: u64, job: J) -> Result<(), StateError> {
        let thread = slot as usize % self.jobs.len().max(1);
        let given = self.jobs.get(thread).map(|jobs| jobs.send(job));
        given.and_then(Result::ok).ok_or(GONE)?;
        self.busy += 1;
        Ok(())
    }

    /// Whether all results were taken.
    pub(super) fn is_idle(&self) -> bool {
        self.busy == 0
    }

    /// The next result; waits for it at most this long.
    ///
    /// # Errors
    /// [`StateError::Order`] if all threads have ended.
    pub(super) fn take(&mut self, longest: Duration) -> Result<Option<R>, StateError> {
        match self.results.recv_timeout(longest) {
            Ok(result) => {
                self.busy -= 1;
                Ok(Some(result))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(GONE),
        }
    }
}

impl<J, R> Drop for Threads<J, R> {
    fn drop(&mut self) {
        self.jobs.clear();
        for thread in self.threads.drain(..) {
            // A panic has ended the process.
            let _ = thread.join();
        }
    }
}
