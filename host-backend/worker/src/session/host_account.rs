//! Accounts host memory that the worker holds for its guest (shadows, images,
//! modules) to the session and to its VM.

use std::sync::{Arc, OnceLock};

use paragpu_protocol::status::Status;

use crate::error::{Outcome, fail};
use crate::statistics::Statistics;
use paragpu_control::account::Share;

/// Host memory of a session where nothing else is assigned.
const MOST: u64 = 32 << 30;

/// The session's account.
#[derive(Debug)]
pub(crate) struct HostAccount {
    /// Maximum number of bytes of the session.
    limit: u64,
    statistics: Arc<Statistics>,
    /// The VM's account, once it is known.
    share: OnceLock<Share>,
}

/// Bytes that are counted for as long as this lives.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<HostAccount>,
    bytes: u64,
}

impl HostAccount {
    /// Of a session that may hold `limit` bytes; 0 for 32 GiB.
    pub(crate) fn new(limit: u64, statistics: Arc<Statistics>) -> Arc<Self> {
        let limit = if limit == 0 { MOST } else { limit };
        Arc::new(Self {
            limit,
            statistics,
            share: OnceLock::new(),
        })
    }

    /// The session's memory counts for its VM as well.
    pub(crate) fn count_for(&self, share: Share) {
        // Only once, before the session holds anything.
        let _ = self.share.set(share);
    }

    /// Counts bytes.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` where session or VM would have more than they may.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Outcome<Charge> {
        self.add(bytes)?;
        Ok(Charge {
            account: Arc::clone(self),
            bytes,
        })
    }

    /// Bytes that the session holds.
    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.statistics.host_memory.get()
    }

    fn add(&self, bytes: u64) -> Outcome<()> {
        let held = self.statistics.host_memory.get().saturating_add(bytes);
        if held > self.limit {
            let limit = self.limit;
            return fail(
                Status::OUT_OF_MEMORY,
                format!("the session may have {limit} bytes of host memory"),
            );
        }
        if let Some(share) = self.share.get()
            && !share.take(bytes)
        {
            let limit = share.limit();
            return fail(
                Status::OUT_OF_MEMORY,
                format!("the VM may have {limit} bytes of host memory in all its sessions"),
            );
        }
        self.statistics.host_memory.set(held);
        Ok(())
    }
}

impl Charge {
    /// Counts more.
    ///
    /// # Errors
    /// As [`HostAccount::take`].
    pub(crate) fn grow(&mut self, bytes: u64) -> Outcome<()> {
        self.account.add(bytes)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let counter = &self.account.statistics.host_memory;
        counter.set(counter.get().saturating_sub(self.bytes));
        if let Some(share) = self.account.share.get() {
            share.give_back(self.bytes);
        }
    }
}
