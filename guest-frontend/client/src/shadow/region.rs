//! One shadow: the program's bytes, the state that both sides agree on, and the merging
//! of either side's changes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::ShadowRead;
use paragpu_protocol::types::ChangedRun;
use parking_lot::{Mutex, MutexGuard};

use super::difference::{differing_bytes, differing_units, differing_words, equal_bytes};
use super::patch::{Patch, WRITE};
use crate::connection::Link;
use crate::error::Result;
use crate::progress::{Awaited, Progress};
use crate::sys::memory::{HostRows, HostSlice, PAGE};
use crate::sys::zeros::zeros;

/// Number of bytes that are merged at once if all of them differ.
const WORD: usize = 8;
/// Minimum size in bytes of a run in device memory of which every aligned word of 4 bytes
/// differs, and which is sent as a whole.
const DENSE: usize = 256;

/// One shadow.
#[derive(Debug)]
pub(crate) struct Region {
    /// The program's bytes.
    host: HostSlice,
    /// The device's address of the first byte.
    device: u64,
    /// The host's address of the shadow: whole pages, or device memory.
    base: u64,
    length: u64,
    /// Whether kernels can have addresses in it.
    is_for_kernels: bool,
    /// Whether the host has a copy, the shadow.
    is_shadow: bool,
    /// Whether another session has a shadow of the memory as well.
    is_copy: bool,
    visible: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// The last contents on which both sides agreed, of the program's bytes only. Shared with
    /// the contents in transit to a host that lacks them.
    agreed: Arc<Vec<u8>>,
    /// Buffer for changed pages of the shadow.
    fetched: Vec<u8>,
    /// Nonzero for each page that was received.
    came: Vec<u8>,
    /// Work that may write to the shadow.
    writers: Vec<Posted>,
    /// Copies that read the shadow. Host functions before them may still write there.
    readers: Vec<Posted>,
    /// How often `agreed` changed.
    changes: u64,
    /// The host has no copy: the program freed the memory, or both share it.
    gone: bool,
}

/// Work at a position of a stream.
type Posted = (Arc<Progress>, u64);

/// Adds work to a list, which has the last of each stream.
fn add(list: &mut Vec<Posted>, progress: &Arc<Progress>, position: u64) {
    let known = list.iter_mut().find(|(of, _)| Arc::ptr_eq(of, progress));
    match known {
        Some((_, last)) => *last = position.max(*last),
        None => list.push((Arc::clone(progress), position)),
    }
}

/// Whether work is known to be complete. `session` is the progress of all streams.
fn is_complete((progress, position): &Posted, session: &Progress) -> bool {
    *position <= session.complete().max(progress.complete())
}

/// A shadow about which a thread asks behind a wait.
#[derive(Debug)]
pub(super) struct Inquiry {
    /// The writers that are complete once the wait has ended.
    writers: Vec<Posted>,
    /// [`State::changes`] before.
    changes: u64,
}

/// Number of shadows with writers; checked before any lock is taken.
static WRITERS: AtomicUsize = AtomicUsize::new(0);

/// Whether any shadow of the process has writers.
pub(super) fn have_writers() -> bool {
    WRITERS.load(Ordering::Acquire) != 0
}

impl Region {
    pub(crate) fn new(host: HostSlice, device: u64, base: u64, length: u64) -> Arc<Self> {
        let agreed = vec![0; host.len()];
        Arc::new(Self::make(host, device, (base, length), true, agreed))
    }

    /// [`new`](Self::new) for memory whose size the program chose just now.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub(crate) fn try_new(
        host: HostSlice,
        device: u64,
        base: u64,
        length: u64,
    ) -> Result<Arc<Self>> {
        let agreed = zeros(host.len()).ok_or(Status::OUT_OF_MEMORY)?;
        let region = Self::make(host, device, (base, length), true, agreed);
        Ok(Arc::new(region))
    }

    /// A shadow of the same memory on another host, at `device`, with these contents.
    pub(super) fn copy_at(&self, device: u64, contents: Vec<u8>) -> Arc<Self> {
        let base = device - (self.device - self.base);
        let mut copy = Self::make(self.memory(), device, (base, self.length), true, contents);
        copy.is_copy = true;
        Arc::new(copy)
    }

    /// The staging slots, in place. Copies write there, but kernels have no addresses in them,
    /// and the host may not know them.
    pub(crate) fn of_slots(host: HostSlice) -> Arc<Self> {
        let agreed = vec![0; host.len()];
        Self::in_place(host, false, agreed)
    }

    /// Zeroed memory of the program at the address of device memory: a variable or a mapping.
    /// The host has no separate copy.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub(crate) fn of_device(host: HostSlice) -> Result<Arc<Self>> {
        let agreed = zeros(host.len()).ok_or(Status::OUT_OF_MEMORY)?;
        Ok(Self::in_place(host, true, agreed))
    }

    /// Whether kernels can have addresses in it.
    pub(super) fn is_for_kernels(&self) -> bool {
        self.is_for_kernels
    }

    fn in_place(host: HostSlice, is_for_kernels: bool, agreed: Vec<u8>) -> Arc<Self> {
        let (device, length) = (host.address(), host.len() as u64);
        Arc::new(Self {
            is_shadow: false,
            ..Self::make(host, device, (device, length), is_for_kernels, agreed)
        })
    }

    fn make(
        host: HostSlice,
        device: u64,
        (base, length): (u64, u64),
        is_for_kernels: bool,
        agreed: Vec<u8>,
    ) -> Self {
        Self {
            device,
            base,
            length,
            is_for_kernels,
            is_shadow: true,
            is_copy: false,
            visible: AtomicBool::new(false),
            state: Mutex::new(State {
                agreed: Arc::new(agreed),
                fetched: Vec::new(),
                came: Vec::new(),
                writers: Vec::new(),
                readers: Vec::new(),
                changes: 0,
                gone: false,
            }),
            host,
        }
    }

    /// Records that both sides agree on the program's current contents, and that work of the
    /// session up to `position` may still write to it.
    pub(crate) fn agree(&self, state: &mut State, position: u64) -> Arc<Vec<u8>> {
        let contents = self.host.part(0, self.host.len()).to_vec();
        Self::agree_on(state, contents, position)
    }

    /// The same for a host that has zeros.
    pub(crate) fn agree_on_zeros(&self, state: &mut State, position: u64) {
        Self::agree_on(state, vec![0; self.host.len()], position);
    }

    fn agree_on(state: &mut State, contents: Vec<u8>, position: u64) -> Arc<Vec<u8>> {
        state.agreed = Arc::new(contents);
        state.changes += 1;
        state.gone = false;
        if state.writers.is_empty() {
            WRITERS.fetch_add(1, Ordering::AcqRel);
        }
        state.writers.push((Arc::default(), position));
        Arc::clone(&state.agreed)
    }

    /// Marks the shadow as freed, for threads that had already found it.
    pub(crate) fn forget(&self) {
        self.part_from(&mut self.state.lock());
    }

    /// Marks the locked shadow as one of which the host has no copy, for threads that had
    /// already found it.
    pub(crate) fn part_from(&self, state: &mut State) {
        state.gone = true;
        // Nothing is compared with it any more.
        state.agreed = Arc::default();
        state.changes += 1;
        state.readers.clear();
        if !std::mem::take(&mut state.writers).is_empty() {
            WRITERS.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether the locked shadow is one of which the host has no copy.
    pub(crate) fn is_gone(state: &State) -> bool {
        state.gone
    }

    /// Locks the shadow.
    pub(crate) fn hold(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// First address and size for the host.
    pub(crate) fn on_wire(&self) -> (u64, u64) {
        (self.base, self.length)
    }

    /// Allows kernels to have addresses in it.
    pub(crate) fn show(&self) {
        self.visible.store(true, Ordering::Release);
    }

    /// Records that nothing has addresses in it any more.
    pub(crate) fn hide(&self) {
        self.visible.store(false, Ordering::Release);
    }

    /// The program's memory.
    pub(crate) fn memory(&self) -> HostSlice {
        self.host.cut(0, self.host.len())
    }

    /// The program's first address and bytes.
    pub(crate) fn in_program(&self) -> (u64, u64) {
        (self.host.address(), self.host.len() as u64)
    }

    pub(crate) fn holds_host(&self, address: u64, size: u64) -> bool {
        holds(self.host.address(), self.host.len() as u64, address, size)
    }

    pub(super) fn holds_device(&self, address: u64, size: u64) -> bool {
        holds(self.device, self.host.len() as u64, address, size)
    }

    /// Whether this is an address that only another device can use for the memory.
    pub(super) fn is_elsewhere(&self, address: u64) -> bool {
        self.is_copy && self.device != self.host.address() && self.holds_host(address, 1)
    }

    /// The device's address of an address of the program.
    pub(crate) fn to_device(&self, address: u64) -> u64 {
        self.device + (address - self.host.address())
    }

    /// Whether kernels may have addresses in it.
    pub(super) fn is_visible(&self) -> bool {
        self.visible.load(Ordering::Acquire)
    }

    /// The device's first address.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Whether work that is not known to be complete may write to it.
    pub(crate) fn has_writers(&self) -> bool {
        !self.state.lock().writers.is_empty()
    }

    /// Adds work at `position` of a stream as a writer.
    pub(crate) fn add_writer(&self, progress: &Arc<Progress>, position: u64) {
        let mut state = self.state.lock();
        if state.gone {
            return;
        }
        if state.writers.is_empty() {
            WRITERS.fetch_add(1, Ordering::AcqRel);
        }
        add(&mut state.writers, progress, position);
    }

    /// Adds the work of a stream up to `position`, which may read it. `session` is the progress
    /// of all streams.
    pub(super) fn add_reader(&self, progress: &Arc<Progress>, position: u64, session: &Progress) {
        let mut state = self.state.lock();
        if !state.gone {
            state.readers.retain(|reader| !is_complete(reader, session));
            add(&mut state.readers, progress, position);
        }
    }

    /// Whether work that is not known to be complete may write or read it.
    pub(super) fn is_in_use(&self, session: &Progress) -> bool {
        let state = self.state.lock();
        let is_read = |reader| !is_complete(reader, session);
        !state.writers.is_empty() || state.readers.iter().any(is_read)
    }

    /// What to ask about a shadow behind a wait. `None` if it has no writers, or the host has no
    /// copy. `session` is the progress of all streams.
    pub(super) fn inquire(&self, session: &Progress, awaited: &Awaited) -> Option<Inquiry> {
        let state = self.state.lock();
        if !self.is_shadow || state.gone || state.writers.is_empty() {
            return None;
        }
        let is_over =
            |work: &&Posted| is_complete(work, session) || awaited.includes(&work.0, work.1);
        Some(Inquiry {
            writers: state.writers.iter().filter(is_over).cloned().collect(),
            changes: state.changes,
        })
    }

    /// Takes over what the device has changed by the end of a wait: runs of bytes at rising
    /// addresses. Removes the writers that were complete then. Does nothing if either side's
    /// changes were agreed on since the inquiry, because the runs may be older or newer than
    /// those: a [`pull`](Self::pull) fetches them.
    pub(super) fn settle(
        &self,
        link: &Link,
        inquiry: &Inquiry,
        runs: &[ChangedRun<'_>],
    ) -> Result<()> {
        let mut state = self.state.lock();
        if state.writers.is_empty() || state.changes != inquiry.changes {
            return Ok(());
        }
        let mut patch = Patch::default();
        let mut end = self.base;
        for &ChangedRun {
            address,
            bytes: Bytes(bytes),
        } in runs
        {
            let length = bytes.len() as u64;
            if !holds(self.base, self.length, address, length) {
                continue;
            }
            if address < end {
                return Err(Status::UNKNOWN);
            }
            end = address + length;
            let at = usize::try_from(address - self.base).unwrap_or(usize::MAX);
            if !patch.holds(at, bytes.len()) {
                patch.agree(link, self.base)?;
            }
            patch.add(at, bytes);
            let agreed: &mut Vec<u8> = Arc::make_mut(&mut state.agreed);
            self.take(agreed, at, bytes);
            state.changes += 1;
        }
        patch.agree(link, self.base)?;
        state.writers.retain(|(progress, position)| {
            let is_over = |(of, last): &Posted| Arc::ptr_eq(progress, of) && position <= last;
            !inquiry.writers.iter().any(is_over)
        });
        if state.writers.is_empty() {
            WRITERS.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Writes bytes of the device that are `at` of the shadow into the program's memory, and
    /// agrees on them.
    fn take(&self, agreed: &mut [u8], at: usize, bytes: &[u8]) {
        // The shadow begins with the page that has the program's first byte.
        let before = usize::try_from(self.device - self.base).unwrap_or(0);
        let (from, to) = (
            at.max(before),
            (at + bytes.len()).min(before + agreed.len()),
        );
        if from >= to {
            return;
        }
        let old = agreed.get_mut(from - before..to - before);
        if let (Some(old), Some(new)) = (old, bytes.get(from - at..to - at)) {
            self.merge(from - before, old, new);
        }
    }

    /// Sends the program's changes in `[offset, offset + size)`. The device may have written other
    /// bytes since both sides last agreed. So for device memory, only changed bytes are sent; with a
    /// shadow, the host tells them by what both sides agreed on.
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
            // Most pages are unchanged, and a whole page is compared fastest.
            if agreed == now {
                at = stop;
                continue;
            }
            let agreed: &mut Vec<u8> = Arc::make_mut(&mut state.agreed);
            while let Some((from, to)) = self.changed_run(agreed, at..stop, end) {
                let Some(agreed) = agreed.get_mut(from..to) else {
                    return Err(Status::UNKNOWN);
                };
                // Both sides agree on the bytes sent, even if the program writes in the meantime.
                agreed.copy_from_slice(self.host.part(from, to - from));
                if !patch.holds(from, to - from) {
                    patch.send(link, self.device)?;
                }
                patch.add(from, agreed);
                at = to;
            }
            state.changes += 1;
            at = at.max(stop);
        }
        patch.send(link, self.device)
    }

    /// The first run of differing bytes that begins in `within`, before `end` and at most one
    /// write long.
    fn changed_run(
        &self,
        agreed: &[u8],
        within: Range<usize>,
        end: usize,
    ) -> Option<(usize, usize)> {
        let length = within.len();
        let begin = agreed.get(within.clone())?;
        let same = equal_bytes(begin, self.host.part(within.start, length));
        if same == length {
            return None;
        }
        let from = within.start + same;
        let limit = (from + WRITE).min(end);
        let (agreed, now) = (agreed.get(from..limit)?, self.host.part(from, limit - from));
        let run = if self.is_shadow {
            differing_units(agreed, now)
        } else {
            // The host copies each run to device memory by itself, and most values that are
            // written over others have some bytes in common with them.
            let dense = differing_words(agreed, now, from);
            let dense = if dense >= DENSE { dense } else { 0 };
            differing_bytes(agreed, now).max(dense)
        };
        // The program may have changed it back meanwhile.
        Some((from, from + run.max(1)))
    }

    /// Fetches the device's changes, and removes completed writers. `session` is the progress
    /// of all streams.
    pub(super) fn pull(&self, link: &Link, session: &Progress) -> Result<()> {
        let mut state = self.state.lock();
        if state.writers.is_empty() {
            return Ok(());
        }
        // Read before the fetch: work that completes during it may have written to a page that
        // was already read, so it remains a writer and the next pull reads again.
        let complete = session.complete();
        let is_over = |(progress, position): &(Arc<Progress>, u64)| {
            *position <= complete.max(progress.complete())
        };
        let left = state.writers.iter().filter(|writer| !is_over(writer));
        let left: Vec<_> = left.cloned().collect();
        let length = usize::try_from(self.length).map_err(|_| Status::OUT_OF_MEMORY)?;
        let State {
            agreed,
            fetched,
            came,
            ..
        } = &mut *state;
        if fetched.len() != length {
            *fetched = zeros(length).ok_or(Status::OUT_OF_MEMORY)?;
        }
        let rows = Some(HostRows::of(fetched, came));
        // The lock is held during the round trip: a push in between would agree on bytes that
        // the older bytes of this fetch replace below.
        let read = ShadowRead {
            address: self.base,
            size: self.length,
        };
        link.call_with(&read, rows, |()| ())?;
        // For a shadow, only changed pages were received.
        let agreed: &mut Vec<u8> = Arc::make_mut(agreed);
        let pages = fetched.chunks(PAGE).zip(came.iter()).enumerate();
        for (page, (bytes, _)) in pages.filter(|(_, (_, came))| **came != 0) {
            self.take(agreed, page * PAGE, bytes);
        }
        state.changes += 1;
        // Not earlier: other threads check for writers without waiting for this one.
        state.writers = left;
        if state.writers.is_empty() {
            WRITERS.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Writes differing bytes at `at` into the program's memory, and agrees on them.
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
        // No byte of the difference is zero.
        if changed.wrapping_sub(LOW) & !changed & HIGH == 0 {
            self.host.overwrite(at, new);
        } else {
            self.merge_bytes(at, &old, &new);
        }
    }

    fn merge_bytes(&self, at: usize, old: &[u8], new: &[u8]) {
        for (byte, (old, new)) in old.iter().zip(new).enumerate() {
            // The program may have changed a byte that the device did not: writing it would undo
            // that change, and the next push would not see it.
            if old != new {
                self.host.overwrite(at + byte, [*new]);
            }
        }
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

    /// Two slices of the same length that are largely equal.
    fn alike() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        vec((0_u8..3, prop::bool::weighted(0.1)), 0..200).prop_map(|bytes| {
            let one = bytes.iter().map(|(byte, _)| *byte);
            let other = bytes.iter().map(|(byte, other)| byte + u8::from(*other));
            (one.collect(), other.collect())
        })
    }

    /// Which bytes a push sends, each at most once.
    fn sent(region: &Region, agreed: &[u8]) -> Vec<bool> {
        let mut sent = vec![false; agreed.len()];
        let mut at = 0;
        while let Some((from, to)) = region.changed_run(agreed, at..agreed.len(), agreed.len()) {
            assert!(from >= at && to > from);
            sent[from..to].fill(true);
            at = to;
        }
        sent
    }

    fn differing(one: &[u8], other: &[u8]) -> Vec<bool> {
        one.iter().zip(other).map(|(a, b)| a != b).collect()
    }

    /// Values of 4 bytes that were all written over zeros, and have bytes in common with them.
    fn small_values(count: u32) -> Vec<u8> {
        (1..=count)
            .flat_map(|value| (value * 3).to_le_bytes())
            .collect()
    }

    #[test]
    fn small_values_go_to_device_memory_in_one_run() {
        let mut now = small_values(1000);
        now.extend([0; 100]);
        let agreed = vec![0; now.len()];
        let region = region_of(&mut now);
        // 3000 has two bytes.
        assert_eq!(
            region.changed_run(&agreed, 0..1, now.len()),
            Some((0, 3998))
        );
        assert_eq!(
            region.changed_run(&agreed, 3998..now.len(), now.len()),
            None
        );
        // A few values are sent byte by byte.
        now.truncate(40);
        assert_eq!(
            sent(&region_of(&mut now), &agreed[..40]),
            differing(&agreed[..40], &now)
        );
    }

    fn region_of(now: &mut [u8]) -> Arc<Region> {
        Region::of_device(HostSlice::of(now)).unwrap()
    }

    proptest! {
        #[test]
        fn what_the_program_changed_is_sent((agreed, mut now) in alike()) {
            let region = Region::new(HostSlice::of(&mut now), 0, 0, 0);
            let sent = sent(&region, &agreed);
            let changed = differing(&agreed, &now);
            prop_assert!(changed.iter().zip(&sent).all(|(changed, sent)| *sent || !changed));
            // A run ends at latest behind 30 bytes that did not change.
            let idle = sent.windows(31).zip(changed.windows(31));
            prop_assert!(idle.into_iter().all(|(sent, changed)| sent.contains(&false) || changed.contains(&true)));
        }

        #[test]
        fn device_memory_gets_what_the_program_changed((agreed, mut now) in alike()) {
            let region = region_of(&mut now);
            // Too short to be dense.
            prop_assert_eq!(sent(&region, &agreed), differing(&agreed, &now));
        }

        #[test]
        fn only_what_the_device_changed_is_written((old, new) in alike(), own in any::<u8>()) {
            // The program changed all of it in the meantime.
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
