//! The managed memory of a session that migrates, and the thread that serves the
//! program's accesses to it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::managed_range::{ManagedRange, Presence};
use crate::error::Result;
use crate::sys::process::spawn;
use crate::sys::userfault::{Userfault, Watch};

/// How long pages are lent that were provided while work is in flight. A program that
/// polls them sees the device's writes after that time, and the device the program's.
/// Doubled, up to the maximum, as long as work stays in flight.
const LOAN: Duration = Duration::from_millis(1);
const MAX_LOAN: Duration = Duration::from_millis(16);

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
                None => faults.wake(fault.address & !0xfff, 0x1000),
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
