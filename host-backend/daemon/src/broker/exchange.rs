//! Memory that the sessions of one VM share ([`paragpu_control::exchange`]), and the VM's part of
//! a GPU.

use std::os::fd::BorrowedFd;

use paragpu_control::exchange::{Ask, Offer, Token};
use paragpu_control::worker::ToWorker;

use super::Broker;
use super::token::token;
use crate::offers::Hold;
use crate::received_fd::ReceivedFd;
use crate::worker::{State, WorkerSocket};

impl Broker {
    /// Handles a worker's request about memory of its VM's other sessions.
    pub(super) fn exchange(&mut self, key: u64, request: u64, ask: Ask, fds: Vec<ReceivedFd>) {
        let Some(worker) = self.workers.get(key) else {
            return;
        };
        let (State::Serving(session), Some(control)) = (worker.state, &worker.control) else {
            return;
        };
        match ask {
            Ask::Enlarge(total) => return self.enlarge_part(key, session, request, total),
            Ask::Take(token) => return self.take_offer(key, session, request, &token, None),
            Ask::Join(token) => {
                return self.take_offer(key, session, request, &token, Some(Hold::Joined));
            }
            Ask::Borrow(token) => {
                return self.take_offer(key, session, request, &token, Some(Hold::Borrowed));
            }
            _ => {}
        }
        let room = self.tenants.room_for_offers();
        let facts = self.workers.session(session);
        let arrives = facts.is_some_and(|it| it.arrives);
        let vm = facts.map(|it| it.facts.vm.clone()).unwrap_or_default();
        let offers = self.tenants.offers(&vm);
        let answer = |offer| answer(control, request, offer, None);
        let Some(offers) = offers else {
            return answer(None);
        };
        let memory = fds.into_iter().next();
        match ask {
            Ask::Withdraw(token) => {
                offers.withdraw(session, &token, arrives);
                // Before the session frees the memory, which returns its own charge.
                self.tenants.charge_lent(&vm);
                answer(None);
            }
            Ask::Return(token) => {
                offers.give_back(session, &token);
                self.tenants.charge_lent(&vm);
                answer(None);
            }
            Ask::Offer { size, domain } => {
                let offer = Offer {
                    token: token(),
                    size,
                    domain,
                };
                let memory = memory.filter(|_| offer.token != [0; 16]);
                answer(memory.and_then(|it| offers.add(session, offer, it, room)));
            }
            Ask::Again(offer) => {
                let memory = memory.filter(|_| arrives);
                let added = memory.and_then(|it| offers.add_again(session, offer, it, room));
                answer(added);
            }
            Ask::Take(_) | Ask::Join(_) | Ask::Borrow(_) | Ask::Enlarge(_) => {}
        }
    }

    /// Answers a worker that asks for a larger part of its GPU.
    fn enlarge_part(&mut self, key: u64, session: u64, request: u64, total: u64) {
        let facts = self.workers.session(session).map(|it| &it.facts);
        let part = facts.and_then(|facts| {
            let (vm, gpu) = (&facts.vm, &facts.device);
            self.tenants.enlarge_part(&self.host, vm, gpu, total)
        });
        if let Some(control) = self.workers.get(key).and_then(|it| it.control.as_ref()) {
            let answer = ToWorker::Exchanged {
                request,
                offer: None,
                part,
            };
            let _ = control.try_send(&answer, &[]);
        }
    }

    /// Answers a worker that takes memory, and maps it as `hold` says.
    fn take_offer(
        &mut self,
        key: u64,
        session: u64,
        request: u64,
        token: &Token,
        hold: Option<Hold>,
    ) {
        let (workers, operations) = (&self.workers, &self.operations);
        let Some(facts) = workers.session(session) else {
            return;
        };
        let arrives = facts.arrives;
        // Arriving sessions take from those that arrive with them, even if the sources
        // that these leave behind offer memory here under the same token.
        let same = |other| {
            workers
                .session(other)
                .is_some_and(|it| it.arrives == arrives)
        };
        let there = |other| {
            let key = workers.session(other).map_or(0, |it| it.worker);
            !arrives || !operations.is_leaving(key)
        };
        let right = |other| same(other) && there(other);
        let owner = self.tenants.offers(&facts.facts.vm).and_then(|offers| {
            let found = offers
                .find(token, right)
                .or_else(|| offers.find(token, there));
            found.map(|(owner, ..)| owner)
        });
        let vm = facts.facts.vm.clone();
        let owner = owner.filter(|owner| self.may_take_from(*owner, key, &vm));
        let Some(control) = self.workers.get(key).and_then(|it| it.control.as_ref()) else {
            return;
        };
        let found = owner.and_then(|owner| {
            let offers = self.tenants.offers(&vm)?;
            if let Some(hold) = hold
                && !offers.hold(session, owner, token, hold)
            {
                return None;
            }
            offers.find(token, |other| other == owner)
        });
        match found {
            Some((_, offer, memory)) => answer(control, request, Some(offer), Some(memory)),
            None => answer(control, request, None, None),
        }
    }
}

/// Answers a worker. One that does not read its socket is not waiting for a reply.
fn answer(
    control: &WorkerSocket,
    request: u64,
    offer: Option<Offer>,
    memory: Option<BorrowedFd<'_>>,
) {
    let answer = ToWorker::Exchanged {
        request,
        offer,
        part: None,
    };
    let _ = control.try_send(&answer, memory.as_slice());
}
