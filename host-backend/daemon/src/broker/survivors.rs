//! Sessions of an earlier daemon. Their workers live on, and come back at the doors that the
//! daemon left them: each brings the accounts in which its memory counts.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use paragpu_control::account::Account;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{SealFlags, fcntl_get_seals};

use super::{Broker, supervise};
use crate::received_fd::ReceivedFd;
use crate::session::Session;
use crate::tenants::Memory;
use crate::worker::Worker;

/// How long workers may take to come back. Guests are admitted afterwards, so that the sessions
/// of those count against their limits.
const RETURN: Duration = Duration::from_secs(5);

impl Broker {
    /// Adopts the sessions of an earlier daemon.
    pub(super) fn adopt(&mut self) {
        for found in self.notes.find() {
            let session = found.facts.session;
            tracing::info!(
                session,
                worker = found.pid,
                vm = found.facts.vm,
                gpu = found.facts.device,
                "a session of an earlier daemon continues"
            );
            self.spawning.adopt(&found.facts.vm, found.pid);
            let key = self.counts.key();
            let device = &found.facts.device;
            // One that the configuration no longer gives to guests is none of its devices.
            let ordinal = self.devices.expected(device).unwrap_or(u32::MAX);
            if found.control.is_some() {
                self.operations.returning.insert(key, found.accounts);
            }
            let process = (found.pid, found.pidfd);
            let worker = Worker::adopt(process, found.control, ordinal, session);
            self.workers.insert(key, worker);
            self.counts.session_found(session);
            if let Some(again) = found.again {
                self.operations.schedules.adopt(session, again);
            }
            let arrives = found.facts.is_unclaimed();
            self.workers.begin(Session {
                facts: found.facts,
                process: None,
                // Its worker brings it.
                token: [0; 16],
                mark: [0; 16],
                worker: key,
                arrives,
                counters: None,
            });
        }
        self.await_return(Instant::now() + RETURN);
        self.tenants.forget_ended();
        self.follow_shares();
    }

    fn await_return(&mut self, deadline: Instant) {
        while !self.operations.returning.is_empty() {
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            let keys: Vec<u64> = self.operations.returning.keys().copied().collect();
            let controls = keys.iter().filter_map(|key| {
                let control = self.workers.get(*key)?.control.as_ref()?;
                Some(PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN))
            });
            let mut controls: Vec<_> = controls.collect();
            if left.is_zero() || controls.is_empty() {
                break;
            }
            // A signal ends the wait early.
            let _ = poll(&mut controls, Timespec::try_from(left).ok().as_ref());
            for key in keys {
                self.receive_from_worker(key, supervise::MESSAGES);
                if self.workers.get(key).is_none_or(|it| it.control.is_none()) {
                    self.operations.returning.remove(&key);
                }
            }
        }
        for key in std::mem::take(&mut self.operations.returning).into_keys() {
            let session = self.workers.served_by(key).map(|it| it.facts.session);
            tracing::warn!(
                session,
                "the worker of a session of an earlier daemon does not answer: its memory is not \
                 counted, and its program cannot reconnect"
            );
            if let Some(worker) = self.workers.get_mut(key) {
                worker.control = None;
            }
        }
    }

    /// Handles a worker's return, with its slots and the token of its session.
    pub(super) fn worker_is_back(
        &mut self,
        key: u64,
        (slot, gpu): (u32, Option<u32>),
        token: [u8; 16],
        fds: Vec<ReceivedFd>,
    ) {
        let Some(known) = self.operations.returning.remove(&key) else {
            tracing::error!("a worker that was not away is back");
            return;
        };
        let slots = [Some(slot), gpu].into_iter().flatten();
        let given = fds.iter().zip(slots);
        let given = given.filter_map(|(fd, slot)| Some((account(fd)?, slot)));
        let given = given.collect();
        let pid = self.workers.get(key).map_or(0, |worker| worker.pid);
        let Some(session) = self.workers.served_by_mut(key) else {
            return;
        };
        if self.host.limits.reconnect > 0 || session.facts.is_unclaimed() {
            session.token = token;
        }
        let facts = session.facts.clone();
        let memory = match facts.device.starts_with("software:") {
            true => Memory::Host {
                label: &facts.device,
                // Known once the device is found.
                bytes: 0,
            },
            false => Memory::Driver,
        };
        let of = (facts.vm.as_str(), &memory);
        let process = (facts.session, pid);
        let readmitted = self.tenants.readmit(&self.host, of, process, &known, given);
        if let Err(reason) = readmitted {
            tracing::error!(session = facts.session, reason, "a worker is not believed");
            self.workers.end(facts.session);
            return;
        }
        self.shares.join(facts.session, &facts.vm, &facts.device);
        let now = Instant::now();
        self.operations.schedules.take_over(facts.session, now);
    }
}

/// The account, if this is a memfd. Other files may have a server that answers no question.
fn account(received: &ReceivedFd) -> Option<Account> {
    let seals = fcntl_get_seals(received).ok()?;
    let memory = seals.contains(SealFlags::SHRINK).then(|| received.as_fd());
    Account::open(memory?.try_clone_to_owned().ok()?).ok()
}
