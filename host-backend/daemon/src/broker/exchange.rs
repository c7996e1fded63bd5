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
        let vm = self.sessions.get(&session).map(|it| it.facts.vm.as_str());
        let offers = vm.and_then(|vm| self.tenants.offers(vm));
        let answer = |offer: Option<Offer>, memory: Option<BorrowedFd<'_>>| {
            let answer = ToWorker::Exchanged { request, offer };
            // A worker that does not read its socket is not waiting for a reply.
            let _ = control.try_send(&answer, memory.as_slice());
        };
        match (ask, offers) {
            (Ask::Withdraw(token), Some(offers)) => offers.withdraw(session, &token),
            (Ask::Withdraw(_), None) => {}
            (Ask::Offer { size, domain }, Some(offers)) => {
                let offer = Offer {
                    token: token(),
                    size,
                    domain,
                };
                let memory = fds.into_iter().next();
                let known = offer.token != [0; 16];
                let memory = memory.filter(|_| known);
                answer(memory.and_then(|it| offers.add(session, offer, it)), None);
            }
            (Ask::Take(token), Some(offers)) => match offers.find(&token) {
                Some((offer, memory)) => answer(Some(offer), Some(memory)),
                None => answer(None, None),
            },
            (Ask::Offer { .. } | Ask::Take(_), None) => answer(None, None),
        }
    }
}
