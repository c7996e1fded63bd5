//! The managed memory of a session that migrates, and the thread that serves the
//! program's accesses to it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::managed_range::{ManagedRange, Presence};
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

/// The ranges of one session.
#[derive(Debug, Default)]
pub(crate) struct ManagedRanges {
    presence: Arc<Presence>,
    /// The length of `ranges`.
    count: AtomicUsize,
    handing_over: Mutex<()>,
    ranges: RwLock<BTreeMap<u64, Arc<ManagedRange>>>,
}

impl ManagedRanges {
    /// Adds a range, and returns its address.
    pub(crate) fn add(self: &Arc<Self>, range: ManagedRange) -> u64 {
        let range = range.counted_in(&self.presence);
        let address = range.address();
        let mut sessions = SESSIONS.write();
        sessions.retain(|known| known.strong_count() > 0);
        let own = Arc::downgrade(self);
        if !sessions.iter().any(|known| known.ptr_eq(&own)) {
            sessions.push(own);
        }
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

    fn find(&self, address: u64, size: u64) -> Option<Arc<ManagedRange>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let ranges = self.ranges.read();
        let (_, range) = ranges.range(..=address).next_back()?;
        range.holds(address, size).then(|| Arc::clone(range))
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
        if self.find(address, size).is_some() {
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

    /// The program will access a range.
    pub(crate) fn want(&self, address: u64, size: u64) {
        if let Some(range) = self.find(address, size) {
            range.want(address, size);
        }
    }
}

/// The sessions that have had managed memory.
static SESSIONS: RwLock<Vec<Weak<ManagedRanges>>> = RwLock::new(Vec::new());

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

fn sessions() -> Vec<Arc<ManagedRanges>> {
    SESSIONS.read().iter().filter_map(Weak::upgrade).collect()
}

/// Serves accesses for as long as the process lives. This thread must not access managed
/// memory that is not present, nor wait for a thread that does.
fn serve(faults: &Userfault) {
    let mut loan = LOAN;
    let mut ends: Option<Instant> = None;
    loop {
        let left = ends.map(|end| end.saturating_duration_since(Instant::now()));
        // Rounded up: poll(2) takes whole milliseconds.
        let left = left.map(|left| left + Duration::from_micros(999));
        for fault in faults.faults(left) {
            let found = sessions()
                .iter()
                .find_map(|session| session.find(fault.address, 1));
            match found {
                Some(range) => range.serve(fault),
                // Freed meanwhile. The access ends as one to memory that is not mapped.
                None => faults.wake(fault.address / PAGE * PAGE, PAGE),
            }
        }
        ends = after_loans(&mut loan, ends);
    }
}

/// Takes pages back whose loan is over. Returns when the next loan ends.
fn after_loans(loan: &mut Duration, ends: Option<Instant>) -> Option<Instant> {
    let sessions = sessions();
    let lending = sessions.iter().filter(|session| session.presence.is_lent());
    let lending: Vec<_> = lending.collect();
    if lending.is_empty() {
        *loan = LOAN;
        return None;
    }
    let Some(end) = ends else {
        return Some(Instant::now() + *loan);
    };
    if Instant::now() < end {
        return Some(end);
    }
    for session in lending {
        // If the session is lost, the program learns it from its next call.
        let _ = session.after_wait();
    }
    *loan = (*loan * 2).min(MAX_LOAN);
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::super::managed_range::DeviceContents;
    use super::*;
    use crate::sys::memory::{HostSlice, Pages};

    const LENGTH: usize = 700 << 10;

    /// Device memory.
    #[derive(Debug)]
    struct Device {
        start: u64,
        bytes: Mutex<Vec<u8>>,
        is_busy: AtomicBool,
    }

    /// What a range knows of it.
    #[derive(Debug)]
    struct Contents(Arc<Device>);

    impl Contents {
        fn at(&self, start: u64) -> usize {
            usize::try_from(start - self.0.start).unwrap()
        }
    }

    impl DeviceContents for Contents {
        fn is_busy(&self) -> bool {
            self.0.is_busy.load(Ordering::Relaxed)
        }

        fn send(&self, start: u64, host: HostSlice) -> Result<bool> {
            let at = self.at(start);
            self.0.bytes.lock()[at..at + host.len()].copy_from_slice(host.as_ref());
            Ok(false)
        }

        fn finish(&self) -> Result<()> {
            Ok(())
        }

        fn send_changes(&self, start: u64, former: &[u8], host: HostSlice) -> Result<()> {
            let at = self.at(start);
            let mut bytes = self.0.bytes.lock();
            let now = former.iter().zip(host.as_ref());
            for (byte, (former, now)) in bytes[at..].iter_mut().zip(now) {
                if former != now {
                    *byte = *now;
                }
            }
            Ok(())
        }

        fn fetch(
            &self,
            start: u64,
            size: usize,
            _in_flight: bool,
            take: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
        ) -> Result<()> {
            let at = self.at(start);
            let bytes = self.0.bytes.lock()[at..at + size].to_vec();
            take(0, &bytes)
        }
    }

    /// A session with one range, the program's view of it, and the device. `None` without
    /// the privilege.
    fn range() -> Option<(Arc<ManagedRanges>, HostSlice, Arc<Device>)> {
        use std::sync::atomic::AtomicU64;
        // Addresses that nothing else uses.
        static NEXT: AtomicU64 = AtomicU64::new(0x6100_0000_0000);
        let start = NEXT.fetch_add(16 << 20, Ordering::Relaxed);
        let faults = watcher()?;
        let pages = Pages::new(start, LENGTH as u64).unwrap();
        assert!(faults.watch(start, LENGTH as u64));
        let program = pages.bytes();
        let device = Arc::new(Device {
            start,
            bytes: Mutex::new(vec![0; LENGTH]),
            is_busy: AtomicBool::new(false),
        });
        let ranges = Arc::<ManagedRanges>::default();
        let contents = Box::new(Contents(Arc::clone(&device)));
        ranges.add(ManagedRange::new(pages, faults, contents));
        Some((ranges, program, device))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        /// Before work the device has what the program wrote, and afterwards the program
        /// sees what the device wrote.
        #[test]
        fn each_side_sees_what_the_other_wrote(
            steps in prop::collection::vec((0_u8..5, 0..LENGTH - 8, any::<[u8; 8]>()), 1..200),
        ) {
            let Some((ranges, program, device)) = range() else {
                return Ok(());
            };
            let mut want = vec![0; LENGTH];
            for (what, at, bytes) in steps {
                match what {
                    0 => {
                        program.overwrite(at, bytes);
                        want[at..at + 8].copy_from_slice(&bytes);
                    }
                    1 => prop_assert_eq!(program.part(at, 8), &want[at..at + 8]),
                    2 => {
                        let end = (at + 300_000).min(LENGTH);
                        prop_assert_eq!(program.part(at, end - at), &want[at..end]);
                    }
                    3 => {
                        // A copy of the device, which needs only its part.
                        ranges.before_use(device.start + at as u64, 8).unwrap();
                        let mut memory = device.bytes.lock();
                        prop_assert_eq!(&memory[at..at + 8], &want[at..at + 8]);
                        memory[at..at + 8].copy_from_slice(&bytes);
                        want[at..at + 8].copy_from_slice(&bytes);
                    }
                    _ => {
                        ranges.before_work().unwrap();
                        let mut memory = device.bytes.lock();
                        prop_assert!(*memory == want);
                        memory[at..at + 8].copy_from_slice(&bytes);
                        want[at..at + 8].copy_from_slice(&bytes);
                    }
                }
            }
            ranges.remove(device.start);
        }
    }

    #[test]
    fn both_may_write_next_to_each_other_while_work_is_in_flight() {
        let Some((ranges, program, device)) = range() else {
            return;
        };
        program.overwrite(0, 1_u64.to_ne_bytes());
        ranges.before_work().unwrap();
        device.is_busy.store(true, Ordering::Relaxed);
        // The program's page comes from the device, and then both write.
        program.overwrite(8, 2_u64.to_ne_bytes());
        device.bytes.lock()[16..24].copy_from_slice(&3_u64.to_ne_bytes());
        device.is_busy.store(false, Ordering::Relaxed);
        ranges.after_wait().unwrap();
        let all: Vec<u8> = [1_u64, 2, 3]
            .into_iter()
            .flat_map(u64::to_ne_bytes)
            .collect();
        assert_eq!(program.part(0, 24), all);
        ranges.before_work().unwrap();
        assert_eq!(device.bytes.lock()[..24], all);
        ranges.remove(device.start);
    }
}
