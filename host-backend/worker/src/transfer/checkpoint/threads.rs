//! Threads that take jobs from one queue.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

/// Maximum number of threads: more do not help, since memory limits them.
const MAX: usize = 16;

/// Number of threads for this machine.
pub(super) fn count() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.clamp(2, MAX)
}

/// The threads. They end when this is dropped, after the jobs that were given.
#[derive(Debug)]
pub(super) struct Threads<J, R> {
    jobs: Option<Sender<J>>,
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
        let (jobs, queue) = channel::<J>();
        let (to, results) = channel();
        let (queue, work) = (Arc::new(Mutex::new(queue)), Arc::new(work));
        let mut threads = Vec::new();
        for number in 0..count {
            let (queue, work, to) = (Arc::clone(&queue), Arc::clone(&work), to.clone());
            let body = move || {
                // In its own statement, or the queue stays locked during the work.
                while let Ok(job) = { queue.lock().recv() } {
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
        }
        Ok(Self {
            jobs: Some(jobs),
            results,
            threads,
            busy: 0,
        })
    }

    /// Queues a job.
    pub(super) fn give(&mut self, job: J) {
        if let Some(jobs) = &self.jobs
            && jobs.send(job).is_ok()
        {
            self.busy += 1;
        }
    }

    /// Whether all results were taken.
    pub(super) fn is_idle(&self) -> bool {
        self.busy == 0
    }

    /// The next result; waits for it at most this long.
    pub(super) fn take(&mut self, longest: Duration) -> Option<R> {
        match self.results.recv_timeout(longest) {
            Ok(result) => {
                self.busy -= 1;
                Some(result)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                self.busy = 0;
                None
            }
        }
    }
}

impl<J, R> Drop for Threads<J, R> {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A panic has ended the process.
            let _ = thread.join();
        }
    }
}
