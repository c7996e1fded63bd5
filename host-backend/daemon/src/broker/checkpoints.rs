//! Periodic checkpoints.
//!
//! Each replaces the previous one when it is complete, so a good one always exists. The
//! worker has the schedule too and continues it if the daemon dies. A later daemon only
//! lists it.

use std::time::{Duration, Instant};

use paragpu_control::admin::{CheckpointInfo, Figures, Response};
use paragpu_control::state::FILE;
use paragpu_control::worker::{self, ToWorker};

use super::Broker;
use super::orders::Outcome;
pub(super) use crate::notes::Again;

/// Nobody's connection of the control socket.
pub(super) const NOBODY: u64 = 0;
/// How long a session that is being moved or written is left alone.
const BUSY: Duration = Duration::from_secs(1);

/// A session that is written again and again.
#[derive(Debug)]
pub(super) struct Periodic {
    again: Again,
    /// `None` if its worker does it by itself.
    next: Option<Instant>,
    /// When the state that is there was written, by this daemon's order.
    last: Option<Instant>,
    /// Why it was not written since.
    error: Option<String>,
}

impl Broker {
    /// A state was written, or was not. The first one must have been.
    pub(super) fn checkpoint_over(
        &mut self,
        session: Option<u64>,
        again: Again,
        outcome: &Outcome,
    ) {
        let Some(session) = session else { return };
        let now = Instant::now();
        let next = Some(now + again.every);
        if outcome.is_ok() && !self.is_known(session, &again) {
            self.tell_again(session, Some(&again));
        }
        match (outcome, self.travel.checkpoints.get_mut(&session)) {
            (Ok(_), _) => {
                let periodic = Periodic {
                    again,
                    next,
                    last: Some(now),
                    error: None,
                };
                self.travel.checkpoints.insert(session, periodic);
            }
            (Err(error), Some(periodic)) => {
                tracing::warn!(
                    session,
                    error,
                    "a session is not written; the last state stands"
                );
                periodic.next = next;
                periodic.error = Some(error.clone());
            }
            (Err(_), None) => {}
        }
    }

    /// Stops writing a session.
    pub(super) fn end_checkpoints(&mut self, session: u64) -> Response {
        let adopted = self.travel.checkpoints.get(&session);
        if adopted.is_some_and(|periodic| periodic.next.is_none()) {
            return Response::Error {
                error: format!(
                    "session {session} began under an earlier daemon: its worker writes it for as \
                     long as it lives"
                ),
            };
        }
        match self.travel.checkpoints.remove(&session) {
            Some(_) => {
                self.tell_again(session, None);
                Response::Done(Figures::default())
            }
            None => Response::Error {
                error: format!("session {session} is not written from time to time"),
            },
        }
    }

    /// Is a session written like this already?
    fn is_known(&self, session: u64, again: &Again) -> bool {
        let periodic = self.travel.checkpoints.get(&session);
        periodic.is_some_and(|periodic| periodic.again == *again)
    }

    /// Tells a session's worker, and a daemon after this one, how the session
    /// is written.
    ///
    /// One that has its VM's user cannot write files by itself.
    fn tell_again(&self, session: u64, again: Option<&Again>) {
        let found = self.sessions.get(&session);
        let worker = found.and_then(|found| self.workers.get(&found.worker));
        if worker.is_some_and(|worker| worker.apart) {
            return;
        }
        self.notes.write_again(session, again.cloned());
        let message = ToWorker::Again(again.map(|again| worker::Again {
            directory: again.directory.clone(),
            every: again.every.as_secs(),
        }));
        if let Some(control) = worker.and_then(|worker| worker.control.as_ref())
            && let Err(error) = control.try_send(&message, &[])
        {
            tracing::warn!(session, %error, "the worker does not know how to go on alone");
        }
    }

    /// A session that an earlier daemon left is written by its worker.
    pub(super) fn adopt_checkpoints(&mut self, session: u64, again: Option<Again>) {
        if let Some(again) = again {
            let periodic = Periodic {
                again,
                next: None,
                last: None,
                error: None,
            };
            self.travel.checkpoints.insert(session, periodic);
        }
    }

    /// Has the sessions written whose time has come.
    pub(super) fn write_checkpoints(&mut self, now: Instant) {
        if self.operation.signals.is_ending() {
            return;
        }
        let due: Vec<(u64, Again)> = self
            .travel
            .checkpoints
            .iter()
            .filter(|(_, periodic)| periodic.next.is_some_and(|next| next <= now))
            .map(|(session, periodic)| (*session, periodic.again.clone()))
            .collect();
        for (session, again) in due {
            let every = Some(again.every.as_secs());
            let ordered = self.order_checkpoint(NOBODY, session, &again.directory, false, every);
            if let Some(periodic) = self.travel.checkpoints.get_mut(&session) {
                // Its end says when the next one is due.
                let soon = match ordered {
                    Ok(()) => again.every.max(BUSY),
                    Err(_) => BUSY,
                };
                periodic.next = Some(now + soon);
            }
        }
    }

    pub(super) fn next_checkpoint(&self) -> Option<Instant> {
        self.travel
            .checkpoints
            .values()
            .filter_map(|periodic| periodic.next)
            .min()
    }

    /// For a listing.
    pub(super) fn checkpoint_info(&self, session: u64) -> Option<CheckpointInfo> {
        let periodic = self.travel.checkpoints.get(&session)?;
        Some(CheckpointInfo {
            directory: periodic.again.directory.clone(),
            every: periodic.again.every.as_secs_f64(),
            age: periodic.age().as_secs_f64(),
            error: periodic.error.clone(),
        })
    }
}

impl Periodic {
    /// Of the state that is there.
    fn age(&self) -> Duration {
        let file = self.again.directory.join(FILE);
        match self.last {
            Some(last) => last.elapsed(),
            None => std::fs::metadata(file)
                .and_then(|file| file.modified())
                .ok()
                .and_then(|written| written.elapsed().ok())
                .unwrap_or_default(),
        }
    }
}
