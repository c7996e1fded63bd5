//! Memory that the sessions of one VM share. The daemon holds one descriptor per offer.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use paragpu_control::exchange::{Offer, Token};

/// Maximum number of offers of a VM. Each uses a descriptor of the daemon.
const MAX_OFFERS: usize = if cfg!(test) { 8 } else { 4096 };

/// An offer and its memory.
#[derive(Debug)]
struct Offered {
    /// The session that made the offer.
    session: u64,
    offer: Offer,
    memory: OwnedFd,
}

/// The offers of a VM's sessions, by token. While sessions move from this host to this
/// host, the source and the destination of a session offer memory under one name.
#[derive(Debug, Default)]
pub struct Offers(BTreeMap<Token, Vec<Offered>>);

impl Offers {
    fn is_full(&self) -> bool {
        self.0.values().map(Vec::len).sum::<usize>() >= MAX_OFFERS
    }

    /// Adds an offer of `session`. Returns `None` if the VM has too many, or the token is
    /// already in use.
    pub fn add(&mut self, session: u64, offer: Offer, memory: OwnedFd) -> Option<Offer> {
        match self.0.contains_key(&offer.token) {
            true => None,
            false => self.add_again(session, offer, memory),
        }
    }

    /// Adds an offer of `session`, whose token another session may use. Returns `None` if
    /// the VM has too many, or `session` itself uses the token.
    pub fn add_again(&mut self, session: u64, offer: Offer, memory: OwnedFd) -> Option<Offer> {
        if self.is_full() {
            return None;
        }
        let held = self.0.entry(offer.token).or_default();
        if held.iter().any(|held| held.session == session) {
            return None;
        }
        held.push(Offered {
            session,
            offer,
            memory,
        });
        Some(offer)
    }

    /// Removes an offer of `session`. Does nothing if another session made it.
    pub fn withdraw(&mut self, session: u64, token: &Token) {
        if let Some(held) = self.0.get_mut(token) {
            held.retain(|held| held.session != session);
            if held.is_empty() {
                self.0.remove(token);
            }
        }
    }

    /// Finds an offer by its token, of a session that is `right`; and that session.
    #[must_use]
    pub fn find(
        &self,
        token: &Token,
        right: impl Fn(u64) -> bool,
    ) -> Option<(u64, Offer, BorrowedFd<'_>)> {
        let held = self.0.get(token)?;
        let held = held.iter().find(|held| right(held.session))?;
        Some((held.session, held.offer, held.memory.as_fd()))
    }

    /// Removes all offers of a session that has ended or left.
    pub fn release(&mut self, session: u64) {
        self.0.retain(|_, held| {
            held.retain(|held| held.session != session);
            !held.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn offer(name: u8) -> Offer {
        Offer {
            token: [name; 16],
            size: 1,
            domain: [0; 16],
        }
    }

    #[test]
    fn only_its_session_withdraws_an_offer() {
        let mut offers = Offers::default();
        assert!(offers.add(1, offer(1), memory()).is_some());
        assert!(offers.add(2, offer(1), memory()).is_none());
        assert!(offers.add(2, offer(2), memory()).is_some());
        offers.withdraw(2, &[1; 16]);
        assert_eq!(offers.find(&[1; 16], |_| true).unwrap().1, offer(1));
        offers.withdraw(1, &[1; 16]);
        assert!(offers.find(&[1; 16], |_| true).is_none());
        offers.release(1);
        assert!(offers.find(&[2; 16], |_| true).is_some());
        offers.release(2);
        assert!(offers.find(&[2; 16], |_| true).is_none());
    }

    #[test]
    fn two_sessions_offer_the_two_ends_of_a_move() {
        let mut offers = Offers::default();
        assert!(offers.add(1, offer(1), memory()).is_some());
        assert!(offers.add_again(1, offer(1), memory()).is_none());
        assert!(offers.add_again(2, offer(1), memory()).is_some());
        let is_there = |offers: &Offers, wanted| {
            let found = offers.find(&[1; 16], |session| session == wanted);
            found.is_some()
        };
        assert!(is_there(&offers, 1) && is_there(&offers, 2) && !is_there(&offers, 3));
        offers.release(1);
        assert!(!is_there(&offers, 1) && is_there(&offers, 2));
        offers.withdraw(2, &[1; 16]);
        assert!(offers.find(&[1; 16], |_| true).is_none());
    }

    #[test]
    fn offers_end_at_a_limit() {
        let mut offers = Offers::default();
        for name in 0..=8 {
            let given = offers.add(1, offer(name), memory());
            assert_eq!(given.is_some(), name < 8, "{name}");
        }
    }
}
