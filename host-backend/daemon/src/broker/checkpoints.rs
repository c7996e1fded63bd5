//! Periodic checkpoints.
//!
//! Each replaces the previous one when it is complete, so a complete one always
//! exists. The worker also has the schedule, and continues it if the daemon dies. A
//! later daemon only lists it.

use std::time::{Duration, Instant};

use paragpu_control::admin::{CheckpointInfo, Figures, Response};
use paragpu_control::worker::{self, ToWorker};

use super::Broker;
use super::order::{NOBODY, Outcome, Periodic};
use crate::notes::CheckpointSchedule;

/// Retry interval while a session is being moved or written.
const BUSY: Duration = Duration::from_secs(1);

impl Broker {
    /// Handles the end of a checkpoint. If the first one of a schedule fails, the
    /// schedule ends.
    pub(super) fn checkpoint_over(
        &mut self,
        session: Option<u64>,
        again: CheckpointSchedule,
        outcome: &Outcome,
    ) {
        let Some(session) = session else { return };
        let now = Instant::now();
        let next = Some(now + again.every);
        if outcome.is_ok() && !self.is_known(session, &again) {
            self.pass_schedule(session, Some(&again));
        }
        match (outcome, self.operations.checkpoints.get_mut(&session)) {
            (Ok(_), _) => {
                let periodic = Periodic {
                    again,
                    next,
                    last: Some(now),
                    error: None,
                };
                self.operations.checkpoints.insert(session, periodic);
            }
            (Err(error), Some(periodic)) => {
                tracing::warn!(
                    session,
                    error,
                    "a session could not be checkpointed; the previous checkpoint remains"
                );
                periodic.next = next;
                periodic.error = Some(error.clone());
            }
            (Err(_), None) => {}
        }
    }

    /// Ends a session's periodic checkpoints.
    pub(super) fn end_checkpoints(&mut self, session: u64) -> Response {
        let adopted = self.operations.checkpoints.get(&session);
        if adopted.is_some_and(|periodic| periodic.next.is_none()) {
            return Response::Error {
                error: format!(
                    "session {session} began under an earlier daemon: its worker checkpoints \
                     it until it ends"
                ),
            };
        }
        match self.operations.checkpoints.remove(&session) {
            Some(_) => {
                self.pass_schedule(session, None);
                Response::Done(Figures::default())
            }
            None => Response::Error {
                error: format!("session {session} has no periodic checkpoints"),
            },
        }
    }

    /// Whether a session already has this schedule.
    fn is_known(&self, session: u64, again: &CheckpointSchedule) -> bool {
        let periodic = self.operations.checkpoints.get(&session);
        periodic.is_some_and(|periodic| periodic.again == *again)
    }

    /// Passes a session's schedule to its worker, and records it for a later daemon.
    ///
    /// A worker with its VM's user cannot create files.
    fn pass_schedule(&self, session: u64, again: Option<&CheckpointSchedule>) {
        let found = self.sessions.get(&session);
        let worker = found.and_then(|found| self.workers.get(&found.worker));
        if worker.is_some_and(|worker| worker.apart) {
            return;
        }
        self.notes.write_again(session, again.cloned());
        let message = ToWorker::Again(again.map(|again| worker::CheckpointSchedule {
            directory: again.directory.clone(),
            every: again.every.as_secs(),
        }));
        if let Some(control) = worker.and_then(|worker| worker.control.as_ref())
            && let Err(error) = control.try_send(&message, &[])
        {
            tracing::warn!(session, %error, "the worker cannot continue checkpoints without the daemon");
        }
    }

    /// Adopts the schedule of a session of an earlier daemon; its worker keeps it.
    pub(super) fn adopt_checkpoints(&mut self, session: u64, again: Option<CheckpointSchedule>) {
        if let Some(again) = again {
            let periodic = Periodic {
                again,
                next: None,
                last: None,
                error: None,
            };
            self.operations.checkpoints.insert(session, periodic);
        }
    }

    /// Orders the checkpoints that are due.
    pub(super) fn write_checkpoints(&mut self, now: Instant) {
        if self.operation.signals.is_ending() {
            return;
        }
        let due: Vec<(u64, CheckpointSchedule)> = self
            .operations
            .checkpoints
            .iter()
            .filter(|(_, periodic)| periodic.next.is_some_and(|next| next <= now))
            .map(|(session, periodic)| (*session, periodic.again.clone()))
            .collect();
        for (session, again) in due {
            let every = Some(again.every.as_secs());
            let ordered = self.order_checkpoint(NOBODY, session, &again.directory, false, every);
            if let Some(periodic) = self.operations.checkpoints.get_mut(&session) {
                // The end of this one determines when the next is due.
                let soon = match ordered {
                    Ok(()) => again.every.max(BUSY),
                    Err(_) => BUSY,
                };
                periodic.next = Some(now + soon);
            }
        }
    }

    pub(super) fn next_checkpoint(&self) -> Option<Instant> {
        self.operations
            .checkpoints
            .values()
            .filter_map(|periodic| periodic.next)
            .min()
    }

    /// The schedule, for a listing.
    pub(super) fn checkpoint_info(&self, session: u64) -> Option<CheckpointInfo> {
        let periodic = self.operations.checkpoints.get(&session)?;
        Some(CheckpointInfo {
            directory: periodic.again.directory.clone(),
            every: periodic.again.every.as_secs_f64(),
            age: periodic.age().as_secs_f64(),
            error: periodic.error.clone(),
        })
    }
}
