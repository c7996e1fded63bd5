//! Memory that the sessions of one VM share. The daemon holds one descriptor per offer.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd};

use paragpu_control::exchange::{self, Offer, Token};

use crate::received_fd::ReceivedFd;

/// Maximum number of offers of a VM. Each uses a descriptor of the daemon.
const MAX_OFFERS: usize = if cfg!(test) { 8 } else { exchange::MAX_OFFERS };
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
    holders: Holders,
}

/// How a session maps what another one offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// At another device: neither the VM nor a GPU is charged for that.
    Borrowed,
    /// At the device that has the memory: the VM is charged for the session, too.
    Joined,
}

/// The sessions that map offered memory.
type Holders = BTreeSet<(Hold, u64)>;

/// Memory that is no longer offered, while other sessions still map it.
#[derive(Debug)]
struct Left {
    size: u64,
    /// Whether the session that offered it still runs.
    has_owner: bool,
    /// It was withdrawn by a session that arrives.
    arrives: bool,
    holders: Holders,
}

/// The offers of a VM's sessions, by token. While sessions move from this host to this
/// host, the source and the destination of a session offer memory under the same token.
///
/// The memory is charged to its owner. If the owner frees it, or ends, it stays as long as another
/// session has it mapped, and [`charges`](Self::charges) has it until then.
#[derive(Debug, Default)]
pub struct Offers {
    offered: BTreeMap<Token, Vec<Offered>>,
    /// By token, and the session that offered it.
    left: BTreeMap<(Token, u64), Left>,
}

impl Offers {
    /// The number of offers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offered.values().map(Vec::len).sum()
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
        match self.offered.contains_key(&offer.token) {
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
        let held = self.offered.entry(offer.token).or_default();
        if held.iter().any(|held| held.session == session) {
            return None;
        }
        held.push(Offered {
            session,
            offer,
            memory,
            holders: Holders::new(),
        });
        Some(offer)
    }

    /// Removes an offer of `session`. Does nothing if another session made it.
    ///
    /// If the session still arrives, the memory is not charged yet: the sources have freed it,
    /// and those that arrive with it leave it in their next rounds.
    pub fn withdraw(&mut self, session: u64, token: &Token, arrives: bool) {
        if let Some(held) = self.offered.get_mut(token) {
            let gone: Vec<Offered> = held
                .extract_if(.., |held| held.session == session)
                .collect();
            if held.is_empty() {
                self.offered.remove(token);
            }
            self.leave(gone, true, arrives);
        }
    }

    /// Records that a session has arrived: what it still maps, or has freed while others map it,
    /// is charged from now on.
    pub fn arrived(&mut self, session: u64) {
        for ((_, owner), left) in &mut self.left {
            let maps = left.holders.iter().any(|(_, holder)| *holder == session);
            left.arrives &= !maps && *owner != session;
        }
    }

    /// Keeps account of memory that is no longer offered.
    fn leave(&mut self, gone: Vec<Offered>, has_owner: bool, arrives: bool) {
        for offered in gone {
            if !offered.holders.is_empty() {
                let left = Left {
                    size: offered.offer.size,
                    has_owner,
                    arrives,
                    holders: offered.holders,
                };
                let key = (offered.offer.token, offered.session);
                self.left.insert(key, left);
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
        let held = self.offered.get(token)?;
        let held = held.iter().find(|held| right(held.session))?;
        Some((held.session, held.offer, held.memory.as_fd()))
    }

    /// Records that `session` maps what `owner` offers. Returns false if the VM has too much
    /// memory that its owners no longer have.
    pub fn hold(&mut self, session: u64, owner: u64, token: &Token, hold: Hold) -> bool {
        let held = self.offered.get_mut(token).into_iter().flatten();
        let held = held.into_iter().find(|held| held.session == owner);
        let has_room = self.left.len() < MAX_OFFERS;
        match held.filter(|_| has_room) {
            Some(held) => {
                held.holders.insert((hold, session));
                true
            }
            None => false,
        }
    }

    /// Records that `session` no longer maps memory with this token.
    pub fn give_back(&mut self, session: u64, token: &Token) {
        for held in self.offered.get_mut(token).into_iter().flatten() {
            release(&mut held.holders, session);
        }
        self.left.retain(|(of, _), left| {
            if of == token {
                release(&mut left.holders, session);
            }
            !left.holders.is_empty()
        });
    }

    /// Whether one of these sessions maps memory that another session has freed.
    #[must_use]
    pub fn are_held(&self, sessions: &BTreeSet<u64>) -> bool {
        let mut left = self.left.values().filter(|left| left.has_owner);
        left.any(|left| left.holders.iter().any(|(_, it)| sessions.contains(it)))
    }

    /// Device memory to charge, by session: what it freed while others have it mapped. If it
    /// has ended, one of those is charged. A VM pays for memory that is [`Hold::Joined`] anyway,
    /// a GPU does not.
    #[must_use]
    pub fn charges(&self, payer: Payer) -> BTreeMap<u64, u64> {
        let mut charges = BTreeMap::<u64, u64>::new();
        let charged = self.left.iter().filter(|(_, left)| !left.arrives);
        for ((_, owner), left) in charged {
            let is_paid = |hold: &Hold| payer == Payer::Vm && *hold == Hold::Joined;
            let mut holders = left.holders.iter().filter(|(hold, _)| !is_paid(hold));
            let session = holders.next().map(|(_, first)| match left.has_owner {
                true => owner,
                false => first,
            });
            if let Some(session) = session {
                let charged = charges.entry(*session).or_default();
                *charged = charged.saturating_add(left.size);
            }
        }
        charges
    }

    /// Removes all offers of a session that has ended, and what it borrowed.
    pub fn release(&mut self, session: u64) {
        let gone = self.remove(session);
        self.leave(gone, false, false);
        for ((_, owner), left) in &mut self.left {
            left.has_owner &= *owner != session;
        }
    }

    /// The same for a session that has moved away. Those that share its memory move with it, so
    /// the memory is not charged while they are about to end here.
    pub fn release_moved(&mut self, session: u64) {
        self.remove(session);
        self.left.retain(|(_, owner), _| *owner != session);
    }

    fn remove(&mut self, session: u64) -> Vec<Offered> {
        let mut gone = Vec::new();
        self.offered.retain(|_, held| {
            gone.extend(held.extract_if(.., |held| held.session == session));
            for held in held.iter_mut() {
                release(&mut held.holders, session);
            }
            !held.is_empty()
        });
        for offered in &mut gone {
            release(&mut offered.holders, session);
        }
        self.left.retain(|_, left| {
            release(&mut left.holders, session);
            !left.holders.is_empty()
        });
        gone
    }
}

/// Who pays for memory that its owner no longer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payer {
    /// The VM.
    Vm,
    /// The GPU.
    Gpu,
}

fn release(holders: &mut Holders, session: u64) {
    holders.retain(|(_, holder)| *holder != session);
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
        offers.withdraw(2, &[1; 16], false);
        assert_eq!(offers.find(&[1; 16], |_| true).unwrap().1, offer(1));
        offers.withdraw(1, &[1; 16], false);
        assert!(offers.find(&[1; 16], |_| true).is_none());
        offers.release(1);
        assert!(offers.find(&[2; 16], |_| true).is_some());
        offers.release(2);
        assert!(offers.find(&[2; 16], |_| true).is_none());
    }

    fn lent() -> Offers {
        let mut offers = Offers::default();
        let lent = Offer {
            size: 100,
            ..offer(1)
        };
        assert!(offers.add(1, lent, memory(), room()).is_some());
        for session in [1, 2, 3] {
            assert!(offers.hold(session, 1, &[1; 16], Hold::Borrowed));
        }
        offers
    }

    #[test]
    fn borrowed_memory_is_charged_when_it_is_no_longer_offered() {
        let mut offers = lent();
        assert!(
            !offers.hold(2, 3, &[1; 16], Hold::Borrowed),
            "another session's"
        );
        assert!(offers.charges(Payer::Vm).is_empty());
        offers.give_back(3, &[1; 16]);
        offers.withdraw(1, &[1; 16], false);
        assert!(!offers.hold(3, 1, &[1; 16], Hold::Borrowed), "withdrawn");
        let are_held = |offers: &Offers, session| offers.are_held(&BTreeSet::from([session]));
        assert!(are_held(&offers, 2) && !are_held(&offers, 3));
        // Its owner is charged while it runs, then the last that has it mapped.
        assert_eq!(offers.charges(Payer::Vm), BTreeMap::from([(1, 100)]));
        offers.give_back(1, &[1; 16]);
        assert_eq!(offers.charges(Payer::Vm), BTreeMap::from([(1, 100)]));
        offers.release(1);
        assert!(!are_held(&offers, 2), "nobody has freed it");
        assert_eq!(offers.charges(Payer::Vm), BTreeMap::from([(2, 100)]));
        offers.give_back(2, &[1; 16]);
        assert!(offers.charges(Payer::Vm).is_empty() && offers.left.is_empty());
    }

    #[test]
    fn memory_that_arriving_sessions_are_about_to_leave_is_not_charged() {
        let mut offers = lent();
        offers.withdraw(1, &[1; 16], true);
        assert!(offers.charges(Payer::Vm).is_empty());
        // A source may be compromised: one that arrives has to pay for what it does not leave.
        offers.arrived(4);
        assert!(offers.charges(Payer::Vm).is_empty(), "another session");
        for arrived in [1, 2] {
            let mut offers = lent();
            offers.withdraw(1, &[1; 16], true);
            offers.arrived(arrived);
            assert_eq!(offers.charges(Payer::Vm), BTreeMap::from([(1, 100)]));
        }
        for session in [1, 2, 3] {
            offers.give_back(session, &[1; 16]);
        }
        assert!(offers.left.is_empty());
    }

    #[test]
    fn borrowed_memory_outlives_its_owner() {
        let mut offers = lent();
        offers.release(1);
        assert_eq!(offers.charges(Payer::Vm), BTreeMap::from([(2, 100)]));
        offers.release(2);
        assert_eq!(offers.charges(Payer::Vm), BTreeMap::from([(3, 100)]));
        offers.release(3);
        assert!(offers.charges(Payer::Vm).is_empty() && offers.left.is_empty());
        // Sessions that move together leave nothing behind.
        let mut offers = lent();
        for session in [1, 2, 3] {
            offers.release_moved(session);
            assert!(offers.charges(Payer::Vm).is_empty());
        }
        assert!(offers.offered.is_empty() && offers.left.is_empty());
    }

    #[test]
    fn a_gpu_pays_for_what_joined_sessions_still_map() {
        let mut offers = Offers::default();
        assert!(offers.add(1, offer(1), memory(), room()).is_some());
        assert!(offers.hold(2, 1, &[1; 16], Hold::Joined));
        assert!(offers.hold(3, 1, &[1; 16], Hold::Joined));
        let size = offer(1).size;
        let paid =
            |offers: &Offers, payer| -> Vec<_> { offers.charges(payer).into_iter().collect() };
        assert!(paid(&offers, Payer::Gpu).is_empty(), "its owner has it");
        offers.withdraw(1, &[1; 16], false);
        assert_eq!(paid(&offers, Payer::Gpu), [(1, size)]);
        assert!(paid(&offers, Payer::Vm).is_empty());
        offers.release(1);
        assert_eq!(paid(&offers, Payer::Gpu), [(2, size)]);
        offers.give_back(2, &[1; 16]);
        assert_eq!(paid(&offers, Payer::Gpu), [(3, size)]);
        offers.release(3);
        assert!(offers.left.is_empty());
    }

    #[test]
    fn memory_that_only_borrowers_have_is_limited() {
        let mut offers = Offers::default();
        for name in 0..=MAX_OFFERS as u8 {
            assert!(offers.add(1, offer(name), memory(), room()).is_some());
            let has_room = usize::from(name) < MAX_OFFERS;
            assert_eq!(offers.hold(2, 1, &[name; 16], Hold::Borrowed), has_room);
            offers.withdraw(1, &[name; 16], false);
        }
        assert_eq!(offers.left.len(), MAX_OFFERS);
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
        offers.withdraw(2, &[1; 16], false);
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
