//! Restores from the control socket: of a checkpointed session, or of copies of it.
//!
//! A session that is restored has the token of the one that was checkpointed, so its program
//! finds it. Each copy has a token of its own. A program that presents the checkpointed
//! session's token claims a copy that no other has, and learns that copy's token with the
//! welcome. So any number of clones of a program, which all have the same memory and hence
//! present the same token, get a session each.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use paragpu_control::admin::{Figures, Response};
use paragpu_control::state;
use paragpu_control::worker::{Terms, ToWorker};

use super::Broker;
use super::operations::KEPT;
use super::order::{Copies, Kind, Ordered, Outcome, Restoring, Wanted};
use super::orders::absolute;
use super::token::token;
use crate::handshake::SessionRequest;
use crate::session::{Facts, Session, UNCLAIMED, now, since_boot};
use crate::tenants::check_tenant;

/// How long a restore waits for a worker.
const WORKER_TIMEOUT: Duration = Duration::from_secs(30);

/// When a restore that begins now no longer waits for a worker.
fn deadline() -> Instant {
    Instant::now() + WORKER_TIMEOUT
}

impl Broker {
    /// Begins to restore the session of a directory, or a number of copies.
    pub(super) fn order_restore(
        &mut self,
        console: u64,
        directory: &Path,
        copies: Option<u32>,
    ) -> Result<(), String> {
        let copies = copies.map(|all| Copies {
            all,
            done: 0,
            bytes: 0,
            began: Instant::now(),
        });
        let wanted = Wanted {
            directory: absolute(directory)?,
            by_agent: self.is_agent(console),
            copies,
        };
        self.restore(console, wanted, deadline())
    }

    /// Assigns idle workers to restores that wait for one.
    pub(super) fn match_restores(&mut self, now: Instant) {
        for waiting in self.operations.take_restores() {
            let console = waiting.console;
            let is_held = match waiting.position {
                Some(position) => self.workers.idle_on(position).is_none(),
                None => self.devices.are_sought(),
            };
            if now < waiting.until && is_held {
                self.operations.await_worker(waiting);
                continue;
            }
            if let Err(error) = self.restore(console, waiting.wanted, waiting.until) {
                self.answer(console, &Response::Error { error });
                self.requests(console);
            }
        }
    }

    /// Has an idle worker restore a session, or the next copy. Without one, and while the host's
    /// GPUs are sought, the restore waits until `until`.
    fn restore(&mut self, console: u64, wanted: Wanted, until: Instant) -> Result<(), String> {
        let directory = &wanted.directory;
        let (owner, file) =
            state::owner(directory, state::FILE).map_err(|error| error.to_string())?;
        if owner.token == [0; 16] {
            return Err("the session in this directory ended with its connection".into());
        }
        self.may_restore(console, &owner, &wanted)?;
        let ordinal = owner.ordinal;
        if self.devices.are_sought() && Instant::now() < until {
            self.operations.await_worker(Restoring {
                console,
                wanted,
                position: None,
                until,
            });
            return Ok(());
        }
        let Some(position) = self.placing().restored(&owner.vm, ordinal) else {
            return Err(match self.devices.standing_problem() {
                Some(problem) => format!("the host has no GPU for guests: {problem}"),
                None => format!("the host has no device {ordinal} for {}", owner.vm),
            });
        };
        let Some(key) = self.workers.idle_on(position) else {
            if Instant::now() >= until {
                let label = self.devices.label(position);
                let problem = self.devices.get(position).and_then(|it| it.problem.clone());
                let why = problem.unwrap_or_else(|| "none started in time".to_owned());
                return Err(format!("no worker of device {label} is idle: {why}"));
            }
            self.operations.await_worker(Restoring {
                console,
                wanted,
                position: Some(position),
                until,
            });
            return Ok(());
        };
        let (token, claim) = match wanted.copies {
            Some(_) => (token(), owner.token),
            None => (owner.token, [0; 16]),
        };
        if token == [0; 16] {
            return Err("the system has no randomness for a token".into());
        }
        self.own(key, &owner.vm)?;
        let session = self.counts.next_session();
        let Some(worker) = self.workers.get(key) else {
            return Err("the worker is lost: try again".into());
        };
        let facts = Facts {
            session,
            vm: owner.vm.clone(),
            guest_pid: owner.guest_pid,
            ordinal,
            device: self.devices.label(worker.ordinal),
            communicator: UNCLAIMED.into(),
            begun: since_boot().as_secs(),
            // The guest has until the session's end to return with a newer certificate.
            expires: owner.expires.map(|at| at.max(now() + KEPT.as_secs())),
            claim,
        };
        let restore = ToWorker::Restore {
            terms: Terms {
                session,
                token,
                ordinal,
                device_count: owner.device_count,
                device_memory: self.host.limits.memory.0,
                window: self.host.shm.window.0,
                reconnect: u32::try_from(KEPT.as_millis()).unwrap_or(u32::MAX),
                vm: owner.vm,
            },
        };
        let restored = Session {
            facts,
            process: None,
            token,
            mark: [0; 16],
            worker: key,
            arrives: true,
            counters: None,
        };
        let assigned = self.begin_session(restored, &restore, &[file.as_fd()]);
        assigned.ok_or("the worker is lost: try again")?;
        tracing::info!(session, directory = %directory.display(), "session is restored from a directory");
        let kind = match wanted.copies {
            Some(_) => {
                // Guests for which there is no copy wait for the next ones.
                self.operations.put_away(owner.token, &self.notes);
                Kind::Copy(wanted)
            }
            None => Kind::Restore,
        };
        self.operations.begin(key, Ordered::new(console, kind));
        Ok(())
    }

    /// Checks that the host has neither the session of a directory nor too many others, that
    /// its VM's name can be shown, and that an agent's checkpoint is of its lease: the worker
    /// that wrote it named the VM.
    fn may_restore(
        &self,
        console: u64,
        owner: &state::Owner,
        wanted: &Wanted,
    ) -> Result<(), String> {
        let shown = wanted.directory.display();
        check_tenant(&owner.vm).map_err(|error| format!("{shown}: {error}"))?;
        if wanted.by_agent && self.leases.of(console) != Some(&owner.vm) {
            return Err(format!(
                "{shown} holds a session of another VM than the agent's lease"
            ));
        }
        if let Some(alive) = self.workers.with_token(&owner.token) {
            return Err(format!(
                "session {} of this host is the one that {shown} holds",
                alive.facts.session
            ));
        }
        if wanted.copies.is_none()
            && let Some(copy) = self.workers.claimed_by(&owner.token).next()
        {
            return Err(format!(
                "session {} of this host is a copy of the one that {shown} holds, and waits for \
                 the same program",
                copy.facts.session
            ));
        }
        self.room_for(&owner.vm)
    }

    /// Handles the end of the restore of a copy: begins the next one.
    pub(super) fn copy_over(&mut self, console: u64, mut wanted: Wanted, outcome: Outcome) {
        self.bring_back();
        let Some(copies) = &mut wanted.copies else {
            return;
        };
        if let Ok(figures) = &outcome {
            copies.done += 1;
            copies.bytes += figures.bytes;
        }
        let copies = *copies;
        let next = match outcome {
            Ok(_) if copies.done < copies.all => {
                self.restore(console, wanted, deadline()).map(|()| None)
            }
            Ok(_) => Ok(Some(Response::Done(Figures {
                bytes: copies.bytes,
                total_ms: copies.began.elapsed().as_secs_f64() * 1e3,
                ..Figures::default()
            }))),
            Err(error) => Err(error),
        };
        match next {
            Ok(None) => return,
            Ok(Some(response)) => self.answer(console, &response),
            Err(error) => {
                let error = copies.failed(&error);
                self.answer(console, &Response::Error { error });
            }
        }
        self.requests(console);
    }

    /// Hands waiting guests to their restored sessions.
    pub(super) fn bring_back(&mut self) {
        let [back, others] = self.operations.take_restored(&self.workers, &self.notes);
        for (guest, request) in back {
            self.resume(guest, &request);
        }
        for (guest, _) in others {
            self.refuse(
                guest,
                "the session was restored for another program with its token",
            );
        }
    }

    /// A copy for a guest that presents the token of the session in the file.
    pub(super) fn claimable(&self, request: &SessionRequest) -> Option<&Session> {
        let hello = &request.hello;
        let mut copies = self.workers.claimed_by(&hello.token);
        copies.find(|copy| copy.facts.ordinal == hello.device && self.operations.is_ready(copy))
    }
}
