//! Shares of GPU time: messages of workers and operators.

use std::time::Instant;

use paragpu_control::admin::Response;
use paragpu_control::turn::{MAX_PRIORITY, MAX_WEIGHT, TimeShare, TurnRequest};
use paragpu_control::worker::ToWorker;

use super::Broker;
use crate::shares::{Notice, Owner};

/// An operator's request.
pub(super) struct ShareRequest {
    pub(super) weight: Option<u32>,
    pub(super) cap: Option<u32>,
    pub(super) priority: Option<u32>,
}

impl Broker {
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
        if let Some(session) = self.workers.served_by(key) {
            let session = session.facts.session;
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
            let key = self.workers.session(session).map(|session| session.worker);
            let turn = ToWorker::Turn(turn);
            let sent = key.is_some_and(|key| self.workers.send(key, &turn, &[]).is_ok());
            if !sent {
                // A worker that does not read, or is gone, does not take part.
                self.shares.leave(session, Instant::now());
            }
        }
    }

    /// Whether the worker of a session has no control socket to this daemon.
    fn is_orphan(&self, session: u64) -> bool {
        let worker = self.workers.of(session);
        worker.is_some_and(|worker| worker.control.is_none())
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
            (Some(session), None) => match self.workers.session(session) {
                Some(_) if self.is_orphan(session) => {
                    return error(format!(
                        "the worker of session {session} did not answer this daemon, so it takes no turns"
                    ));
                }
                Some(_) => Owner::Session(session),
                None => return error(format!("there is no session {session}: see `paragpu list`")),
            },
            (None, Some(vm)) => {
                if self.workers.sessions_of(&vm).is_empty() {
                    return error(format!(
                        "{vm:?} has no sessions: set permanent shares in host.toml"
                    ));
                }
                Owner::Vm(vm)
            }
            _ => return error("give either a session or a VM".into()),
        };
        let now = self.shares.share_of(&self.host, &owner);
        let share = TimeShare {
            weight: wish.weight.map_or(now.weight, f64::from),
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
