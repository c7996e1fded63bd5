//! Pre-copy: copying memory while the program runs.
//!
//! With dirty tracking, the device reports exactly which pages of a copy are stale, and
//! only those are sent after the stop. Pre-copy runs in rounds, each with the pages
//! dirtied since the previous one, as long as the rounds shrink. Pages that are written
//! all the time are left for the stop, and a program that writes everything is detected
//! before much copying is wasted.
//!
//! Without dirty tracking, memory is copied once, and both ends compare hashes after
//! the stop. A few probe chunks are copied first and reread later: if nearly all of
//! them changed, pre-copy ends there.

use std::collections::{BTreeMap, HashSet, VecDeque};

use paragpu_protocol::handle::ObjectKind;

use super::mover::Mover;
use super::regions::Chunk;
use super::state::{StateError, device};
use crate::live::{Name, Recorded};
use crate::session::Session;

/// Maximum number of rounds.
const ROUNDS: u32 = 6;
/// Pre-copy may waste 1/`MAX_WASTE` of all contents on pages that become dirty again.
const MAX_WASTE: u64 = 10;
/// If less than 1/`LITTLE` of all contents is dirty, it is left for the stop,
/// without another round.
const LITTLE: u64 = 64;
/// The waste is measured after each 1/`LOOK` of all contents.
const LOOK: u64 = 32;
/// A chunk is hot, and left for later, while more than 1/`HOT` of it is dirty.
const HOT: u64 = 4;

/// One chunk in this many is a sample, within these limits.
const SAMPLED: usize = 32;
const MIN_SAMPLES: usize = 4;
const MAX_SAMPLES: usize = 32;
/// Sessions with fewer chunks are copied before samples could show anything.
const SMALL: usize = 16;
/// The samples are reread after 1/32, 1/8 and 1/2 of all contents.
const PROBES: [u64; 3] = [32, 8, 2];

/// Memory to copy.
#[derive(Debug, Clone, Copy)]
enum Todo {
    /// A chunk that the destination does not hold.
    First(Chunk),
    /// A part of one that it holds, which was written since.
    Again(Chunk),
}

/// Some chunks that are reread to see whether the program keeps writing them.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// The hashes of copied samples; `None` once found changed.
    all: BTreeMap<Chunk, Option<blake3::Hash>>,
    /// Number of copied samples.
    copied: usize,
    /// Number of those found changed.
    changed: usize,
    /// Number of probes.
    probes: usize,
    /// Samples of the current probe that are still to be read.
    awaited: usize,
}

impl Samples {
    /// Chooses some of `chunks`, far apart.
    fn of(chunks: &[Chunk]) -> Self {
        let fit: Vec<&Chunk> = chunks.iter().filter(|chunk| chunk.is_memory()).collect();
        if fit.len() < SMALL {
            return Self::default();
        }
        let count = (fit.len() / SAMPLED).clamp(MIN_SAMPLES, MAX_SAMPLES);
        // Not at the start of each part: programs tend to write there.
        let places = (0..count).map(|at| (2 * at + 1) * fit.len() / (2 * count));
        let chosen = places.filter_map(|at| fit.get(at));
        Self {
            all: chosen.map(|chunk| (**chunk, None)).collect(),
            ..Self::default()
        }
    }

    fn holds(&self, chunk: &Chunk) -> bool {
        self.all.contains_key(chunk)
    }

    /// Examines a chunk that was read. Returns true if it was read only for a probe and
    /// need not be sent.
    pub(crate) fn look(&mut self, chunk: &Chunk, bytes: &[u8]) -> bool {
        let Some(sample) = self.all.get_mut(chunk) else {
            return false;
        };
        if self.probes == 0 {
            *sample = Some(blake3::hash(bytes));
            self.copied += 1;
            return false;
        }
        self.awaited = self.awaited.saturating_sub(1);
        if sample.is_some_and(|hash| hash != blake3::hash(bytes)) {
            *sample = None;
            self.changed += 1;
        }
        true
    }

    /// Whether nearly all copied samples have changed.
    fn are_changed(&self) -> bool {
        self.copied >= MIN_SAMPLES && self.changed > self.copied / 4 * 3
    }

    /// The probes that are due for rereading after `copied` of `all` bytes.
    fn due(&mut self, copied: u64, all: u64) -> Vec<Chunk> {
        let Some(part) = PROBES.get(self.probes) else {
            return Vec::new();
        };
        if self.copied < self.all.len() || copied < all / part {
            return Vec::new();
        }
        self.probes += 1;
        let same = self.all.iter().filter(|(_, hash)| hash.is_some());
        let again: Vec<Chunk> = same.map(|(chunk, _)| *chunk).collect();
        self.awaited = again.len();
        again
    }

    /// Whether more than `begun` bytes of `all` would be copied before waste is
    /// first measured.
    fn hold_back(&self, begun: u64, all: u64) -> bool {
        match self.probes {
            0 => {
                let [first, ..] = PROBES;
                let samples: u64 = self.all.keys().map(Chunk::size).sum();
                samples > 0 && begun >= samples.max(all / first)
            }
            1 => self.awaited > 0,
            _ => false,
        }
    }
}

/// What was copied to the destination.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    pub(crate) bytes: u64,
    /// The destination keeps memory that it unmaps, so what the program has freed and mapped again
    /// may have the bytes of its last copy there.
    chunks: HashSet<Chunk>,
    /// Parts of these are copied again.
    again: bool,
}

impl Copied {
    /// Notes that a chunk is copied. Returns whether it must be sent even if it is zero.
    pub(crate) fn note(&mut self, chunk: &Chunk) -> bool {
        self.bytes += chunk.size();
        let is_first = self.chunks.insert(*chunk);
        !is_first || self.again || chunk.is_variable()
    }
}

/// The contents that the destination holds.
#[derive(Debug)]
pub(crate) struct PreCopy {
    pub(crate) mover: Mover,
    /// The samples, for a device without dirty tracking.
    pub(crate) samples: Samples,
    /// The device tracks writes.
    watched: bool,
    /// Memory to copy in this round.
    queue: VecDeque<Todo>,
    /// Chunks that are written too often to copy now.
    hot: Vec<Chunk>,
    /// Chunks of which the destination has a copy. With dirty tracking, the copy is
    /// correct except for pages dirtied since; without, nothing is known about it.
    held: HashSet<Chunk>,
    /// The creating calls of the destination's objects.
    owners: Owners,
    /// Bytes of all contents.
    pub(crate) all: u64,
    pub(crate) copied: Copied,
    /// Bytes of `held`.
    held_bytes: u64,
    /// Bytes that had been copied when the waste was last measured.
    looked: u64,
    round: u32,
    /// Bytes to copy in this round.
    round_bytes: u64,
}

/// The chunks to send after the stop.
#[derive(Debug, Default)]
pub(crate) struct Remaining {
    /// To send in any case.
    pub(crate) send: Vec<Chunk>,
    /// To send unless zero: the destination has zeros there.
    pub(crate) fresh: Vec<Chunk>,
    /// To compare: the destination may have the same contents.
    pub(crate) compare: Vec<Chunk>,
}

/// The dirty parts of a chunk with an address.
fn written(session: &mut Session, chunk: &Chunk, forget: bool) -> Result<Vec<Chunk>, StateError> {
    let Some(address) = chunk.address() else {
        return Ok(Vec::new());
    };
    let mut ranges = Vec::new();
    let noted = session
        .gpu
        .writes(address, chunk.size(), forget, &mut ranges);
    device(noted)?;
    let parts = ranges.into_iter();
    Ok(parts.map(|(at, size)| chunk.part(at, size)).collect())
}

fn bytes(chunks: &[Chunk]) -> u64 {
    chunks.iter().map(Chunk::size).sum()
}

/// The creating call of each object of a session, by the [owner](Chunk::owner) of its chunks.
pub(crate) type Owners = BTreeMap<Name, Recorded>;

/// The creating call of each of the session's current objects.
pub(crate) fn owners(session: &Session) -> Owners {
    let created = session
        .objects
        .live
        .in_order()
        .filter(|(_, creates, _)| *creates);
    created
        .map(|(name, _, call)| (name, call.clone()))
        .collect()
}

/// Returns a test whether a chunk's object exists and is the same now and then.
fn same<'a>(now: &'a Owners, then: &'a Owners) -> impl Fn(&Chunk) -> bool + 'a {
    let modules =
        |owners: &'a Owners| owners.range((ObjectKind::Module, 0)..=(ObjectKind::Module, u64::MAX));
    let same_modules = modules(now).eq(modules(then));
    move |chunk| match chunk.is_variable() {
        true => same_modules,
        false => now
            .get(&chunk.owner())
            .is_some_and(|call| then.get(&chunk.owner()) == Some(call)),
    }
}

impl PreCopy {
    /// Begins pre-copy. The destination has the objects in `sent` and no contents.
    /// The chunks of these objects are copied. `watched` says whether the session's
    /// device tracks writes.
    pub(crate) fn new(
        session: &mut Session,
        sent: Owners,
        mut chunks: Vec<Chunk>,
        watched: bool,
    ) -> Result<Self, StateError> {
        // The program may have created others in the meantime.
        chunks.retain(same(&owners(session), &sent));
        let all = bytes(&chunks);
        let samples = match watched {
            true => Samples::default(),
            false => Samples::of(&chunks),
        };
        // The samples come first, so that they can be reread soon.
        let (first, then): (Vec<_>, Vec<_>) =
            chunks.into_iter().partition(|chunk| samples.holds(chunk));
        Ok(Self {
            mover: Mover::new(session)?,
            samples,
            watched,
            queue: first.into_iter().chain(then).map(Todo::First).collect(),
            hot: Vec::new(),
            held: HashSet::new(),
            owners: sent,
            all,
            copied: Copied::default(),
            held_bytes: 0,
            looked: 0,
            round: 1,
            round_bytes: all,
        })
    }

    /// Continues with more objects: the destination now has those in `sent`, with
    /// these `chunks`.
    pub(crate) fn renew(&mut self, session: &Session, sent: Owners, mut chunks: Vec<Chunk>) {
        // The program may have created others in the meantime.
        chunks.retain(same(&owners(session), &sent));
        self.all = bytes(&chunks);
        let there: HashSet<Chunk> = chunks.iter().copied().collect();
        let stands = same(&sent, &self.owners);
        // Recreated objects have lost the contents that were copied.
        self.held
            .retain(|chunk| there.contains(chunk) && stands(chunk));
        drop(stands);
        self.held_bytes = self.held.iter().map(Chunk::size).sum();
        self.hot.retain(|chunk| there.contains(chunk));
        self.owners = sent;
        if self.round < ROUNDS {
            chunks.retain(|chunk| !self.held.contains(chunk) && !self.hot.contains(chunk));
            self.round_bytes = bytes(&chunks);
            self.queue = chunks.into_iter().map(Todo::First).collect();
        }
    }

    /// Has all contents compared, because the device's tracking misses writes.
    pub(crate) fn ignore_tracking(&mut self) {
        self.watched = false;
    }

    /// Disables pre-copy.
    pub(crate) fn give_up(&mut self) {
        self.queue.clear();
        self.hot.clear();
        self.round = ROUNDS;
    }

    /// Whether no copy is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.mover.is_idle()
    }

    /// Starts reads of memory to copy, as long as there is room.
    pub(crate) fn read(&mut self, session: &mut Session) -> Result<(), StateError> {
        while self.mover.has_room() {
            // If nothing is in flight, there is nothing to wait for.
            let held_back =
                !self.mover.is_idle() && self.samples.hold_back(self.held_bytes, self.all);
            match self.queue.front() {
                None => break,
                Some(Todo::First(_)) if held_back => break,
                Some(_) => {}
            }
            let Self {
                mover,
                watched,
                queue,
                hot,
                held,
                held_bytes,
                ..
            } = self;
            let next = |session: &mut Session, room: u64| {
                loop {
                    let (chunk, first) = match queue.front() {
                        Some(Todo::First(chunk)) if chunk.size() <= room => (*chunk, true),
                        Some(Todo::Again(chunk)) if chunk.size() <= room => (*chunk, false),
                        _ => return Ok(None),
                    };
                    queue.pop_front();
                    // Dirty tracking is reset before the read, so that later writes
                    // are detected.
                    let noted = if *watched {
                        bytes(&written(session, &chunk, true)?)
                    } else {
                        0
                    };
                    if first && noted > chunk.size() / HOT && !chunk.is_variable() {
                        hot.push(chunk);
                        continue;
                    }
                    if first {
                        held.insert(chunk);
                        *held_bytes += chunk.size();
                    }
                    return Ok(Some(chunk));
                }
            };
            // Memory that was unmapped meanwhile needs no copy: memory mapped there later
            // counts as dirty.
            mover.begin_read(session, next, |_| Ok(()))?;
        }
        Ok(())
    }

    /// Decides, when the queue is empty, whether to stop or to run another round.
    pub(crate) fn is_over(&mut self, session: &mut Session) -> Result<bool, StateError> {
        if !self.watched || self.round >= ROUNDS {
            return Ok(self.queue.is_empty());
        }
        let again = self.stale(session)?;
        let left = bytes(&again) + bytes(&self.hot);
        let shrinks = left < self.round_bytes / 4 * 3;
        if !shrinks || left <= self.all / LITTLE || self.is_wasteful(bytes(&again)) {
            return Ok(true);
        }
        self.round += 1;
        self.copied.again = true;
        self.round_bytes = left;
        self.queue = again.into_iter().map(Todo::Again).collect();
        self.queue.extend(self.hot.drain(..).map(Todo::First));
        Ok(false)
    }

    /// Ends pre-copy if it wastes too much.
    pub(crate) fn stop_if_wasteful(&mut self, session: &mut Session) -> Result<(), StateError> {
        if !self.watched {
            if self.samples.are_changed() {
                self.give_up();
            } else if !self.queue.is_empty() {
                for chunk in self.samples.due(self.copied.bytes, self.all) {
                    self.queue.push_front(Todo::Again(chunk));
                }
            }
            return Ok(());
        }
        if self.copied.bytes < self.looked + self.all / LOOK {
            return Ok(());
        }
        self.looked = self.copied.bytes;
        let stale = bytes(&self.stale(session)?);
        if self.is_wasteful(stale) {
            self.give_up();
        }
        Ok(())
    }

    fn is_wasteful(&self, stale: u64) -> bool {
        let of_use = self.held_bytes.saturating_sub(stale);
        self.copied.bytes.saturating_sub(of_use) > self.all / MAX_WASTE
    }

    /// The dirty part of the destination's contents.
    fn stale(&self, session: &mut Session) -> Result<Vec<Chunk>, StateError> {
        let mut stale = Vec::new();
        let mut held: Vec<&Chunk> = self.held.iter().collect();
        held.sort_unstable();
        for chunk in held {
            stale.extend(written(session, chunk, false)?);
        }
        Ok(stale)
    }

    /// The part of `chunks`, all contents of the stopped session, that the
    /// destination lacks.
    pub(crate) fn rest(
        &self,
        session: &mut Session,
        chunks: &[Chunk],
    ) -> Result<Remaining, StateError> {
        let now = owners(session);
        let same = same(&now, &self.owners);
        let mut rest = Remaining::default();
        for chunk in chunks {
            if !same(chunk) {
                // The destination may have other contents there.
                rest.send.push(*chunk);
            } else if !self.held.contains(chunk) {
                match self.copied.chunks.contains(chunk) {
                    true => rest.send.push(*chunk),
                    false => rest.fresh.push(*chunk),
                }
            } else if self.watched && chunk.address().is_some() {
                rest.send.extend(written(session, chunk, false)?);
            } else {
                rest.compare.push(*chunk);
            }
        }
        Ok(rest)
    }
}
