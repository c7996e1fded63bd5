//! Threads that give launches to the driver while the session's own takes in
//! the next calls.
//!
//! A launch takes the driver some microseconds in whatever thread, and a program
//! whose threads launch on streams of their own has natively as many of them at
//! once. So where calls wait to be taken in, and go to one stream after another,
//! launches and records of events go to *lanes*: a thread each, which gives its
//! work to the driver in order. A stream stays with its lane while work of it is
//! there. Streams have no order among themselves but what other calls make, and
//! before any of those the lanes are empty ([`Lanes::settle`]). Only the questions
//! that waits ask go past them: a stream with work in its lane is not over, nor is
//! an event whose record is there.
//!
//! A program with one thread, or with room in the connection, never gets there.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use paragpu_device::{Deferred, Error, EventId, StreamId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Most lanes: two to eight launched equally fast on an H100, whose driver has a
/// lock.
const MOST_LANES: usize = 4;
/// Processors for every lane: the program's threads and other sessions need some.
const PROCESSORS: usize = 4;
/// Work that waits in a lane at most; then the call that brings more waits.
const DEPTH: usize = 128;
/// Launches between two looks at whether lanes are worth it, and how many of them
/// must go to another stream than the one before, and must have had calls waiting
/// behind them.
const WINDOW: u32 = 64;
const SWITCHED: u32 = 16;
const PRESSED: u32 = 32;
/// How long a lane looks for work before it sleeps: waking it costs the session's
/// thread as much as a launch.
const LOOKS: Duration = Duration::from_micros(50);
/// Looks at lanes that are to be empty before the thread naps, and its nap.
const SPINS: u32 = 20_000;
const NAP: Duration = Duration::from_micros(20);
/// Records of events in lanes that are remembered.
const MOST_RECORDS: usize = 1024;
/// Streams whose lane is remembered.
const MOST_STREAMS: usize = 1024;

/// What a lane tells the session's thread.
#[derive(Debug, Default)]
struct Told {
    /// Pieces of work that the driver has.
    done: AtomicU64,
}

/// A thread and its work.
#[derive(Debug)]
struct Lane {
    work: SyncSender<Deferred>,
    /// Pieces of work that it was given.
    given: u64,
    told: Arc<Told>,
}

impl Lane {
    fn new(number: usize, failed: &Arc<Mutex<Option<Error>>>) -> std::io::Result<Self> {
        let (work, taken) = sync_channel(DEPTH);
        let told = Arc::new(Told::default());
        let (telling, failing) = (Arc::clone(&told), Arc::clone(failed));
        std::thread::Builder::new()
            .name(format!("lane-{number}"))
            .spawn(move || give(&taken, &telling, &failing))?;
        Ok(Self {
            work,
            given: 0,
            told,
        })
    }

    /// Gives it work; back where its thread is gone.
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
        // The driver takes no more launches of this stream until some are over.
        self.work.send(work).map_err(|unsent| unsent.0)?;
        self.given += 1;
        Ok(())
    }

    /// Has the driver all its work?
    fn is_empty(&self) -> bool {
        self.has_given(self.given)
    }

    /// Has the driver the first `count` pieces of its work?
    fn has_given(&self, count: u64) -> bool {
        self.told.done.load(Ordering::Acquire) >= count
    }
}

/// A lane's thread: ends when the session drops its lane.
fn give(work: &Receiver<Deferred>, told: &Told, failed: &Mutex<Option<Error>>) {
    while let Some(next) = next(work) {
        if let Err(error) = next() {
            failed.lock().get_or_insert(error);
        }
        told.done.fetch_add(1, Ordering::Release);
    }
}

/// The next piece of work; looks for it for a while before it sleeps.
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

/// Is work in any of them? Where they `may_be_busy` not, they are not.
fn is_busy(lanes: &[Lane], may_be_busy: &Cell<bool>) -> bool {
    if may_be_busy.get() && lanes.iter().all(Lane::is_empty) {
        may_be_busy.set(false);
    }
    may_be_busy.get()
}

/// A record of an event that is in a lane, or was.
#[derive(Debug)]
struct Record {
    event: EventId,
    lane: usize,
    /// Its place among the lane's work, from 1.
    place: u64,
}

/// Whether calls come as they do from a program whose threads launch at once.
#[derive(Debug, Default)]
struct Traffic {
    /// Another call had come before the one that is executed was.
    is_pressed: bool,
    last: Option<StreamId>,
    launches: u32,
    switched: u32,
    pressed: u32,
    /// What the last window came to.
    is_wide: bool,
}

impl Traffic {
    /// Work goes to `stream`; true where the last window says that lanes are
    /// worth it.
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
    /// How many there may be.
    most: usize,
    lanes: Vec<Lane>,
    of: FxHashMap<StreamId, usize>,
    records: Vec<Record>,
    /// Work may be there.
    may_be_busy: Cell<bool>,
    traffic: Traffic,
    /// The first error of a lane's work.
    failed: Arc<Mutex<Option<Error>>>,
}

impl Lanes {
    /// As many as this host's processors are worth; none on small hosts.
    pub(super) fn of_host() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new((processors / PROCESSORS).min(MOST_LANES))
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

    /// All launches go to `count` lanes.
    #[cfg(test)]
    pub(super) fn always(count: usize) -> Self {
        let mut lanes = Self::new(count);
        lanes.traffic.is_wide = true;
        // No window ever ends.
        lanes.traffic.launches = WINDOW;
        lanes
    }

    /// Another call had come before the one that is executed now was, or none.
    pub(super) fn set_pressed(&mut self, is_pressed: bool) {
        self.traffic.is_pressed = is_pressed;
    }

    /// Should the stream's next work go to a lane?
    pub(super) fn take(&mut self, stream: StreamId) -> bool {
        let (lanes, may_be_busy) = (&self.lanes, &self.may_be_busy);
        self.most > 0 && self.traffic.count(stream, || is_busy(lanes, may_be_busy))
    }

    /// Is work there?
    pub(super) fn is_busy(&self) -> bool {
        is_busy(&self.lanes, &self.may_be_busy)
    }

    /// Is work of the stream there?
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

    /// Is a record of the event there?
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

    /// Gives work of `stream` to its lane; `event` is what it records, if that is
    /// what it does. Gives it back where there is no lane.
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

    /// A lane for a stream; a number without one where none can be had.
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

    /// Waits until the driver has all that the lanes were given.
    pub(super) fn settle(&mut self) {
        if !self.may_be_busy.get() {
            return;
        }
        let mut spins = 0;
        while self.is_busy() {
            spins += 1;
            match spins < SPINS {
                true => std::hint::spin_loop(),
                // The driver takes no more launches until some are over.
                false => std::thread::sleep(NAP),
            }
        }
        self.records.clear();
    }

    /// The first error since the last question.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        if self.lanes.is_empty() {
            return None;
        }
        self.failed.lock().take()
    }
}
