//! Memory that the sessions of one VM share ([`paragpu_control::exchange`]).

use std::os::fd::{BorrowedFd, OwnedFd};

use paragpu_control::exchange::{Ask, Offer};
use paragpu_control::worker::ToWorker;

use super::Broker;
use super::token::token;
use crate::worker::State;

impl Broker {
    /// Handles a worker's request about memory of its VM's other sessions.
    pub(super) fn exchange(&mut self, key: u64, request: u64, ask: Ask, fds: Vec<OwnedFd>) {
        let Some(worker) = self.workers.get(&key) else {
            return;
        };
        let (State::Serving(session), Some(control)) = (worker.state, &worker.control) else {
            return;
        };
        let facts = self.sessions.get(&session);
        let arrives = facts.is_some_and(|it| it.arrives);
        let offers = facts.and_then(|it| self.tenants.offers(&it.facts.vm));
        let answer = |offer: Option<Offer>, memory: Option<BorrowedFd<'_>>| {
            let answer = ToWorker::Exchanged { request, offer };
            // A worker that does not read its socket is not waiting for a reply.
            let _ = control.try_send(&answer, memory.as_slice());
        };
        let Some(offers) = offers else {
            if !matches!(ask, Ask::Withdraw(_)) {
                answer(None, None);
            }
            return;
        };
        let memory = fds.into_iter().next();
        match ask {
            Ask::Withdraw(token) => offers.withdraw(session, &token),
            Ask::Offer { size, domain } => {
                let offer = Offer {
                    token: token(),
                    size,
                    domain,
                };
                let memory = memory.filter(|_| offer.token != [0; 16]);
                answer(memory.and_then(|it| offers.add(session, offer, it)), None);
            }
            Ask::Again(offer) => {
                let memory = memory.filter(|_| arrives);
                let added = memory.and_then(|it| offers.add_again(session, offer, it));
                answer(added, None);
            }
            Ask::Take(token) => {
                // Those that arrive take from those that arrive with them, even if what
                // these leave behind is offered here under the same name.
                let (sessions, operations) = (&self.sessions, &self.operations);
                let same = |other| sessions.get(&other).is_some_and(|it| it.arrives == arrives);
                let there = |other| {
                    let key = sessions.get(&other).map_or(0, |it| it.worker);
                    !arrives || !operations.is_leaving(key)
                };
                let found = offers
                    .find(&token, same)
                    .filter(|(owner, ..)| there(*owner));
                let found = found.or_else(|| offers.find(&token, there));
                let owner = found.as_ref().map(|(owner, ..)| *owner);
                match found {
                    Some((_, offer, memory)) => answer(Some(offer), Some(memory)),
                    None => answer(None, None),
                }
                if let Some(owner) = owner {
                    self.taken_from(owner, key);
                }
            }
        }
    }
}
