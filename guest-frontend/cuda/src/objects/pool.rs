//! A memory pool: a handle for memory of a device or the host, with an account.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BTreeSet, HashSet};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use paragpu_client::sys::shared_page::unique;
use paragpu_client::{Result as Answer, Session};
use parking_lot::{Mutex, MutexGuard};

use crate::managed::Location;

/// The location of a pool's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolLocation {
    /// Memory of the device with this ordinal.
    Device(u32),
    /// Pinned memory of the host, or of one of its NUMA nodes.
    Host(Location),
    /// Managed memory that prefers this location.
    Managed(Location),
}

impl PoolLocation {
    /// The device's ordinal, for memory of a device.
    #[must_use]
    pub fn ordinal(self) -> Option<u32> {
        match self {
            Self::Device(ordinal) => Some(ordinal),
            Self::Host(_) | Self::Managed(_) => None,
        }
    }
}

/// A memory pool.
#[derive(Debug)]
pub struct Pool {
    location: PoolLocation,
    state: Mutex<PoolState>,
    account: Arc<Account>,
    /// The number that another process gave it, if it belongs to that process.
    imports: Option<u64>,
}

/// The attributes of a pool that a program set.
#[derive(Debug)]
pub struct PoolState {
    /// The three reuse policies.
    pub reuse: [c_int; 3],
    /// Ordinals of the devices that have access to memory in the host.
    pub accessed_by: BTreeSet<u32>,
}

/// The memory use of a pool.
#[derive(Debug)]
pub struct Account {
    /// Maximum number of bytes; 0 for no limit.
    limit: u64,
    /// The number by which other processes refer to it.
    number: Option<u64>,
    /// The program's handle of the pool.
    handle: AtomicUsize,
    used: Mutex<Use>,
}

/// The current and the highest number of bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// The current number.
    pub now: u64,
    /// The high-water mark since the last [`Account::reset_used`] or
    /// [`Account::reset_reserved`].
    pub most: u64,
}

impl Level {
    fn set(&mut self, now: u64) {
        self.now = now;
        self.most = self.most.max(now);
    }
}

#[derive(Debug, Default)]
struct Use {
    used: Level,
    /// In units of [`UNIT`], as NVIDIA's driver reports it.
    reserved: Level,
    /// Bytes that stay reserved over a wait (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).
    threshold: u64,
    /// The value of [`WAITS`] when memory was last freed.
    freed: u64,
}

/// Bytes by which a pool's reservation grows.
const UNIT: u64 = 32 << 20;

/// Counts the program's waits for its work. A pool releases unused memory at a
/// wait; here it does so at its next use.
static WAITS: AtomicU64 = AtomicU64::new(0);

/// Called when the program waited for work of a stream, an event or a context of a
/// session: its pools free memory beyond their release threshold.
///
/// # Errors
/// The error of an ended session.
pub fn waited(session: &Session) -> Answer<()> {
    note_wait();
    match session.memory().pools_keep() {
        true => session.memory().settle_pools(may_keep),
        false => Ok(()),
    }
}

fn note_wait() {
    WAITS.fetch_add(1, Ordering::Relaxed);
}

/// The accounts of the program's pools, by its handles.
static ACCOUNTS: Mutex<BTreeMap<usize, Weak<Account>>> = Mutex::new(BTreeMap::new());

/// Bytes that the pool with this handle may keep over a wait, beyond those in use.
#[must_use]
pub fn may_keep(handle: usize) -> u64 {
    let account = ACCOUNTS.lock().get(&handle).and_then(Weak::upgrade);
    account.map_or(0, |account| account.spare())
}

/// Called when the program destroyed the pool with this handle, which now keeps nothing.
pub fn ended(handle: usize) {
    ACCOUNTS.lock().remove(&handle);
}

impl Use {
    /// Releases memory that was free at a wait in the meantime.
    fn settle(&mut self) {
        if WAITS.load(Ordering::Relaxed) != self.freed {
            self.give_up(self.threshold);
        }
    }

    /// Keeps at most `keep` bytes beyond those in use.
    fn give_up(&mut self, keep: u64) {
        let least = self.used.now.max(keep);
        let least = least.checked_next_multiple_of(UNIT).unwrap_or(least);
        self.reserved.now = self.reserved.now.min(least);
    }
}

/// Memory from pools: address to size and pool.
static TAKEN: Mutex<BTreeMap<u64, (u64, Arc<Account>)>> = Mutex::new(BTreeMap::new());

impl Pool {
    /// A pool of at most `limit` bytes in whole [`UNIT`]s, as natively (0 for no limit).
    #[must_use]
    pub fn new(location: PoolLocation, limit: u64) -> Self {
        Self::with_number(location, limit, None)
    }

    /// A pool of a device's memory that can be shared with other processes.
    #[must_use]
    pub fn for_others(ordinal: u32, limit: u64) -> Self {
        let number = unique() & !Self::ORDINALS;
        Self::with_number(PoolLocation::Device(ordinal), limit, Some(number))
    }

    /// A pool of another process, which gave it this number.
    #[must_use]
    pub fn imported(ordinal: u32, number: u64) -> Self {
        Self {
            imports: Some(number),
            ..Self::new(PoolLocation::Device(ordinal), 0)
        }
    }

    fn with_number(location: PoolLocation, limit: u64, number: Option<u64>) -> Self {
        Self {
            location,
            imports: None,
            state: Mutex::new(PoolState {
                reuse: [1; 3],
                accessed_by: BTreeSet::new(),
            }),
            account: Arc::new(Account {
                limit: limit.checked_next_multiple_of(UNIT).unwrap_or(limit),
                number,
                handle: AtomicUsize::new(0),
                used: Mutex::new(Use::default()),
            }),
        }
    }

    /// The bits of the device in a number that identifies a pool to other processes. They
    /// are 0 in the pool's own number.
    pub const ORDINALS: u64 = 0xff;

    /// Its handles for other processes.
    #[must_use]
    pub fn shared(&self) -> Option<u64> {
        self.account.number
    }

    /// The number that the owning process gave it, if it belongs to another process.
    #[must_use]
    pub fn imports(&self) -> Option<u64> {
        self.imports
    }

    /// The location of its memory.
    #[must_use]
    pub fn location(&self) -> PoolLocation {
        self.location
    }

    /// The values that the program set.
    pub fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock()
    }

    /// Its memory use.
    #[must_use]
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

impl Account {
    /// Sets the program's handle.
    pub fn named(self: &Arc<Self>, handle: usize) {
        self.handle.store(handle, Ordering::Relaxed);
        ACCOUNTS.lock().insert(handle, Arc::downgrade(self));
    }

    fn handle(&self) -> usize {
        self.handle.load(Ordering::Relaxed)
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> Level {
        self.used.lock().used
    }

    /// Bytes that the pool holds, including those in use.
    #[must_use]
    pub fn reserved(&self) -> Level {
        let mut account = self.used.lock();
        account.settle();
        account.reserved
    }

    /// Resets the maximum in use.
    pub fn reset_used(&self) {
        let used = &mut self.used.lock().used;
        used.most = used.now;
    }

    /// Resets the maximum reserved.
    pub fn reset_reserved(&self) {
        let mut account = self.used.lock();
        account.settle();
        account.reserved.most = account.reserved.now;
    }

    /// Bytes that the pool keeps over a wait.
    #[must_use]
    pub fn threshold(&self) -> u64 {
        self.used.lock().threshold
    }

    /// Bytes that the pool keeps over a wait, beyond those in use.
    #[must_use]
    pub fn spare(&self) -> u64 {
        let account = self.used.lock();
        account.threshold.saturating_sub(account.used.now)
    }

    /// The program's handle, if no other process knows the pool.
    #[must_use]
    pub fn owner(&self) -> Option<usize> {
        self.number.is_none().then(|| self.handle())
    }

    /// Sets the bytes that the pool keeps over a wait.
    pub fn set_threshold(&self, bytes: u64) {
        let mut account = self.used.lock();
        account.settle();
        account.threshold = bytes;
    }

    /// Releases memory beyond `keep` bytes that is not in use.
    pub fn trim(&self, keep: u64) {
        self.used.lock().give_up(keep);
    }

    /// Takes bytes. Returns false if that would exceed the limit.
    #[must_use]
    pub fn take(&self, size: u64) -> bool {
        let mut account = self.used.lock();
        let now = account.used.now.saturating_add(size);
        if self.limit != 0 && now > self.limit {
            return false;
        }
        account.settle();
        account.used.set(now);
        let whole = now.checked_next_multiple_of(UNIT).unwrap_or(now);
        let reserved = account.reserved.now.max(whole);
        account.reserved.set(reserved);
        true
    }

    /// Returns bytes.
    pub fn give_back(&self, size: u64) {
        let mut account = self.used.lock();
        account.settle();
        account.used.now = account.used.now.saturating_sub(size);
        account.freed = WAITS.load(Ordering::Relaxed);
    }

    /// Records the address of bytes that were taken.
    pub fn placed(self: &Arc<Self>, address: u64, size: u64) {
        TAKEN.lock().insert(address, (size, Arc::clone(self)));
    }
}

/// Frees memory that may have come from a pool. The pool is updated before another thread
/// can get the address.
///
/// # Errors
/// The error of `free`.
pub fn freeing(address: u64, free: impl FnOnce() -> Answer<()>) -> Answer<()> {
    let taken = TAKEN.lock().remove(&address);
    free()?;
    if let Some((size, account)) = taken {
        account.give_back(size);
    }
    Ok(())
}

/// Frees memory in stream order, if it came from a pool of this process that no other
/// process uses, as [`freeing`] does. `free` receives the program's handle of the pool.
/// Returns None for other memory.
///
/// # Errors
/// The error of `free`.
pub fn freeing_own(address: u64, free: impl FnOnce(usize) -> Answer<()>) -> Option<Answer<()>> {
    let (owner, (size, account)) = match TAKEN.lock().entry(address) {
        Entry::Occupied(entry) => (entry.get().1.owner()?, entry.remove()),
        Entry::Vacant(_) => return None,
    };
    Some(free(owner).map(|()| account.give_back(size)))
}

/// Records that memory was freed that may have come from a pool.
fn freed(address: u64) {
    let _ = freeing(address, || Ok(()));
}

/// Records that all memory of a range of addresses was freed, except that at `kept`.
pub fn freed_all(range: std::ops::Range<u64>, kept: &HashSet<u64>) {
    let taken: Vec<u64> = TAKEN.lock().range(range).map(|(at, _)| *at).collect();
    let freed_now = taken.into_iter().filter(|at| !kept.contains(at));
    freed_now.for_each(freed);
}

/// The program's handle of the pool that memory came from; 0 for none.
#[must_use]
pub fn of(address: u64) -> usize {
    TAKEN
        .lock()
        .get(&address)
        .map_or(0, |(_, account)| account.handle())
}

/// The number of the shared pool whose memory begins at an address.
#[must_use]
pub fn shared_of(address: u64) -> Option<u64> {
    TAKEN.lock().get(&address)?.1.number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_counts_until_it_is_freed() {
        // The limit is that of whole units.
        let pool = Pool::new(PoolLocation::Device(0), 100);
        let (account, rest) = (pool.account(), UNIT - 60);
        account.named(5);
        assert!(account.take(60) && !account.take(rest + 1));
        account.placed(1000, 60);
        assert_eq!((of(1000), of(1001)), (5, 0));
        assert!(account.take(rest));
        account.placed(2000, rest);
        freed(1000);
        freed(1000);
        let level = |now, most| Level { now, most };
        assert_eq!(account.used(), level(rest, UNIT));
        account.reset_used();
        freed_all(1500..2500, &HashSet::from([2000]));
        assert_eq!((account.used(), of(2000)), (level(rest, rest), 5));
        freed_all(1500..2500, &HashSet::new());
        assert_eq!((account.used(), of(2000)), (level(0, rest), 0));
    }

    #[test]
    fn freed_memory_stays_reserved_until_a_wait() {
        let pool = Pool::new(PoolLocation::Device(0), 0);
        let account = pool.account();
        assert!(account.take(3 * UNIT + 1));
        assert_eq!(
            account.reserved(),
            Level {
                now: 4 * UNIT,
                most: 4 * UNIT
            }
        );
        account.give_back(3 * UNIT);
        assert_eq!(account.reserved().now, 4 * UNIT);
        note_wait();
        assert_eq!(
            account.reserved(),
            Level {
                now: UNIT,
                most: 4 * UNIT
            }
        );
        account.reset_reserved();
        assert_eq!(account.reserved().most, UNIT);

        account.named(77);
        assert_eq!(may_keep(77), 0);
        account.set_threshold(5 * UNIT);
        assert_eq!(may_keep(77), 5 * UNIT - 1);
        ended(77);
        assert_eq!(may_keep(77), 0);

        account.set_threshold(u64::MAX);
        assert!(account.take(UNIT));
        account.give_back(UNIT);
        note_wait();
        assert_eq!(account.reserved().now, 2 * UNIT);
        account.trim(0);
        assert_eq!(account.reserved().now, UNIT);
    }
}
