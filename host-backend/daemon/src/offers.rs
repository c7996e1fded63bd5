//! Memory that sessions of one VM share: one descriptor for each offer.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use paragpu_control::exchange::{Offer, Token};

/// Most offers of one VM: each holds a descriptor of the daemon's.
const MOST: usize = if cfg!(test) { 8 } else { 4096 };

/// One of them.
#[derive(Debug)]
struct Offered {
    /// Whose memory it is.
    session: u64,
    offer: Offer,
    memory: OwnedFd,
}

/// The offers among a VM's sessions.
#[derive(Debug, Default)]
pub struct Offers(BTreeMap<Token, Offered>);

impl Offers {
    /// A session offers memory; `None` if there are too many offers.
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

    /// A session offers it no longer. It takes back nothing of others.
    pub fn withdraw(&mut self, session: u64, token: &Token) {
        if self
            .0
            .get(token)
            .is_some_and(|held| held.session == session)
        {
            self.0.remove(token);
        }
    }

    /// The offer behind a token, if any.
    #[must_use]
    pub fn find(&self, token: &Token) -> Option<(Offer, BorrowedFd<'_>)> {
        let held = self.0.get(token)?;
        Some((held.offer, held.memory.as_fd()))
    }

    /// A session is over, and what it offered with it.
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
