//! Threads that submit launches to the driver side by side.
//!
//! The driver takes some microseconds per launch, mostly without a lock. A native program
//! whose threads launch at the same time therefore overlaps them. Here, one thread
//! receives all calls. It hands launches that the program's threads made at the same time
//! to *lanes*: threads that submit them side by side.
//!
//! Streams are not independent: kernels of one may wait for those of another, and streams
//! share queues of the hardware. So a launch is submitted only after all calls that the
//! program made before it. Two launches overlap only if the program's own calls overlapped
//! in time, so that natively, too, either could have come first. Each launch tells the
//! number of calls before it of which this is known ([`Launch::concurrent`]). For a program
//! with one thread it is always zero.
//!
//! When the connection is full, threads wait in their calls, so that these overlap. But of
//! eight threads, each launch then follows the eighth before it, and all wait for any that
//! the driver delays: eight lanes submitted 0.6 of what eight threads submit natively. So if
//! several threads launch, the guest is asked to let each wait until its launch is submitted,
//! as natively ([`Board`]). Launches then follow only what is submitted anyway.
//!
//! Everything but a launch waits for all lanes ([`Lanes::settle`]).
//!
//! [`Launch::concurrent`]: paragpu_protocol::table::Launch::concurrent

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use paragpu_communicator::Window;
use paragpu_device::{Error, Launch, LaunchTarget, StreamId};
use paragpu_protocol::layout::launch_word;
use parking_lot::Mutex;

use crate::sys::words;

/// Maximum number of lanes.
const MAX_LANES: usize = 8;
/// Processors that neither lanes nor the program's threads count on. On 16, six lanes submit as
/// much as seven, with a shorter tail, and eight submit less.
const SPARE: usize = 3;
/// Maximum number of launches queued in a lane.
const DEPTH: usize = 16;
/// Launches per measurement of whether lanes are worthwhile, and how many of them must be
/// concurrent with the one before.
const WINDOW: u32 = 64;
const OVERLAPPING: u32 = 32;
/// Launches that those of a measurement overlap, all together, from which threads should wait
/// for theirs, and below which they no longer should. Up to about five threads, the way back
/// and forth costs more than the order does.
const MANY: u64 = 5 * WINDOW as u64;
const FEW: u64 = 7 * WINDOW as u64 / 2;
/// How long a lane polls for work before it sleeps: waking it costs as much as a launch.
const POLL: Duration = Duration::from_micros(50);
/// Number of polls of a lane before the thread that waits for it naps, and the nap.
const SPINS: u32 = 20_000;
const NAP: Duration = Duration::from_micros(20);

/// What lanes report to the session's thread.
#[derive(Debug, Default)]
struct Failures {
    any: AtomicBool,
    /// The first error.
    first: Mutex<Option<Error>>,
}

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

/// The words in which a session tells its guest that launches are submitted: [`launch_word`].
#[derive(Debug, Clone, Default)]
struct Board(Option<Arc<Window>>);

impl Board {
    /// Tells the thread that waits for a launch, if one does.
    fn tell(&self, place: Place) {
        if place.word != 0 {
            // Only threads of this guest compare it, with the lower half of a position.
            self.store(place.word, place.position as u32);
        }
    }

    /// Whether threads should wait for their launches.
    fn ask(&self, waits: bool) {
        self.store(0, u32::from(waits));
    }

    fn store(&self, word: u32, value: u32) {
        if let Some(window) = &self.0 {
            words::store(window, u64::from(launch_word(word)) * 4, value);
        }
    }

    /// Whether its words are in `window`.
    fn is_in(&self, window: Option<&Arc<Window>>) -> bool {
        match (&self.0, window) {
            (Some(own), Some(window)) => Arc::ptr_eq(own, window),
            (own, window) => own.is_none() && window.is_none(),
        }
    }
}

/// A launch on its way to the driver.
struct Job {
    place: Place,
    target: Arc<dyn LaunchTarget>,
    /// Without its parameters.
    launch: Launch<'static>,
    parameters: Parameters,
}

impl Job {
    fn new(place: Place, target: Arc<dyn LaunchTarget>, launch: &Launch<'_>) -> Self {
        Self {
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
        }
    }

    fn submit(self) -> Result<(), Error> {
        self.target.launch(&Launch {
            parameters: Cow::Borrowed(self.parameters.bytes()),
            ..self.launch
        })
    }
}

/// A counter that one thread writes, alone in its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Done(AtomicU64);

/// A thread and its queue.
#[derive(Debug)]
struct Lane {
    jobs: SyncSender<Job>,
    /// Number of launches queued so far.
    queued: u64,
    /// Number of launches submitted to the driver.
    done: Arc<Done>,
    /// That number when it was last read.
    known: u64,
}

impl Lane {
    fn new(number: usize, failures: &Arc<Failures>, board: &Board) -> std::io::Result<Self> {
        let (jobs, queue) = sync_channel(DEPTH);
        let done = Arc::new(Done::default());
        let (progress, failures, board) = (Arc::clone(&done), Arc::clone(failures), board.clone());
        std::thread::Builder::new()
            .name(format!("lane-{number}"))
            .spawn(move || submit_all(&queue, &progress, &failures, &board))?;
        Ok(Self {
            jobs,
            queued: 0,
            done,
            known: 0,
        })
    }

    /// Whether so many launches are submitted.
    fn has_done(&mut self, count: u64) -> bool {
        if self.known < count {
            // Acquire: what the lane did is visible.
            self.known = self.done.0.load(Ordering::Acquire);
        }
        self.known >= count
    }

    /// Number of launches that are not submitted.
    fn waiting(&mut self) -> u64 {
        self.has_done(self.queued);
        self.queued - self.known
    }

    fn await_done(&mut self, count: u64) {
        let mut spins = 0;
        while !self.has_done(count) {
            pause(&mut spins);
        }
    }
}

/// Waits a moment for a lane.
fn pause(spins: &mut u32) {
    *spins = spins.saturating_add(1);
    match *spins < SPINS {
        true => std::hint::spin_loop(),
        // The driver accepts no more launches until some complete.
        false => std::thread::sleep(NAP),
    }
}

/// A lane's thread. Ends when the session drops the lane.
fn submit_all(queue: &Receiver<Job>, done: &Done, failures: &Failures, board: &Board) {
    while let Some(job) = next(queue) {
        let place = job.place;
        // The job is gone before it counts as done, and its target with it.
        if let Err(error) = job.submit() {
            failures.first.lock().get_or_insert(error);
            failures.any.store(true, Ordering::Relaxed);
        }
        done.0.fetch_add(1, Ordering::Release);
        board.tell(place);
    }
}

/// The next launch. Polls for a while before it sleeps.
fn next(queue: &Receiver<Job>) -> Option<Job> {
    let began = Instant::now();
    loop {
        match queue.try_recv() {
            Ok(next) => return Some(next),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) if began.elapsed() > POLL => return queue.recv().ok(),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
}

/// Measures whether most launches overlap others.
#[derive(Debug, Default)]
struct Traffic {
    launches: u32,
    overlapping: u32,
    /// The launches that these overlap.
    others: u64,
    /// The results of the last measurement: lanes are worthwhile, and threads should wait.
    is_wide: bool,
    waits: bool,
}

impl Traffic {
    /// Counts a launch that overlaps `others`. Returns true at the end of a measurement.
    fn count(&mut self, others: u64) -> bool {
        self.launches += 1;
        self.overlapping += u32::from(others > 0);
        // More than the threads whose launches overlap: a thread was held up.
        self.others += others.min(MAX_LANES as u64);
        let ends = self.launches == WINDOW;
        if ends {
            self.is_wide = self.overlapping >= OVERLAPPING;
            let least = if self.waits { FEW } else { MANY };
            self.waits = self.is_wide && self.others >= least;
            (self.launches, self.overlapping, self.others) = (0, 0, 0);
        }
        ends
    }
}

/// A launch in a lane.
#[derive(Debug)]
struct Given {
    /// Its position in the call sequence.
    position: u64,
    lane: usize,
    /// Its number in the lane, from 1.
    number: u64,
}

/// A launch's place in the order of the program's calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Its position in the call sequence.
    pub(crate) position: u64,
    /// The number of calls directly before it that it does not follow.
    pub(crate) concurrent: u64,
    /// The launch word of the waiting thread; 0 if no thread waits for it.
    pub(crate) word: u32,
}

/// The session's lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    most: usize,
    lanes: Vec<Lane>,
    /// Launches that are not known to be submitted, in call order.
    given: VecDeque<Given>,
    traffic: Traffic,
    failures: Arc<Failures>,
    board: Board,
}

impl Lanes {
    /// As many as this machine's processors allow. They start with the first traffic for
    /// them.
    pub(super) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // As many for the program's threads, and some for the thread that receives calls and
        // for others. Lanes that lack a processor delay all.
        Self::at_most((processors.saturating_sub(SPARE) / 2).min(MAX_LANES))
    }

    fn at_most(most: usize) -> Self {
        Self {
            // With a single lane, nothing overlaps.
            most: if most < 2 { 0 } else { most },
            lanes: Vec::new(),
            given: VecDeque::new(),
            traffic: Traffic::default(),
            failures: Arc::default(),
            board: Board::default(),
        }
    }

    /// Uses `count` lanes for all launches.
    #[cfg(test)]
    pub(super) fn always(count: usize) -> Self {
        let mut lanes = Self::at_most(count);
        lanes.traffic.is_wide = true;
        // No measurement ever ends.
        lanes.traffic.launches = WINDOW;
        lanes
    }

    /// Tells the guest in this window from now on.
    pub(super) fn tell_in(&mut self, window: Option<&Arc<Window>>) {
        if !self.board.is_in(window) {
            self.settle();
            // Each has the words. They start again with the next traffic.
            self.lanes.clear();
            self.board = Board(window.cloned());
            self.board.ask(self.traffic.waits);
        }
    }

    /// Has threads no longer wait for their launches.
    pub(super) fn rest(&mut self) {
        if self.traffic.waits {
            self.traffic = Traffic::default();
            self.board.ask(false);
        }
    }

    /// Tells the guest that a launch was submitted, though not by a lane.
    pub(super) fn tell(&self, place: Place) {
        self.board.tell(place);
    }

    /// Counts a launch. Returns whether it should go to a lane.
    pub(super) fn are_worthwhile(&mut self, place: Place) -> bool {
        if self.most == 0 {
            return false;
        }
        let others = match place.word {
            0 => place.concurrent,
            // What is submitted does not count.
            _ => self.in_flight(),
        };
        if self.traffic.count(others) {
            self.board.ask(self.traffic.waits);
        }
        self.traffic.is_wide
    }

    /// Number of launches that are not known to be submitted, after a look at the first.
    fn in_flight(&mut self) -> u64 {
        self.await_before(0);
        self.given.len() as u64
    }

    /// Queues a launch into `stream` in a lane. Returns false if there is no lane.
    pub(super) fn give(
        &mut self,
        place: Place,
        stream: StreamId,
        target: Arc<dyn LaunchTarget>,
        launch: &Launch<'_>,
    ) -> bool {
        self.await_before(place.position.saturating_sub(place.concurrent));
        self.begin();
        let Some(number) = self.lane_for(stream, place) else {
            return false;
        };
        let Some(lane) = self.lanes.get_mut(number) else {
            return false;
        };
        if lane.jobs.send(Job::new(place, target, launch)).is_err() {
            return false;
        }
        lane.queued += 1;
        self.given.push_back(Given {
            position: place.position,
            lane: number,
            number: lane.queued,
        });
        true
    }

    /// Waits until all launches before a position are submitted.
    fn await_before(&mut self, position: u64) {
        while let Some(front) = self.given.front()
            && let Some(lane) = self.lanes.get_mut(front.lane)
            && (front.position < position || lane.has_done(front.number))
        {
            lane.await_done(front.number);
            self.given.pop_front();
        }
    }

    /// Starts the threads, as many as can be created.
    fn begin(&mut self) {
        while self.lanes.len() < self.most {
            match Lane::new(self.lanes.len(), &self.failures, &self.board) {
                Ok(lane) => self.lanes.push(lane),
                Err(error) => {
                    tracing::warn!(%error, "no thread for launches");
                    self.most = self.lanes.len();
                }
            }
        }
    }

    /// An idle lane, or the one with the fewest launches. Preferably always the same for a
    /// stream, whose state is then in the caches of that lane's processor. If a thread waits for
    /// the launch, only an idle one: it must not queue behind a launch that the driver delays.
    fn lane_for(&mut self, stream: StreamId, place: Place) -> Option<usize> {
        let mut spins = 0;
        loop {
            let (number, queued) = self.least_busy(stream)?;
            if queued == 0 || place.word == 0 {
                return Some(number);
            }
            pause(&mut spins);
        }
    }

    /// That lane, and the number of its launches.
    fn least_busy(&mut self, stream: StreamId) -> Option<(usize, u64)> {
        let first = usize::try_from(stream.0)
            .unwrap_or(0)
            .checked_rem(self.lanes.len())?;
        let (mut best, mut least) = (first, u64::MAX);
        for number in (first..self.lanes.len()).chain(0..first) {
            let queued = self.lanes.get_mut(number)?.waiting();
            if queued < least {
                (best, least) = (number, queued);
            }
            if queued == 0 {
                break;
            }
        }
        Some((best, least))
    }

    /// Waits until all launches are submitted.
    pub(super) fn settle(&mut self) {
        while let Some(given) = self.given.pop_front() {
            if let Some(lane) = self.lanes.get_mut(given.lane) {
                lane.await_done(given.number);
            }
        }
    }

    /// Takes the first error.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        if !self.failures.any.load(Ordering::Relaxed) {
            return None;
        }
        let first = self.failures.first.lock().take();
        self.failures.any.store(false, Ordering::Relaxed);
        first
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        // The work refers to the device, which its owner drops next.
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use paragpu_device::FunctionId;
    use proptest::prelude::*;

    use super::*;

    fn launch() -> Launch<'static> {
        Launch::of_one_thread(FunctionId(1), Vec::new())
    }

    /// A launch that runs a function.
    struct Runs<F>(F);

    impl<F: Fn() + Send + Sync> LaunchTarget for Runs<F> {
        fn launch(&self, _launch: &Launch<'_>) -> Result<(), Error> {
            (self.0)();
            Ok(())
        }
    }

    /// When a launch began and ended, on a common clock.
    type Span = Arc<Mutex<(u64, u64)>>;

    fn work(clock: &Arc<AtomicU64>, span: &Span, effort: u32) -> Arc<dyn LaunchTarget> {
        let (clock, span) = (Arc::clone(clock), Arc::clone(span));
        Arc::new(Runs(move || {
            let began = clock.fetch_add(1, Ordering::SeqCst);
            for _ in 0..effort {
                std::hint::spin_loop();
            }
            *span.lock() = (began, clock.fetch_add(1, Ordering::SeqCst));
        }))
    }

    proptest! {
        /// A launch begins after all that it follows.
        #[test]
        fn launches_keep_the_programs_order(
            launches in prop::collection::vec((0_u64..6, 0_u64..12, 0_u32..2000), 1..120),
            count in 2_usize..5,
        ) {
            let mut lanes = Lanes::always(count);
            let clock = Arc::new(AtomicU64::new(0));
            let mut spans: Vec<Span> = Vec::new();
            for (position, (stream, concurrent, effort)) in (1..).zip(&launches) {
                let span = Span::default();
                let place = Place { position, concurrent: *concurrent, word: 0 };
                prop_assert!(lanes.are_worthwhile(place));
                let target = work(&clock, &span, *effort);
                prop_assert!(lanes.give(place, StreamId(*stream), target, &launch()));
                spans.push(span);
            }
            lanes.settle();
            let spans: Vec<_> = spans.iter().map(|span| *span.lock()).collect();
            for (later, (_, concurrent, _)) in launches.iter().enumerate() {
                for earlier in 0..later {
                    if (later - earlier) as u64 > *concurrent {
                        prop_assert!(spans[earlier].1 < spans[later].0, "{earlier} {later} {spans:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn concurrent_launches_overlap() {
        let mut lanes = Lanes::always(2);
        let (release, held) = sync_channel(1);
        let held = Mutex::new(held);
        let (ran, runs) = sync_channel(1);
        let place = |position, concurrent| Place {
            position,
            concurrent,
            word: 0,
        };
        let waits = Arc::new(Runs(move || held.lock().recv().unwrap()));
        assert!(lanes.give(place(1, 0), StreamId(1), waits, &launch()));
        let tells = Arc::new(Runs(move || ran.send(()).unwrap()));
        assert!(lanes.give(place(2, 1), StreamId(2), tells, &launch()));
        runs.recv().unwrap();
        release.send(()).unwrap();
        lanes.settle();
    }

    #[test]
    fn threads_wait_if_many_launch() {
        let mut traffic = Traffic::default();
        let mut measured = |others| {
            while !traffic.count(others) {}
            (traffic.is_wide, traffic.waits)
        };
        assert_eq!(measured(0), (false, false));
        assert_eq!(measured(3), (true, false), "four threads");
        assert_eq!(measured(7), (true, true), "eight threads");
        // Fewer launches are in flight while threads wait.
        assert_eq!(measured(4), (true, true));
        assert_eq!(measured(2), (true, false));
        assert_eq!(measured(4), (true, false));
        assert_eq!(measured(900), (true, true));
        assert_eq!(measured(0), (false, false));
    }

    #[test]
    fn parameters_keep_their_bytes() {
        for length in [0, 1, INLINE, INLINE + 1] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert_eq!(Parameters::new(&bytes).bytes(), bytes);
        }
    }

    #[test]
    fn lanes_need_overlapping_launches() {
        let mut lanes = Lanes::at_most(4);
        let mut count = |concurrent, launches: u32| {
            let place = Place {
                position: 1,
                concurrent,
                word: 0,
            };
            let launches = (0..launches).filter(|_| lanes.are_worthwhile(place));
            launches.count()
        };
        assert_eq!(count(0, 10 * WINDOW), 0);
        assert_eq!(count(1, WINDOW - 1), 0);
        assert_eq!(count(3, 1), 1);
        assert_eq!(count(0, WINDOW - 1), 63, "until the next measurement");
        assert_eq!(count(0, 2 * WINDOW), 0);
        assert!(!Lanes::at_most(1).are_worthwhile(Place {
            position: 1,
            concurrent: 9,
            word: 0,
        }));
    }
}
