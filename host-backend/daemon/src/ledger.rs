//! An account of memory, and the sessions that have slots in it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io;

use paragpu_control::account::{Account, SLOTS};

/// The account of a tenant, or of its part of a GPU.
#[derive(Debug)]
pub struct Ledger {
    account: Account,
    /// The sessions, by their slot.
    slots: BTreeMap<u32, u64>,
    /// The slots of sessions that arrive from another session of this account, which has not
    /// ended, and that session. Only that one's memory counts.
    arriving: BTreeMap<u32, u64>,
}

impl Ledger {
    /// An account without limits and sessions.
    ///
    /// # Errors
    /// One sentence.
    pub fn new() -> Result<Self, String> {
        let no_memory =
            |error: io::Error| format!("the host has no memory for an account: {error}");
        Ok(Self::of(Account::new().map_err(no_memory)?))
    }

    /// An account of an earlier daemon, without sessions.
    #[must_use]
    pub fn of(account: Account) -> Self {
        Self {
            account,
            slots: BTreeMap::new(),
            arriving: BTreeMap::new(),
        }
    }

    /// The account.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Whether no session has a slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Gives a session an empty slot; `None` if all are taken. `source`: the session that it
    /// continues.
    pub fn enter(&mut self, session: u64, source: Option<u64>) -> Option<u32> {
        let slot = (0..SLOTS).find(|slot| !self.slots.contains_key(slot))?;
        self.account.clear(slot);
        let arrives = |source: &u64| {
            let known = self.slots.values().any(|other| other == source);
            // A hostile host may announce a session repeatedly.
            known && self.arriving.values().all(|other| other != source)
        };
        if let Some(source) = source.filter(arrives) {
            self.account.set_arriving(slot, true);
            self.arriving.insert(slot, source);
        }
        self.slots.insert(slot, session);
        Some(slot)
    }

    /// Lets a session keep the slot that an earlier daemon gave it. Returns false if another
    /// session has it.
    pub fn keep(&mut self, session: u64, slot: u32) -> bool {
        let is_free = slot < SLOTS && !self.slots.contains_key(&slot);
        if is_free {
            // If it was arriving, the session that it continues may be gone.
            self.account.set_arriving(slot, false);
            self.slots.insert(slot, session);
        }
        is_free
    }

    /// Clears the slots of sessions that ended when there was no daemon.
    pub fn clear_others(&self) {
        self.account
            .clear_others(|slot| self.slots.contains_key(&slot));
    }

    /// Clears the slot of a session whose worker has exited.
    pub fn leave(&mut self, session: u64) {
        self.slots.retain(|slot, other| {
            if *other == session {
                self.account.clear(*slot);
                self.arriving.remove(slot);
            }
            *other != session
        });
        self.arriving.retain(|slot, source| {
            if *source == session {
                self.account.set_arriving(*slot, false);
            }
            *source != session
        });
    }

    /// The sessions.
    pub fn sessions(&self) -> impl Iterator<Item = u64> {
        self.slots.values().copied()
    }

    /// Charges a session, if it has a slot, for device memory that it freed while others have it
    /// mapped.
    pub fn charge_lent(&self, session: u64, bytes: u64) {
        let mut slots = self.slots.iter();
        if let Some((slot, _)) = slots.find(|(_, other)| **other == session) {
            self.account.charge_lent(*slot, bytes);
        }
    }
}
