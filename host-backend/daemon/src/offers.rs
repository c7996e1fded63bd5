//! Memory that the sessions of one VM share. The daemon holds one descriptor per offer.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use paragpu_control::exchange::{Offer, Token};

/// Maximum number of offers of a VM. Each uses a descriptor of the daemon.
const MOST: usize = if cfg!(test) { 8 } else { 4096 };

/// An offer and its memory.
#[derive(Debug)]
struct Offered {
    /// The session that made the offer.
    session: u64,
    offer: Offer,
    memory: OwnedFd,
}

/// The offers of a VM's sessions, by token.
#[derive(Debug, Default)]
pub struct Offers(BTreeMap<Token, Offered>);

impl Offers {
    /// Adds an offer of `session`. Returns `None` if the VM has too many, or the token is
    /// already in use.
    pub fn add(&mut self, session: u64, offer: Offer, memory: OwnedFd) -> Option<Offer> {
        if self.0.len() >= MOST || self.0.contains_key(&offer.token) {
            return None;
        }
        let held = Offered {
            session,
            offer,
            memory,
        };
        self.0.insert(offer.token, held);
        Some(offer)
    }

    /// Removes an offer of `session`. Does nothing if another session made it.
    pub fn withdraw(&mut self, session: u64, token: &Token) {
        if self
            .0
            .get(token)
            .is_some_and(|held| held.session == session)
        {
            self.0.remove(token);
        }
    }

    /// Finds an offer by its token.
    #[must_use]
    pub fn find(&self, token: &Token) -> Option<(Offer, BorrowedFd<'_>)> {
        let held = self.0.get(token)?;
        Some((held.offer, held.memory.as_fd()))
    }

    /// Removes all offers of a session that has ended.
    pub fn release(&mut self, session: u64) {
        self.0.retain(|_, held| held.session != session);
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
        assert_eq!(offers.find(&[1; 16]).unwrap().0, offer(1));
        offers.withdraw(1, &[1; 16]);
        assert!(offers.find(&[1; 16]).is_none());
        offers.release(1);
        assert!(offers.find(&[2; 16]).is_some());
        offers.release(2);
        assert!(offers.find(&[2; 16]).is_none());
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
