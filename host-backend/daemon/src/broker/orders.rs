//! Orders to running sessions from the control socket: checkpoint, restore and, with
//! `migrations.rs`, migrate. The workers do the work; the daemon forwards messages.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paragpu_control::admin::{Activity, Response};
use paragpu_control::socket::ControlError;
use paragpu_control::state;
use paragpu_control::worker::{Progress, Terms, ToWorker};

use super::order::{Kind, Ordered, Outcome, Parked, Restoring};
use super::unnamed_checkpoint::UnnamedCheckpoint;
use super::{Broker, GRACE};
use crate::console::Console;
use crate::handshake::{Guest, SessionRequest};
use crate::notes::CheckpointSchedule;
use crate::session::{Facts, Session, now};
use crate::worker::State;

/// How long the guest of a checkpointed session may wait.
const KEPT: Duration = Duration::from_secs(600);
/// How long a restore waits for a worker.
const WORKER_TIMEOUT: Duration = Duration::from_secs(30);

impl Broker {
    /// Whether this connection of the control socket waits for an order.
    pub(super) fn awaits_order(&self, console: u64) -> bool {
        self.operations
            .orders
            .values()
            .any(|ordered| ordered.console == console)
            || self
                .operations
                .restores
                .iter()
                .any(|waiting| waiting.console == console)
            || self.migrates(console)
    }

    /// The activity of a session besides serving its program.
    pub(super) fn activity(&self, session: &Session) -> Activity {
        match self
            .operations
            .orders
            .get(&session.worker)
            .map(|ordered| &ordered.kind)
        {
            _ if session.arrives => Activity::Arriving,
            Some(Kind::State { .. }) => Activity::Writing,
            Some(Kind::Migration(_) | Kind::Relocation { .. }) => Activity::Moving,
            None => Activity::Serving,
        }
    }

    /// The key of a session's worker, if the worker can take an order.
    pub(super) fn orderable(&self, session: u64) -> Result<u64, String> {
        let found = self
            .sessions
            .get(&session)
            .ok_or_else(|| format!("there is no session {session}: see `paragpu list`"))?;
        let key = found.worker;
        if found.arrives {
            return Err(format!(
                "session {session} is still arriving: try again later"
            ));
        }
        if self.operations.orders.contains_key(&key) {
            return Err(format!(
                "session {session} is already being moved or checkpointed: try again afterwards"
            ));
        }
        self.workers
            .get(&key)
            .filter(|worker| !worker.ending && !worker.finished && worker.control.is_some())
            .map(|_| key)
            .ok_or_else(|| {
                format!(
                    "session {session} is ending, or began under an earlier daemon, so it stays"
                )
            })
    }

    /// Sends an order to the worker `key`.
    pub(super) fn order(
        &mut self,
        key: u64,
        ordered: Ordered,
        message: &ToWorker,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), String> {
        let worker = self.workers.get(&key);
        worker
            .and_then(|worker| worker.control.as_ref())
            .ok_or(ControlError::Closed)
            .and_then(|control| control.try_send(message, fds))
            .map_err(|error| format!("the session's worker is lost: {error}"))?;
        self.operations.orders.insert(key, ordered);
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
        let again = every.map(|seconds| CheckpointSchedule {
            directory: directory.to_owned(),
            every: Duration::from_secs(seconds),
        });
        let directory = absolute(directory)?;
        let key = self.orderable(session)?;
        let apart = self.workers.get(&key).is_some_and(|worker| worker.apart);
        let (fresh, file) = match apart {
            true => {
                let made = UnnamedCheckpoint::make(&directory);
                let (fresh, file) = made.map_err(|error| {
                    format!("{} cannot be written to: {error}", directory.display())
                })?;
                (Some(fresh), Some(file))
            }
            false => (None, None),
        };
        let message = ToWorker::Checkpoint { directory, end };
        let kind = Kind::State {
            puts_away: end,
            again,
            fresh: fresh.clone(),
        };
        let fds: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        let ordered = self.order(key, Ordered { console, kind }, &message, &fds);
        if let (Err(_), Some(fresh)) = (&ordered, fresh) {
            fresh.remove();
        }
        ordered
    }

    /// Has a worker restore the session of a directory, as soon as one is idle.
    pub(super) fn order_restore(&mut self, console: u64, directory: &Path) -> Result<(), String> {
        self.restore(console, directory, Instant::now() + WORKER_TIMEOUT)
    }

    /// Assigns idle workers to restores that wait for one. Returns when the first is
    /// given up.
    pub(super) fn match_restores(&mut self, now: Instant) -> Option<Instant> {
        for waiting in std::mem::take(&mut self.operations.restores) {
            let console = waiting.console;
            if !self.inquiries.consoles.contains_key(&console) {
                continue;
            }
            if now < waiting.until && self.idle_on(waiting.position).is_none() {
                self.operations.restores.push(waiting);
                continue;
            }
            if let Err(error) = self.restore(console, &waiting.directory, waiting.until) {
                self.answer(console, &Response::Error { error });
            }
        }
        let deadlines = self.operations.restores.iter();
        deadlines.map(|waiting| waiting.until).min()
    }

    /// Has an idle worker restore the session of a directory. Without one the restore
    /// waits until `until`.
    fn restore(&mut self, console: u64, directory: &Path, until: Instant) -> Result<(), String> {
        let path = absolute(directory)?;
        let (owner, file) = state::owner(directory).map_err(|error| error.to_string())?;
        let alive = self
            .sessions
            .values()
            .find(|session| session.token == owner.token);
        if let Some(alive) = alive {
            return Err(format!(
                "session {} of this host is the one that {} holds",
                alive.facts.session,
                path.display()
            ));
        }
        if owner.token == [0; 16] {
            return Err("the session in this directory ended with its connection".into());
        }
        let limit = u64::from(self.host.limits.sessions);
        if self.sessions.len() as u64 >= limit {
            return Err(format!("the host serves {limit} sessions already"));
        }
        let ordinal = owner.ordinal;
        let leased = self.leases.get(&owner.vm);
        let position = leased.map_or(Some(ordinal), |it| self.devices.position_of(it.grant.gpu));
        let position = position.filter(|position| self.devices.get(*position).is_some());
        let Some(position) = position else {
            return Err(format!("the host has no device {ordinal}"));
        };
        let Some(key) = self.idle_on(position) else {
            if Instant::now() >= until {
                let label = self.devices.label(position);
                let problem = self.devices.get(position).and_then(|it| it.problem.clone());
                let why = problem.unwrap_or_else(|| "none started in time".to_owned());
                return Err(format!("no worker of device {label} is idle: {why}"));
            }
            self.operations.restores.push(Restoring {
                console,
                directory: directory.to_owned(),
                position,
                until,
            });
            return Ok(());
        };
        self.own(key, &owner.vm)?;
        let session = self.counts.next_session();
        let Some(worker) = self.workers.get(&key) else {
            return Err("the worker is lost: try again".into());
        };
        let facts = Facts {
            session,
            vm: owner.vm.clone(),
            guest_pid: owner.guest_pid,
            ordinal,
            device: self.devices.label(worker.ordinal),
            communicator: "none".into(),
            begun: now(),
            expires: None,
        };
        let restore = ToWorker::Restore {
            terms: Terms {
                session,
                token: owner.token,
                ordinal,
                device_count: owner.device_count,
                device_memory: self.host.limits.memory.0,
                host_memory: 0,
                window: self.host.shm.window.0,
                reconnect: u32::try_from(KEPT.as_millis()).unwrap_or(u32::MAX),
                vm: owner.vm,
            },
        };
        let assigned = self.begin_session(key, &facts, &restore, &[file.as_fd()]);
        assigned.ok_or("the worker is lost: try again")?;
        tracing::info!(session, directory = %directory.display(), "session is restored from a directory");
        self.sessions.insert(
            session,
            Session {
                facts,
                token: owner.token,
                worker: key,
                arrives: true,
                counters: None,
            },
        );
        self.counts.session_began();
        self.join_turns(session);
        let kind = Kind::State {
            puts_away: false,
            again: None,
            fresh: None,
        };
        self.operations
            .orders
            .insert(key, Ordered { console, kind });
        Ok(())
    }

    /// Handles a worker's progress report.
    pub(super) fn order_progress(&mut self, key: u64, progress: Progress) {
        let Progress { phase, done, all } = progress;
        if let (Some(ordered), Some(session)) =
            (self.operations.orders.get(&key), self.session_of(key))
        {
            let console = ordered.console;
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

    /// The number of a worker's session.
    fn session_of(&self, key: u64) -> Option<u64> {
        match self.workers.get(&key)?.state {
            State::Serving(session) => Some(session),
            _ => None,
        }
    }

    /// Handles the end of an order.
    pub(super) fn order_over(&mut self, key: u64, outcome: Outcome) {
        let Some(Ordered { console, kind }) = self.operations.orders.remove(&key) else {
            return;
        };
        let outcome = match &kind {
            Kind::State {
                fresh: Some(fresh), ..
            } => fresh.settle(outcome),
            _ => outcome,
        };
        let session = self.session_of(key);
        tracing::info!(
            session,
            done = outcome.is_ok(),
            reason = outcome.as_ref().err(),
            "an order to a session completed"
        );
        match kind {
            Kind::Migration(id) | Kind::Relocation { id, .. } => {
                return self.member_over(id, key, outcome);
            }
            Kind::State {
                puts_away: true, ..
            } if outcome.is_ok() => {
                // The worker exits. If the daemon ends meanwhile, it must not send a
                // goodbye to the guest.
                if let Some(worker) = self.workers.get_mut(&key) {
                    worker.ending = true;
                    worker.deadline.get_or_insert(Instant::now() + GRACE);
                }
                let session = session.and_then(|session| self.sessions.get_mut(&session));
                if let Some(session) = session
                    && session.token != [0; 16]
                {
                    let token = std::mem::take(&mut session.token);
                    self.notes.park(token, KEPT);
                    self.operations.parked.push(Parked::new(token, KEPT));
                }
            }
            Kind::State {
                again: Some(again), ..
            } => self.checkpoint_over(session, again, &outcome),
            Kind::State { .. } => {}
        }
        let response = match outcome {
            Ok(figures) => Response::Done(figures),
            Err(error) => Response::Error { error },
        };
        self.answer(console, &response);
        self.bring_back();
        self.requests(console);
    }

    /// Handles the exit of a worker with an unfinished order.
    pub(super) fn order_ended(&mut self, key: u64) {
        let Some(ordered) = self.operations.orders.get(&key) else {
            return;
        };
        let worker = self.workers.get(&key);
        let orderly = worker.is_some_and(|worker| worker.finished && worker.last_word.is_none());
        if let (Kind::Migration(id) | Kind::Relocation { id, .. }, true) = (&ordered.kind, orderly)
        {
            self.member_ended(*id, key);
        }
        let reason = match orderly {
            true => "its program ended in the meantime",
            false => "its worker ended",
        };
        self.order_over(key, Err(reason.into()));
    }

    /// Adopts sessions that an earlier daemon had checkpointed: their guests may
    /// reconnect.
    pub(super) fn take_up_parked(&mut self) {
        let parked = self.notes.parked().into_iter();
        self.operations.parked = parked
            .map(|(token, left)| Parked::new(token, left))
            .collect();
    }

    /// Keeps a guest whose session is checkpointed. Returns the guest if it is not.
    pub(super) fn park(
        &mut self,
        guest: Guest,
        request: Box<SessionRequest>,
    ) -> Option<(Guest, Box<SessionRequest>)> {
        let now = Instant::now();
        let notes = &self.notes;
        self.operations.parked.retain(|parked| {
            let waits = parked.until > now;
            if !waits {
                notes.unpark(&parked.token);
            }
            waits
        });
        let token = request.hello.token;
        match self
            .operations
            .parked
            .iter_mut()
            .find(|parked| parked.token == token)
        {
            Some(parked) => {
                parked.guest = Some((guest, request));
                None
            }
            None => Some((guest, request)),
        }
    }

    /// Hands waiting guests to their restored sessions.
    fn bring_back(&mut self) {
        let mut back = Vec::new();
        for mut parked in std::mem::take(&mut self.operations.parked) {
            let here = self
                .sessions
                .values()
                .any(|session| session.token == parked.token);
            match (here, parked.guest.take()) {
                (true, guest) => {
                    self.notes.unpark(&parked.token);
                    back.extend(guest);
                }
                (false, guest) => {
                    parked.guest = guest;
                    self.operations.parked.push(parked);
                }
            }
        }
        for (guest, request) in back {
            self.resume(guest, &request);
        }
    }
}

/// An absolute path, for a worker in another directory.
fn absolute(path: &Path) -> Result<PathBuf, String> {
    (path.is_absolute() && path.to_str().is_some())
        .then(|| path.to_owned())
        .ok_or_else(|| format!("{} is not an absolute path", path.display()))
}
