//! One shadow: the program's bytes, the state that both sides agree on, and the merging
//! of either side's changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{ShadowPatch, ShadowRead, ShadowWrite};
use parking_lot::{Mutex, MutexGuard};

use crate::connection::Link;
use crate::error::Result;
use crate::progress::Progress;
use crate::sys::memory::{HostRows, HostSlice, PAGE};

/// Smallest run of bytes that is compared.
const UNIT: usize = 16;
/// Bytes that are merged at once where all of them differ.
const WORD: usize = 8;
/// Bytes before each run of a patch.
const HEAD: usize = 8;
/// Bytes in one write or patch; fits a frame with what else is in it.
const WRITE: usize = 240 << 10;

/// One shadow.
#[derive(Debug)]
pub(crate) struct Region {
    /// The program's bytes.
    host: HostSlice,
    /// Where the device sees the first of them.
    device: u64,
    /// The shadow as the host knows it: whole pages, or memory of the device.
    base: u64,
    length: u64,
    /// Kernels can have addresses in it.
    is_for_kernels: bool,
    visible: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// What both sides last agreed on; of the program's bytes only. Shared
    /// with what a host that lacks it is being sent.
    agreed: Arc<Vec<u8>>,
    /// Where the shadow's pages are fetched to, those that changed.
    fetched: Vec<u8>,
    /// Not 0 for each page that came.
    came: Vec<u8>,
    /// Work that may write to the shadow.
    writers: Vec<(Arc<Progress>, u64)>,
    /// The program gave the memory back: the host knows no such shadow.
    gone: bool,
}

/// How many shadows have writers; looked at before every lock.
static WRITERS: AtomicUsize = AtomicUsize::new(0);

/// Has any shadow of the process writers?
pub(super) fn have_writers() -> bool {
    WRITERS.load(Ordering::Acquire) != 0
}

impl Region {
    pub(crate) fn new(host: HostSlice, device: u64, base: u64, length: u64) -> Arc<Self> {
        Self::make(host, device, (base, length), true)
    }

    /// The staging slots, in place: copies write there, but kernels have no address in
    /// them, and the host need not have been told of them.
    pub(crate) fn of_slots(host: HostSlice) -> Arc<Self> {
        Self::in_place(host, false)
    }

    /// Memory of the program, zeros, at the address of memory of the device: a variable
    /// or a map. The host has no other copy.
    pub(crate) fn of_device(host: HostSlice) -> Arc<Self> {
        Self::in_place(host, true)
    }

    /// Can kernels have addresses in it?
    pub(super) fn is_for_kernels(&self) -> bool {
        self.is_for_kernels
    }

    fn in_place(host: HostSlice, is_for_kernels: bool) -> Arc<Self> {
        let (device, length) = (host.address(), host.len() as u64);
        Self::make(host, device, (device, length), is_for_kernels)
    }

    fn make(
        host: HostSlice,
        device: u64,
        (base, length): (u64, u64),
        is_for_kernels: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            device,
            base,
            length,
            is_for_kernels,
            visible: AtomicBool::new(false),
            state: Mutex::new(State {
                agreed: Arc::new(vec![0; host.len()]),
                fetched: Vec::new(),
                came: Vec::new(),
                writers: Vec::new(),
                gone: false,
            }),
            host,
        })
    }

    /// Both sides agree on what the program has there now; work up to
    /// `position` of the session may still write to it.
    pub(crate) fn agree(&self, state: &mut State, position: u64) -> Arc<Vec<u8>> {
        state.agreed = Arc::new(self.host.part(0, self.host.len()).to_vec());
        if state.writers.is_empty() {
            WRITERS.fetch_add(1, Ordering::AcqRel);
        }
        state.writers.push((Arc::default(), position));
        Arc::clone(&state.agreed)
    }

    /// A thread that found the shadow before leaves it alone from now on.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock();
        state.gone = true;
        if !std::mem::take(&mut state.writers).is_empty() {
            WRITERS.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Keeps everybody from the shadow.
    pub(crate) fn hold(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// First address and bytes that the host knows.
    pub(crate) fn on_wire(&self) -> (u64, u64) {
        (self.base, self.length)
    }

    /// Kernels may be given addresses in it.
    pub(crate) fn show(&self) {
        self.visible.store(true, Ordering::Release);
    }

    /// Nobody has addresses in it any more.
    pub(crate) fn hide(&self) {
        self.visible.store(false, Ordering::Release);
    }

    pub(crate) fn holds_host(&self, address: u64, size: u64) -> bool {
        holds(self.host.address(), self.host.len() as u64, address, size)
    }

    pub(super) fn holds_device(&self, address: u64, size: u64) -> bool {
        holds(self.device, self.host.len() as u64, address, size)
    }

    /// The device's address of an address of the program.
    pub(crate) fn to_device(&self, address: u64) -> u64 {
        self.device + (address - self.host.address())
    }

    /// May kernels be given addresses in it?
    pub(super) fn is_visible(&self) -> bool {
        self.visible.load(Ordering::Acquire)
    }

    /// The first address that the device sees.
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// May work that is not known to be complete write to it?
    pub(crate) fn has_writers(&self) -> bool {
        !self.state.lock().writers.is_empty()
    }

    /// Work at `position` of a stream may write to the shadow.
    pub(crate) fn add_writer(&self, progress: &Arc<Progress>, position: u64) {
        let mut state = self.state.lock();
        if state.gone {
            return;
        }
        if state.writers.is_empty() {
            WRITERS.fetch_add(1, Ordering::AcqRel);
        }
        match state
            .writers
            .iter_mut()
            .find(|(other, _)| Arc::ptr_eq(other, progress))
        {
            Some((_, last)) => *last = position.max(*last),
            None => state.writers.push((Arc::clone(progress), position)),
        }
    }

    /// Sends what the program changed in `[offset, offset + size)`.
    pub(super) fn push(&self, link: &Link, offset: usize, size: usize) -> Result<()> {
        let end = offset.saturating_add(size).min(self.host.len());
        let mut state = self.state.lock();
        if state.gone {
            return Ok(());
        }
        let mut patch = Patch::default();
        let mut at = offset;
        while at < end {
            let page = (at / PAGE + 1) * PAGE;
            let stop = page.min(end);
            let (Some(agreed), now) = (state.agreed.get(at..stop), self.host.part(at, stop - at))
            else {
                return Err(Status::UNKNOWN);
            };
            // Most pages are unchanged, and a whole page is compared faster than its units.
            if agreed == now {
                at = stop;
                continue;
            }
            let Some((from, to)) = self.changed_run(&state.agreed, at, end) else {
                at = stop;
                continue;
            };
            let agreed = Arc::make_mut(&mut state.agreed);
            let Some(agreed) = agreed.get_mut(from..to) else {
                return Err(Status::UNKNOWN);
            };
            // The bytes sent are those agreed on, whatever the program writes
            // meanwhile.
            agreed.copy_from_slice(self.host.part(from, to - from));
            at = to;
            if !patch.holds(from, to - from) {
                patch.send(link, self.device)?;
            }
            patch.add(from, agreed);
        }
        patch.send(link, self.device)
    }

    /// The first run of differing units from `at` on, before `end`, at most
    /// one write long.
    fn changed_run(&self, agreed: &[u8], at: usize, end: usize) -> Option<(usize, usize)> {
        let now = self.host.part(at, end - at);
        let same = equal_units(agreed.get(at..end)?, now);
        if same == now.len() {
            return None;
        }
        let from = at + same;
        let limit = (from + WRITE).min(end);
        let now = self.host.part(from, limit - from);
        Some((from, from + differing_units(agreed.get(from..limit)?, now)))
    }

    /// Fetches what the device changed; writers that are over are forgotten.
    /// `session` is the work of all streams.
    pub(super) fn pull(&self, link: &Link, session: &Progress) -> Result<()> {
        let mut state = self.state.lock();
        if state.writers.is_empty() {
            return Ok(());
        }
        // Asked before the fetch: work that ends during it may have written to a page
        // that was read already, so it stays a writer and the next pull reads again.
        let complete = session.complete();
        let is_over = |(progress, position): &(Arc<Progress>, u64)| {
            *position <= complete.max(progress.complete())
        };
        let left = state.writers.iter().filter(|writer| !is_over(writer));
        let left: Vec<_> = left.cloned().collect();
        let before = usize::try_from(self.device - self.base).unwrap_or(0);
        let length = usize::try_from(self.length).map_err(|_| Status::OUT_OF_MEMORY)?;
        let State {
            agreed,
            fetched,
            came,
            ..
        } = &mut *state;
        fetched.resize(length, 0);
        let rows = Some(HostRows::of(fetched, came));
        // The lock is held during the round trip: a push in between would agree with
        // the host on bytes that the older ones of this fetch replace below.
        let read = ShadowRead {
            address: self.base,
            size: self.length,
        };
        link.call_with(&read, rows, |()| ())?;
        // Of a shadow, pages that did not change did not come.
        let agreed: &mut Vec<u8> = Arc::make_mut(agreed);
        let own = before..before + agreed.len();
        for (page, _) in came.iter().enumerate().filter(|(_, came)| **came != 0) {
            let (start, end) = (page * PAGE, (page + 1) * PAGE);
            let (from, to) = (start.max(own.start), end.min(own.end));
            let old = agreed.get_mut(from - before..to - before);
            if let (Some(old), Some(new)) = (old, fetched.get(from..to)) {
                self.merge(from - before, old, new);
            }
        }
        // Not before: others look for writers without waiting for this thread.
        state.writers = left;
        if state.writers.is_empty() {
            WRITERS.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Writes the bytes at `at` that differ into the program's memory, and
    /// agrees on them.
    fn merge(&self, at: usize, agreed: &mut [u8], fetched: &[u8]) {
        let ((old, old_rest), (new, new_rest)) =
            (agreed.as_chunks::<WORD>(), fetched.as_chunks::<WORD>());
        for (word, (old, new)) in old.iter().zip(new).enumerate() {
            self.merge_word(at + word * WORD, old, new);
        }
        self.merge_bytes(at + old.len() * WORD, old_rest, new_rest);
        agreed.copy_from_slice(fetched);
    }

    fn merge_word(&self, at: usize, &old: &[u8; WORD], &new: &[u8; WORD]) {
        const LOW: u64 = u64::from_ne_bytes([0x01; WORD]);
        const HIGH: u64 = u64::from_ne_bytes([0x80; WORD]);
        let changed = u64::from_ne_bytes(old) ^ u64::from_ne_bytes(new);
        if changed == 0 {
            return;
        }
        // No byte of it is zero.
        if changed.wrapping_sub(LOW) & !changed & HIGH == 0 {
            self.host.overwrite(at, new);
        } else {
            self.merge_bytes(at, &old, &new);
        }
    }

    fn merge_bytes(&self, at: usize, old: &[u8], new: &[u8]) {
        for (byte, (old, new)) in old.iter().zip(new).enumerate() {
            // A byte that the device left alone may be one that the program has changed
            // since: writing it would undo that, and the next push would not see it.
            if old != new {
                self.host.overwrite(at + byte, [*new]);
            }
        }
    }
}

/// Bytes before the first unit in which two equally long slices differ.
fn equal_units(one: &[u8], other: &[u8]) -> usize {
    units(one, other, |same| same)
}

/// Bytes before the first unit in which they do not.
fn differing_units(one: &[u8], other: &[u8]) -> usize {
    units(one, other, |same| !same)
}

/// Bytes of whole units, and of the shorter one at the end, that are `wanted`.
fn units(one: &[u8], other: &[u8], wanted: impl Fn(bool) -> bool) -> usize {
    let ((ones, one_rest), (others, other_rest)) =
        (one.as_chunks::<UNIT>(), other.as_chunks::<UNIT>());
    let pairs = ones.iter().zip(others);
    let found = pairs
        .map(|(one, other)| u128::from_ne_bytes(*one) == u128::from_ne_bytes(*other))
        .position(|same| !wanted(same));
    match found {
        Some(unit) => unit * UNIT,
        None if wanted(one_rest == other_rest) => one.len(),
        None => one.len() - one_rest.len(),
    }
}

/// Changed runs that travel in one call.
#[derive(Default)]
struct Patch {
    /// Offset of the first run, and of the end of the last.
    start: usize,
    end: usize,
    count: usize,
    runs: Vec<u8>,
}

impl Patch {
    /// Does another run fit?
    fn holds(&self, from: usize, length: usize) -> bool {
        self.runs.is_empty()
            || self.runs.len() + HEAD + length <= WRITE && u32::try_from(from - self.end).is_ok()
    }

    /// Adds a run behind the others; it fits.
    fn add(&mut self, from: usize, run: &[u8]) {
        if self.runs.is_empty() {
            (self.start, self.end) = (from, from);
        }
        let gap = u32::try_from(from - self.end).unwrap_or(0);
        let length = u32::try_from(run.len()).unwrap_or(0);
        self.runs.extend_from_slice(&gap.to_le_bytes());
        self.runs.extend_from_slice(&length.to_le_bytes());
        self.runs.extend_from_slice(run);
        self.end = from + run.len();
        self.count += 1;
    }

    /// Posts the runs, of a shadow at `device`, and forgets them.
    fn send(&mut self, link: &Link, device: u64) -> Result<()> {
        let address = device + self.start as u64;
        match self.count {
            0 => return Ok(()),
            // It needs no head.
            1 => {
                let data = Bytes(self.runs.get(HEAD..).unwrap_or(&[]));
                link.post(&ShadowWrite { address, data })?;
            }
            _ => {
                let runs = Bytes(&self.runs);
                link.post(&ShadowPatch { address, runs })?;
            }
        }
        self.count = 0;
        self.runs.clear();
        Ok(())
    }
}

fn holds(start: u64, length: u64, address: u64, size: u64) -> bool {
    address
        .checked_sub(start)
        .and_then(|offset| offset.checked_add(size))
        .is_some_and(|end| end <= length)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Two slices of one length, much of which is equal.
    fn alike() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        vec((0_u8..3, prop::bool::weighted(0.1)), 0..200).prop_map(|bytes| {
            let one = bytes.iter().map(|(byte, _)| *byte);
            let other = bytes.iter().map(|(byte, other)| byte + u8::from(*other));
            (one.collect(), other.collect())
        })
    }

    proptest! {
        #[test]
        fn units_end_where_they_are_otherwise((one, other) in alike()) {
            let same: Vec<bool> = one.chunks(UNIT).zip(other.chunks(UNIT)).map(|(a, b)| a == b).collect();
            let before = |units: usize| (units * UNIT).min(one.len());
            let equal = same.iter().take_while(|same| **same).count();
            prop_assert_eq!(equal_units(&one, &other), before(equal));
            let differing = same.iter().take_while(|same| !**same).count();
            prop_assert_eq!(differing_units(&one, &other), before(differing));
        }

        #[test]
        fn only_what_the_device_changed_is_written((old, new) in alike(), own in any::<u8>()) {
            // The program changed all of it meanwhile.
            let mut host = vec![own; old.len()];
            let region = Region::new(HostSlice::of(&mut host), 0, 0, 0);
            let mut agreed = old.clone();
            region.merge(0, &mut agreed, &new);
            prop_assert_eq!(&agreed, &new);
            for ((old, new), now) in old.iter().zip(&new).zip(&host) {
                prop_assert_eq!(*now, if old == new { own } else { *new });
            }
        }
    }
}
