//! Starts workers, watches them and ends them.

use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use paragpu_control::spawn::{Software, Spawn};
use paragpu_control::worker::{FromWorker, Gpu, Report, ToWorker};

use super::{BEGINNING, Broker, FIRST_CALLS, GRACE};
use crate::error::chain;
use crate::received_fd::{PeerKind, ReceivedFd};
use crate::session::Session;
use crate::worker::{Room, State, Worker};

/// Maximum number of workers that open a device at the same time.
const STARTING: usize = 8;

/// Maximum number of messages of a worker that are handled before those of others.
pub(super) const MESSAGES: usize = 16;
/// Maximum number of messages that a worker leaves behind: more than fit into its socket.
const LAST_MESSAGES: usize = 1024;

/// The device file through which every use of NVIDIA's GPUs begins.
const GPU_CONTROL: &str = "/dev/nvidiactl";

/// Interval of checks for expired certificates.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);

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
            if let Ok(Some(users)) = &mut self.spawning.users {
                users.adopt(&found.facts.vm, found.pid);
            }
            let key = self.counts.key();
            let worker = Worker::adopt(found.pid, found.pidfd, found.facts.ordinal, session);
            self.workers.insert(key, worker);
            self.counts.session_found(session);
            if let Some(again) = found.again {
                self.operations.schedules.adopt(session, again);
            }
            self.sessions.insert(
                session,
                Session {
                    facts: found.facts,
                    // Its control socket is gone with the earlier daemon.
                    token: [0; 16],
                    worker: key,
                    arrives: false,
                    counters: None,
                },
            );
        }
    }

    /// Starts missing workers and dismisses surplus ones. Returns when to try again, if it
    /// postponed something.
    pub(super) fn refill(&mut self, now: Instant) -> Option<Instant> {
        if self.operation.signals.is_ending() {
            return None;
        }
        let rooms = self.workers.values().filter_map(|worker| worker.room);
        let room = rooms.filter(|room| room.end() > now).max();
        let warm = self.host.pool.warm as usize;
        let ready = self.devices.ready();
        let devices: Vec<(u32, bool)> = self
            .devices
            .iter()
            .map(|(ordinal, device)| (ordinal, device.retry.is_none()))
            .collect();
        for (ordinal, may_start) in devices {
            let guests = self
                .arrivals
                .waiting
                .iter()
                .filter(|waiting| waiting.placed == Some(Ok(ordinal)))
                .count();
            let restores = self
                .operations
                .restores
                .iter()
                .filter(|waiting| waiting.position == ordinal)
                .count();
            let demand = guests + restores;
            // The search for devices needs a worker even if none is kept warm.
            let wanted = if ready { warm + demand } else { 1 };
            let idle = self.count(ordinal, State::Idle);
            let starting = self.count(ordinal, State::Starting);
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
                    self.start_worker(ordinal, now);
                }
            } else if idle > wanted && ready {
                self.dismiss_idle(ordinal, idle - wanted, now);
            }
        }
        if !matches!(room, Some(Room::Begins(_)))
            && let Ok(Some(users)) = &mut self.spawning.users
        {
            users.apart.prepare();
        }
        room.map(Room::end)
    }

    /// Gives a session room to begin. If sessions begin faster than idle workers are replaced,
    /// none has any: each would wait for its own worker.
    pub(super) fn make_room(&mut self, key: u64, ordinal: u32) {
        let left = self.count(ordinal, State::Idle) + self.count(ordinal, State::Starting);
        let is_burst = left + 1 < self.host.pool.warm as usize;
        let until = Instant::now() + BEGINNING;
        for (other, worker) in &mut self.workers {
            match *other == key && !is_burst {
                true => worker.room = Some(Room::Begins(until)),
                false if is_burst => worker.room = None,
                false => {}
            }
        }
    }

    pub(super) fn count(&self, ordinal: u32, state: State) -> usize {
        self.workers
            .values()
            .filter(|worker| worker.ordinal == ordinal && worker.state == state)
            .count()
    }

    fn dismiss_idle(&mut self, ordinal: u32, count: usize, now: Instant) {
        self.workers
            .values_mut()
            .rev()
            .filter(|worker| worker.ordinal == ordinal && worker.state == State::Idle)
            .take(count)
            .for_each(|worker| worker.dismiss(now + GRACE));
    }

    fn start_worker(&mut self, ordinal: u32, now: Instant) {
        let Some(device) = self.devices.get(ordinal) else {
            return;
        };
        let apart = self.are_apart();
        let images = self.host.cache_directory().filter(|path| usable(path));
        let spawn = Spawn {
            program: self.spawning.program.clone(),
            device: self.devices.kind().to_owned(),
            index: device.index,
            ordinal: self.likely_ordinal(ordinal),
            // A worker with its own user receives a directory.
            image_cache: images.filter(|_| !apart),
            image_cache_bytes: self.host.cache.size.0,
            calls: self.host.confine.cuda_calls.to_string(),
            latency: self.listeners.metrics.is_some(),
            log: self.host.log.level.to_string(),
            software: self.software(),
            apart,
        };
        let started = match &mut self.spawning.users {
            Ok(Some(users)) if apart => Worker::start_apart(&mut users.apart, &spawn, ordinal),
            _ => Worker::start(&self.spawning.spawner, &spawn, ordinal)
                .map_err(|error| chain(&error)),
        };
        match started {
            Ok(worker) => {
                tracing::debug!(
                    worker = worker.pid,
                    gpu = self.devices.label(ordinal),
                    "worker starts"
                );
                let key = self.counts.key();
                self.workers.insert(key, worker);
            }
            Err(error) => {
                let reason = format!(
                    "{} cannot be started: {}",
                    self.spawning.program.display(),
                    error
                );
                tracing::error!(reason, "no worker");
                self.devices.failed(ordinal, reason, now);
            }
        }
    }

    /// Whether new workers get their VM's user.
    fn are_apart(&self) -> bool {
        self.shared_user().is_none()
    }

    /// Why workers share a user, if they do.
    pub(super) fn shared_user(&self) -> Option<String> {
        let nvidia = !self.devices.software();
        match &self.spawning.users {
            Err(reason) => Some(reason.clone()),
            Ok(None) => Some("confine.users is empty".to_owned()),
            Ok(Some(_)) if nvidia && !self.host.confine.cuda_users => {
                Some("confine.cuda_users is false".to_owned())
            }
            Ok(Some(_)) if nvidia && !is_open_to_all(Path::new(GPU_CONTROL)) => Some(format!(
                "users of VMs may not open {GPU_CONTROL}, whose mode is not 0666"
            )),
            Ok(Some(_)) => None,
        }
    }

    /// Gives a worker the user of `vm` before it gets its session.
    pub(super) fn own(&mut self, key: u64, vm: &str) -> Result<(), String> {
        let worker = self.workers.get(&key).filter(|worker| worker.apart);
        let (Some(worker), Ok(Some(users))) = (worker, &mut self.spawning.users) else {
            return Ok(());
        };
        let live = self.sessions.values();
        let live = live.map(|session| session.facts.vm.as_str()).collect();
        let images = self.host.cache_directory().filter(|path| usable(path));
        let (user, directory) = users.lend(vm, images.as_deref(), &live)?;
        let fds: Vec<_> = directory.iter().map(|fd| fd.as_fd()).collect();
        // If the worker is lost, the next message detects it.
        if let Some(control) = &worker.control {
            let _ = control.try_send(&ToWorker::Own { user }, &fds);
        }
        Ok(())
    }

    fn software(&self) -> Software {
        let software = &self.host.software;
        let capability = software.compute_capability;
        Software {
            devices: software.devices,
            memory: software.memory.0,
            compute_capability: (capability.major, capability.minor),
            cores: software.threads,
            shareable: software.shareable,
        }
    }

    /// Handles a worker's messages, at most `most`: a compromised worker may send them faster
    /// than they are read.
    pub(super) fn receive_from_worker(&mut self, key: u64, most: usize) {
        for _ in 0..most {
            let Some(worker) = self.workers.get_mut(&key) else {
                return;
            };
            let news = worker.receive(&mut self.spawning.inbox);
            // For any message: closing its descriptors may block.
            let fds = std::mem::take(&mut self.spawning.inbox.fds).into_iter();
            let fds: Vec<ReceivedFd> = fds
                .map(|fd| ReceivedFd::new(fd, PeerKind::Worker))
                .collect();
            let (ordinal, pid) = (worker.ordinal, worker.pid);
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
                        self.devices.opened(ordinal, gpu);
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
                    let State::Serving(session) = worker.state else {
                        continue;
                    };
                    if worker.finished {
                        worker.deadline.get_or_insert(Instant::now() + GRACE);
                    }
                    if let Some(session) = self.sessions.get_mut(&session) {
                        session.counters = Some(counters);
                    }
                }
                Some(FromWorker::Report(report)) => match report {
                    Report::Progress(progress) => self.order_progress(key, progress),
                    Report::Done(figures) => self.order_over(key, Ok(figures.into())),
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
                Some(FromWorker::Started { .. }) => {
                    // Once: a compromised worker must not prolong it.
                    if let Some(Room::Begins(_)) = worker.room {
                        worker.room = Some(Room::Calls(Instant::now() + FIRST_CALLS));
                    }
                    if let State::Serving(session) = worker.state
                        && let Some(session) = self.sessions.get_mut(&session)
                    {
                        session.arrives = false;
                    }
                }
            }
        }
    }

    fn start_failed(&mut self, ordinal: u32, pid: u32, reason: String) {
        let gpu = self.devices.label(ordinal);
        let what = "a worker cannot open its device";
        if self.devices.failed(ordinal, reason.clone(), Instant::now()) {
            tracing::warn!(worker = pid, gpu, reason, "{what}");
        } else {
            tracing::debug!(worker = pid, gpu, reason, "{what}");
        }
    }

    /// Handles the exit of a worker.
    pub(super) fn exited(&mut self, key: u64) {
        // Its last messages may still be in the socket.
        self.receive_from_worker(key, LAST_MESSAGES);
        self.order_ended(key);
        let Some(mut worker) = self.workers.remove(&key) else {
            return;
        };
        let status = worker.reap();
        match worker.state {
            State::Serving(session) => self.session_over(session, &worker, status),
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

    fn session_over(&mut self, session: u64, worker: &Worker, status: Option<ExitStatus>) {
        let Some(over) = self.sessions.remove(&session) else {
            return;
        };
        self.notes.remove(session);
        self.leave_turns(session);
        let facts = &over.facts;
        // The group may go with its last session.
        let out_of_memory = self.tenants.ran_out_of_memory(&facts.vm);
        self.tenants.release(&facts.vm, session);
        if let Some(counters) = &over.counters {
            self.counts.ended.add(&facts.vm, &facts.device, counters);
        }
        self.operations.schedules.forget(session);
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

    /// Ends a session. Returns whether it exists.
    pub(super) fn end_session(&mut self, session: u64) -> bool {
        let Some(key) = self.sessions.get(&session).map(|session| session.worker) else {
            return false;
        };
        if let Some(worker) = self.workers.get_mut(&key) {
            let vm = self.sessions.get(&session).map(|session| &session.facts.vm);
            tracing::info!(
                session,
                worker = worker.pid,
                vm,
                "session is requested to end"
            );
            worker.end(Instant::now() + GRACE);
        }
        true
    }

    /// Ends sessions whose guests' certificates have expired. Returns the time of
    /// the next check.
    pub(super) fn end_expired(&mut self, now: Instant) -> Option<Instant> {
        let clock = crate::session::now();
        let mut next = None;
        let mut over = Vec::new();
        for (number, session) in &self.sessions {
            let Some(expires) = session.facts.expires else {
                continue;
            };
            let left = expires.saturating_sub(clock);
            let ending = self
                .workers
                .get(&session.worker)
                .is_none_or(|worker| worker.ending);
            if left > 0 {
                // The clock may be changed meanwhile.
                let at = now + Duration::from_secs(left).min(EXPIRY_INTERVAL);
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
            } else if !ending {
                over.push(*number);
            }
        }
        for session in over {
            tracing::warn!(
                session,
                "the certificate of the session's guest has expired"
            );
            self.end_session(session);
        }
        next
    }

    /// Kills workers that have exceeded their grace period.
    pub(super) fn kill_overdue(&mut self, now: Instant) {
        for worker in self.workers.values_mut() {
            if worker.deadline.is_some_and(|deadline| deadline <= now) {
                tracing::warn!(
                    worker = worker.pid,
                    "a worker did not end in time and is killed"
                );
                worker.kill();
                // Repeated until the process is gone, which can take while a driver
                // call is uninterruptible.
                worker.deadline = Some(now + GRACE);
            }
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

/// Creates the directory for images if it is missing. Without it, each worker keeps
/// its session's images in memory.
fn usable(directory: &Path) -> bool {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    if let Err(error) = &made {
        tracing::warn!(
            directory = %directory.display(), %error,
            "program images are not cached: set cache.directory to a directory that paragpud can create"
        );
    }
    made.is_ok()
}

/// Whether every user may read and write a file. True if there is none: opening it then
/// fails with a better reason.
fn is_open_to_all(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.permissions().mode() & 0o006 == 0o006)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_some_users_are_not_open_to_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        assert!(is_open_to_all(&path));
        std::fs::write(&path, "").unwrap();
        for (mode, open) in [(0o666, true), (0o660, false), (0o664, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_open_to_all(&path), open, "{mode:o}");
        }
    }
}
