//! The managed memory of the process that migrates, and the thread that serves the
//! program's accesses to it.
//!
//! It belongs to the process and not to one session, because kernels of all its devices use
//! it: whichever of them gets work, the pages go back to the device that has the memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

use paragpu_protocol::status::Status;
use parking_lot::{Mutex, RwLock};

use super::managed_range::{ManagedRange, Presence, Work};
use crate::error::Result;
use crate::sys::memory;
use crate::sys::process::spawn;
use crate::sys::userfault::{Userfault, Watch};

/// How long pages are lent that were provided while work is in flight. A program that
/// polls them sees the device's writes after that time, and the device the program's.
/// Doubled, up to the maximum, as long as work stays in flight.
const LOAN: Duration = Duration::from_millis(1);
const MAX_LOAN: Duration = Duration::from_millis(16);

const PAGE: u64 = memory::PAGE as u64;

/// The ranges of all sessions.
#[derive(Debug, Default)]
pub(crate) struct ManagedRanges {
    presence: Arc<Presence>,
    /// The length of `ranges`.
    count: AtomicUsize,
    handing_over: Mutex<()>,
    ranges: RwLock<BTreeMap<u64, Arc<ManagedRange>>>,
}

impl ManagedRanges {
    /// Those of the process.
    pub(crate) fn of_process() -> Arc<Self> {
        static ALL: LazyLock<Arc<ManagedRanges>> = LazyLock::new(Arc::default);
        Arc::clone(&ALL)
    }

    /// Records a session whose work may use them.
    pub(crate) fn used_by(&self, session: Weak<dyn Work>) {
        self.presence.used_by(session);
    }

    /// Whether several sessions may use them.
    pub(crate) fn are_shared(&self) -> bool {
        self.presence.is_shared()
    }

    /// Adds a range, and returns its address.
    pub(crate) fn add(&self, range: ManagedRange) -> u64 {
        let range = range.counted_in(&self.presence);
        let address = range.address();
        self.ranges.write().insert(address, range);
        self.count.fetch_add(1, Ordering::Release);
        address
    }

    /// Removes the range that begins at an address. Returns false if there is none.
    pub(crate) fn remove(&self, address: u64) -> bool {
        let removed = self.ranges.write().remove(&address);
        if let Some(range) = &removed {
            self.count.fetch_sub(1, Ordering::Release);
            range.close();
        }
        removed.is_some()
    }

    /// The addresses of all ranges.
    pub(crate) fn addresses(&self) -> Vec<u64> {
        self.ranges.read().keys().copied().collect()
    }

    /// Whether there is none.
    pub(super) fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn find(&self, address: u64, size: u64) -> Option<Arc<ManagedRange>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let ranges = self.ranges.read();
        let (_, range) = ranges.range(..=address).next_back()?;
        range.holds(address, size).then(|| Arc::clone(range))
    }

    /// Whether all of an address range is in managed memory that migrates.
    pub(crate) fn holds(&self, address: u64, size: u64) -> bool {
        self.find(address, size).is_some()
    }

    /// Gives the device what the program wrote, and takes all pages away. A thread that
    /// finds another one doing so waits for it.
    fn hand_over(&self) -> Result<()> {
        let _one_at_a_time = self.handing_over.lock();
        let ranges = self.presence.take_ranges();
        let handed_over = ranges.iter().map(ManagedRange::hand_over);
        handed_over.fold(Ok(()), Result::and)
    }

    /// Before the device uses a range: gives it the program's changes. Returns false if the
    /// range is not inside managed memory that migrates.
    pub(crate) fn before_use(&self, address: u64, size: u64) -> Result<bool> {
        let Some(range) = self.find(address, size) else {
            return Ok(false);
        };
        range.hand_over_part(address, size)?;
        Ok(true)
    }

    /// Changes where a range of device memory is, which has the program's changes. The program
    /// waits meanwhile.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not inside managed memory that migrates; those of
    /// `change`.
    pub(crate) fn without_program<R>(
        &self,
        address: u64,
        size: u64,
        change: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let range = self.find(address, size).ok_or(Status::INVALID_VALUE)?;
        range.without_program(address, size, change)
    }

    /// Before work that may use any of it.
    pub(super) fn before_work(&self) -> Result<()> {
        if self.presence.is_none() {
            return Ok(());
        }
        self.hand_over()
    }

    /// After work was posted. What the program has by now, a thread accessed since
    /// [`before_work`](Self::before_work).
    pub(super) fn after_work(&self) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        // The work is posted before the pages are looked for; who provides pages does the
        // opposite.
        fence(Ordering::SeqCst);
        if !self.presence.is_none() {
            self.presence.lend();
        }
    }

    /// After work was posted that writes to a range.
    pub(super) fn after_write(&self, address: u64, size: u64) {
        if self.holds(address, size) {
            self.after_work();
        }
    }

    /// After work was found to be complete, which may have written what the program has.
    pub(super) fn after_wait(&self) -> Result<()> {
        let Some(loans) = self.presence.loans() else {
            return Ok(());
        };
        self.hand_over()?;
        self.presence.returned(loans);
        Ok(())
    }

    /// Takes pages back whose loan is over. Returns when the next loan ends.
    fn after_loans(&self, loan: &mut Duration, ends: Option<Instant>) -> Option<Instant> {
        if !self.presence.is_lent() {
            *loan = LOAN;
            return None;
        }
        let Some(end) = ends else {
            return Some(Instant::now() + *loan);
        };
        if Instant::now() < end {
            return Some(end);
        }
        // If the session is lost, the program learns it from its next call.
        let _ = self.after_wait();
        *loan = (*loan * 2).min(MAX_LOAN);
        None
    }

    /// Records whether the program will access most of a range.
    pub(crate) fn want(&self, address: u64, size: u64, is_wanted: bool) {
        if let Some(range) = self.find(address, size) {
            range.want(address, size, is_wanted);
        }
    }
}

/// Reports accesses to managed memory to the thread that serves them. `None` if the process
/// may not use userfaultfd(2) for system calls as well.
pub(crate) fn watcher() -> Option<Arc<Userfault>> {
    static WATCHER: OnceLock<Option<Arc<Userfault>>> = OnceLock::new();
    let watcher = WATCHER.get_or_init(|| {
        let faults = Arc::new(Userfault::new(Watch::Absent)?);
        let watched = Arc::clone(&faults);
        spawn("paragpu-managed", move || serve(&watched)).then_some(faults)
    });
    watcher.clone()
}

/// Serves accesses for as long as the process lives. This thread must not access managed
/// memory that is not present, nor wait for a thread that does.
fn serve(faults: &Userfault) {
    let all = ManagedRanges::of_process();
    let mut loan = LOAN;
    let mut ends: Option<Instant> = None;
    loop {
        let left = ends.map(|end| end.saturating_duration_since(Instant::now()));
        // Rounded up: poll(2) takes whole milliseconds.
        let left = left.map(|left| left + Duration::from_micros(999));
        for fault in faults.faults(left) {
            match all.find(fault.address, 1) {
                Some(range) => range.serve(fault),
                // Freed meanwhile. The access ends as one to memory that is not mapped.
                None => faults.wake(fault.address / PAGE * PAGE, PAGE),
            }
        }
        ends = all.after_loans(&mut loan, ends);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::super::managed_range::DeviceContents;
    use super::*;
    use crate::sys::memory::{HostSlice, Pages};

    const LENGTH: usize = 700 << 10;

    /// Held by each test: the ranges belong to the process, and so does work in flight.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A session: what it has sent and its host has not executed yet, by device address.
    #[derive(Debug, Default)]
    struct Session {
        sent: Mutex<Vec<(u64, Vec<u8>)>>,
        memory: Mutex<BTreeMap<u64, Vec<u8>>>,
        /// Bytes of each fetch.
        fetched: Mutex<Vec<usize>>,
        is_busy: AtomicBool,
    }

    impl Work for Session {
        fn is_in_flight(&self) -> bool {
            self.is_busy.load(Ordering::Relaxed)
        }
    }

    impl Session {
        /// Executes what was sent.
        fn execute(&self) {
            for (start, bytes) in self.sent.lock().drain(..) {
                self.with(start, bytes.len(), |memory| memory.copy_from_slice(&bytes));
            }
        }

        /// Device memory at an address, which all devices can access.
        fn with<R>(&self, start: u64, size: usize, with: impl FnOnce(&mut [u8]) -> R) -> R {
            let mut memory = self.memory.lock();
            let (first, bytes) = memory.range_mut(..=start).next_back().unwrap();
            let at = usize::try_from(start - first).unwrap();
            with(&mut bytes[at..at + size])
        }
    }

    /// What a range knows of the session that has it.
    #[derive(Debug)]
    struct Contents(Arc<Session>);

    impl DeviceContents for Contents {
        fn send(&self, start: u64, host: HostSlice) -> Result<bool> {
            self.0.sent.lock().push((start, host.as_ref().to_vec()));
            Ok(false)
        }

        fn finish(&self) -> Result<()> {
            self.0.execute();
            Ok(())
        }

        fn settle(&self, _: u64) -> Result<()> {
            self.finish()
        }

        fn send_changes(&self, start: u64, former: &[u8], host: HostSlice) -> Result<()> {
            self.0.execute();
            self.0.with(start, host.len(), |bytes| {
                let now = former.iter().zip(host.as_ref());
                for (byte, (former, now)) in bytes.iter_mut().zip(now) {
                    if former != now {
                        *byte = *now;
                    }
                }
            });
            Ok(())
        }

        fn fetch(
            &self,
            start: u64,
            size: usize,
            _in_flight: bool,
            take: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
        ) -> Result<()> {
            self.0.execute();
            self.0.fetched.lock().push(size);
            let bytes = self.0.with(start, size, |bytes| bytes.to_vec());
            take(0, &bytes)
        }
    }

    /// A range, as the program sees it.
    struct Seen {
        start: u64,
        program: HostSlice,
    }

    fn session() -> Arc<Session> {
        let session = Arc::<Session>::default();
        let own = Arc::downgrade(&session);
        ManagedRanges::of_process().used_by(own);
        session
    }

    /// A range in the memory of a session's device. `None` without the privilege.
    fn range(home: &Arc<Session>) -> Option<Seen> {
        use std::sync::atomic::AtomicU64;
        // Addresses that nothing else uses.
        static NEXT: AtomicU64 = AtomicU64::new(0x6100_0000_0000);
        let start = NEXT.fetch_add(16 << 20, Ordering::Relaxed);
        let faults = watcher()?;
        let pages = Pages::new(start, LENGTH as u64).unwrap();
        assert!(faults.watch(start, LENGTH as u64));
        let program = pages.bytes();
        home.memory.lock().insert(start, vec![0; LENGTH]);
        let contents = Box::new(Contents(Arc::clone(home)));
        ManagedRanges::of_process().add(ManagedRange::new(pages, faults, contents));
        Some(Seen { start, program })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        /// Before work of any device it finds what the program and other devices wrote, and
        /// afterwards the program sees what the device wrote, wherever the memory is.
        #[test]
        fn each_side_sees_what_the_others_wrote(
            devices in 1_usize..4,
            steps in prop::collection::vec(
                (0_u8..5, 0_usize..3, 0_usize..3, 0..LENGTH - 8, any::<[u8; 8]>()), 1..200),
        ) {
            let _alone = ALONE.lock();
            let ranges = ManagedRanges::of_process();
            let sessions: Vec<_> = (0..devices).map(|_| session()).collect();
            let seen: Option<Vec<_>> = sessions.iter().map(range).collect();
            let Some(seen) = seen else {
                return Ok(());
            };
            let mut want = vec![vec![0; LENGTH]; devices];
            for (what, which, by, at, bytes) in steps {
                let (which, by) = (which % devices, by % devices);
                let (home, by) = (&sessions[which], &sessions[by]);
                let (Seen { start, program }, want_here) = (&seen[which], &mut want[which]);
                match what {
                    0 => {
                        program.overwrite(at, bytes);
                        want_here[at..at + 8].copy_from_slice(&bytes);
                    }
                    1 => prop_assert_eq!(program.part(at, 8), &want_here[at..at + 8]),
                    2 => {
                        let end = (at + 300_000).min(LENGTH);
                        prop_assert_eq!(program.part(at, end - at), &want_here[at..end]);
                    }
                    3 => {
                        // A copy of a device, which needs only its part.
                        ranges.before_use(start + at as u64, 8).unwrap();
                        by.execute();
                        let found = home.with(start + at as u64, 8, |memory| {
                            let found = memory.to_vec();
                            memory.copy_from_slice(&bytes);
                            found
                        });
                        prop_assert_eq!(&found, &want_here[at..at + 8]);
                        want_here[at..at + 8].copy_from_slice(&bytes);
                    }
                    _ => {
                        ranges.before_work().unwrap();
                        by.execute();
                        for ((home, seen), want) in sessions.iter().zip(&seen).zip(&want) {
                            prop_assert!(home.with(seen.start, LENGTH, |memory| memory == want));
                        }
                        let here = start + at as u64;
                        home.with(here, 8, |memory| memory.copy_from_slice(&bytes));
                        want[which][at..at + 8].copy_from_slice(&bytes);
                    }
                }
            }
            for seen in seen {
                ranges.remove(seen.start);
            }
        }
    }

    #[test]
    fn both_may_write_next_to_each_other_while_work_is_in_flight() {
        let _alone = ALONE.lock();
        let ranges = ManagedRanges::of_process();
        let (home, other) = (session(), session());
        let Some(Seen { start, program }) = range(&home) else {
            return;
        };
        for busy in [&home, &other] {
            program.overwrite(0, 1_u64.to_ne_bytes());
            ranges.before_work().unwrap();
            busy.is_busy.store(true, Ordering::Relaxed);
            // The program's page comes from the device, and then both write.
            program.overwrite(8, 2_u64.to_ne_bytes());
            home.with(start + 16, 8, |memory| {
                memory.copy_from_slice(&3_u64.to_ne_bytes())
            });
            busy.is_busy.store(false, Ordering::Relaxed);
            ranges.after_wait().unwrap();
            let all: Vec<u8> = [1_u64, 2, 3]
                .into_iter()
                .flat_map(u64::to_ne_bytes)
                .collect();
            assert_eq!(program.part(0, 24), all);
            ranges.before_work().unwrap();
            assert!(home.with(start, 24, |memory| memory == all));
            program.overwrite(0, [0; 24]);
        }
        ranges.remove(start);
    }

    #[test]
    fn memory_that_was_handed_over_by_parts_is_not_kept_when_it_is_freed() {
        let _alone = ALONE.lock();
        let ranges = ManagedRanges::of_process();
        let home = session();
        for is_accessed in [false, true, false] {
            let Some(Seen { start, program }) = range(&home) else {
                return;
            };
            if is_accessed {
                program.overwrite(0, [1; 8]);
            }
            // As a prefetch does. Then no work has anything to hand over.
            ranges.before_use(start, LENGTH as u64).unwrap();
            assert!(ranges.presence.is_none());
            ranges.before_work().unwrap();
            assert!(ranges.remove(start));
        }
        assert!(ranges.presence.take_ranges().is_empty());
    }

    #[test]
    #[allow(unsafe_code)]
    fn locked_memory_goes_back_and_forth() {
        let _alone = ALONE.lock();
        let ranges = ManagedRanges::of_process();
        let home = session();
        let Some(Seen { start, program }) = range(&home) else {
            return;
        };
        let place =
            std::ptr::with_exposed_provenance::<libc::c_void>(usize::try_from(start).unwrap());
        // Part of one unit, and all of it.
        for length in [4096, 48 << 10, LENGTH] {
            program.overwrite(0, 1_u64.to_ne_bytes());
            // SAFETY: it changes no contents.
            if unsafe { libc::mlock(place, length) } != 0 {
                eprintln!("skipped: locked_memory_goes_back_and_forth: mlock is not permitted");
                break;
            }
            for number in 2..5_u64 {
                ranges.before_work().unwrap();
                home.execute();
                let found = home.with(start, 8, |memory| {
                    let found = memory.to_vec();
                    memory.copy_from_slice(&number.to_ne_bytes());
                    found
                });
                assert_eq!(found, (2 * number - 3).to_ne_bytes());
                assert_eq!(program.part(0, 8), number.to_ne_bytes());
                program.overwrite(0, (2 * number - 1).to_ne_bytes());
            }
        }
        ranges.remove(start);
    }

    #[test]
    fn an_access_fetches_a_long_run_where_the_program_is_expected() {
        const UNIT: usize = 64 << 10;
        let _alone = ALONE.lock();
        let ranges = ManagedRanges::of_process();
        let home = session();
        let Some(Seen { start, program }) = range(&home) else {
            return;
        };
        let fetched = |at| {
            ranges.before_work().unwrap();
            assert_eq!(program.part(at, 1), [0]);
            std::mem::take(&mut *home.fetched.lock())
        };
        // Accesses that are not one run.
        assert_eq!(fetched(5 * UNIT), [UNIT]);
        ranges.want(start + 2 * UNIT as u64, 4 * UNIT as u64, true);
        assert_eq!(fetched(8 * UNIT), [UNIT]);
        assert_eq!(fetched(3 * UNIT), [LENGTH - 3 * UNIT]);
        ranges.want(start, LENGTH as u64, false);
        assert_eq!(fetched(UNIT), [UNIT]);
        ranges.remove(start);
    }
}
