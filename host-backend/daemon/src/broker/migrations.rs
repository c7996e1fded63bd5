//! Moves of one session, of all sessions of a VM together, or of each session of a GPU.
//!
//! Sessions that move together pass three gates, each a pipe: see [`Stage`].

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use paragpu_config::Communicator;
use paragpu_control::admin::{Migrate, Moved, Response};
use paragpu_control::worker::{Route, Step, ToWorker};
use paragpu_protocol::handshake::ANY_DEVICE;
use rustix::pipe::{PipeFlags, pipe_with};

use super::Broker;
use super::departure::{Joining, MoveOptions};
use super::migration::{Member, Migration, Part, Stage};
use super::order::{Kind, Ordered, Outcome};
use crate::link::Destination;
use crate::listener::Peer;

/// Maximum number of moves of a VM that end because one of its programs shares memory
/// meanwhile.
const SPOILED: u32 = 2;

impl Broker {
    pub(super) fn order_migration(
        &mut self,
        console: u64,
        migrate: &Migrate,
    ) -> Result<(), String> {
        let communicator = match migrate.communicator.as_deref() {
            None => String::new(),
            Some(name) => match paragpu_config::parse::<Communicator>(name) {
                Ok(Communicator::Auto) | Err(_) => {
                    return Err(format!(
                        "{name:?} is not a communicator: use unix, tcp, vsock, shm or pci"
                    ));
                }
                Ok(known) => known.to_string(),
            },
        };
        let place = match &migrate.to {
            Some(url) => Destination::parse(url)?,
            None => Destination::Socket(self.host.daemon.socket.clone()),
        };
        let here = place == Destination::Socket(self.host.daemon.socket.clone());
        if here && migrate.to_gpu.is_none() {
            if communicator.is_empty() {
                return Err(
                    "the sessions are on this host already: give --to-gpu N to move them to \
                     another GPU of it, --communicator NAME for another way to it, or --to URL"
                        .into(),
                );
            }
            let mut sessions = self.chosen(migrate)?;
            self.end_queries(migrate, &mut sessions, |facts| {
                facts.communicator != communicator
            })?;
            return self.begin_relocations(console, migrate, &sessions, &communicator);
        }
        if let Some(gpu) = migrate.to_gpu.filter(|_| here) {
            self.check_gpu(gpu)?;
        }
        let mut sessions = self.chosen(migrate)?;
        if let Some(gpu) = migrate.to_gpu.filter(|_| here) {
            sessions.retain(|session| self.workers.gpu_of(*session) != Some(gpu));
            if sessions.is_empty() {
                return Err(format!("nothing to move: it is already on GPU {gpu}"));
            }
        }
        let goal = MoveOptions {
            local: matches!(place, Destination::Socket(_)),
            place,
            elsewhere: !here,
            wanted: migrate.to_gpu.unwrap_or(ANY_DEVICE),
            communicator,
            precopy: !migrate.stop_first,
            hand_over: !migrate.copy,
        };
        self.end_queries(migrate, &mut sessions, |facts| {
            let keeps = [&facts.communicator, ""].contains(&goal.communicator.as_str());
            !goal.local || !keeps
        })?;
        self.begin(console, migrate, &sessions, goal)
    }

    fn check_gpu(&self, gpu: u32) -> Result<(), String> {
        if self.devices.are_sought() {
            return Err("this host's GPUs are still being opened: try again".into());
        }
        let count = self.devices.count();
        (gpu < count).then_some(()).ok_or_else(|| {
            let gpus = if count == 1 { "GPU" } else { "GPUs" };
            format!("this host gives {count} {gpus}, numbered from 0: there is no GPU {gpu}")
        })
    }

    /// The sessions of an order, at least one.
    fn chosen(&self, migrate: &Migrate) -> Result<Vec<u64>, String> {
        match (migrate.session, &migrate.vm, migrate.gpu) {
            (Some(session), None, None) => Ok(vec![session]),
            (None, Some(vm), None) => {
                let mut of_vm = self.workers.sessions_of(vm);
                of_vm.retain(|session| !self.is_over(*session));
                if of_vm.is_empty() {
                    return Err(format!(
                        "{vm:?} has no session on this host: `paragpu list` names VMs as they are \
                         known here"
                    ));
                }
                Ok(of_vm)
            }
            (None, None, Some(gpu)) => {
                self.check_gpu(gpu)?;
                let all = self.workers.sessions().map(|session| session.facts.session);
                let on_gpu = all.filter(|session| self.workers.gpu_of(*session) == Some(gpu));
                let on_gpu = on_gpu.filter(|session| !self.is_over(*session));
                let on_gpu: Vec<u64> = on_gpu.collect();
                if on_gpu.is_empty() {
                    return Err(format!("GPU {gpu} has no sessions"));
                }
                Ok(on_gpu)
            }
            _ => Err("give one of session, vm and gpu".into()),
        }
    }

    /// Whether a session has ended, or was requested to.
    fn is_over(&self, session: u64) -> bool {
        let worker = self.workers.of(session);
        worker.is_some_and(|worker| worker.finished || worker.ending)
    }

    fn begin(
        &mut self,
        console: u64,
        migrate: &Migrate,
        sessions: &[u64],
        goal: MoveOptions,
    ) -> Result<(), String> {
        let together = migrate.vm.is_some();
        if migrate.gpu.is_none() {
            // If one of them cannot move, nothing has begun yet.
            for session in sessions {
                self.orderable(*session)?;
            }
        }
        let mut gates = None;
        let mut stage = Stage::Alone;
        if together {
            let failed = |error| format!("cannot create a pipe: {error}");
            let (stops, stop) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
            let (rests, rest) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
            let (commits, commit) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
            gates = Some([stops, rests, commits]);
            stage = Stage::together([stop, rest, commit], migrate.most_pause_ms);
        }
        let id = self.counts.key();
        let mut members = BTreeMap::new();
        let mut over = Vec::new();
        for session in sessions {
            let member = self.member(*session, Part::First);
            match self.depart(console, id, *session, &goal, gates.as_ref()) {
                Ok(key) => {
                    members.insert(key, member);
                }
                Err(error) if migrate.session.is_some() => return Err(error),
                Err(error) => {
                    over.push(member.over(Err(error)));
                    stage.give_up();
                }
            }
        }
        tracing::info!(
            sessions = members.len(), to = %goal.place, together, "a migration begins"
        );
        let to = goal.elsewhere.then(|| goal.place.clone());
        let joining = migrate.vm.clone().zip(gates).map(|(vm, gates)| Joining {
            vm,
            options: goal,
            gates,
        });
        self.await_members(
            id,
            Migration {
                console,
                single: migrate.session.is_some(),
                members,
                stage,
                joining,
                to,
                why: None,
                over,
            },
        );
        Ok(())
    }

    /// Records a migration that has begun, to wait for its members.
    fn await_members(&mut self, id: u64, migration: Migration) {
        self.operations.migrations.insert(id, migration);
        self.advance_migration(id);
    }

    pub(super) fn member(&self, session: u64, part: Part) -> Member {
        let found = self.workers.session(session);
        Member {
            session,
            vm: found.map_or_else(String::new, |found| found.facts.vm.clone()),
            successor: None,
            step: None,
            part,
        }
    }

    /// Asks guests to continue over another communicator, independently of each other.
    /// Skips those of a VM or GPU that already use it.
    fn begin_relocations(
        &mut self,
        console: u64,
        migrate: &Migrate,
        sessions: &[u64],
        communicator: &str,
    ) -> Result<(), String> {
        let id = self.counts.key();
        let mut members = BTreeMap::new();
        let mut over = Vec::new();
        for session in sessions {
            let found = self.workers.session(*session);
            let goes_over = found.is_some_and(|found| found.facts.communicator == communicator);
            if goes_over && migrate.session.is_none() {
                continue;
            }
            let member = self.member(*session, Part::First);
            match self.relocate(console, id, *session, communicator) {
                Ok(key) => {
                    members.insert(key, member);
                }
                Err(error) if migrate.session.is_some() => return Err(error),
                Err(error) => over.push(member.over(Err(error))),
            }
        }
        self.await_members(
            id,
            Migration {
                console,
                single: migrate.session.is_some(),
                members,
                stage: Stage::Alone,
                joining: None,
                to: None,
                why: None,
                over,
            },
        );
        Ok(())
    }

    /// Announces a session to the destination, and orders its worker to move it there.
    /// Returns the worker's key.
    pub(super) fn depart(
        &mut self,
        console: u64,
        id: u64,
        session: u64,
        options: &MoveOptions,
        gates: Option<&[OwnedFd; 3]>,
    ) -> Result<u64, String> {
        let key = self.orderable(session)?;
        let Some(found) = self.workers.session_mut(session) else {
            return Err(format!("there is no session {session}"));
        };
        let (links, tls) = (&self.operations.links, self.listeners.tls.as_ref());
        let departure = options.announce(found, links, tls, gates)?;
        let ordered = Ordered::new(console, Kind::Migration(id));
        let fds = departure.descriptors();
        self.order(key, ordered, &departure.message, &fds)?;
        Ok(key)
    }

    /// Records that a session waits for the others.
    pub(super) fn held(&mut self, key: u64, step: Step) {
        let Some((id, migration)) = self.operations.migration_of(key) else {
            return;
        };
        if let Some(member) = migration.members.get_mut(&key) {
            member.step = Some(step);
        }
        self.advance_migration(id);
    }

    /// Lets a stopped session execute a call while others are not stopped: their work may
    /// wait for it.
    pub(super) fn resumes(&mut self, key: u64) {
        let Some((_, migration)) = self.operations.migration_of(key) else {
            return;
        };
        if let Stage::Stopping { .. } = migration.stage
            && let Some(member) = migration.members.get_mut(&key)
        {
            member.step = Some(Step::Copied);
            if member.part == Part::Late {
                // From its first call on, it may share memory.
                member.part = Part::Joined;
            }
            // A worker that does not read it stays stopped until the deadline.
            let _ = self.workers.send(key, &ToWorker::Resumed, &[]);
        }
    }

    /// Whether the worker `taker` may take memory that the session `owner` of `vm`
    /// offers. Sessions that share memory with one that does not move with them stay. A
    /// program that shares it repeatedly, however, would keep its VM here forever. So
    /// after [`SPOILED`] such moves it gets no memory while one is in progress.
    pub(super) fn may_take_from(&mut self, owner: u64, taker: u64, vm: &str) -> bool {
        let Some(owner) = self.workers.session(owner).map(|session| session.worker) else {
            return true;
        };
        for migration in self.operations.migrations.values_mut() {
            let members = &migration.members;
            let parts = members.contains_key(&owner) && !members.contains_key(&taker);
            if parts && migration.stage.is_undecided() {
                if self.tenants.spoiled(vm) > SPOILED {
                    tracing::info!(vm, "a program cannot take memory of a moving session");
                    return false;
                }
                migration.why.get_or_insert_with(|| {
                    "a program that does not move with it has begun to share its memory: move \
                     the VM again"
                        .into()
                });
                migration.stage.give_up();
            }
        }
        true
    }

    /// Handles the end of a session's move.
    pub(super) fn member_over(&mut self, id: u64, key: u64, outcome: Outcome) {
        let Some(migration) = self.operations.migrations.get_mut(&id) else {
            return;
        };
        let is_ended = self.workers.get(key).is_some_and(|worker| worker.ending);
        if let Some(member) = migration.members.remove(&key) {
            let outcome = outcome.map_err(|error| match &migration.why {
                // The destination has no part in it.
                _ if is_ended => {
                    format!("session {} was ended here while it moved", member.session)
                }
                Some(why) => why.clone(),
                None => migration.reason(error),
            });
            match &outcome {
                // A change of communicator has no downtime.
                Ok(figures) if figures.total_ms > 0.0 => self.counts.moves.add(figures),
                Ok(_) => {}
                // It shares nothing with the others.
                Err(_) if member.part == Part::Late => {}
                Err(_) => migration.stage.give_up(),
            }
            migration.over.push(member.over(outcome));
        }
        self.advance_migration(id);
    }

    /// Opens the gates that can be opened, and answers when the migration is
    /// complete.
    fn advance_migration(&mut self, id: u64) {
        let Some(migration) = self.operations.migrations.get_mut(&id) else {
            return;
        };
        // Without members there is nothing to do.
        let slowest = migration.step();
        if migration.stage.commits(slowest) {
            // From the commit on, sessions import the memory that the destinations offer.
            let members = migration.members.values();
            for member in members.filter(|it| it.part != Part::Late) {
                self.tenants.moved(&member.vm, member.session);
            }
        }
        let sessions = migration.members.values().map(|member| member.session);
        let sessions = sessions.collect();
        let vm = migration.members.values().next().map(|it| it.vm.as_str());
        let offers = vm.and_then(|vm| self.tenants.offers(vm));
        let leaves = offers.is_some_and(|offers| offers.are_held(&sessions));
        let stage = std::mem::replace(&mut migration.stage, Stage::Staying);
        migration.stage = stage.advance(slowest, leaves);
        if !migration.members.is_empty() {
            return;
        }
        let Some(migration) = self.operations.migrations.remove(&id) else {
            return;
        };
        let response = match (migration.single, migration.over.first()) {
            (
                true,
                Some(Moved {
                    error: None,
                    figures,
                    ..
                }),
            ) => Response::Done(*figures),
            (
                true,
                Some(Moved {
                    error: Some(error), ..
                }),
            ) => Response::Error {
                error: error.clone(),
            },
            _ => Response::Moved {
                sessions: migration.over,
            },
        };
        self.answer(migration.console, &response);
        self.requests(migration.console);
    }

    /// Gives up migrations that took too long.
    pub(super) fn end_overdue_migrations(&mut self, now: Instant) {
        for (key, reason) in self.operations.give_up(now) {
            self.order_over(key, Err(reason));
        }
    }

    /// Asks the guest of a session to continue over another communicator. Returns
    /// the key of its worker.
    fn relocate(
        &mut self,
        console: u64,
        id: u64,
        session: u64,
        communicator: &str,
    ) -> Result<u64, String> {
        let key = self.orderable(session)?;
        let Some(found) = self.workers.session(session) else {
            return Err(format!("there is no session {session}"));
        };
        if found.token == [0; 16] {
            return Err(format!(
                "session {session} ends with its connection: limits.reconnect in host.toml is 0"
            ));
        }
        if found.facts.communicator == communicator {
            return Err(format!("session {session} already uses {communicator}"));
        }
        let from = Peer::Local {
            uid: 0,
            owner: 0,
            pid: 0,
        };
        let address = self
            .guest_addresses()
            .address(communicator, &found.facts.vm, &from)?;
        let in_vm = matches!(found.facts.communicator.as_str(), "pci" | "vsock");
        let announced = self.host.tcp.announce.0.is_some();
        if in_vm && communicator == "tcp" && !announced && !reaches_others(&address) {
            return Err(format!(
                "session {session} is of a program in a VM, which does not reach this host at \
                 {address}: name the host:port at which it does in tcp.announce of host.toml"
            ));
        }
        let message = ToWorker::Move(Route {
            communicator: communicator.to_owned(),
            address,
        });
        let kind = Kind::Relocation {
            id,
            communicator: communicator.to_owned(),
            began: Instant::now(),
        };
        self.order(key, Ordered::new(console, kind), &message, &[])?;
        Ok(key)
    }

    /// Records that a session moved away, so that its guest is redirected if it still
    /// connects here. If another worker of this daemon continues it, that session gets its
    /// share.
    pub(super) fn departed(&mut self, key: u64, route: Route) {
        self.operations.forget_departed();
        let Some(session) = self.workers.served_by_mut(key) else {
            return;
        };
        // This worker no longer continues it.
        let identity = session.identity();
        let token = std::mem::take(&mut session.token);
        session.mark = [0; 16];
        let left = session.facts.session;
        if token != [0; 16] && !route.communicator.is_empty() {
            self.operations.depart(token, route);
        }
        let successor = self.workers.with_token(&identity);
        let successor = successor.map(|session| session.facts.session);
        if let Some((_, migration)) = self.operations.migration_of(key)
            && let Some(member) = migration.members.get_mut(&key)
            && let Some(successor) = successor
        {
            member.successor = Some(successor);
            self.shares.hand_on(left, successor);
            self.follow_shares();
        }
    }

    /// Records that a guest has reconnected over this communicator.
    pub(super) fn followed(&mut self, key: u64, communicator: &str) {
        if let Some(outcome) = self.operations.followed(key, communicator) {
            self.order_over(key, outcome);
        }
    }

    /// Records that a guest could not follow the move.
    pub(super) fn stayed(&mut self, key: u64, reason: &str) {
        // A guest may say so without being asked.
        if matches!(self.operations.order(key), Some(Kind::Relocation { .. })) {
            tracing::info!(reason, "a guest keeps its communicator");
            self.order_over(key, Err(format!("its program stays: {reason}")));
        }
    }
}

/// Whether other machines could reach this host at an address.
fn reaches_others(address: &str) -> bool {
    let address = address.parse::<std::net::SocketAddr>();
    address.is_ok_and(|address| !address.ip().is_unspecified() && !address.ip().is_loopback())
}
