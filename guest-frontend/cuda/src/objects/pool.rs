//! A memory pool: a name for memory of a device, and an account of it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

use paragpu_client::sys::shared_page::unique;
use parking_lot::{Mutex, MutexGuard};

/// A memory pool.
#[derive(Debug)]
pub struct Pool {
    ordinal: u32,
    state: Mutex<PoolState>,
    account: Arc<Account>,
    /// It is another process's, which gave it this number.
    imports: Option<u64>,
}

/// What a program set of a pool.
#[derive(Debug)]
pub struct PoolState {
    /// The three reuse policies.
    pub reuse: [c_int; 3],
    /// Bytes that the pool keeps; without effect.
    pub threshold: u64,
}

/// What a pool's memory comes to.
#[derive(Debug)]
pub struct Account {
    /// Most bytes; 0 for all there are.
    limit: u64,
    /// Other processes may know it by this.
    number: Option<u64>,
    /// What the program calls the pool by.
    handle: Mutex<usize>,
    /// Bytes in use, now and at most.
    used: Mutex<(u64, u64)>,
}

/// Memory that came from pools: first address to bytes and whose it is.
static TAKEN: Mutex<BTreeMap<u64, (u64, Arc<Account>)>> = Mutex::new(BTreeMap::new());

impl Pool {
    /// A pool of a device's memory, of at most `limit` bytes (0: all there are).
    #[must_use]
    pub fn new(ordinal: u32, limit: u64) -> Self {
        Self::with_number(ordinal, limit, None)
    }

    /// The same for other processes, too.
    #[must_use]
    pub fn for_others(ordinal: u32, limit: u64) -> Self {
        Self::with_number(ordinal, limit, Some(unique() & !Self::ORDINALS))
    }

    /// A pool of another process, which gave it this number.
    #[must_use]
    pub fn imported(ordinal: u32, number: u64) -> Self {
        Self {
            imports: Some(number),
            ..Self::new(ordinal, 0)
        }
    }

    fn with_number(ordinal: u32, limit: u64, number: Option<u64>) -> Self {
        Self {
            ordinal,
            imports: None,
            state: Mutex::new(PoolState {
                reuse: [1; 3],
                threshold: 0,
            }),
            account: Arc::new(Account {
                limit,
                number,
                handle: Mutex::new(0),
                used: Mutex::new((0, 0)),
            }),
        }
    }

    /// In what names a pool to other processes the bits of its device's number;
    /// in the pool's own number they are 0.
    pub const ORDINALS: u64 = 0xff;

    /// What other processes may know it by.
    #[must_use]
    pub fn shared(&self) -> Option<u64> {
        self.account.number
    }

    /// The number that another process gave it, whose pool it is.
    #[must_use]
    pub fn imports(&self) -> Option<u64> {
        self.imports
    }

    /// Its device's number.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// What the program set.
    pub fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock()
    }

    /// What its memory comes to.
    #[must_use]
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

impl Account {
    /// The program calls the pool by this.
    pub fn named(&self, handle: usize) {
        *self.handle.lock() = handle;
    }

    /// Bytes in use, now and at most.
    #[must_use]
    pub fn used(&self) -> (u64, u64) {
        *self.used.lock()
    }

    /// The most that was in use counts from now on.
    pub fn reset(&self) {
        let mut used = self.used.lock();
        used.1 = used.0;
    }

    /// May so many bytes be taken? They are then.
    #[must_use]
    pub fn take(&self, size: u64) -> bool {
        let mut used = self.used.lock();
        let now = used.0.saturating_add(size);
        if self.limit != 0 && now > self.limit {
            return false;
        }
        *used = (now, used.1.max(now));
        true
    }

    /// Bytes that were taken are given back.
    pub fn give_back(&self, size: u64) {
        let mut used = self.used.lock();
        used.0 = used.0.saturating_sub(size);
    }

    /// Bytes that were taken lie at an address.
    pub fn placed(self: &Arc<Self>, address: u64, size: u64) {
        TAKEN.lock().insert(address, (size, Arc::clone(self)));
    }
}

/// Memory was freed that may have come from a pool.
pub fn freed(address: u64) {
    if let Some((size, account)) = TAKEN.lock().remove(&address) {
        account.give_back(size);
    }
}

/// All memory of a range of addresses was freed.
pub fn freed_all(range: std::ops::Range<u64>) {
    let taken: Vec<u64> = TAKEN.lock().range(range).map(|(at, _)| *at).collect();
    taken.into_iter().for_each(freed);
}

/// What the program calls the pool by that memory came from; 0 for none.
#[must_use]
pub fn of(address: u64) -> usize {
    TAKEN
        .lock()
        .get(&address)
        .map_or(0, |(_, account)| *account.handle.lock())
}

/// What other processes may know the pool by whose memory begins at an address.
#[must_use]
pub fn shared_of(address: u64) -> Option<u64> {
    TAKEN.lock().get(&address)?.1.number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_counts_until_it_is_freed() {
        let pool = Pool::new(0, 100);
        let account = pool.account();
        account.named(5);
        assert!(account.take(60) && !account.take(50));
        account.placed(1000, 60);
        assert_eq!((of(1000), of(1001)), (5, 0));
        assert!(account.take(40));
        account.placed(2000, 40);
        freed(1000);
        freed(1000);
        assert_eq!(account.used(), (40, 100));
        account.reset();
        freed_all(1500..2500);
        assert_eq!((account.used(), of(2000)), ((0, 40), 0));
    }
}
