//! Memory shared with other sessions of the VM.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paragpu_control::exchange::{Ask, Token};

use crate::exchange::Exchange;

/// The memory that a session shares. While it shares any, the session cannot move:
/// the others would continue with memory that it left behind.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub(crate) exchange: Arc<Exchange>,
    /// Offered mappings: address to token.
    offered: BTreeMap<u64, Token>,
    /// Addresses of mappings that other sessions offer.
    taken: BTreeSet<u64>,
}

impl Sharing {
    /// The token of an offered mapping.
    pub(crate) fn token(&self, base: u64) -> Option<Token> {
        self.offered.get(&base).copied()
    }

    /// Whether the token is for the session's own memory.
    pub(crate) fn is_own(&self, token: &Token) -> bool {
        self.offered.values().any(|own| own == token)
    }

    /// Whether memory of another session is mapped there.
    pub(crate) fn is_taken(&self, base: u64) -> bool {
        self.taken.contains(&base)
    }

    /// Notes that a mapping is offered.
    pub(crate) fn offer(&mut self, base: u64, token: Token) {
        self.offered.insert(base, token);
    }

    /// Notes the end of a mapping. Returns whether it was offered.
    pub(crate) fn withdraw(&mut self, base: u64) -> bool {
        let Some(token) = self.offered.remove(&base) else {
            return false;
        };
        self.exchange.tell(Ask::Withdraw(token));
        true
    }

    /// Notes that memory of another session is mapped at an address.
    pub(crate) fn take(&mut self, base: u64) {
        self.taken.insert(base);
    }

    /// Notes that it is unmapped. False if it was not mapped.
    pub(crate) fn leave(&mut self, base: u64) -> bool {
        self.taken.remove(&base)
    }

    /// One sentence that says why the session cannot move, if it cannot.
    pub(crate) fn hindrance(&self) -> Option<String> {
        match (self.offered.len(), self.taken.len()) {
            (0, 0) => None,
            (offered, taken) => Some(format!(
                "the session shares device memory with other processes of its VM ({offered} \
                 mappings of its own, {taken} of others): it can move once they are freed or \
                 closed"
            )),
        }
    }
}
