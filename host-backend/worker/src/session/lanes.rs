//! Threads that submit launches to the driver while the session's thread receives
//! the next calls.
//!
//! The driver takes some microseconds per launch, on any thread. A native program
//! whose threads launch on their own streams overlaps these. So when calls queue up
//! and alternate between streams, launches and event records go to *lanes*: threads
//! that each submit their work to the driver in order. A stream stays with its lane
//! while the lane has work of it. Streams are ordered among themselves only by
//! other calls, and before each of those the lanes are emptied ([`Lanes::settle`]).
//! Only the polls of pending calls bypass the lanes: a stream with work in its lane
//! is not complete, nor is an event whose record is there.
//!
//! A program that does not fill the connection does not use lanes.
//!
//! Sessions have no lanes for now ([`Lanes::none`]), because a program with one thread
//! whose launches alternate between streams is taken for one with many. On an H100 its
//! launches reached the driver in another order across streams than natively, and a
//! kernel that waited for one of another stream waited in vain. A launch has to name
//! its thread first. Two to eight lanes launched equally fast there, because the driver
//! has a lock; each needs a few processors of its own.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use paragpu_device::{Deferred, Error, EventId, StreamId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Maximum work queued in a lane. Beyond that, the call that adds more waits.
const DEPTH: usize = 128;
/// Launches per measurement of whether lanes are worthwhile, and how many of them
/// must switch streams and have calls queued behind them.
const WINDOW: u32 = 64;
const SWITCHED: u32 = 16;
const PRESSED: u32 = 32;
/// How long a lane polls for work before it sleeps: waking it costs the session's
/// thread as much as a launch.
const LOOKS: Duration = Duration::from_micros(50);
/// How often the thread polls the lanes before it naps while it waits for them to
/// empty, and the nap.
const SPINS: u32 = 20_000;
const NAP: Duration = Duration::from_micros(20);
/// Maximum number of remembered event records.
const MOST_RECORDS: usize = 1024;
/// Maximum number of streams with a remembered lane.
const MOST_STREAMS: usize = 1024;

/// What a lane reports to the session's thread.
#[derive(Debug, Default)]
struct LaneProgress {
    /// Work items submitted to the driver.
    done: AtomicU64,
}

/// A thread and its queue.
#[derive(Debug)]
struct Lane {
    work: SyncSender<Deferred>,
    /// Work items queued so far.
    given: u64,
    progress: Arc<LaneProgress>,
}

impl Lane {
    fn new(number: usize, failed: &Arc<Mutex<Option<Error>>>) -> std::io::Result<Self> {
        let (work, taken) = sync_channel(DEPTH);
        let progress = Arc::new(LaneProgress::default());
        let (telling, failing) = (Arc::clone(&progress), Arc::clone(failed));
        std::thread::Builder::new()
            .name(format!("lane-{number}"))
            .spawn(move || give(&taken, &telling, &failing))?;
        Ok(Self {
            work,
            given: 0,
            progress,
        })
    }

    /// Queues work. Returns the work if the thread is gone.
    fn push(&mut self, mut work: Deferred) -> Result<(), Deferred> {
        for _ in 0..SPINS {
            work = match self.work.try_send(work) {
                Ok(()) => {
                    self.given += 1;
                    return Ok(());
                }
                Err(TrySendError::Disconnected(work)) => return Err(work),
                Err(TrySendError::Full(work)) => work,
            };
            std::hint::spin_loop();
        }
        // The driver accepts no more launches of this stream until some complete.
        self.work.send(work).map_err(|unsent| unsent.0)?;
        self.given += 1;
        Ok(())
    }

    /// Whether all its work is submitted.
    fn is_empty(&self) -> bool {
        self.has_given(self.given)
    }

    /// Whether its first `count` work items are submitted.
    fn has_given(&self, count: u64) -> bool {
        self.progress.done.load(Ordering::Acquire) >= count
    }
}

/// A lane's thread. Ends when the session drops the lane.
fn give(work: &Receiver<Deferred>, progress: &LaneProgress, failed: &Mutex<Option<Error>>) {
    while let Some(next) = next(work) {
        if let Err(error) = next() {
            failed.lock().get_or_insert(error);
        }
        progress.done.fetch_add(1, Ordering::Release);
    }
}

/// The next work item. Polls for a while before it sleeps.
fn next(work: &Receiver<Deferred>) -> Option<Deferred> {
    let began = Instant::now();
    loop {
        match work.try_recv() {
            Ok(next) => return Some(next),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) if began.elapsed() > LOOKS => return work.recv().ok(),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
}

/// Whether any lane has work. `may_be_busy` is a hint that saves the check.
fn is_busy(lanes: &[Lane], may_be_busy: &Cell<bool>) -> bool {
    if may_be_busy.get() && lanes.iter().all(Lane::is_empty) {
        may_be_busy.set(false);
    }
    may_be_busy.get()
}

/// An event record in a lane.
#[derive(Debug)]
struct Record {
    event: EventId,
    lane: usize,
    /// Its position in the lane's work, from 1.
    place: u64,
}

/// Measures whether calls look like those of a program whose threads launch
/// concurrently.
#[derive(Debug, Default)]
struct Traffic {
    /// Another call was received before the current one was executed.
    is_pressed: bool,
    last: Option<StreamId>,
    launches: u32,
    switched: u32,
    pressed: u32,
    /// The result of the last measurement.
    is_wide: bool,
}

impl Traffic {
    /// Counts work for `stream`. Returns whether lanes are worthwhile.
    fn count(&mut self, stream: StreamId, lanes_are_busy: impl FnOnce() -> bool) -> bool {
        self.launches += 1;
        self.switched += u32::from(self.last.replace(stream) != Some(stream));
        self.pressed += u32::from(self.is_pressed || lanes_are_busy());
        if self.launches == WINDOW {
            self.is_wide = self.switched >= SWITCHED && self.pressed >= PRESSED;
            (self.launches, self.switched, self.pressed) = (0, 0, 0);
        }
        self.is_wide
    }
}

/// The session's lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    /// The maximum number of lanes.
    most: usize,
    lanes: Vec<Lane>,
    of: FxHashMap<StreamId, usize>,
    records: Vec<Record>,
    /// The lanes may have work.
    may_be_busy: Cell<bool>,
    traffic: Traffic,
    /// The first error of a lane's work.
    failed: Arc<Mutex<Option<Error>>>,
}

impl Lanes {
    /// All work is submitted by the session's thread.
    pub(super) fn none() -> Self {
        Self::new(0)
    }

    fn new(most: usize) -> Self {
        Self {
            most,
            lanes: Vec::new(),
            of: FxHashMap::default(),
            records: Vec::new(),
            may_be_busy: Cell::new(false),
            traffic: Traffic::default(),
            failed: Arc::default(),
        }
    }

    /// Sends all launches to `count` lanes.
    #[cfg(test)]
    pub(super) fn always(count: usize) -> Self {
        let mut lanes = Self::new(count);
        lanes.traffic.is_wide = true;
        // No measurement ever ends.
        lanes.traffic.launches = WINDOW;
        lanes
    }

    /// Notes whether another call was received before the current one was executed.
    pub(super) fn set_pressed(&mut self, is_pressed: bool) {
        self.traffic.is_pressed = is_pressed;
    }

    /// Whether the stream's next work should go to a lane.
    pub(super) fn take(&mut self, stream: StreamId) -> bool {
        let (lanes, may_be_busy) = (&self.lanes, &self.may_be_busy);
        self.most > 0 && self.traffic.count(stream, || is_busy(lanes, may_be_busy))
    }

    /// Whether any lane has work.
    pub(super) fn is_busy(&self) -> bool {
        is_busy(&self.lanes, &self.may_be_busy)
    }

    /// Whether a lane has work of the stream.
    pub(super) fn has(&self, stream: StreamId) -> bool {
        if !self.may_be_busy.get() {
            return false;
        }
        if stream == StreamId::LEGACY {
            return self.is_busy();
        }
        let lane = self.of.get(&stream).and_then(|lane| self.lanes.get(*lane));
        lane.is_some_and(|lane| !lane.is_empty())
    }

    /// Whether a lane has a record of the event.
    pub(super) fn has_record(&mut self, event: EventId) -> bool {
        let last = self.records.iter().rfind(|record| record.event == event);
        let Some(last) = last else {
            return false;
        };
        let lane = self.lanes.get(last.lane);
        if lane.is_some_and(|lane| !lane.has_given(last.place)) {
            return true;
        }
        self.records.retain(|record| record.event != event);
        false
    }

    /// Queues work of `stream` in its lane. `event` is the event that it records,
    /// if any. Returns the work if there is no lane.
    pub(super) fn give(
        &mut self,
        stream: StreamId,
        event: Option<EventId>,
        work: Deferred,
    ) -> Result<(), Deferred> {
        if self.records.len() >= MOST_RECORDS || self.of.len() >= MOST_STREAMS {
            self.settle();
            self.of.clear();
        }
        let number = match self.of.get(&stream) {
            Some(number) => *number,
            None => self.assign(stream),
        };
        let Some(lane) = self.lanes.get_mut(number) else {
            return Err(work);
        };
        lane.push(work)?;
        self.may_be_busy.set(true);
        if let Some(event) = event {
            self.records.push(Record {
                event,
                lane: number,
                place: lane.given,
            });
        }
        Ok(())
    }

    /// The index of a stream's lane. No lane exists at that index if no thread
    /// could be created.
    fn assign(&mut self, stream: StreamId) -> usize {
        let number = self.of.len() % self.most.max(1);
        if number == self.lanes.len() {
            match Lane::new(number, &self.failed) {
                Ok(lane) => self.lanes.push(lane),
                Err(error) => {
                    tracing::warn!(%error, "no thread for launches");
                    self.most = self.lanes.len();
                }
            }
        }
        self.of.insert(stream, number);
        number
    }

    /// Waits until all queued work is submitted.
    pub(super) fn settle(&mut self) {
        if !self.may_be_busy.get() {
            return;
        }
        let mut spins = 0;
        while self.is_busy() {
            spins += 1;
            match spins < SPINS {
                true => std::hint::spin_loop(),
                // The driver accepts no more launches until some complete.
                false => std::thread::sleep(NAP),
            }
        }
        self.records.clear();
    }

    /// Takes the first error.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        if self.lanes.is_empty() {
            return None;
        }
        self.failed.lock().take()
    }
}
