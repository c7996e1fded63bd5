//! Accounts host memory that the worker holds for its guest (shadows, images,
//! modules, objects, queued calls and work, frames) to the session and to its VM.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_device::HostMemory;
use paragpu_protocol::status::Status;

use crate::error::{Outcome, fail};
use crate::statistics::Statistics;
use paragpu_control::account::Share;

/// More than any host has, and so little that sums of two do not overflow.
const MOST: u64 = 1 << 62;

/// The account of a session.
#[derive(Debug)]
pub(crate) struct HostAccount {
    /// Bytes charged. Threads of host functions send frames, and so charge, too.
    held: AtomicU64,
    statistics: Arc<Statistics>,
    /// The VM's account.
    share: Share,
}

/// A charge of bytes, returned when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<HostAccount>,
    bytes: u64,
}

impl HostAccount {
    /// Charges to this share of the VM's account.
    pub(crate) fn new(share: Share, statistics: Arc<Statistics>) -> Arc<Self> {
        Arc::new(Self {
            held: AtomicU64::new(0),
            statistics,
            share,
        })
    }

    /// Charges bytes.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if it would exceed the VM's limit.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Outcome<Charge> {
        self.add(bytes)?;
        Ok(Charge {
            account: Arc::clone(self),
            bytes,
        })
    }

    /// Bytes charged to the session.
    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Creates an empty charge that can grow.
    pub(crate) fn open(self: &Arc<Self>) -> Charge {
        Charge {
            account: Arc::clone(self),
            bytes: 0,
        }
    }

    fn add(&self, bytes: u64) -> Outcome<()> {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > MOST || !self.share.take(bytes) {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            let limit = self.share.limit();
            return fail(
                Status::OUT_OF_MEMORY,
                format!(
                    "the sessions of this VM are together limited to {limit} bytes of host memory \
                     (limits.per_vm_host_memory)"
                ),
            );
        }
        self.publish();
        Ok(())
    }

    /// Returns bytes.
    fn give_back(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.publish();
        self.share.give_back(bytes);
    }

    /// Publishes the bytes charged in the session's counters.
    fn publish(&self) {
        let held = self.held.load(Ordering::Relaxed);
        self.statistics.host_memory.set(held);
    }
}

impl HostMemory for HostAccount {
    fn charge(&self, bytes: u64) -> bool {
        self.add(bytes).is_ok()
    }

    fn discharge(&self, bytes: u64) {
        self.give_back(bytes);
    }
}

impl Charge {
    /// Charges more.
    ///
    /// # Errors
    /// As [`HostAccount::take`].
    pub(crate) fn grow(&mut self, bytes: u64) -> Outcome<()> {
        self.account.add(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Bytes charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes over another charge to the same account.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Returns a part.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        if bytes > 0 {
            self.bytes -= bytes;
            self.account.give_back(bytes);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_overflow() {
        let account = HostAccount::new(Share::default(), Arc::default());
        let all = account.take(1 << 40).unwrap();
        assert_eq!(account.held(), 1 << 40);
        // Sizes that guests name.
        for absurd in [u64::MAX, u64::MAX - (1 << 40) + 1, 1 << 63] {
            account.take(absurd).unwrap_err();
            assert!(!account.charge(absurd));
        }
        drop(all);
        assert_eq!(account.held(), 0);
    }
}
