//! The device that has managed memory.
//!
//! At first it is the one whose session allocated it. A prefetch to another device, or its
//! preferred location, gives that device's memory to whole mappings, which keep their
//! addresses ([`PeerAccess::relocate`](crate::peer::PeerAccess::relocate)). So no pointer
//! changes, and work of all devices finds the memory where it was.
//!
//! Mappings cannot change under work. If some is in flight, this waits for a while: the work
//! may itself wait for the program. Then the memory stays where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{Copy, StreamSynchronize};
use parking_lot::{Mutex, RwLock};

use crate::error::Result;
use crate::managed_memory::ManagedMemory;
use crate::memory::DeviceMemory;
use crate::peer::Away;

/// Maximum number of mappings of an allocation that can move.
const PIECES: u64 = 16;
/// How long to wait for work in flight.
const PATIENCE: Duration = Duration::from_millis(100);
/// Time between two queries for its end.
const AGAIN: Duration = Duration::from_micros(50);

/// The addresses of memory that other devices' managed memory has.
static ALL: RwLock<BTreeSet<u64>> = RwLock::new(BTreeSet::new());

/// A copy of [`ALL`].
pub(crate) fn addresses() -> Vec<u64> {
    ALL.read().iter().copied().collect()
}

/// Bytes of a mapping that moves as a whole, for an allocation of this size.
pub(crate) fn piece(size: u64) -> u64 {
    size.div_ceil(PIECES).next_multiple_of(CHUNK)
}

/// Memory of a session.
#[derive(Debug)]
struct Backing {
    session: Arc<DeviceMemory>,
    address: u64,
}

impl Backing {
    /// `None` if its device is full.
    fn new(session: &Arc<DeviceMemory>, size: u64) -> Result<Option<Self>> {
        match session.allocate(size) {
            Ok(address) => {
                ALL.write().insert(address);
                Ok(Some(Self {
                    session: Arc::clone(session),
                    address,
                }))
            }
            Err(Status::OUT_OF_MEMORY) => Ok(None),
            Err(status) => Err(status),
        }
    }

    fn away(&self) -> Away {
        Away {
            home: Arc::clone(self.session.link()),
            memory: self.address,
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        ALL.write().remove(&self.address);
        // A session that is over has no memory.
        let _ = self.session.free(self.address);
    }
}

/// A mapping that moves.
struct Move {
    address: u64,
    size: u64,
    backing: Backing,
}

/// The memory of a session's mappings that have moved, by their addresses.
#[derive(Debug, Default)]
pub(crate) struct Homes(Mutex<BTreeMap<u64, Backing>>);

impl Homes {
    /// Frees the memory of mappings in a range, which are gone.
    pub(crate) fn forget(&self, address: u64, size: u64) {
        let mut homes = self.0.lock();
        let mut gone = homes.split_off(&address);
        homes.append(&mut gone.split_off(&address.saturating_add(size)));
        // Freed without the lock.
        drop(homes);
    }
}

impl ManagedMemory {
    /// Moves mappings of this session's managed memory to the device of another session, if
    /// at least half of them is in the range. The contents stay. What the device has no room
    /// for, and memory that work in flight may use for long, stays where it is. `all` are the
    /// sessions of the process; all can access that device's memory.
    ///
    /// # Errors
    /// Errors of the hosts, and of failed work.
    pub fn move_to(&self, to: &Self, all: &[&Self], address: u64, size: u64) -> Result<()> {
        let moves = self.moves(to, address, size)?;
        let (Some(first), Some(last)) = (moves.first(), moves.last()) else {
            return Ok(());
        };
        let Some((block, length)) = self.memory().block(address) else {
            return Ok(());
        };
        // The last mapping may be longer than the allocation.
        let (start, end) = (
            first.address,
            (last.address + last.size).min(block + length),
        );
        let places: Vec<(u64, Away)> = moves
            .iter()
            .map(|it| (it.address, it.backing.away()))
            .collect();
        // Made here: it is a call.
        let stream = to.own_stream()?.handle();
        let deadline = Instant::now() + PATIENCE;
        let has_moved = loop {
            let has_moved = are_idle(all)?
                && self.ranges().without_program(start, end - start, || {
                    self.memory().peers().relocate(&places, || {
                        let paused: Vec<_> = all.iter().map(|one| one.link().pause()).collect();
                        if !are_idle(all)? {
                            return Ok(None);
                        }
                        to.copy_all(&moves, stream)?;
                        Ok(Some(paused))
                    })
                })?;
            if has_moved || Instant::now() >= deadline {
                break has_moved;
            }
            thread::sleep(AGAIN);
        };
        if has_moved {
            let mut homes = self.homes().0.lock();
            let former: Vec<_> = moves
                .into_iter()
                .filter_map(|it| homes.insert(it.address, it.backing))
                .collect();
            drop(homes);
            // Freed without the lock.
            drop(former);
        }
        Ok(())
    }

    /// The mappings in a range that are not on `to`'s device yet, with memory there.
    fn moves(&self, to: &Self, address: u64, size: u64) -> Result<Vec<Move>> {
        let Some((start, length)) = self.memory().block(address) else {
            return Ok(Vec::new());
        };
        let end = start + length;
        let is_there = |away: &Option<Away>| {
            let home = away.as_ref().map_or(self.link(), |away| &away.home);
            Arc::ptr_eq(home, to.link())
        };
        let mut moves = Vec::new();
        let length = length.next_multiple_of(CHUNK);
        for (at, bytes, away) in self.memory().peers().mappings(start, length) {
            let used = (at + bytes).min(end) - at;
            let covered = (at + used)
                .min(address + size)
                .saturating_sub(at.max(address));
            if covered < used.div_ceil(2) || is_there(&away) {
                continue;
            }
            let Some(backing) = Backing::new(to.memory(), bytes)? else {
                break;
            };
            moves.push(Move {
                address: at,
                size: bytes,
                backing,
            });
        }
        Ok(moves)
    }

    /// Copies the contents of mappings to their new memory.
    fn copy_all(&self, moves: &[Move], stream: StreamHandle) -> Result<()> {
        for it in moves {
            self.link().post(&Copy {
                destination: it.backing.address,
                source: it.address,
                size: it.size,
                stream,
                token: 0,
            })?;
        }
        self.link().call(&StreamSynchronize { stream })
    }
}

/// Whether no session has work in flight.
fn are_idle(all: &[&ManagedMemory]) -> Result<bool> {
    for one in all {
        if !one.streams().are_idle()? {
            return Ok(false);
        }
    }
    Ok(true)
}
