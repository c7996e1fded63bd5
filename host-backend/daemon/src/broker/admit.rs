//! From a connection to a session.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use paragpu_config::host::{Limits, Shm};
use paragpu_protocol::codec::{Bytes, Text};
use paragpu_worker::control::{Assign, ToWorker};

use super::{ACCEPT_PAUSE, Broker, Waiting};
use crate::handshake::{Asked, Guest, Pending, Progress};
use crate::session::{Facts, Session, now};
use crate::worker::State;

impl Broker {
    pub(super) fn accept(&mut self, place: usize) {
        let Some(listener) = self.guests.get(place) else {
            return;
        };
        let (socket, peer) = match listener.accept() {
            Ok(Some(connection)) => connection,
            Ok(None) => return,
            Err(error) => return self.pause_accepting(&error),
        };
        let guest = Guest { socket, peer };
        if self.pending.len() >= usize::try_from(self.host.limits.pending).unwrap_or(usize::MAX) {
            self.refuse(
                guest,
                "too many connections wait for their hello: try again",
            );
            return;
        }
        let patience = Duration::from_millis(self.host.limits.hello.into());
        let key = self.key();
        let pending = Pending::new(guest, Instant::now() + patience);
        self.pending.insert(key, pending);
        self.advance(key);
    }

    /// The system has no descriptors or memory left: what waits keeps waiting.
    pub(super) fn pause_accepting(&mut self, error: &std::io::Error) {
        tracing::warn!(%error, "a connection cannot be accepted");
        self.accept_pause = Some(Instant::now() + ACCEPT_PAUSE);
    }

    /// Something of a first frame came.
    pub(super) fn advance(&mut self, key: u64) {
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        let progress = pending.advance();
        if matches!(progress, Progress::More) {
            return;
        }
        let Some(Pending { guest, .. }) = self.pending.remove(&key) else {
            return;
        };
        match progress {
            Progress::More => {}
            Progress::Complete(asked) => self.admit(guest, asked),
            Progress::Refused(reason) => self.refuse(guest, &reason),
            Progress::Rubbish(what) => {
                tracing::info!(peer = %guest.peer, "a connection {what}");
            }
        }
    }

    /// Closes connections that did not say hello in time.
    pub(super) fn give_up_on_silent(&mut self, now: Instant) {
        self.pending.retain(|_, pending| {
            let silent = pending.deadline <= now;
            if silent {
                tracing::info!(peer = %pending.guest.peer, "a connection did not say hello in time");
            }
            !silent
        });
    }

    fn admit(&mut self, guest: Guest, asked: Box<Asked>) {
        if asked.hello.token != [0; 16] {
            if let Some((guest, asked)) = self.park(guest, asked) {
                self.resume(guest, &asked);
            }
            return;
        }
        let limit = u64::from(self.host.limits.sessions);
        if (self.sessions.len() + self.waiting.len()) as u64 >= limit {
            let reason = format!(
                "the host serves {limit} sessions already, its limit: try again when one has \
                 ended, or raise limits.sessions in its host.toml"
            );
            self.refuse(guest, &reason);
            return;
        }
        let quota = u64::from(self.host.limits.per_vm);
        if quota > 0 && self.sessions_of(&asked.vm) >= quota {
            let reason = format!(
                "{} has {quota} sessions on this host already, its limit: end a program, or raise \
                 limits.per_vm in the host's host.toml",
                asked.vm
            );
            self.refuse(guest, &reason);
            return;
        }
        self.waiting.push_back(Waiting { guest, asked });
    }

    /// Hands a guest that connected again to the worker that has its session.
    /// Whoever has the token may: it is the session's secret, and the guest
    /// may come over another communicator, from where it has another name.
    pub(super) fn resume(&mut self, guest: Guest, asked: &Asked) {
        let token = asked.hello.token;
        let found = self
            .sessions
            .values_mut()
            .find(|session| same(&session.token, &token));
        let Some(session) = found.filter(|found| found.facts.ordinal == asked.hello.device) else {
            self.refuse(
                guest,
                "the session that the guest wants to go on with is over",
            );
            return;
        };
        let worker = self.workers.get(&session.worker);
        let limits = &self.host.limits;
        let shm = &self.host.shm;
        let sent = worker
            .filter(|worker| !worker.finished && !worker.told)
            .is_some_and(|worker| {
                let assign = assign(
                    &session.facts,
                    token,
                    self.devices.count(),
                    limits,
                    shm,
                    asked,
                );
                let fds = descriptors(&guest, asked);
                worker
                    .control
                    .as_ref()
                    .is_some_and(|control| control.send(&ToWorker::Resume(assign), &fds).is_ok())
            });
        if !sent {
            self.refuse(
                guest,
                "the session that the guest wants to go on with is over",
            );
            return;
        }
        tracing::info!(
            session = session.facts.session,
            vm = asked.vm,
            communicator = asked.communicator,
            "session goes on over another connection"
        );
        session.facts.communicator = asked.communicator.to_owned();
    }

    /// How many sessions a VM, user or address has, those waiting included.
    fn sessions_of(&self, vm: &str) -> u64 {
        let running = self.sessions.values().map(|session| &session.facts.vm);
        let waiting = self.waiting.iter().map(|waiting| &waiting.asked.vm);
        running.chain(waiting).filter(|other| *other == vm).count() as u64
    }

    /// The guest at this place of the queue is gone.
    pub(super) fn gave_up(&mut self, place: usize) {
        if let Some(waiting) = self.waiting.remove(place) {
            tracing::debug!(vm = waiting.asked.vm, "a guest left before it had a worker");
        }
    }

    /// Gives waiting guests workers, in their order; refuses those for whom
    /// there will be none.
    pub(super) fn match_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            if let Some(reason) = self.hopeless(waiting.asked.hello.device) {
                self.refuse(waiting.guest, &reason);
            } else if let Some(waiting) = self.assign(waiting) {
                self.waiting.push_back(waiting);
            }
        }
    }

    /// Why a guest that wants device `ordinal` waits in vain; `None` where it
    /// does not.
    fn hopeless(&self, ordinal: u32) -> Option<String> {
        if let Some(problem) = self.devices.problem() {
            return Some(format!("the host has no GPU to give: {problem}"));
        }
        if !self.devices.ready() {
            return None;
        }
        let count = self.devices.count();
        let Some(device) = self.devices.get(ordinal) else {
            return Some(format!(
                "the host gives {count} devices, and the guest asks for number {ordinal}"
            ));
        };
        let problem = device.problem.as_ref()?;
        let coming = self.workers.values().any(|worker| {
            worker.ordinal == ordinal && matches!(worker.state, State::Starting | State::Idle)
        });
        (!coming && device.retry.is_some())
            .then(|| format!("the host's device {ordinal} cannot be opened: {problem}"))
    }

    /// Hands a guest to an idle worker of its device; gives the guest back
    /// where there is none.
    fn assign(&mut self, waiting: Waiting) -> Option<Waiting> {
        if !self.devices.ready() {
            return Some(waiting);
        }
        let ordinal = waiting.asked.hello.device;
        loop {
            let idle = self
                .workers
                .iter()
                .find(|(_, worker)| worker.ordinal == ordinal && worker.state == State::Idle);
            let Some((&key, _)) = idle else {
                return Some(waiting);
            };
            if self.hand_over(key, &waiting) {
                return None;
            }
        }
    }

    fn hand_over(&mut self, key: u64, waiting: &Waiting) -> bool {
        let Waiting { guest, asked } = waiting;
        let session = self.next_session;
        let device_count = self.devices.count();
        let device = self.devices.label(asked.hello.device);
        let Some(worker) = self.workers.get_mut(&key) else {
            return false;
        };
        let token = asked.arrives.unwrap_or_else(token);
        let fds = descriptors(guest, asked);
        let facts = Facts {
            session,
            vm: asked.vm.clone(),
            guest_pid: asked.hello.pid,
            ordinal: asked.hello.device,
            device,
            communicator: asked.communicator.to_owned(),
            begun: now(),
        };
        let limits = &self.host.limits;
        let assign = assign(&facts, token, device_count, limits, &self.host.shm, asked);
        let assign = if asked.arrives.is_some() {
            ToWorker::Arrive(assign)
        } else {
            ToWorker::Assign(assign)
        };
        // Noted first, so that there is no moment at which a session runs
        // that a daemon after this one would not find.
        self.notes.write(&facts, worker.pid);
        let sent = worker
            .control
            .as_ref()
            .is_some_and(|control| control.send(&assign, &fds).is_ok());
        if !sent {
            // It just died, or is about to.
            worker.dismiss(Instant::now() + super::GRACE);
            self.notes.remove(session);
            return false;
        }
        worker.state = State::Serving(session);
        tracing::info!(
            session,
            worker = worker.pid,
            vm = facts.vm,
            pid = facts.guest_pid,
            device = facts.device,
            communicator = facts.communicator,
            "session begins"
        );
        self.sessions.insert(
            session,
            Session {
                facts,
                token: if limits.reconnect == 0 {
                    [0; 16]
                } else {
                    token
                },
                worker: key,
                counters: None,
            },
        );
        self.next_session += 1;
        self.totals.begun += 1;
        true
    }

    fn refuse(&mut self, guest: Guest, reason: &str) {
        tracing::info!(peer = %guest.peer, reason, "a guest is refused");
        self.totals.refused += 1;
        guest.refuse(reason);
    }
}

/// What a worker is told of a guest.
fn assign<'a>(
    facts: &Facts,
    token: [u8; 16],
    device_count: u32,
    limits: &Limits,
    shm: &Shm,
    asked: &'a Asked,
) -> Assign<'a> {
    let channel = asked.channel.as_ref();
    Assign {
        session: facts.session,
        token,
        ordinal: asked.hello.device,
        device_count,
        device_memory: limits.memory.0,
        host_memory: 0,
        window: shm.window.0,
        channel_offset: channel.map_or(0, |channel| channel.offset),
        channel_size: channel.map_or(0, |channel| channel.size),
        list_offset: channel.map_or(0, |channel| channel.lists),
        channel: channel.map_or(0, |channel| channel.number),
        // Without a secret nobody could come back.
        reconnect: if token == [0; 16] {
            0
        } else {
            limits.reconnect
        },
        vm: Text(&asked.vm),
        hello: Bytes(&asked.hello_bytes),
    }
}

/// The descriptors that go with it.
fn descriptors<'a>(guest: &'a Guest, asked: &'a Asked) -> Vec<BorrowedFd<'a>> {
    let mut fds = Vec::new();
    if let Some(channel) = &asked.channel {
        fds.extend(channel.fds.iter().map(|fd| fd.as_fd()));
    }
    // Of a PCI device's channel the fourth: the device process waits at its
    // other end for the worker's end, and shuts it down when the guest is gone.
    fds.push(guest.socket.as_fd());
    if let Some(channel) = &asked.channel {
        fds.extend(channel.memory.iter().map(|fd| fd.as_fd()));
    }
    fds
}

/// Are two secrets the same? Takes as long for any two.
fn same(one: &[u8; 16], other: &[u8; 16]) -> bool {
    one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// A secret that nobody guesses; all zeros, which resumes nothing, where the
/// system has no randomness.
fn token() -> [u8; 16] {
    let mut token = [0; 16];
    match rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => token,
        _ => [0; 16],
    }
}
