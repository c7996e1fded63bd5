//! Strands: launches that are submitted one after the other, by any of the lanes' threads.
//!
//! A lane takes a strand, submits its launches, and puts it back when others wait. Any number of
//! strands share the lanes, so a launch that the driver delays holds up only its own strand.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::CachePadded;
use paragpu_device::{Error, Launch, LaunchTarget, Recording};
use parking_lot::{Condvar, Mutex};

use super::lanes::{Board, Place};

/// How long a lane polls for work before it sleeps: waking it takes much longer than a launch,
/// and all launches of a strand wait for it.
const POLL: Duration = Duration::from_millis(1);
/// Jobs of a strand that a lane submits in a row while other strands wait. What they share is then
/// in the caches of its processor.
const BATCH: u32 = 4;
/// Polls for each reading of the clock.
const POLLS_PER_CLOCK: u32 = 16;

/// Bytes of parameters that a job holds itself. Memory that one thread allocates and another
/// frees costs both more than a copy.
const INLINE: usize = 256;

/// The parameters of a launch.
#[expect(
    clippy::large_enum_variant,
    reason = "no allocation for usual launches"
)]
enum Parameters {
    Inline(usize, [u8; INLINE]),
    Own(Box<[u8]>),
}

impl Parameters {
    fn new(bytes: &[u8]) -> Self {
        let mut inline = [0; INLINE];
        match inline.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(bytes);
                Self::Inline(bytes.len(), inline)
            }
            None => Self::Own(bytes.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(length, bytes) => bytes.get(..*length).unwrap_or(bytes),
            Self::Own(bytes) => bytes,
        }
    }
}

/// Work on its way to the driver.
#[expect(
    clippy::large_enum_variant,
    reason = "no allocation for usual launches"
)]
pub(super) enum Job {
    Launch(LaunchJob),
    Record(Recording),
}

/// A launch, and what it launches.
pub(super) struct LaunchJob {
    place: Place,
    target: Arc<dyn LaunchTarget>,
    /// Without its parameters.
    launch: Launch<'static>,
    parameters: Parameters,
}

impl Job {
    pub(super) fn launch(place: Place, target: Arc<dyn LaunchTarget>, launch: &Launch<'_>) -> Self {
        Self::Launch(LaunchJob {
            place,
            target,
            parameters: Parameters::new(&launch.parameters),
            launch: Launch {
                function: launch.function,
                grid: launch.grid,
                block: launch.block,
                dynamic_shared: launch.dynamic_shared,
                cooperative: launch.cooperative,
                programmatic: launch.programmatic,
                cluster: launch.cluster,
                preferences: launch.preferences.clone(),
                parameters: Cow::Borrowed(&[]),
            },
        })
    }

    /// The place of a launch.
    fn place(&self) -> Option<Place> {
        match self {
            Self::Launch(job) => Some(job.place),
            Self::Record(_) => None,
        }
    }

    fn submit(self) -> Result<(), Error> {
        match self {
            Self::Launch(job) => job.target.launch(&Launch {
                parameters: Cow::Borrowed(job.parameters.bytes()),
                ..job.launch
            }),
            Self::Record(record) => record(),
        }
    }
}

/// What lanes report to the session's thread.
#[derive(Debug, Default)]
pub(super) struct Failures {
    any: AtomicBool,
    /// The first error.
    first: Mutex<Option<Error>>,
}

impl Failures {
    fn add(&self, error: Error) {
        self.first.lock().get_or_insert(error);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes the first error.
    pub(super) fn take(&self) -> Option<Error> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let first = self.first.lock().take();
        self.any.store(false, Ordering::Relaxed);
        first
    }
}

/// Jobs in order.
#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<Job>>,
    /// Number of jobs that are not submitted. While there are any, a lane has the strand, or it
    /// is ready.
    pending: AtomicUsize,
    /// Number of jobs submitted so far.
    done: CachePadded<AtomicU64>,
}

/// A strand, as the session's thread sees it.
#[derive(Default)]
pub(super) struct Strand {
    queue: Arc<Queue>,
    /// Number of jobs given so far.
    given: u64,
    /// Number of jobs submitted when it was last read.
    known: u64,
}

impl Strand {
    /// Adds a job. Returns its number, from 1.
    pub(super) fn give(&mut self, job: Job, lanes: &Lanes) -> u64 {
        self.given += 1;
        self.queue.jobs.lock().push_back(job);
        if self.queue.pending.fetch_add(1, Ordering::AcqRel) == 0 {
            lanes.0.add(Arc::clone(&self.queue));
        }
        self.given
    }

    /// Whether so many jobs are submitted.
    pub(super) fn has_done(&mut self, count: u64) -> bool {
        if self.known < count {
            // Acquire: what the lane did is visible.
            self.known = self.queue.done.load(Ordering::Acquire);
        }
        self.known >= count
    }

    /// Number of jobs that are not submitted.
    pub(super) fn waiting(&mut self) -> u64 {
        self.has_done(self.given);
        self.given - self.known
    }
}

/// The threads. They end when this is dropped, once all jobs are submitted.
pub(super) struct Lanes(Arc<Pool>);

struct Pool {
    ready: Mutex<Ready>,
    /// Number of ready strands.
    count: CachePadded<AtomicUsize>,
    changed: Condvar,
    failures: Arc<Failures>,
    board: Board,
}

/// Strands with jobs that no lane has taken.
#[derive(Default)]
struct Ready {
    strands: VecDeque<Arc<Queue>>,
    /// Number of lanes that sleep.
    sleepers: usize,
    is_closed: bool,
}

impl Lanes {
    /// Starts up to `count` threads, which tell on `board` what they submit; `None` if there are
    /// none.
    pub(super) fn start(count: usize, failures: &Arc<Failures>, board: &Board) -> Option<Self> {
        let pool = Arc::new(Pool {
            ready: Mutex::default(),
            count: CachePadded::default(),
            changed: Condvar::new(),
            failures: Arc::clone(failures),
            board: board.clone(),
        });
        let lanes = Self(Arc::clone(&pool));
        for number in 0..count {
            let pool = Arc::clone(&pool);
            let thread = std::thread::Builder::new().name(format!("lane-{number}"));
            if let Err(error) = thread.spawn(move || pool.submit_all()) {
                tracing::warn!(%error, "no thread for launches");
                return (number > 0).then_some(lanes);
            }
        }
        Some(lanes)
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.0.ready.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Pool {
    fn add(&self, strand: Arc<Queue>) {
        let mut ready = self.ready.lock();
        ready.strands.push_back(strand);
        self.count.store(ready.strands.len(), Ordering::Relaxed);
        let wakes = ready.sleepers > 0;
        drop(ready);
        if wakes {
            self.changed.notify_one();
        }
    }

    fn take(&self, ready: &mut Ready) -> Option<Arc<Queue>> {
        let strand = ready.strands.pop_front()?;
        self.count.store(ready.strands.len(), Ordering::Relaxed);
        Some(strand)
    }

    /// The next strand. Polls for a while before it sleeps.
    fn next(&self) -> Option<Arc<Queue>> {
        let began = Instant::now();
        let mut polls = 0_u32;
        while !polls.is_multiple_of(POLLS_PER_CLOCK) || began.elapsed() < POLL {
            if self.count.load(Ordering::Relaxed) > 0
                && let Some(mut ready) = self.ready.try_lock()
                && let Some(strand) = self.take(&mut ready)
            {
                return Some(strand);
            }
            polls = polls.wrapping_add(1);
            std::hint::spin_loop();
        }
        let mut ready = self.ready.lock();
        loop {
            if let Some(strand) = self.take(&mut ready) {
                return Some(strand);
            }
            if ready.is_closed {
                return None;
            }
            ready.sleepers += 1;
            self.changed.wait(&mut ready);
            ready.sleepers -= 1;
        }
    }

    /// A lane's thread.
    fn submit_all(&self) {
        while let Some(strand) = self.next() {
            self.submit(strand);
        }
    }

    /// Submits jobs of the strand, until there are none, or others wait.
    fn submit(&self, strand: Arc<Queue>) {
        for taken in 1_u32.. {
            let job = strand.jobs.lock().pop_front();
            let place = job.as_ref().and_then(Job::place);
            // The job is gone before it counts as done, and its target with it.
            if let Some(Err(error)) = job.map(Job::submit) {
                self.failures.add(error);
            }
            strand.done.fetch_add(1, Ordering::Release);
            if let Some(place) = place {
                self.board.tell(place);
            }
            if strand.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                return;
            }
            if taken >= BATCH && self.count.load(Ordering::Relaxed) > 0 {
                return self.add(strand);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_keep_their_bytes() {
        for length in [0, 1, INLINE, INLINE + 1] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert_eq!(Parameters::new(&bytes).bytes(), bytes);
        }
    }
}
