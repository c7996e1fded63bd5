//! Sessions whose state is written again and again.
//!
//! Each state replaces the one before when it is whole, so there is always one
//! that is good.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Broker;
use crate::admin::{CheckpointInfo, Figures, Response};
use crate::worker::Outcome;

/// Nobody's connection of the control socket.
const NOBODY: u64 = 0;
/// How long a session that is being moved or written is left alone.
const BUSY: Duration = Duration::from_secs(1);

/// Where and how often a session is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Again {
    pub(super) directory: PathBuf,
    pub(super) every: Duration,
}

/// A session that is written again and again.
#[derive(Debug)]
pub(super) struct Periodic {
    again: Again,
    next: Instant,
    /// When the state that is there was written.
    last: Instant,
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
        let next = now + again.every;
        match (outcome, self.checkpoints.get_mut(&session)) {
            (Ok(_), _) => {
                let periodic = Periodic {
                    again,
                    next,
                    last: now,
                    error: None,
                };
                self.checkpoints.insert(session, periodic);
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

    /// A session is to be written no longer.
    pub(super) fn end_checkpoints(&mut self, session: u64) -> Response {
        match self.checkpoints.remove(&session) {
            Some(_) => Figures::default().into(),
            None => Response::Error {
                error: format!("session {session} is not written from time to time"),
            },
        }
    }

    /// Has the sessions written whose time has come.
    pub(super) fn write_checkpoints(&mut self, now: Instant) {
        if self.stopping.is_some() {
            return;
        }
        let due: Vec<(u64, Again)> = self
            .checkpoints
            .iter()
            .filter(|(_, periodic)| periodic.next <= now)
            .map(|(session, periodic)| (*session, periodic.again.clone()))
            .collect();
        for (session, again) in due {
            let every = Some(again.every.as_secs());
            let ordered = self.order_checkpoint(NOBODY, session, &again.directory, false, every);
            if let Some(periodic) = self.checkpoints.get_mut(&session) {
                // Its end says when the next one is due.
                periodic.next = now + again.every.max(BUSY);
                if ordered.is_err() {
                    periodic.next = now + BUSY;
                }
            }
        }
    }

    pub(super) fn next_checkpoint(&self) -> Option<Instant> {
        self.checkpoints
            .values()
            .map(|periodic| periodic.next)
            .min()
    }

    /// For a listing.
    pub(super) fn checkpoint_info(&self, session: u64) -> Option<CheckpointInfo> {
        let periodic = self.checkpoints.get(&session)?;
        Some(CheckpointInfo {
            directory: periodic.again.directory.clone(),
            every: periodic.again.every.as_secs_f64(),
            age: periodic.last.elapsed().as_secs_f64(),
            error: periodic.error.clone(),
        })
    }
}
