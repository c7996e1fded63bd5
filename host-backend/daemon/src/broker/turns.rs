//! Shares of GPU time: messages of workers and operators.

use std::time::Instant;

use paragpu_control::admin::Response;
use paragpu_control::turn::{MAX_PRIORITY, MAX_WEIGHT, TimeShare, TurnRequest};
use paragpu_control::worker::ToWorker;

use super::Broker;
use crate::shares::{Notice, Owner};
use crate::worker::State;

/// An operator's request.
pub(super) struct ShareRequest {
    pub(super) weight: Option<u32>,
    pub(super) cap: Option<u32>,
    pub(super) priority: Option<u32>,
}

impl Broker {
    /// Adds a session.
    pub(super) fn join_turns(&mut self, session: u64) {
        if let Some(begun) = self.sessions.get(&session) {
            self.shares
                .join(session, &begun.facts.vm, &begun.facts.device);
            self.follow_shares();
        }
    }

    /// Removes a session.
    pub(super) fn leave_turns(&mut self, session: u64) {
        self.shares.leave(session, Instant::now());
        self.follow_shares();
    }

    /// Applies changes of sessions, shares or the configuration.
    pub(super) fn follow_shares(&mut self) {
        let notices = self.shares.follow(&self.host, Instant::now());
        self.send_notices(notices);
    }

    /// Handles a worker's message about its session's turn.
    pub(super) fn turn_request(&mut self, key: u64, request: TurnRequest) {
        let worker = self.workers.get(&key);
        if let Some(State::Serving(session)) = worker.map(|worker| worker.state) {
            self.shares.handle_request(session, request, Instant::now());
        }
    }

    /// Begins and ends turns. Returns the time of the next change.
    pub(super) fn take_turns(&mut self, now: Instant) -> Option<Instant> {
        let (notices, next) = self.shares.settle(now);
        self.send_notices(notices);
        next
    }

    fn send_notices(&mut self, notices: Vec<Notice>) {
        for (session, turn) in notices {
            let key = self.sessions.get(&session).map(|session| session.worker);
            let worker = key.and_then(|key| self.workers.get(&key));
            let control = worker.and_then(|worker| worker.control.as_ref());
            let sent = control.map(|control| control.try_send(&ToWorker::Turn(turn), &[]));
            if !matches!(sent, Some(Ok(()))) {
                // A worker that does not read, or is gone, does not take part.
                self.shares.leave(session, Instant::now());
            }
        }
    }

    /// `paragpu share`.
    pub(super) fn order_share(
        &mut self,
        session: Option<u64>,
        vm: Option<String>,
        wish: &ShareRequest,
    ) -> Response {
        let error = |error: String| Response::Error { error };
        let owner = match (session, vm) {
            (Some(session), None) => match self.sessions.contains_key(&session) {
                true => Owner::Session(session),
                false => return error(format!("there is no session {session}")),
            },
            (None, Some(vm)) => {
                let mut sessions = self.sessions.values();
                match sessions.any(|session| session.facts.vm == vm) {
                    true => Owner::Vm(vm),
                    false => {
                        return error(format!(
                            "{vm:?} has no sessions: set permanent shares in host.toml"
                        ));
                    }
                }
            }
            _ => return error("give either a session or a VM".into()),
        };
        let now = self.shares.share_of(&self.host, &owner);
        let share = TimeShare {
            weight: wish.weight.unwrap_or(now.weight),
            cap: wish.cap.unwrap_or(now.cap),
            priority: wish.priority.unwrap_or(now.priority),
        };
        if !share.is_valid() {
            return error(format!(
                "a weight is 1 to {MAX_WEIGHT}, a cap 1 to 100 percent, a priority 0 to \
                 {MAX_PRIORITY}"
            ));
        }
        self.shares.give(owner, share);
        self.follow_shares();
        Response::Shared(share)
    }
}
