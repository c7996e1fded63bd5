//! Memory that the session shares with others of its VM.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paragpu_control::exchange::{Ask, Token};

use crate::exchange::Exchange;

/// What a session shares. While it shares anything it does not move: the others
/// would continue with the memory that it left.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub(crate) exchange: Arc<Exchange>,
    /// First address of a mapping to the name under which it is offered.
    offered: BTreeMap<u64, Token>,
    /// First addresses of what was taken from others.
    taken: BTreeSet<u64>,
}

impl Sharing {
    /// The name under which a mapping is offered.
    pub(crate) fn token(&self, base: u64) -> Option<Token> {
        self.offered.get(&base).copied()
    }

    /// Is that a name of the session's own memory?
    pub(crate) fn is_own(&self, token: &Token) -> bool {
        self.offered.values().any(|own| own == token)
    }

    /// Does memory of another session lie there?
    pub(crate) fn is_taken(&self, base: u64) -> bool {
        self.taken.contains(&base)
    }

    /// A mapping is offered.
    pub(crate) fn offer(&mut self, base: u64, token: Token) {
        self.offered.insert(base, token);
    }

    /// A mapping ends: was it offered?
    pub(crate) fn withdraw(&mut self, base: u64) -> bool {
        let Some(token) = self.offered.remove(&base) else {
            return false;
        };
        self.exchange.tell(Ask::Withdraw(token));
        true
    }

    /// Memory of another session lies at an address from now on.
    pub(crate) fn take(&mut self, base: u64) {
        self.taken.insert(base);
    }

    /// It does not lie there any more; false if it did not.
    pub(crate) fn leave(&mut self, base: u64) -> bool {
        self.taken.remove(&base)
    }

    /// Why the session cannot move, in a sentence.
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
