//! Threads that submit launches to the driver side by side, and the order of these launches.
//!
//! The driver takes some microseconds per launch, mostly without a lock. A native program
//! whose threads launch at the same time therefore overlaps them. Here, one thread
//! receives all calls. It hands launches that the program's threads made at the same time
//! to *lanes*: threads that submit them side by side. Launches that must keep their order
//! share a [strand](super::strand).
//!
//! **Few threads.** Streams are not independent: kernels of one may wait for those of another,
//! and streams share queues of the hardware. So a launch is submitted only after all calls that
//! the program made before it. Two launches overlap only if the program's own calls overlapped
//! in time, so that natively, too, either could have come first. Each launch tells the
//! number of calls before it of which this is known ([`Launch::concurrent`]). For a program
//! with one thread it is always zero.
//!
//! **Many threads.** When the connection is full, threads wait in their calls, so that these
//! overlap. But of eight threads, each launch then follows the eighth before it, and all wait
//! for any that the driver delays. So if many threads launch, the guest is asked to have each say
//! who it is ([`Launch::thread`]). A launch of such a thread follows the thread's own, those of
//! its stream, and every call that is no such launch. CUDA promises no other order. The thread is
//! told what is submitted ([`Board`]), and is never more than a few launches ahead of it.
//!
//! Everything but launches and marks waits for all lanes ([`Lanes::settle`]).
//!
//! [`Launch::concurrent`]: paragpu_protocol::table::Launch::concurrent
//! [`Launch::thread`]: paragpu_protocol::table::Launch::thread

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use paragpu_communicator::Window;
use paragpu_device::{Error, EventId, Launch, LaunchTarget, Recording, StreamId};
use paragpu_protocol::layout::{LAUNCHING_THREADS, THREADS_WORD, launch_word};

use super::strand::{self, Failures, Job, Strand};
use crate::sys::words;

/// Maximum number of lanes.
const MAX_LANES: usize = 8;
/// Processors that neither lanes nor the program's threads count on. On 16, seven lanes submit as
/// much as a native program's eight threads, six 0.97 of that with a longer tail, and eight less.
const SPARE: usize = 2;
/// Number of strands.
const STRANDS: usize = 16;
/// Jobs that may be known as given before those among them that are submitted are looked for.
const MANY_GIVEN: usize = 1024;
/// Launches per measurement of whether lanes are worthwhile, and how many of them must be
/// concurrent with the one before.
const WINDOW: u32 = 64;
const OVERLAPPING: u32 = 32;
/// Launches that those of a measurement overlap, all together, from which threads should say who
/// they are, and below which they no longer should. Up to about five threads, the order costs
/// little.
const MANY: u64 = 5 * WINDOW as u64;
const FEW: u64 = 7 * WINDOW as u64 / 2;
/// Number of polls of a strand before the thread that waits for it naps, and the nap.
const SPINS: u32 = 20_000;
const NAP: Duration = Duration::from_micros(20);

/// The words in which a session asks its guest's threads to say who they are, and tells them
/// which of their launches are submitted.
#[derive(Debug, Clone, Default)]
pub(super) struct Board(Option<Arc<Window>>);

impl Board {
    fn ask(&self, asks: bool) {
        self.store(THREADS_WORD, u32::from(asks));
    }

    /// Tells the thread of a launch, if it said who it is.
    pub(super) fn tell(&self, place: Place) {
        if place.thread != 0 {
            // Only threads of this guest compare it, with the lower half of a position.
            self.store(launch_word(place.thread), place.position as u32);
        }
    }

    fn store(&self, word: u32, value: u32) {
        if let Some(window) = &self.0 {
            words::store(window, u64::from(word) * 4, value);
        }
    }

    /// Whether the words are in `window`.
    fn is_in(&self, window: Option<&Arc<Window>>) -> bool {
        match (&self.0, window) {
            (Some(own), Some(window)) => Arc::ptr_eq(own, window),
            (own, window) => own.is_none() && window.is_none(),
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
    /// Overlapping launches of threads that say who they are, and a bit for each such thread.
    named: u64,
    threads: u32,
    /// The results of the last measurement: lanes are worthwhile, and many threads launch.
    is_wide: bool,
    is_crowded: bool,
}

impl Traffic {
    /// Counts a launch while others are on their way, or not. Returns true at the end of a
    /// measurement.
    fn count(&mut self, place: Place, in_flight: bool) -> bool {
        self.launches += 1;
        // The calls of threads that say who they are need not overlap.
        let overlaps = match place.thread {
            0 => place.concurrent > 0,
            _ => in_flight,
        };
        self.overlapping += u32::from(overlaps);
        match place.thread {
            // More than the threads whose launches overlap: a thread was held up.
            0 => self.others += place.concurrent.min(MAX_LANES as u64),
            thread => {
                self.named += u64::from(overlaps);
                self.threads |= 1 << thread;
            }
        }
        let ends = self.launches == WINDOW;
        if ends {
            let threads = u64::from(self.threads.count_ones());
            let others = self.others + self.named * threads.saturating_sub(1);
            let least = if self.is_crowded { FEW } else { MANY };
            let is_wide = self.overlapping >= OVERLAPPING;
            *self = Self {
                is_wide,
                is_crowded: is_wide && others >= least,
                ..Self::default()
            };
        }
        ends
    }
}

/// Where a job is: its strand, and its number there.
#[derive(Debug, Clone, Copy, Default)]
struct Spot {
    strand: usize,
    number: u64,
}

/// A launch's place in the order of the program's calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Its position in the call sequence.
    pub(crate) position: u64,
    /// The number of calls directly before it that it does not follow.
    pub(crate) concurrent: u64,
    /// The thread that launches, if it says so; otherwise 0.
    pub(crate) thread: u32,
}

/// The session's lanes.
pub(super) struct Lanes {
    most: usize,
    /// Started with the first traffic for them.
    threads: Option<strand::Lanes>,
    strands: [Strand; STRANDS],
    /// Jobs that are not known to be submitted, in call order, with their positions in the call
    /// sequence.
    given: VecDeque<(u64, Spot)>,
    /// How many of these there may be before the next look.
    many_given: usize,
    /// The last job of each stream, and of each thread.
    of_streams: HashMap<StreamId, Spot>,
    of_threads: [Spot; LAUNCHING_THREADS as usize],
    /// Position of the last launch of a thread that says who it is.
    last_named: u64,
    /// Marks that are not known to be recorded.
    marks: Vec<(EventId, Spot)>,
    traffic: Traffic,
    failures: Arc<Failures>,
    board: Board,
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Lanes");
        shown.field("most", &self.most);
        shown
            .field("traffic", &self.traffic)
            .finish_non_exhaustive()
    }
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
            threads: None,
            strands: Default::default(),
            given: VecDeque::new(),
            many_given: MANY_GIVEN,
            of_streams: HashMap::new(),
            of_threads: Default::default(),
            last_named: 0,
            marks: Vec::new(),
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

    /// Asks and tells the guest in this window from now on.
    pub(super) fn tell_in(&mut self, window: Option<&Arc<Window>>) {
        if !self.board.is_in(window) {
            self.settle();
            // Each has the words. They start again with the next traffic.
            self.threads = None;
            self.board = Board(window.cloned());
            self.board.ask(self.traffic.is_crowded);
        }
    }

    /// Has threads no longer say who they are.
    pub(super) fn rest(&mut self) {
        if self.traffic.is_crowded {
            self.traffic = Traffic::default();
            self.board.ask(false);
        }
    }

    /// Tells the guest that a launch was submitted, or failed, though not by a lane.
    pub(super) fn tell(&self, place: Place) {
        self.board.tell(place);
    }

    /// Counts a launch. Returns whether it should go to a lane.
    pub(super) fn are_worthwhile(&mut self, place: Place) -> bool {
        if self.most == 0 {
            return false;
        }
        self.await_before(0);
        if self.traffic.count(place, !self.given.is_empty()) {
            // Again each time: a thread that waits too long takes it back.
            self.board.ask(self.traffic.is_crowded);
        }
        self.traffic.is_wide
    }

    /// Queues a launch into `stream` for a lane. Returns false if there is no lane.
    pub(super) fn give(
        &mut self,
        place: Place,
        stream: StreamId,
        target: Arc<dyn LaunchTarget>,
        launch: &Launch<'_>,
    ) -> bool {
        let Place {
            position,
            concurrent,
            thread,
        } = place;
        let follows = position.saturating_sub(concurrent);
        self.await_before(match thread {
            // That a named launch's function has returned is not known.
            0 => follows.max(self.last_named + 1),
            _ => follows,
        });
        let Some(strand) = self.strand_for(stream, thread) else {
            return false;
        };
        let Some(spot) = self.put(position, strand, Job::launch(place, target, launch)) else {
            return false;
        };
        self.of_streams.insert(stream, spot);
        if thread != 0
            && let Some(last) = self.of_threads.get_mut(thread as usize)
        {
            *last = spot;
            self.last_named = position;
        }
        true
    }

    /// Records a mark behind a stream's launches. Returns false if lanes have none of its.
    pub(super) fn give_mark(&mut self, stream: StreamId, mark: EventId, record: Recording) -> bool {
        let Some(Spot { strand, .. }) = self.last_of(stream) else {
            return false;
        };
        let position = self.given.back().map_or(0, |(position, _)| *position);
        let Some(spot) = self.put(position, strand, Job::Record(record)) else {
            return false;
        };
        self.of_streams.insert(stream, spot);
        self.marks.push((mark, spot));
        true
    }

    /// Whether lanes have launches into a stream.
    pub(super) fn have(&mut self, stream: StreamId) -> bool {
        self.last_of(stream).is_some()
    }

    /// Whether a mark is still to be recorded.
    pub(super) fn are_to_record(&mut self, mark: EventId) -> bool {
        if self.marks.is_empty() {
            return false;
        }
        let mut marks = std::mem::take(&mut self.marks);
        marks.retain(|(_, spot)| !self.has_done(*spot));
        self.marks = marks;
        self.marks.iter().any(|(other, _)| *other == mark)
    }

    /// Adds a job to a strand.
    fn put(&mut self, position: u64, strand: usize, job: Job) -> Option<Spot> {
        if self.threads.is_none() {
            self.threads = strand::Lanes::start(self.most, &self.failures, &self.board);
            // Otherwise it would be tried again for each launch.
            self.most = self.threads.as_ref().map_or(0, |_| self.most);
        }
        let threads = self.threads.as_ref()?;
        let number = self.strands.get_mut(strand)?.give(job, threads);
        let spot = Spot { strand, number };
        if self.given.len() >= self.many_given {
            // The first may be delayed, and others not.
            let mut given = std::mem::take(&mut self.given);
            given.retain(|(_, spot)| !self.has_done(*spot));
            self.many_given = MANY_GIVEN.max(2 * given.len());
            self.given = given;
        }
        self.given.push_back((position, spot));
        Some(spot)
    }

    fn has_done(&mut self, spot: Spot) -> bool {
        let strand = self.strands.get_mut(spot.strand);
        strand.is_none_or(|strand| strand.has_done(spot.number))
    }

    /// Waits until a job is submitted.
    fn await_done(&mut self, spot: Spot) {
        let mut spins = 0;
        while !self.has_done(spot) {
            pause(&mut spins);
        }
    }

    /// Waits until all jobs before a position are submitted.
    fn await_before(&mut self, position: u64) {
        while let Some(&(first, spot)) = self.given.front()
            && (first < position || self.has_done(spot))
        {
            self.await_done(spot);
            self.given.pop_front();
        }
    }

    /// The last job of a stream, if it is not submitted.
    fn last_of(&mut self, stream: StreamId) -> Option<Spot> {
        let last = *self.of_streams.get(&stream)?;
        (!self.has_done(last)).then_some(last)
    }

    /// The strand for a launch: that of the jobs of its stream, or of its thread, which it
    /// follows; otherwise an idle one, or the one with the fewest jobs.
    fn strand_for(&mut self, stream: StreamId, thread: u32) -> Option<usize> {
        let of_thread = match thread {
            0 => None,
            thread => self.of_threads.get(thread as usize).copied(),
        };
        let of_thread = of_thread.filter(|last| !self.has_done(*last));
        match (self.last_of(stream), of_thread) {
            (Some(last), None) | (None, Some(last)) => Some(last.strand),
            (Some(last), Some(other)) => {
                if last.strand != other.strand {
                    self.await_done(other);
                }
                Some(last.strand)
            }
            (None, None) => {
                let strands = self.strands.iter_mut().map(Strand::waiting).enumerate();
                strands
                    .min_by_key(|(_, waiting)| *waiting)
                    .map(|(at, _)| at)
            }
        }
    }

    /// Waits until all jobs are submitted.
    pub(super) fn settle(&mut self) {
        if self.given.is_empty() {
            return;
        }
        self.await_before(u64::MAX);
        self.of_streams.clear();
        self.marks.clear();
    }

    /// Takes the first error.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failures.take()
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

impl Drop for Lanes {
    fn drop(&mut self) {
        // The work refers to the device, which its owner drops next.
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use paragpu_device::FunctionId;
    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;

    fn launch() -> Launch<'static> {
        Launch::of_one_thread(FunctionId(1), Vec::new())
    }

    fn place(position: u64, concurrent: u64, thread: u32) -> Place {
        Place {
            position,
            concurrent,
            thread,
        }
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

    /// A launch that waits, and what ends the wait.
    fn held() -> (SyncSender<()>, Arc<dyn LaunchTarget>) {
        let (release, held) = sync_channel(1);
        let held = Mutex::new(held);
        (release, Arc::new(Runs(move || held.lock().recv().unwrap())))
    }

    /// A launch that tells that it ran.
    fn telling() -> (Receiver<()>, Arc<dyn LaunchTarget>) {
        let (ran, runs) = sync_channel(1000);
        (runs, Arc::new(Runs(move || ran.send(()).unwrap())))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A launch begins after all that it follows: those of its stream and of its thread, and
        /// if its thread does not say who it is, all but those that are concurrent and do not
        /// either.
        #[test]
        fn launches_keep_the_programs_order(
            launches in prop::collection::vec((0_u64..6, 0_u32..4, 0_u64..12, 0_u32..2000), 1..150),
            named in any::<bool>(),
            count in 2_usize..5,
        ) {
            let mut lanes = Lanes::always(count);
            let clock = Arc::new(AtomicU64::new(0));
            let mut spans: Vec<Span> = Vec::new();
            let thread_of = |thread: u32| if named { thread } else { 0 };
            let mut strict = 0;
            for (position, (stream, thread, concurrent, effort)) in (1..).zip(&launches) {
                let span = Span::default();
                // One that says who it is has all named ones since the last other beside it.
                let place = match thread_of(*thread) {
                    0 => place(position, *concurrent, 0),
                    thread => place(position, position - 1 - strict, thread),
                };
                if place.thread == 0 {
                    strict = position;
                }
                prop_assert!(lanes.are_worthwhile(place));
                let target = work(&clock, &span, *effort);
                prop_assert!(lanes.give(place, StreamId(*stream), target, &launch()));
                spans.push(span);
            }
            lanes.settle();
            let spans: Vec<_> = spans.iter().map(|span| *span.lock()).collect();
            for (later, (stream, thread, concurrent, _)) in launches.iter().enumerate() {
                for (earlier, (other, by, ..)) in launches.iter().enumerate().take(later) {
                    let (thread, by) = (thread_of(*thread), thread_of(*by));
                    let follows = match (thread, by) {
                        (0, 0) => (later - earlier) as u64 > *concurrent,
                        (0, _) | (_, 0) => true,
                        _ => thread == by,
                    };
                    if follows || stream == other {
                        prop_assert!(spans[earlier].1 < spans[later].0, "{earlier} {later} {spans:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn concurrent_launches_overlap() {
        for thread in [0, 1] {
            let mut lanes = Lanes::always(2);
            let (release, waits) = held();
            assert!(lanes.give(place(1, 0, thread), StreamId(1), waits, &launch()));
            let (runs, tells) = telling();
            assert!(lanes.give(place(2, 1, 2 * thread), StreamId(2), tells, &launch()));
            runs.recv().unwrap();
            release.send(()).unwrap();
            lanes.settle();
        }
    }

    /// A launch that the driver delays holds up only those of its thread and stream.
    #[test]
    fn a_delayed_launch_holds_up_few() {
        let mut lanes = Lanes::always(2);
        let (release, waits) = held();
        assert!(lanes.give(place(1, 0, 1), StreamId(1), waits, &launch()));
        let (behind, late) = telling();
        assert!(lanes.give(place(2, 1, 1), StreamId(2), late, &launch()));
        let (runs, tells) = telling();
        for position in 3..3 * MANY_GIVEN as u64 {
            let place = place(position, position - 1, 2 + (position % 3) as u32);
            let stream = StreamId(3 + position % 3);
            assert!(lanes.give(place, stream, Arc::clone(&tells), &launch()));
            runs.recv().unwrap();
        }
        assert!(behind.try_recv().is_err());
        assert!(lanes.given.len() <= MANY_GIVEN);
        release.send(()).unwrap();
        behind.recv().unwrap();
        lanes.settle();
    }

    #[test]
    fn a_mark_is_recorded_behind_its_streams_launches() {
        let (mark, stream) = (EventId(7), StreamId(1));
        let mut lanes = Lanes::always(2);
        let record = |told: SyncSender<()>| -> Recording {
            Box::new(move || {
                told.send(()).unwrap();
                Ok(())
            })
        };
        let (told, recorded) = sync_channel(1);
        assert!(
            !lanes.give_mark(stream, mark, record(told.clone())),
            "no launch"
        );
        let (release, waits) = held();
        assert!(lanes.give(place(1, 0, 0), stream, waits, &launch()));
        assert!(lanes.have(stream) && !lanes.have(StreamId(2)));
        assert!(lanes.give_mark(stream, mark, record(told)));
        assert!(lanes.are_to_record(mark) && !lanes.are_to_record(EventId(8)));
        assert!(recorded.try_recv().is_err());
        release.send(()).unwrap();
        recorded.recv().unwrap();
        lanes.settle();
        assert!(!lanes.are_to_record(mark));
    }

    #[test]
    fn threads_say_who_they_are_if_many_launch() {
        let mut traffic = Traffic::default();
        let mut measured = |concurrent, threads: u32, in_flight| {
            let mut next = 0;
            let mut count = || {
                next = (next + 1) % threads.max(1);
                let thread = if threads == 0 { 0 } else { 1 + next };
                traffic.count(place(1000, concurrent, thread), in_flight)
            };
            while !count() {}
            (traffic.is_wide, traffic.is_crowded)
        };
        assert_eq!(measured(0, 0, true), (false, false));
        assert_eq!(measured(3, 0, true), (true, false), "four threads");
        assert_eq!(measured(7, 0, true), (true, true), "eight threads");
        assert_eq!(measured(900, 8, true), (true, true));
        assert_eq!(measured(900, 5, true), (true, true));
        assert_eq!(measured(900, 4, true), (true, false));
        assert_eq!(measured(4, 0, true), (true, false));
        assert_eq!(measured(900, 0, true), (true, true));
        assert_eq!(measured(900, 8, false), (false, false), "none overlap");
    }

    #[test]
    fn lanes_need_overlapping_launches() {
        let mut lanes = Lanes::at_most(4);
        let mut count = |concurrent, launches: u32| {
            let launches = (0..launches).filter(|_| lanes.are_worthwhile(place(1, concurrent, 0)));
            launches.count()
        };
        assert_eq!(count(0, 10 * WINDOW), 0);
        assert_eq!(count(1, WINDOW - 1), 0);
        assert_eq!(count(3, 1), 1);
        assert_eq!(count(0, WINDOW - 1), 63, "until the next measurement");
        assert_eq!(count(0, 2 * WINDOW), 0);
        assert!(!Lanes::at_most(1).are_worthwhile(place(1, 9, 0)));
    }
}
