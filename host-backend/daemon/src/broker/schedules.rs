//! The schedules of sessions' periodic checkpoints, and when the next ones are due.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use paragpu_control::admin::CheckpointInfo;
use paragpu_control::state::FILE;

use super::order::Outcome;
use crate::notes::CheckpointSchedule;

/// Retry interval while a session is being moved or written.
const BUSY: Duration = Duration::from_secs(1);

/// The schedule of a session.
#[derive(Debug)]
struct Periodic {
    again: CheckpointSchedule,
    /// `None` if its worker keeps the schedule.
    next: Option<Instant>,
    /// When this daemon last had it written.
    last: Option<Instant>,
    /// Why the last attempt failed.
    error: Option<String>,
}

impl Periodic {
    /// The age of the last complete checkpoint.
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

/// The schedules by session number.
#[derive(Debug, Default)]
pub(super) struct Schedules(BTreeMap<u64, Periodic>);

impl Schedules {
    /// Whether a session has periodic checkpoints.
    pub(super) fn contain(&self, session: u64) -> bool {
        self.0.contains_key(&session)
    }

    /// Whether a session already has this schedule.
    pub(super) fn hold(&self, session: u64, again: &CheckpointSchedule) -> bool {
        let periodic = self.0.get(&session);
        periodic.is_some_and(|periodic| periodic.again == *again)
    }

    /// Checks that no other session is written to a directory periodically: the file there is
    /// one session's.
    pub(super) fn check_others(&self, session: u64, directory: &Path) -> Result<(), String> {
        let mut others = self.0.iter().filter(|(other, _)| **other != session);
        match others.find(|(_, periodic)| periodic.again.directory == directory) {
            Some((other, _)) => Err(format!(
                "session {other} is checkpointed periodically into {}: give another directory",
                directory.display()
            )),
            None => Ok(()),
        }
    }

    /// Checks that a session has no schedule for another directory: it has one at most.
    pub(super) fn check(&self, session: u64, directory: &Path) -> Result<(), String> {
        let other = self
            .0
            .get(&session)
            .map(|periodic| &periodic.again.directory);
        match other.filter(|other| *other != directory) {
            Some(other) => Err(format!(
                "session {session} is checkpointed periodically into {other}, not {}: to end that, \
                 run `paragpu checkpoint {session} {other} --every off`",
                directory.display(),
                other = other.display(),
            )),
            None => Ok(()),
        }
    }

    /// Adopts the schedule of a session of an earlier daemon; its worker keeps it until it is
    /// [taken over](Self::take_over).
    pub(super) fn adopt(&mut self, session: u64, again: CheckpointSchedule) {
        let periodic = Periodic {
            again,
            next: None,
            last: None,
            error: None,
        };
        self.0.insert(session, periodic);
    }

    /// Takes over the schedule of a session of an earlier daemon, whose worker has stopped keeping
    /// it.
    pub(super) fn take_over(&mut self, session: u64, now: Instant) {
        if let Some(periodic) = self.0.get_mut(&session) {
            periodic.next = now.checked_add(periodic.again.every);
        }
    }

    /// Records the end of a checkpoint. If the first one of a schedule failed, there is no
    /// schedule.
    pub(super) fn written(&mut self, session: u64, again: CheckpointSchedule, outcome: &Outcome) {
        let now = Instant::now();
        let next = now.checked_add(again.every);
        match (outcome, self.0.get_mut(&session)) {
            (Ok(_), _) => {
                let periodic = Periodic {
                    again,
                    next,
                    last: Some(now),
                    error: None,
                };
                self.0.insert(session, periodic);
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
    ///
    /// # Errors
    /// There are none, they go into another directory, or its worker keeps them.
    pub(super) fn end(&mut self, session: u64, directory: &Path) -> Result<(), String> {
        self.check(session, directory)?;
        let periodic = self
            .0
            .get(&session)
            .ok_or_else(|| format!("session {session} has no periodic checkpoints"))?;
        if periodic.next.is_none() {
            return Err(format!(
                "the worker of session {session} did not answer this daemon: it checkpoints it \
                 until it ends"
            ));
        }
        self.0.remove(&session);
        Ok(())
    }

    /// Forgets a session that is over.
    pub(super) fn forget(&mut self, session: u64) {
        self.0.remove(&session);
    }

    /// The checkpoints that are due.
    pub(super) fn due(&self, now: Instant) -> Vec<(u64, CheckpointSchedule)> {
        let is_due = |periodic: &Periodic| periodic.next.is_some_and(|next| next <= now);
        let due = self.0.iter().filter(|(_, periodic)| is_due(periodic));
        due.map(|(session, periodic)| (*session, periodic.again.clone()))
            .collect()
    }

    /// Records that a due checkpoint was ordered, or refused for now. The end of the
    /// ordered one determines when the next is due.
    pub(super) fn ordered(&mut self, session: u64, is_ordered: bool, now: Instant) {
        if let Some(periodic) = self.0.get_mut(&session) {
            let soon = match is_ordered {
                true => periodic.again.every.max(BUSY),
                false => BUSY,
            };
            periodic.next = now.checked_add(soon);
        }
    }

    /// When the next checkpoint is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|periodic| periodic.next).min()
    }

    /// A session's schedule, for a listing.
    pub(super) fn info(&self, session: u64) -> Option<CheckpointInfo> {
        let periodic = self.0.get(&session)?;
        Some(CheckpointInfo {
            directory: periodic.again.directory.clone(),
            every: periodic.again.every.as_secs_f64(),
            age: periodic.age().as_secs_f64(),
            error: periodic.error.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use paragpu_control::admin::Figures;

    use super::*;

    #[test]
    fn a_session_has_one_schedule_at_most() {
        let [here, there] = ["/here", "/there"].map(Path::new);
        let mut schedules = Schedules::default();
        assert_eq!(schedules.check(7, here), Ok(()));
        let again = CheckpointSchedule {
            directory: here.into(),
            every: Duration::from_secs(60),
        };
        schedules.written(7, again, &Ok(Figures::default()));
        assert_eq!(schedules.check(7, here), Ok(()));
        for refused in [schedules.check(7, there), schedules.end(7, there)] {
            let reason = refused.unwrap_err();
            assert!(reason.contains("into /here, not /there"), "{reason}");
        }
        assert!(schedules.contain(7));
        assert_eq!(schedules.check_others(7, here), Ok(()));
        assert_eq!(schedules.check_others(8, there), Ok(()));
        assert!(schedules.check_others(8, here).is_err());
        assert_eq!(schedules.end(7, here), Ok(()));
        assert!(!schedules.contain(7));
    }
}
