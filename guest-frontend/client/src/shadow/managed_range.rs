//! One allocation of managed memory that migrates between program and device.
//!
//! It is device memory. The program has private pages at the same addresses, which are
//! absent until it accesses them. Then the kernel reports the access
//! ([`crate::sys::userfault`]), and the page is fetched from the device. Before work that
//! may use the memory, the device gets what the program wrote, and the pages are taken
//! away again.
//!
//! ```text
//!            access                 write
//! Device ──────────────► Both ───────────────► Host
//!    ▲    write, idle: Host                     │
//!    └────────── before work of the device ─────┘
//! ```
//!
//! While work is in flight, the device may write to what the program has. So pages that
//! were provided then are only lent: they are taken away after some milliseconds, or when
//! work was found to be complete. What the program changed in them is found by comparing
//! them with their former contents.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use paragpu_protocol::status::Status;
use parking_lot::{Mutex, RwLock};

use crate::error::Result;
use crate::notice::notice;
use crate::parallel::in_parts;
use crate::sys::memory::{HostSlice, Pages};
use crate::sys::userfault::{PageFault, Userfault};

/// The unit that migrates, in bytes.
const UNIT: usize = 64 << 10;
/// Maximum number of units that one access fetches: 8 MiB. A run of accesses in ascending
/// order doubles the number each time.
const MOST: usize = 128;

/// Number of runs of accesses that are tracked.
const RUNS: usize = 8;

/// Where a unit's contents are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Nothing has written to it yet: the device has zeros.
    Zero,
    /// The device has them.
    Device,
    /// Both have them; the program cannot write.
    Both,
    /// The program has written.
    Host,
}

impl Unit {
    fn is_present(self) -> bool {
        matches!(self, Self::Both | Self::Host)
    }
}

/// A session's work, which may use managed memory.
pub(crate) trait Work: std::fmt::Debug + Send + Sync {
    /// Whether some is in flight.
    fn is_in_flight(&self) -> bool;
}

/// What all ranges share: checked before any lock is taken.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// Units of which the program has pages, and ranges that still have zero units.
    units: AtomicUsize,
    /// Number of times that pages were lent.
    lent: AtomicU64,
    /// The number at the last time that all pages were taken back.
    returned: AtomicU64,
    /// The ranges that are counted in `units`, and such that were until their last hand-over of
    /// a part.
    ranges: Mutex<Vec<Arc<ManagedRange>>>,
    /// The sessions.
    users: RwLock<Vec<Weak<dyn Work>>>,
}

impl Presence {
    pub(super) fn used_by(&self, session: Weak<dyn Work>) {
        let mut users = self.users.write();
        users.retain(|user| user.strong_count() > 0);
        users.push(session);
    }

    /// Whether there are several sessions. Calls of different sessions have no order, so what
    /// one has sent must be there before another one gets work.
    pub(super) fn is_shared(&self) -> bool {
        self.users.read().len() > 1
    }

    /// Whether work is in flight that may write to managed memory.
    fn has_work_in_flight(&self) -> bool {
        let users = self.users.read();
        let mut users = users.iter().filter_map(Weak::upgrade);
        users.any(|user| user.is_in_flight())
    }

    pub(super) fn is_none(&self) -> bool {
        self.units.load(Ordering::SeqCst) == 0
    }

    /// Records that the device may from now on write to what the program has.
    pub(super) fn lend(&self) {
        self.lent.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn is_lent(&self) -> bool {
        self.loans().is_some()
    }

    /// The number of loans, if some are not returned.
    pub(super) fn loans(&self) -> Option<u64> {
        let lent = self.lent.load(Ordering::Acquire);
        (lent != self.returned.load(Ordering::Acquire)).then_some(lent)
    }

    /// Takes the ranges of which the program has pages.
    pub(super) fn take_ranges(&self) -> Vec<Arc<ManagedRange>> {
        std::mem::take(&mut *self.ranges.lock())
    }

    /// Removes a range from the list, unless another thread has taken the list. The range's lock
    /// is held, as when it is listed.
    fn strike(&self, range: &ManagedRange) {
        let mut ranges = self.ranges.lock();
        let found = ranges
            .iter()
            .position(|other| std::ptr::eq(&**other, range));
        if let Some(found) = found {
            ranges.swap_remove(found);
        }
    }

    /// Records that all pages were taken back after there were so many loans. Not before:
    /// another thread that finds work complete must not overtake this.
    pub(super) fn returned(&self, loans: u64) {
        self.returned.fetch_max(loans, Ordering::AcqRel);
    }
}

/// Copies to and from the device. They do not wait for work of the program.
pub(crate) trait DeviceContents: std::fmt::Debug + Send + Sync {
    /// Copies whole units to the device. The copy is complete when the session's next call is
    /// executed or, if this returns true, after [`finish`](Self::finish).
    fn send(&self, start: u64, host: HostSlice) -> Result<bool>;

    /// Waits for such copies.
    fn finish(&self) -> Result<()>;

    /// Waits until the session's calls are executed that sent something to an address.
    fn settle(&self, address: u64) -> Result<()>;

    /// Copies only the bytes that differ: the device may have written others.
    fn send_changes(&self, start: u64, former: &[u8], host: HostSlice) -> Result<()>;

    /// Fetches contents, which `take` gets in pieces, with their offsets. If work is in flight
    /// that may write to them, they come in one piece that did not change meanwhile: the
    /// device writes in order, but a copy may read a later write and not an earlier one.
    fn fetch(
        &self,
        start: u64,
        size: usize,
        in_flight: bool,
        take: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()>;
}

/// One allocation.
#[derive(Debug)]
pub(crate) struct ManagedRange {
    address: u64,
    length: usize,
    device: Box<dyn DeviceContents>,
    faults: Arc<Userfault>,
    presence: Arc<Presence>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The program's pages; `None` once the memory is freed.
    pages: Option<Pages>,
    units: Vec<Unit>,
    /// Contains all units of which the program has pages.
    touched: Range<usize>,
    /// Whether some units are [`Unit::Zero`].
    has_zeros: bool,
    /// Whether [`Presence`] lists the range.
    is_listed: bool,
    /// Contents, when they were provided, of units to which the program began to write
    /// while work was in flight.
    former: HashMap<usize, Box<[u8]>>,
    /// For some threads' runs of accesses, newest last: the unit after the run, and the
    /// number of units that its last access fetched.
    runs: VecDeque<(usize, usize)>,
    /// Of which units the program will access most, so that they are fetched in long runs.
    wanted: Vec<bool>,
}

impl ManagedRange {
    /// The program's side of device memory that is filled with zeros. `pages` are whole
    /// pages, which `faults` watches.
    pub(crate) fn new(
        pages: Pages,
        faults: Arc<Userfault>,
        device: Box<dyn DeviceContents>,
    ) -> Self {
        let (address, length) = (pages.address(), pages.bytes().len());
        let count = length.div_ceil(UNIT);
        Self {
            address,
            length,
            device,
            faults,
            presence: Arc::default(),
            state: Mutex::new(State {
                pages: Some(pages),
                units: vec![Unit::Zero; count],
                touched: 0..0,
                has_zeros: true,
                is_listed: false,
                former: HashMap::new(),
                runs: VecDeque::with_capacity(RUNS),
                wanted: vec![false; count],
            }),
        }
    }

    /// Counts its units in `presence` from now on. The program cannot access it yet.
    pub(super) fn counted_in(mut self, presence: &Arc<Presence>) -> Arc<Self> {
        presence.units.fetch_add(1, Ordering::AcqRel);
        self.presence = Arc::clone(presence);
        let own = Arc::new(self);
        own.list(&mut own.state.lock());
        own
    }

    /// Lists it among the ranges of which the program has pages.
    fn list(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.is_listed, true) {
            self.presence.ranges.lock().push(Arc::clone(self));
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Whether all of a range is inside.
    pub(super) fn holds(&self, address: u64, size: u64) -> bool {
        let offset = address.checked_sub(self.address);
        let end = offset.and_then(|offset| offset.checked_add(size));
        end.is_some_and(|end| end <= self.length as u64)
    }

    /// The units of a range inside.
    fn units(&self, address: u64, size: u64) -> Range<usize> {
        let offset = usize::try_from(address - self.address).unwrap_or(self.length);
        let size = usize::try_from(size).unwrap_or(self.length);
        let end = offset.saturating_add(size).min(self.length);
        offset / UNIT..end.div_ceil(UNIT)
    }

    /// Offset and length of units; the last one may be shorter.
    fn bytes(&self, units: &Range<usize>) -> (usize, usize) {
        let from = (units.start * UNIT).min(self.length);
        let end = (units.end * UNIT).min(self.length);
        (from, end - from)
    }

    /// Takes the pages away for good. Their contents are lost. It is no longer listed: if other
    /// ranges have no pages either, no work would take it from the list.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        if state.pages.take().is_none() {
            return;
        }
        if std::mem::take(&mut state.is_listed) {
            self.presence.strike(self);
        }
        let present = state.units.iter().filter(|unit| unit.is_present()).count();
        let zeros = usize::from(state.has_zeros);
        self.presence
            .units
            .fetch_sub(present + zeros, Ordering::AcqRel);
    }

    /// Records whether the program will access most of a range.
    pub(super) fn want(&self, address: u64, size: u64, is_wanted: bool) {
        let units = self.units(address, size);
        let mut state = self.state.lock();
        let wanted = state.wanted.get_mut(units).unwrap_or_default();
        wanted.fill(is_wanted);
    }

    /// Sends the program's changes in all of it, and takes the pages away. It is no longer
    /// listed, unless that fails.
    pub(super) fn hand_over(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state.lock();
        state.is_listed = false;
        let done = self.hand_over_units(&mut state, 0..usize::MAX);
        if done.is_err() {
            self.list(&mut state);
        }
        done
    }

    /// The same for the units of a range inside. The program gets back their contents at its
    /// next access.
    pub(super) fn hand_over_part(&self, address: u64, size: u64) -> Result<()> {
        let units = self.units(address, size);
        self.hand_over_units(&mut self.state.lock(), units)
    }

    /// The same. Until `change` returns, the program waits if it accesses any of the memory.
    pub(super) fn without_program<R>(
        &self,
        address: u64,
        size: u64,
        change: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let mut state = self.state.lock();
        self.hand_over_units(&mut state, self.units(address, size))?;
        change()
    }

    fn hand_over_units(&self, state: &mut State, wanted: Range<usize>) -> Result<()> {
        let State {
            pages: Some(pages),
            units,
            touched,
            has_zeros,
            former,
            ..
        } = state
        else {
            return Ok(());
        };
        let wanted = wanted.start..wanted.end.min(units.len());
        let all = wanted.len() == units.len();
        if *has_zeros {
            for unit in units.get_mut(wanted.clone()).unwrap_or_default() {
                if *unit == Unit::Zero {
                    *unit = Unit::Device;
                }
            }
            if all {
                *has_zeros = false;
                self.presence.units.fetch_sub(1, Ordering::AcqRel);
            }
        }
        let within = wanted.start.max(touched.start)..wanted.end.min(touched.end);
        let mut at = within.start;
        let mut in_bulk = false;
        while let Some(run) = run_of(units, at..within.end, |unit| unit == Unit::Host) {
            in_bulk |= self.send(pages, &run, former)?;
            at = run.end;
        }
        let has_sent = at > within.start;
        if in_bulk {
            self.device.finish()?;
        } else if has_sent && self.presence.is_shared() {
            self.device.settle(self.address)?;
        }
        at = within.start;
        let mut taken = Ok(());
        while let Some(run) = run_of(units, at..within.end, Unit::is_present) {
            let (offset, length) = self.bytes(&run);
            taken = taken.and(in_slices(offset, length, |offset, length| {
                pages.discard(offset, length)
            }));
            units
                .get_mut(run.clone())
                .unwrap_or_default()
                .fill(Unit::Device);
            self.presence.units.fetch_sub(run.len(), Ordering::AcqRel);
            at = run.end;
        }
        if all {
            *touched = 0..0;
        }
        if taken.is_err() {
            // The program must not continue with pages that the device does not know of.
            notice(format_args!(
                "managed memory at {:#x} is lost, because the kernel does not take its \
                 pages back",
                self.address
            ));
            pages.forbid();
        }
        taken
    }

    /// Sends units that the program has written to. It cannot write to them meanwhile.
    /// Returns whether some are copied in bulk.
    fn send(
        &self,
        pages: &Pages,
        run: &Range<usize>,
        former: &mut HashMap<usize, Box<[u8]>>,
    ) -> Result<bool> {
        let (offset, length) = self.bytes(run);
        let start = self.address + offset as u64;
        // It fails if the program has unmapped some: nothing writes there.
        let _ = in_slices(offset, length, |offset, length| {
            let start = self.address + offset as u64;
            self.faults.protect(start, length as u64, true)
        });
        if former.is_empty() {
            return self.device.send(start, pages.bytes().cut(offset, length));
        }
        let mut in_bulk = false;
        for unit in run.clone() {
            let (offset, length) = self.bytes(&(unit..unit + 1));
            let host = pages.bytes().cut(offset, length);
            let start = self.address + offset as u64;
            match former.get(&unit) {
                Some(former) => self.device.send_changes(start, former, host)?,
                None => in_bulk |= self.device.send(start, host)?,
            }
            former.remove(&unit);
        }
        Ok(in_bulk)
    }

    /// Serves an access that waits.
    pub(super) fn serve(self: &Arc<Self>, fault: PageFault) {
        let unit = usize::try_from(fault.address - self.address).unwrap_or(0) / UNIT;
        let mut state = self.state.lock();
        let Some(found) = state.units.get(unit).copied() else {
            return;
        };
        if state.pages.is_none() {
            return;
        }
        let (offset, length) = self.bytes(&(unit..unit + 1));
        let (start, length) = (self.address + offset as u64, length as u64);
        match found {
            Unit::Zero | Unit::Device => {
                self.list(&mut state);
                let provided = self.provide(&mut state, unit, found, fault.is_write);
                if let Err(status) = provided {
                    notice(format_args!(
                        "managed memory at {start:#x} is lost, because the device cannot be \
                         read: {status}"
                    ));
                    if let Some(pages) = &state.pages {
                        pages.forbid();
                    }
                    self.faults.wake(start, length);
                }
            }
            Unit::Both if fault.is_write => self.permit_writes(&mut state, unit),
            Unit::Both => self.faults.wake(start, length),
            // Protected if an attempt to send it failed.
            Unit::Host => {
                self.faults.protect(start, length, false);
            }
        }
    }

    /// The units from `unit` on to serve together, which are all `like` it.
    fn ahead(&self, state: &mut State, unit: usize, like: Unit) -> Range<usize> {
        let known = state.runs.iter().position(|(next, _)| *next == unit);
        let before = known.and_then(|known| state.runs.remove(known));
        let window = match before {
            Some((_, window)) => window * 2,
            // Needs no fetching.
            None if like == Unit::Zero => 4,
            None => 1,
        };
        let window = match state.wanted.get(unit) {
            Some(true) => MOST,
            _ => window.min(MOST),
        };
        let limit = (unit + window).min(state.units.len());
        let run = run_of(&state.units, unit..limit, |other| other == like);
        let run = run.unwrap_or(unit..unit + 1);
        if state.runs.len() == RUNS {
            state.runs.pop_front();
        }
        state.runs.push_back((run.end, window));
        run
    }

    /// Provides absent units from `unit` on.
    fn provide(&self, state: &mut State, unit: usize, found: Unit, is_write: bool) -> Result<()> {
        // Asked before the device is read: work that is complete now has written all.
        let in_flight = self.presence.has_work_in_flight();
        let run = match in_flight {
            true => unit..unit + 1,
            false => self.ahead(state, unit, found),
        };
        let (offset, length) = self.bytes(&run);
        let start = self.address + offset as u64;
        let mut former = None;
        let mut provide = |at: usize, bytes: &[u8]| {
            if in_flight && is_write {
                // To find what the program changes.
                former = Some(bytes.into());
            }
            let is_provided = self.faults.provide(start + at as u64, bytes, !is_write);
            is_provided.then_some(()).ok_or(Status::OPERATING_SYSTEM)
        };
        // The faulting thread resumes as soon as the first page is there. The pages are counted
        // before, so that a launch that follows at once finds them and waits for the lock.
        self.presence.units.fetch_add(run.len(), Ordering::SeqCst);
        if in_flight {
            self.presence.lend();
        }
        let provided = match found {
            Unit::Zero => zeros(length, provide),
            _ => self.device.fetch(start, length, in_flight, &mut provide),
        };
        if provided.is_err() {
            self.presence.units.fetch_sub(run.len(), Ordering::AcqRel);
            return provided;
        }
        state.former.extend(former.map(|former| (unit, former)));
        let provided = if is_write { Unit::Host } else { Unit::Both };
        let units = state.units.get_mut(run.clone()).unwrap_or_default();
        units.fill(provided);
        state.touched = match state.touched.is_empty() {
            true => run.clone(),
            false => state.touched.start.min(run.start)..state.touched.end.max(run.end),
        };
        // Work may have been posted meanwhile, before these pages could be found.
        if !in_flight && self.presence.has_work_in_flight() {
            self.presence.lend();
        }
        Ok(())
    }

    /// Lets the program write to units from `unit` on, which it has.
    fn permit_writes(&self, state: &mut State, unit: usize) {
        let in_flight = self.presence.has_work_in_flight();
        let run = match in_flight {
            true => unit..unit + 1,
            false => self.ahead(state, unit, Unit::Both),
        };
        let (offset, length) = self.bytes(&run);
        if in_flight {
            let contents = state.pages.as_ref().map(|pages| pages.bytes());
            let contents = contents.map(|bytes| bytes.part(offset, length).into());
            state.former.extend(contents.map(|bytes| (unit, bytes)));
            self.presence.lend();
        }
        state
            .units
            .get_mut(run)
            .unwrap_or_default()
            .fill(Unit::Host);
        let start = self.address + offset as u64;
        self.faults.protect(start, length as u64, false);
    }
}

/// Calls `take` with pieces of `length` zeros in all, and their offsets.
fn zeros(length: usize, mut take: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
    static ZEROS: [u8; UNIT] = [0; UNIT];
    (0..length).step_by(UNIT).try_for_each(|at| {
        let piece = ZEROS.get(..UNIT.min(length - at));
        take(at, piece.unwrap_or_default())
    })
}

/// Calls `change` with the offset and length of slices of `length` bytes at `offset`, on as
/// many threads as are worthwhile. Fails with `OPERATING_SYSTEM` if a call returns false.
fn in_slices(
    offset: usize,
    length: usize,
    change: impl Fn(usize, usize) -> bool + Sync,
) -> Result<()> {
    in_parts(length, |part, of| {
        let slice = length.div_ceil(of).next_multiple_of(UNIT);
        let from = (part * slice).min(length);
        let is_changed = change(offset + from, slice.min(length - from));
        is_changed.then_some(()).ok_or(Status::OPERATING_SYSTEM)
    })
}

/// The first run of `wanted` units in a range.
fn run_of(
    units: &[Unit],
    within: Range<usize>,
    wanted: impl Fn(Unit) -> bool,
) -> Option<Range<usize>> {
    let (from, end) = (within.start, within.end);
    let units = units.get(within)?;
    let first = units.iter().position(|unit| wanted(*unit))?;
    let rest = units.iter().skip(first);
    let length = rest.take_while(|unit| wanted(**unit)).count();
    let start = from + first;
    (length > 0).then_some(start..(start + length).min(end))
}
