//! Keeps workers ready, handles their messages, and their ends.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use paragpu_control::worker::{FromWorker, Gpu, Report};

use super::Broker;
use crate::session::Session;
use crate::worker::{GRACE, Room, State, Worker};

/// Maximum number of workers that open a device at the same time.
const STARTING: usize = 8;

/// How long a session that has begun has room for its first calls.
const FIRST_CALLS: Duration = Duration::from_millis(3);

/// Maximum number of messages of a worker that are handled before those of others.
pub(super) const MESSAGES: usize = 16;
/// Maximum number of messages that a worker leaves behind: more than fit into its socket.
const LAST_MESSAGES: usize = 1024;

/// A worker could not be started. The device is tried again after a pause.
#[derive(Debug)]
pub(super) struct NotStarted;

impl Broker {
    /// Starts missing workers and dismisses surplus ones. Returns when to try again, if it
    /// postponed something.
    ///
    /// # Errors
    /// [`NotStarted`] at the first worker that cannot be started; what is left is not done.
    pub(super) fn refill(&mut self, now: Instant) -> Result<Option<Instant>, NotStarted> {
        if self.operator.signals.is_ending() {
            return Ok(None);
        }
        let room = self.workers.room(now);
        let warm = self.host.pool.warm as usize;
        let ready = self.devices.ready();
        let devices: Vec<(u32, bool)> = self
            .devices
            .iter()
            .map(|(ordinal, device)| (ordinal, device.retry.is_none()))
            .collect();
        for (ordinal, may_start) in devices {
            let demand = self.arrivals.waiting_on(ordinal) + self.operations.restores_on(ordinal);
            // The search for devices needs a worker even if none is kept warm.
            let wanted = if ready { warm + demand } else { 1 };
            let idle = self.workers.count(ordinal, State::Idle);
            let starting = self.workers.count(ordinal, State::Starting);
            let have = idle + starting;
            let needed = match room {
                None => wanted,
                Some(Room::Calls(_)) => wanted.min(demand.max(warm / 2)),
                Some(Room::Begins(_)) => wanted.min(demand),
            };
            if have < needed && may_start && self.devices.problem().is_none() {
                let proven = self
                    .devices
                    .get(ordinal)
                    .is_some_and(|device| !device.gpu.name.is_empty());
                // One is enough to find out whether a device can be opened.
                let most = if proven { STARTING } else { 1 }.saturating_sub(starting);
                for _ in 0..(needed - have).min(most) {
                    self.start_worker(ordinal, now)?;
                }
            } else if idle > wanted && ready {
                self.workers.dismiss_idle(ordinal, idle - wanted, now);
            }
        }
        if !matches!(room, Some(Room::Begins(_))) {
            self.spawning.prepare();
        }
        Ok(room.map(Room::end))
    }

    fn start_worker(&mut self, ordinal: u32, now: Instant) -> Result<(), NotStarted> {
        let likely = self.placing().likely_ordinal(ordinal);
        match self
            .spawning
            .start(&self.host, &self.devices, ordinal, likely)
        {
            Ok(worker) => {
                tracing::debug!(
                    worker = worker.pid,
                    gpu = self.devices.label(ordinal),
                    "worker starts"
                );
                let key = self.counts.key();
                self.workers.insert(key, worker);
                Ok(())
            }
            Err(reason) => {
                tracing::error!(reason, "no worker");
                self.devices.not_tried(ordinal, reason, now);
                Err(NotStarted)
            }
        }
    }

    /// Gives a worker the user of `vm` before it gets its session.
    pub(super) fn own(&mut self, key: u64, vm: &str) -> Result<(), String> {
        let live = self.workers.sessions();
        let live = live.map(|session| session.facts.vm.as_str()).collect();
        match self.workers.get(key) {
            Some(worker) => self.spawning.own(&self.host, worker, vm, &live),
            None => Ok(()),
        }
    }

    /// Handles a worker's messages, at most `most`: a compromised worker may send them faster
    /// than they are read.
    pub(super) fn receive_from_worker(&mut self, key: u64, most: usize) {
        for _ in 0..most {
            let Some((worker, news, fds)) = self.workers.receive(key) else {
                return;
            };
            let (ordinal, pid) = (worker.ordinal, worker.pid);
            if news.is_some() {
                self.operations.hear(key);
            }
            match news {
                None => {
                    if worker.control.is_some() {
                        return;
                    }
                    // The worker exits, or is killed.
                    worker.deadline.get_or_insert(Instant::now() + GRACE);
                    if worker.state == State::Starting
                        && let Some(reason) = worker.last_word.clone()
                    {
                        worker.state = State::Leaving;
                        self.start_failed(ordinal, pid, reason);
                    }
                    return;
                }
                Some(FromWorker::Ready { gpu, .. }) => {
                    if worker.state == State::Starting {
                        worker.state = State::Idle;
                        let Gpu { name, memory, .. } = &gpu;
                        tracing::debug!(worker = pid, name, memory, "worker is ready");
                        let was_ready = self.devices.ready();
                        if self.devices.software() {
                            let label = self.devices.label(ordinal);
                            self.tenants.gpu_found(&self.host, &label, *memory);
                        }
                        self.devices.opened(ordinal, gpu);
                        if !was_ready {
                            self.warn_of_missing_devices();
                        }
                    }
                }
                Some(FromWorker::Failed { reason }) => {
                    if worker.state == State::Starting {
                        worker.state = State::Leaving;
                        worker.deadline.get_or_insert(Instant::now() + GRACE);
                        self.start_failed(ordinal, pid, reason);
                    }
                }
                Some(FromWorker::Counters(counters) | FromWorker::Finished { counters, .. }) => {
                    if worker.finished && matches!(worker.state, State::Serving(_)) {
                        worker.deadline.get_or_insert(Instant::now() + GRACE);
                    }
                    if let Some(session) = self.workers.served_by_mut(key) {
                        session.counters = Some(counters);
                    }
                }
                Some(FromWorker::Report(report)) => match report {
                    Report::Progress(progress) => self.order_progress(key, progress),
                    Report::Done(figures) => self.order_done(key, figures.into()),
                    Report::Failed(reason) => self.order_over(key, Err(reason)),
                    Report::Held(step) => self.held(key, step),
                    Report::Resumes => self.resumes(key),
                    Report::Left(route) => self.departed(key, route),
                    Report::Stayed(reason) => self.stayed(key, &reason),
                },
                Some(FromWorker::Exchange { request, ask }) => {
                    self.exchange(key, request, ask, fds);
                }
                Some(FromWorker::Turn(request)) => self.turn_request(key, request),
                Some(FromWorker::Back { slot, gpu, token }) => {
                    self.worker_is_back(key, (slot, gpu), token, fds);
                }
                Some(FromWorker::Started { .. }) => {
                    // Once: a compromised worker must not prolong it.
                    if let Some(Room::Begins(_)) = worker.room {
                        worker.room = Some(Room::Calls(Instant::now() + FIRST_CALLS));
                    }
                    if let Some(session) = self.workers.served_by_mut(key) {
                        session.arrives = false;
                        self.tenants
                            .arrived(&session.facts.vm, session.facts.session);
                    }
                }
            }
        }
    }

    fn start_failed(&mut self, ordinal: u32, pid: u32, reason: String) {
        let gpu = self.devices.label(ordinal);
        let what = "a worker cannot open its device";
        let was_ready = self.devices.ready();
        let reason = self.devices.explained(ordinal, reason);
        let is_fault = self.devices.failed(ordinal, reason.clone(), Instant::now());
        if !was_ready {
            self.warn_of_missing_devices();
        }
        if is_fault {
            tracing::warn!(worker = pid, gpu, reason, "{what}");
        } else {
            tracing::debug!(worker = pid, gpu, reason, "{what}");
        }
    }

    /// Warns of devices that VMs are given and this host does not have, once all are found.
    pub(super) fn warn_of_missing_devices(&self) {
        if !self.devices.ready() {
            return;
        }
        for (vm, limits) in self.host.vm.iter() {
            let devices = limits.devices.0.iter();
            for device in devices.filter(|index| self.devices.position_of(**index).is_none()) {
                tracing::warn!(
                    vm,
                    device,
                    "`devices` under [vm.{vm:?}] has a device that guests of this host do not get"
                );
            }
        }
    }

    /// Handles the exit of a worker.
    pub(super) fn exited(&mut self, key: u64) {
        // Its last messages may still be in the socket.
        self.receive_from_worker(key, LAST_MESSAGES);
        self.order_ended(key);
        let Some((mut worker, session)) = self.workers.remove(key) else {
            return;
        };
        let status = worker.reap();
        match worker.state {
            State::Serving(_) => {
                if let Some(session) = session {
                    self.session_over(&session, &worker, status);
                }
            }
            State::Starting => {
                let reason = format!("its worker {} before it was ready", ending(status));
                self.start_failed(worker.ordinal, worker.pid, reason);
            }
            State::Idle => {
                self.counts.crashed += 1;
                tracing::warn!(worker = worker.pid, "an idle worker {}", ending(status));
            }
            State::Leaving => {
                tracing::debug!(worker = worker.pid, "worker {}", ending(status));
            }
        }
    }

    fn session_over(&mut self, over: &Session, worker: &Worker, status: Option<ExitStatus>) {
        let facts = &over.facts;
        let session = facts.session;
        self.notes.remove(session);
        self.leave_turns(session);
        // The group may go with its last session.
        let out_of_memory = self.tenants.ran_out_of_memory(&facts.vm);
        self.tenants.release(&facts.vm, session);
        if let Some(counters) = &over.counters {
            self.counts.ended.add(&facts.vm, &facts.device, counters);
        }
        self.operations.schedules.forget(session);
        if !worker.puts_away && !over.arrives && !self.operator.signals.is_ending() {
            self.remove_written(&facts.vm, session);
        }
        let calls = over.counters.map(|counters| counters.calls);
        let word = worker.last_word.as_deref();
        let expected = worker.finished || worker.ending || word.is_some();
        match status {
            Some(status) if !expected && !status.success() => {
                self.counts.crashed += 1;
                let is_killed = status.signal() == Some(rustix::process::Signal::KILL.as_raw());
                let reason = (is_killed && out_of_memory).then_some(
                    "the VM's workers exceeded the memory of its control group, which follows \
                     limits.per_vm_host_memory",
                );
                tracing::error!(
                    session,
                    worker = worker.pid,
                    vm = over.facts.vm,
                    gpu = over.facts.device,
                    reason,
                    "session ends: its worker {}",
                    ending(Some(status))
                );
            }
            _ => tracing::info!(
                session,
                worker = worker.pid,
                vm = over.facts.vm,
                gpu = over.facts.device,
                calls,
                reason = word,
                "session ends"
            ),
        }
    }
}

/// How a process ended, as a predicate.
fn ending(status: Option<ExitStatus>) -> String {
    match status {
        None => "ended".into(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(0), _) => "ended".into(),
            (Some(code), _) => format!("failed with status {code}"),
            (None, Some(signal)) => {
                let core = if status.core_dumped() {
                    ", core dumped"
                } else {
                    ""
                };
                format!("was killed by signal {signal}{core}")
            }
            (None, None) => "ended".into(),
        },
    }
}
