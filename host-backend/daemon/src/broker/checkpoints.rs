//! Periodic checkpoints.
//!
//! Each replaces the previous one when it is complete, so a complete one always
//! exists. The worker also has the schedule, and continues it if the daemon dies. A
//! later daemon only lists it.

use std::path::Path;
use std::time::Instant;

use paragpu_control::admin::{Figures, Response};
use paragpu_control::worker::{self, ToWorker};

use super::Broker;
use super::order::{NOBODY, Outcome};
use crate::notes::CheckpointSchedule;

impl Broker {
    /// Handles the end of a checkpoint.
    pub(super) fn checkpoint_over(
        &mut self,
        session: Option<u64>,
        again: CheckpointSchedule,
        outcome: &Outcome,
    ) {
        let Some(session) = session else { return };
        if outcome.is_ok() && !self.operations.schedules.hold(session, &again) {
            self.pass_schedule(session, Some(&again));
        }
        self.operations.schedules.written(session, again, outcome);
    }

    /// Ends a session's periodic checkpoints into a directory.
    pub(super) fn end_checkpoints(&mut self, session: u64, directory: &Path) -> Response {
        match self
            .operations
            .end_schedule(&self.workers, session, directory)
        {
            Ok(()) => {
                self.pass_schedule(session, None);
                Response::Done(Figures::default())
            }
            Err(error) => Response::Error { error },
        }
    }

    /// Passes a session's schedule to its worker, and records it for a later daemon.
    ///
    /// A worker with its VM's user cannot create files.
    fn pass_schedule(&self, session: u64, again: Option<&CheckpointSchedule>) {
        let worker = self.workers.of(session);
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

    /// Orders the checkpoints that are due.
    pub(super) fn write_checkpoints(&mut self, now: Instant) {
        if self.operator.signals.is_ending() {
            return;
        }
        for (session, again) in self.operations.schedules.due(now) {
            let every = Some(again.every.as_secs());
            let ordered = self.order_checkpoint(NOBODY, session, &again.directory, false, every);
            let is_busy = self.is_busy(session);
            let schedules = &mut self.operations.schedules;
            match ordered {
                // The file could not be created, for example.
                Err(error) if !is_busy => schedules.written(session, again, &Err(error)),
                ordered => schedules.ordered(session, ordered.is_ok(), now),
            }
        }
    }

    /// Whether a session is being moved or written.
    fn is_busy(&self, session: u64) -> bool {
        let worker = self.workers.session(session).map(|found| found.worker);
        worker.is_some_and(|key| self.operations.order(key).is_some())
    }
}
