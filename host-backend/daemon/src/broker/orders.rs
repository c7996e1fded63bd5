//! Orders to running sessions from the control socket: checkpoint and, with `restores.rs` and
//! `migrations.rs`, restore and migrate. The workers do the work; the daemon forwards messages.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paragpu_control::admin::{Figures, MAX_EVERY, Response};
use paragpu_control::state::StateError;
use paragpu_control::worker::{Progress, ToWorker};

use super::Broker;
use super::order::{Kind, Ordered, Outcome, Silence, Wanted};
use super::unnamed_checkpoint::UnnamedCheckpoint;
use crate::console::Console;
use crate::notes::CheckpointSchedule;
use crate::worker::GRACE;

/// The refusal of an interval of checkpoints above [`MAX_EVERY`].
pub(super) const TOO_SELDOM: &str = "the interval of checkpoints must be at most 30 days";

impl Broker {
    /// The key of a session's worker, if the worker can take an order.
    pub(super) fn orderable(&self, session: u64) -> Result<u64, String> {
        let found = self
            .workers
            .session(session)
            .ok_or_else(|| format!("there is no session {session}: see `paragpu list`"))?;
        let key = found.worker;
        if found.facts.is_unclaimed() {
            return Err(format!(
                "session {session} is restored and waits for its program: try again when that is \
                 there"
            ));
        }
        if found.arrives {
            return Err(format!(
                "session {session} is still arriving: try again later"
            ));
        }
        if self.operations.order(key).is_some() {
            return Err(format!(
                "session {session} is already being moved or checkpointed: try again afterwards"
            ));
        }
        match self.workers.get(key) {
            Some(worker) if worker.serves() && worker.control.is_some() => Ok(key),
            Some(worker) if worker.is_adopted() => Err(format!(
                "session {session} began under an earlier daemon, and its worker did not answer \
                 this one: it stays until its program ends"
            )),
            _ => Err(format!("session {session} is ending")),
        }
    }

    /// Sends an order to the worker `key`.
    pub(super) fn order(
        &mut self,
        key: u64,
        ordered: Ordered,
        message: &ToWorker,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), String> {
        let sent = self.workers.send(key, message, fds);
        sent.map_err(|error| format!("the session's worker is lost: {error}"))?;
        self.operations.begin(key, ordered);
        Ok(())
    }

    pub(super) fn order_checkpoint(
        &mut self,
        console: u64,
        session: u64,
        directory: &Path,
        end: bool,
        every: Option<u64>,
    ) -> Result<(), String> {
        if end && every.is_some() {
            return Err("--end and --every exclude each other".into());
        }
        if every > Some(MAX_EVERY) {
            return Err(TOO_SELDOM.into());
        }
        if every.is_some() {
            self.operations.schedules.check(session, directory)?;
        }
        self.check_directory(session, directory)?;
        let directory = absolute(directory)?;
        let key = self.orderable(session)?;
        let found = self.workers.session(session);
        if found.is_some_and(|it| it.token == [0; 16]) {
            return Err(format!(
                "session {session} ends with its connection, so no program could continue with a \
                 checkpoint of it: set limits.reconnect in host.toml above 0 for the sessions \
                 that begin from then on"
            ));
        }
        let apart = self.workers.get(key).is_some_and(|worker| worker.apart);
        let expires = self.workers.session(session);
        let expires = expires.and_then(|it| it.facts.expires);
        let (fresh, file) = match apart {
            true => {
                let made = UnnamedCheckpoint::make(&directory, expires);
                let made = made.map_err(StateError::from);
                let (fresh, file) =
                    made.map_err(|error| error.in_directory(&directory, "written").to_string())?;
                (Some(fresh), Some(file))
            }
            false => (None, None),
        };
        let message = ToWorker::Checkpoint {
            directory: directory.clone(),
            end,
            expires: expires.unwrap_or(0),
        };
        let kind = Kind::State {
            directory,
            puts_away: end,
            every: every.map(Duration::from_secs),
            fresh: fresh.clone(),
        };
        let fds: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        let ordered = self.order(key, Ordered::new(console, kind), &message, &fds);
        if let (Err(_), Some(fresh)) = (&ordered, fresh) {
            fresh.remove();
        }
        ordered
    }

    /// Checks that no other session is being written to a directory, once or periodically: the
    /// file there is one session's.
    fn check_directory(&self, session: u64, directory: &Path) -> Result<(), String> {
        self.operations.schedules.check_others(session, directory)?;
        let mut others = self.workers.sessions().filter(|other| {
            let order = self.operations.order(other.worker);
            let is_there =
                matches!(order, Some(Kind::State { directory: into, .. }) if into == directory);
            is_there && other.facts.session != session
        });
        match others.next() {
            Some(other) => Err(format!(
                "session {} is being checkpointed into {}: give another directory",
                other.facts.session,
                directory.display()
            )),
            None => Ok(()),
        }
    }

    /// Handles a worker's progress report.
    pub(super) fn order_progress(&mut self, key: u64, progress: Progress) {
        let Progress { phase, done, all } = progress;
        let session = self.workers.served_by(key);
        let session = session.map(|session| session.facts.session);
        if let (Some(console), Some(session)) = (self.operations.console(key), session) {
            // A client that does not read does not need more of it.
            let reads = self.inquiries.consoles.get(&console);
            if reads.is_none_or(Console::writing) {
                return;
            }
            self.answer(
                console,
                &Response::Progress {
                    session,
                    phase,
                    done,
                    all,
                },
            );
        }
    }

    /// Handles an order that was carried out. One to move is over when the worker has exited: until
    /// then its memory is in use, and counts.
    pub(super) fn order_done(&mut self, key: u64, figures: Figures) {
        match self.operations.ordered_mut(key) {
            Some(ordered) if matches!(ordered.kind, Kind::Migration(_)) => {
                ordered.moved = Some(figures);
            }
            _ => self.order_over(key, Ok(figures)),
        }
    }

    /// Handles the end of an order.
    pub(super) fn order_over(&mut self, key: u64, outcome: Outcome) {
        let Some(Ordered { console, kind, .. }) = self.operations.finish(key) else {
            return;
        };
        let outcome = match &kind {
            Kind::State {
                fresh: Some(fresh), ..
            } => fresh.settle(outcome, self.workers.served_by(key)),
            _ => outcome,
        };
        let session = self.workers.served_by(key);
        let session = session.map(|session| session.facts.session);
        tracing::info!(
            session,
            done = outcome.is_ok(),
            reason = outcome.as_ref().err(),
            "an order to a session completed"
        );
        if outcome.is_err() {
            self.give_up_arriving(key);
        }
        let new_session = session.filter(|_| matches!(kind, Kind::Restore));
        match kind {
            Kind::Migration(id) | Kind::Relocation { id, .. } => {
                return self.member_over(id, key, outcome);
            }
            Kind::State {
                puts_away: true, ..
            } if outcome.is_ok() => {
                // The worker exits. If the daemon ends meanwhile, it must not send a
                // goodbye to the guest.
                if let Some(worker) = self.workers.get_mut(key) {
                    worker.ending = true;
                    worker.puts_away = true;
                    worker.deadline.get_or_insert(Instant::now() + GRACE);
                }
                if let Some(session) = self.workers.served_by_mut(key)
                    && session.token != [0; 16]
                {
                    let token = std::mem::take(&mut session.token);
                    self.operations.put_away(token, &self.notes);
                }
            }
            Kind::Copy(wanted) => return self.copy_over(console, wanted, outcome),
            Kind::State {
                directory,
                every: Some(every),
                ..
            } => {
                let again = CheckpointSchedule { directory, every };
                self.checkpoint_over(session, again, &outcome);
            }
            Kind::State { .. } | Kind::Restore => {}
        }
        let response = match outcome {
            Ok(figures) => Response::Done(Figures {
                new_session,
                ..figures
            }),
            Err(error) => Response::Error { error },
        };
        self.answer(console, &response);
        self.bring_back();
        self.requests(console);
    }

    /// Asks silent workers with orders for a sign of life, and answers for those that gave none.
    /// Such an order remains: the worker may still carry it out.
    pub(super) fn end_silence(&mut self, now: Instant) {
        for (key, silence) in self.operations.silent(now) {
            match silence {
                Silence::TooLong => self.abandon_order(key),
                Silence::Heard(_) | Silence::Asked(_) => {
                    if let Some(worker) = self.workers.get_mut(key) {
                        worker.query();
                    }
                }
            }
        }
    }

    fn abandon_order(&mut self, key: u64) {
        if let Some(figures) = self.operations.moved(key) {
            return self.order_over(key, Ok(figures));
        }
        let session = self.workers.served_by(key).map_or(0, |it| it.facts.session);
        let Some((console, kind)) = self.operations.abandon(key) else {
            return;
        };
        let mut error = format!(
            "the worker of session {session} has not answered for {} s: it may be stopped, and \
             carry out the order later, unless `paragpu end {session}` ends it",
            Silence::LONGEST.as_secs()
        );
        tracing::warn!(session, "a worker with an order does not answer");
        match kind {
            Kind::Migration(id) | Kind::Relocation { id, .. } => {
                let id = *id;
                return self.member_over(id, key, Err(error));
            }
            Kind::Copy(Wanted {
                copies: Some(copies),
                ..
            }) => error = copies.failed(&error),
            Kind::Copy(_) | Kind::State { .. } | Kind::Restore => {}
        }
        self.answer(console, &Response::Error { error });
        self.requests(console);
    }

    /// Takes the secrets of a session that could not be restored, whose worker has not exited
    /// yet: its program waits for the next restore.
    fn give_up_arriving(&mut self, key: u64) {
        let session = self.workers.served_by_mut(key);
        if let Some(session) = session.filter(|session| session.arrives) {
            session.token = [0; 16];
            session.facts.claim = [0; 16];
        }
    }

    /// Handles the exit of a worker with an unfinished order.
    pub(super) fn order_ended(&mut self, key: u64) {
        if let Some(figures) = self.operations.moved(key) {
            return self.order_over(key, Ok(figures));
        }
        let Some(order) = self.operations.order(key) else {
            return;
        };
        let worker = self.workers.get(key);
        let orderly = worker.is_some_and(|worker| worker.finished && worker.last_word.is_none());
        if let (&(Kind::Migration(id) | Kind::Relocation { id, .. }), true) = (order, orderly) {
            self.operations.member_ended(id, key);
        }
        let reason = match worker.and_then(|worker| worker.last_word.as_deref()) {
            Some(word) => format!("its worker ended: {word}"),
            None if orderly => "its program ended in the meantime".to_owned(),
            None => "its worker ended".to_owned(),
        };
        self.order_over(key, Err(reason));
    }
}

/// An absolute path, for a worker in another directory.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, String> {
    (path.is_absolute() && path.to_str().is_some())
        .then(|| path.to_owned())
        .ok_or_else(|| format!("{} is not an absolute path", path.display()))
}
