//! Memory shared with other sessions of the VM.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use paragpu_control::exchange::{Ask, Offer, Token};
use paragpu_protocol::layout::Regions;

use super::gpu::Gpu;
use crate::exchange::Exchange;

/// Why memory is not offered.
pub(crate) const NOT_ACCEPTED: &str =
    "the daemon does not accept offers of memory to other processes";

/// The memory that a session shares. While it shares any, the session cannot move alone:
/// the others would continue to use memory that it left behind.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub(crate) exchange: Arc<Exchange>,
    /// Offered mappings: address to token.
    offered: BTreeMap<u64, Token>,
    /// Mappings that other sessions offer, by address.
    taken: BTreeMap<u64, ImportedMapping>,
    /// The offer by which other sessions query peer access to the device.
    pub(crate) name: Option<Token>,
}

/// A mapping that another session offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImportedMapping {
    /// Bytes.
    pub(crate) size: u64,
    /// Its token.
    pub(crate) token: Token,
}

/// Whether memory of another session that is mapped at `place` stays charged to that session: it
/// is in the arena of another device.
fn is_borrowed(gpu: &Gpu, [address, size]: [u64; 2]) -> bool {
    !Regions::holds(gpu.regions().arena, address, size)
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
        self.taken.contains_key(&base)
    }

    /// Whether other sessions may have taken memory of this one.
    pub(crate) fn offers(&self) -> bool {
        !self.offered.is_empty()
    }

    /// The offered mappings: address and token.
    pub(crate) fn offered(&self) -> impl Iterator<Item = (u64, Token)> + '_ {
        self.offered.iter().map(|(base, token)| (*base, *token))
    }

    /// The mappings that other sessions offer, by address.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (u64, ImportedMapping)> + '_ {
        self.taken.iter().map(|(base, taken)| (*base, *taken))
    }

    /// Offers memory to the VM's other sessions. `None` if the daemon does not accept it.
    pub(crate) fn propose(&self, ask: Ask, memory: &OwnedFd) -> Option<Offer> {
        self.exchange.query(ask, &[memory.as_fd()])?.offer
    }

    /// The offer of another session of the VM with this token.
    pub(crate) fn find(&self, token: Token) -> Option<(Offer, OwnedFd)> {
        self.query(Ask::Take(token))
    }

    /// The same, to be mapped at `place`: address and bytes.
    /// [`give_back`](Self::give_back) follows once it is not, or no longer.
    pub(crate) fn find_for(
        &self,
        gpu: &Gpu,
        place: [u64; 2],
        token: Token,
    ) -> Option<(Offer, OwnedFd)> {
        match is_borrowed(gpu, place) {
            true => self.query(Ask::Borrow(token)),
            false => self.query(Ask::Join(token)),
        }
    }

    fn query(&self, ask: Ask) -> Option<(Offer, OwnedFd)> {
        let answer = self.exchange.query(ask, &[])?;
        Some((answer.offer?, answer.memory?))
    }

    /// Reports that memory is mapped nowhere, if that was the last mapping of it.
    pub(crate) fn give_back(&self, token: Token) {
        if self.taken.values().all(|taken| taken.token != token) {
            // If the daemon is gone, nothing is charged.
            let _ = self.exchange.query(Ask::Return(token), &[]);
        }
    }

    /// Records that a mapping is offered.
    pub(crate) fn offer(&mut self, base: u64, token: Token) {
        self.offered.insert(base, token);
    }

    /// Records the end of a mapping. Returns whether it was offered.
    pub(crate) fn withdraw(&mut self, base: u64) -> bool {
        let Some(token) = self.offered.remove(&base) else {
            return false;
        };
        // The guest's call ends after this: then no other session can take the memory. If
        // the daemon is gone, none can.
        let _ = self.exchange.query(Ask::Withdraw(token), &[]);
        true
    }

    /// Records that memory of another session is mapped at an address.
    pub(crate) fn take(&mut self, base: u64, taken: ImportedMapping) {
        self.taken.insert(base, taken);
    }

    /// Records that it is unmapped, and returns it. `None` if it was not mapped.
    pub(crate) fn leave(&mut self, base: u64) -> Option<ImportedMapping> {
        self.taken.remove(&base)
    }

    /// The reason why the session cannot move alone, if any.
    pub(crate) fn move_blocker(&self) -> Option<String> {
        match (self.offered.len(), self.taken.len()) {
            (0, 0) => None,
            (offered, taken) => Some(format!(
                "the session shares device memory with other processes of its VM ({offered} \
                 mappings of its own, {taken} of others): it moves together with them \
                 (--vm), or alone once they are freed or closed"
            )),
        }
    }
}
