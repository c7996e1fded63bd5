//! Pre-copy: memory that is copied while the program runs.
//!
//! With dirty tracking, the device reports exactly which pages of a copy are stale,
//! and only those are sent after the stop. Pre-copy runs in rounds, each with the
//! pages dirtied since the previous round, as long as the rounds shrink. Pages that
//! are written all the time are left for the stop, and a program that writes
//! everything is detected before much was copied needlessly.
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
/// Pre-copy may waste 1/`VAIN` of all contents on pages that become dirty again.
const VAIN: u64 = 10;
/// Less than 1/`LITTLE` of all contents is left for the stop, without another round.
const LITTLE: u64 = 64;
/// The waste is measured after each 1/`LOOK` of all contents.
const LOOK: u64 = 32;
/// A chunk is hot, and left for later, while more than 1/`HOT` of it is dirty.
const HOT: u64 = 4;

/// Samples are one chunk of so many, and between these numbers.
const SAMPLED: usize = 32;
const FEWEST_SAMPLES: usize = 4;
const MOST_SAMPLES: usize = 32;
/// Sessions of fewer chunks are copied before much could be seen.
const SMALL: usize = 16;
/// The samples are read again after one over each of these of all contents.
const PROBES: [u64; 3] = [32, 8, 2];

/// Memory to copy.
#[derive(Debug, Clone, Copy)]
enum Todo {
    /// A chunk that the destination does not hold.
    First(Chunk),
    /// A part of one that it holds, written since.
    Again(Chunk),
}

/// Some chunks, of which it is seen whether the program continues writing them.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Hashes as they were copied, once they were; `None` from when they were
    /// found changed.
    all: BTreeMap<Chunk, Option<blake3::Hash>>,
    /// Those that were copied.
    copied: usize,
    /// Of these, those that were found changed.
    changed: usize,
    /// How often they were asked for again.
    probes: usize,
    /// Of those asked for, how many were not seen yet.
    awaited: usize,
}

impl Samples {
    /// Chooses some of `chunks`, far apart.
    fn of(chunks: &[Chunk]) -> Self {
        let fit: Vec<&Chunk> = chunks.iter().filter(|chunk| chunk.is_memory()).collect();
        if fit.len() < SMALL {
            return Self::default();
        }
        let count = (fit.len() / SAMPLED).clamp(FEWEST_SAMPLES, MOST_SAMPLES);
        // Not at the begin of each part: programs write at begins.
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

    /// Looks at a chunk that was read. True if it was read to be looked at,
    /// and need not travel.
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

    /// Nearly all that were copied have changed since.
    fn are_changed(&self) -> bool {
        self.copied >= FEWEST_SAMPLES && self.changed > self.copied / 4 * 3
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

    /// Would more than `begun` bytes of `all` be copied before the waste was first
    /// measured?
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

/// The contents that the destination holds.
#[derive(Debug)]
pub(crate) struct PreCopy {
    pub(crate) mover: Mover,
    /// Of a device that notes no writes.
    pub(crate) samples: Samples,
    /// The device tracks writes.
    watched: bool,
    /// To be copied in this round.
    queue: VecDeque<Todo>,
    /// Chunks that are written too much to be copied.
    hot: Vec<Chunk>,
    /// Chunks of which the destination has a copy: where writes are noted,
    /// true but for what was written since the device forgot them; of others
    /// nothing is known.
    held: HashSet<Chunk>,
    /// The creating calls of the objects that the destination has.
    owners: Owners,
    /// Bytes of all contents.
    pub(crate) all: u64,
    /// Bytes copied.
    pub(crate) copied: u64,
    /// Bytes of `held`.
    held_bytes: u64,
    /// Bytes that had been copied when the waste was last measured.
    looked: u64,
    round: u32,
    /// Bytes that were to be copied in this round.
    round_bytes: u64,
}

/// The chunks to send after the stop.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// Whatever they hold.
    pub(crate) send: Vec<Chunk>,
    /// The destination has zeros there.
    pub(crate) fresh: Vec<Chunk>,
    /// The destination may have the same.
    pub(crate) compare: Vec<Chunk>,
}

/// The parts of a chunk with an address that were written.
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

/// The creating call of each object of a session.
pub(crate) type Owners = BTreeMap<Name, Recorded>;

/// The creating call of each of the session's objects now.
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

/// Tells of chunks whether what they are part of is the same now and then.
fn same<'a>(now: &'a Owners, then: &'a Owners) -> impl Fn(&Chunk) -> bool + 'a {
    let modules =
        |owners: &'a Owners| owners.range((ObjectKind::Module, 0)..=(ObjectKind::Module, u64::MAX));
    let same_modules = modules(now).eq(modules(then));
    move |chunk| match chunk.is_variable() {
        true => same_modules,
        false => now.get(&chunk.owner()) == then.get(&chunk.owner()),
    }
}

impl PreCopy {
    /// Begins: the destination has the objects of `sent` and nothing in
    /// `chunks`, of which those of these objects are copied. `watched`
    /// where the session's device tracks writes.
    pub(crate) fn new(
        session: &mut Session,
        sent: Owners,
        mut chunks: Vec<Chunk>,
        watched: bool,
    ) -> Result<Self, StateError> {
        // The program may have made others since.
        chunks.retain(same(&owners(session), &sent));
        let all = bytes(&chunks);
        let samples = match watched {
            true => Samples::default(),
            false => Samples::of(&chunks),
        };
        // The samples first, so that they are soon seen again.
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
            copied: 0,
            held_bytes: 0,
            looked: 0,
            round: 1,
            round_bytes: all,
        })
    }

    /// Continues: the destination has the objects of `sent` now, and `chunks` are
    /// theirs.
    pub(crate) fn renew(&mut self, session: &Session, sent: Owners, mut chunks: Vec<Chunk>) {
        // The program may have made others since.
        chunks.retain(same(&owners(session), &sent));
        self.all = bytes(&chunks);
        let there: HashSet<Chunk> = chunks.iter().copied().collect();
        let stands = same(&sent, &self.owners);
        // What was recreated there holds nothing of what was copied.
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

    /// Disables pre-copy.
    pub(crate) fn give_up(&mut self) {
        self.queue.clear();
        self.hot.clear();
        self.round = ROUNDS;
    }

    /// Are copies that were begun all there?
    pub(crate) fn is_idle(&self) -> bool {
        self.mover.is_idle()
    }

    /// Must zeros travel, too?
    pub(crate) fn sends_zeros(&self) -> bool {
        self.round > 1
    }

    /// Starts reads of memory to copy, as far as there is room.
    pub(crate) fn read(&mut self, session: &mut Session) -> Result<(), StateError> {
        while self.mover.has_room() {
            // Where nothing is under way there is nothing to wait for.
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
                    // Forgotten before it is read, so that what is written
                    // from now on is found.
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
            // Memory that was taken away meanwhile needs no copy: what may
            // be mapped there later is noted as written.
            mover.begin_read(session, next, |_| Ok(()))?;
        }
        Ok(())
    }

    /// The queue is empty: is it time for the stop, or is there another
    /// round?
    pub(crate) fn is_over(&mut self, session: &mut Session) -> Result<bool, StateError> {
        if !self.watched || self.round >= ROUNDS {
            return Ok(self.queue.is_empty());
        }
        let again = self.stale(session)?;
        let left = bytes(&again) + bytes(&self.hot);
        let shrinks = left < self.round_bytes / 4 * 3;
        if !shrinks || left <= self.all / LITTLE || self.is_vain(bytes(&again)) {
            return Ok(true);
        }
        self.round += 1;
        self.round_bytes = left;
        self.queue = again.into_iter().map(Todo::Again).collect();
        self.queue.extend(self.hot.drain(..).map(Todo::First));
        Ok(false)
    }

    /// Ends pre-copy if it wasted too much, or would.
    pub(crate) fn judge(&mut self, session: &mut Session) -> Result<(), StateError> {
        if !self.watched {
            if self.samples.are_changed() {
                self.give_up();
            } else if !self.queue.is_empty() {
                for chunk in self.samples.due(self.copied, self.all) {
                    self.queue.push_front(Todo::Again(chunk));
                }
            }
            return Ok(());
        }
        if self.copied < self.looked + self.all / LOOK {
            return Ok(());
        }
        self.looked = self.copied;
        let stale = bytes(&self.stale(session)?);
        if self.is_vain(stale) {
            self.give_up();
        }
        Ok(())
    }

    fn is_vain(&self, stale: u64) -> bool {
        let of_use = self.held_bytes.saturating_sub(stale);
        self.copied.saturating_sub(of_use) > self.all / VAIN
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

    /// What of `chunks`, all the contents that the stopped session has, the
    /// destination lacks.
    pub(crate) fn rest(&self, session: &mut Session, chunks: &[Chunk]) -> Result<Rest, StateError> {
        let now = owners(session);
        let same = same(&now, &self.owners);
        let mut rest = Rest::default();
        for chunk in chunks {
            if !same(chunk) {
                // The destination may have had something else there.
                rest.send.push(*chunk);
            } else if !self.held.contains(chunk) {
                rest.fresh.push(*chunk);
            } else if self.watched && chunk.address().is_some() {
                rest.send.extend(written(session, chunk, false)?);
            } else {
                rest.compare.push(*chunk);
            }
        }
        Ok(rest)
    }
}
