//! Memory that the sessions of one VM share. The daemon holds one descriptor per offer.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};

use paragpu_control::exchange::{Offer, Token};

use crate::received_fd::ReceivedFd;

/// Maximum number of offers of a VM. Each uses a descriptor of the daemon.
const MAX_OFFERS: usize = if cfg!(test) { 8 } else { 4096 };
/// Number of offers that a VM may have in any case, whatever others have.
const ENSURED: usize = if cfg!(test) { 2 } else { 64 };
/// Maximum number of VMs that have sessions at the same time.
const VMS: usize = 256;

/// Limits of offers, by the daemon's descriptors.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Whether a VM may have more than its guaranteed ones.
    shared: bool,
    /// The guaranteed number of offers of a VM.
    ensured: usize,
}

impl Room {
    /// The limits with `offers` offers of all VMs, if the daemon may have `descriptors`.
    /// Offers take a quarter, and an eighth is for those guaranteed to each VM:
    /// connections and workers need the rest.
    #[must_use]
    pub fn of(descriptors: usize, offers: usize) -> Self {
        Self {
            shared: offers < descriptors / 4,
            ensured: ENSURED.min(descriptors / 8 / VMS),
        }
    }
}

/// An offer and its memory.
#[derive(Debug)]
struct Offered {
    /// The session that made the offer.
    session: u64,
    offer: Offer,
    memory: ReceivedFd,
}

/// The offers of a VM's sessions, by token. While sessions move from this host to this
/// host, the source and the destination of a session offer memory under the same token.
#[derive(Debug, Default)]
pub struct Offers(BTreeMap<Token, Vec<Offered>>);

impl Offers {
    /// The number of offers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn is_full(&self, room: Room) -> bool {
        let most = if room.shared {
            MAX_OFFERS
        } else {
            room.ensured
        };
        self.len() >= most
    }

    /// Adds an offer of `session`. Returns `None` if the VM has too many, or the token is
    /// already in use.
    pub fn add(
        &mut self,
        session: u64,
        offer: Offer,
        memory: ReceivedFd,
        room: Room,
    ) -> Option<Offer> {
        match self.0.contains_key(&offer.token) {
            true => None,
            false => self.add_again(session, offer, memory, room),
        }
    }

    /// Adds an offer of `session`, whose token another session may use. Returns `None` if
    /// the VM has too many, or `session` itself uses the token.
    pub fn add_again(
        &mut self,
        session: u64,
        offer: Offer,
        memory: ReceivedFd,
        room: Room,
    ) -> Option<Offer> {
        if self.is_full(room) {
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

    /// Finds an offer by its token, of a session for which `right` returns true. Also
    /// returns that session.
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

    use crate::received_fd::PeerKind;

    /// Plenty of room.
    fn room() -> Room {
        Room::of(1 << 20, 0)
    }

    fn memory() -> ReceivedFd {
        let file = std::fs::File::open("/dev/null").unwrap();
        ReceivedFd::new(file.into(), PeerKind::Worker)
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
        assert!(offers.add(1, offer(1), memory(), room()).is_some());
        assert!(offers.add(2, offer(1), memory(), room()).is_none());
        assert!(offers.add(2, offer(2), memory(), room()).is_some());
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
        assert!(offers.add(1, offer(1), memory(), room()).is_some());
        assert!(offers.add_again(1, offer(1), memory(), room()).is_none());
        assert!(offers.add_again(2, offer(1), memory(), room()).is_some());
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
            let given = offers.add(1, offer(name), memory(), room());
            assert_eq!(given.is_some(), name < 8, "{name}");
        }
    }

    #[test]
    fn a_vm_has_some_offers_although_others_have_all_the_rest() {
        let full = Room::of(8192, 2048);
        let mut offers = Offers::default();
        for name in 0..=2 {
            let given = offers.add(1, offer(name), memory(), full);
            assert_eq!(given.is_some(), name < 2, "{name}");
        }
        assert!(
            offers
                .add(1, offer(3), memory(), Room::of(8192, 2047))
                .is_some()
        );
        // All VMs with all their offers leave most descriptors to others.
        for descriptors in [1024, 20_000, 65_536, 1 << 20] {
            let ensured = Room::of(descriptors, usize::MAX).ensured;
            assert!(
                descriptors / 4 + VMS * ensured <= descriptors / 2,
                "{descriptors}"
            );
        }
    }
}
