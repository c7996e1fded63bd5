//! The worker processes, and the sessions that they serve.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use paragpu_control::socket::{ControlError, Inbox};
use paragpu_control::worker::{FromWorker, ToWorker};

use super::token::same;
use crate::received_fd::{PeerKind, ReceivedFd};
use crate::session::Session;
use crate::worker::{GRACE, Room, State, Worker};

/// How long a session has room to begin, unless it does so earlier.
const BEGINNING: Duration = Duration::from_millis(100);
/// What a guest is told whose certificate has expired.
const EXPIRED: &str = "this guest's certificate has expired: it needs a new one, and programs \
                       begin anew";
/// Interval of checks for expired certificates.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);

/// The workers by key, and the sessions by number. A session always has a worker; a worker
/// has a session while it is [`State::Serving`].
#[derive(Debug, Default)]
pub(super) struct Workers {
    workers: BTreeMap<u64, Worker>,
    sessions: BTreeMap<u64, Session>,
    inbox: Inbox,
}

impl Workers {
    /// Adds a worker that has no session yet.
    pub fn insert(&mut self, key: u64, worker: Worker) {
        self.workers.insert(key, worker);
    }

    /// Adds the session of a worker.
    pub fn begin(&mut self, session: Session) {
        self.sessions.insert(session.facts.session, session);
    }

    /// Removes a worker that has exited, and its session.
    pub fn remove(&mut self, key: u64) -> Option<(Worker, Option<Session>)> {
        let worker = self.workers.remove(&key)?;
        let session = match worker.state {
            State::Serving(session) => self.sessions.remove(&session),
            _ => None,
        };
        Some((worker, session))
    }

    /// A worker.
    pub fn get(&self, key: u64) -> Option<&Worker> {
        self.workers.get(&key)
    }

    /// A worker.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut Worker> {
        self.workers.get_mut(&key)
    }

    /// All workers with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Worker)> {
        self.workers.iter().map(|(key, worker)| (*key, worker))
    }

    /// A session by its number.
    pub fn session(&self, session: u64) -> Option<&Session> {
        self.sessions.get(&session)
    }

    /// A session by its number.
    pub fn session_mut(&mut self, session: u64) -> Option<&mut Session> {
        self.sessions.get_mut(&session)
    }

    /// All sessions, oldest first.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = &Session> {
        self.sessions.values()
    }

    /// The numbers of a VM's sessions.
    pub fn sessions_of(&self, vm: &str) -> Vec<u64> {
        let of_vm = self.sessions.iter().filter(|(_, it)| it.facts.vm == vm);
        of_vm.map(|(session, _)| *session).collect()
    }

    /// The sessions that a token or a mark identifies. During a move between devices of this
    /// host, two have it; the one that has the guest comes first.
    pub fn with_token(&self, token: &[u8; 16]) -> Option<&Session> {
        let named = self.sessions.values().filter(|_| *token != [0; 16]);
        let named =
            named.filter(|session| same(&session.token, token) || same(&session.mark, token));
        named.min_by_key(|session| session.arrives)
    }

    /// The copies that a token claims and no program has claimed, oldest first.
    pub fn claimed_by(&self, token: &[u8; 16]) -> impl Iterator<Item = &Session> {
        let token = *token;
        let sessions = self.sessions.values();
        sessions.filter(move |session| token != [0; 16] && same(&session.facts.claim, &token))
    }

    /// Whether a token identifies or claims a session.
    pub fn know(&self, token: &[u8; 16]) -> bool {
        self.with_token(token).is_some() || self.claimed_by(token).next().is_some()
    }

    /// The session that a worker serves.
    pub fn served_by(&self, key: u64) -> Option<&Session> {
        match self.workers.get(&key)?.state {
            State::Serving(session) => self.sessions.get(&session),
            _ => None,
        }
    }

    /// The session that a worker serves.
    pub fn served_by_mut(&mut self, key: u64) -> Option<&mut Session> {
        match self.workers.get(&key)?.state {
            State::Serving(session) => self.sessions.get_mut(&session),
            _ => None,
        }
    }

    /// The worker of a session.
    pub fn of(&self, session: u64) -> Option<&Worker> {
        self.workers.get(&self.sessions.get(&session)?.worker)
    }

    /// The GPU of this host on which a session is.
    pub fn gpu_of(&self, session: u64) -> Option<u32> {
        Some(self.of(session)?.ordinal)
    }

    /// Whether a session is ending.
    pub fn is_ending(&self, session: &Session) -> bool {
        let worker = self.workers.get(&session.worker);
        worker.is_none_or(|worker| worker.ending)
    }

    /// Sends a message to a worker, without waiting.
    pub fn send(
        &self,
        key: u64,
        message: &ToWorker,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        let control = self.get(key).and_then(|worker| worker.control.as_ref());
        control.ok_or(ControlError::Closed)?.try_send(message, fds)
    }

    /// Receives the next message of a worker, if there is one, and its descriptors.
    pub fn receive(
        &mut self,
        key: u64,
    ) -> Option<(&mut Worker, Option<FromWorker>, Vec<ReceivedFd>)> {
        let worker = self.workers.get_mut(&key)?;
        let message = worker.receive(&mut self.inbox);
        // For any message: closing its descriptors may block.
        let fds = std::mem::take(&mut self.inbox.fds).into_iter();
        let fds = fds.map(|fd| ReceivedFd::new(fd, PeerKind::Worker));
        Some((worker, message, fds.collect()))
    }

    /// Number of workers of a GPU in a state.
    pub fn count(&self, ordinal: u32, state: State) -> usize {
        self.on(ordinal, state).count()
    }

    /// An idle worker on the GPU with this index.
    pub fn idle_on(&self, ordinal: u32) -> Option<u64> {
        self.on(ordinal, State::Idle).next()
    }

    fn on(&self, ordinal: u32, state: State) -> impl Iterator<Item = u64> {
        let on_it = self.workers.iter();
        on_it
            .filter(move |(_, worker)| worker.ordinal == ordinal && worker.state == state)
            .map(|(key, _)| *key)
    }

    /// The room that sessions have now.
    pub fn room(&self, now: Instant) -> Option<Room> {
        let rooms = self.workers.values().filter_map(|worker| worker.room);
        rooms.filter(|room| room.end() > now).max()
    }

    /// Gives a worker's session room to begin. If sessions begin faster than idle workers are
    /// replaced, none has any: each would wait for its own worker.
    pub fn make_room(&mut self, key: u64, warm: usize) {
        let Some(ordinal) = self.get(key).map(|worker| worker.ordinal) else {
            return;
        };
        let left = self.count(ordinal, State::Idle) + self.count(ordinal, State::Starting);
        let is_burst = left + 1 < warm;
        let until = Instant::now() + BEGINNING;
        for (other, worker) in &mut self.workers {
            match *other == key && !is_burst {
                true => worker.room = Some(Room::Begins(until)),
                false if is_burst => worker.room = None,
                false => {}
            }
        }
    }

    /// Dismisses the newest idle workers of a GPU.
    pub fn dismiss_idle(&mut self, ordinal: u32, count: usize, now: Instant) {
        self.workers
            .values_mut()
            .rev()
            .filter(|worker| worker.ordinal == ordinal && worker.state == State::Idle)
            .take(count)
            .for_each(|worker| worker.dismiss(now + GRACE));
    }

    /// Asks the workers of sessions for their counters. Returns the keys of those asked.
    pub fn query(&mut self) -> BTreeSet<u64> {
        let mut queried = BTreeSet::new();
        for (key, worker) in &mut self.workers {
            if matches!(worker.state, State::Serving(_)) {
                worker.query();
                if worker.queried {
                    queried.insert(*key);
                }
            }
        }
        queried
    }

    /// Ends a session. Returns whether it exists.
    pub fn end(&mut self, session: u64) -> bool {
        self.end_because(session, None)
    }

    fn end_because(&mut self, session: u64, reason: Option<&str>) -> bool {
        let Some(found) = self.sessions.get(&session) else {
            return false;
        };
        if let Some(worker) = self.workers.get_mut(&found.worker) {
            tracing::info!(
                session,
                worker = worker.pid,
                vm = found.facts.vm,
                "session is requested to end"
            );
            worker.end(reason, Instant::now() + GRACE);
        }
        true
    }

    /// Ends the sessions of a VM.
    pub fn end_sessions_of(&mut self, vm: &str) {
        for session in self.sessions_of(vm) {
            self.end(session);
        }
    }

    /// Ends all sessions, and dismisses the other workers.
    pub fn end_all(&mut self) {
        let deadline = Instant::now() + GRACE;
        for worker in self.workers.values_mut() {
            match worker.state {
                State::Serving(_) => worker.end(None, deadline),
                _ => worker.dismiss(deadline),
            }
        }
    }

    /// Ends sessions whose guests' certificates have expired. Returns the time of
    /// the next check.
    pub fn end_expired(&mut self, now: Instant) -> Option<Instant> {
        let clock = crate::session::now();
        let mut next = None;
        let mut over = Vec::new();
        for (number, session) in &self.sessions {
            let Some(expires) = session.facts.expires else {
                continue;
            };
            // A certificate is valid to the end of its last second, as TLS takes it, too.
            let left = expires.saturating_add(1).saturating_sub(clock);
            if left > 0 {
                // The clock may be changed meanwhile.
                let at = now + Duration::from_secs(left).min(EXPIRY_INTERVAL);
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
            } else if !self.is_ending(session) {
                over.push(*number);
            }
        }
        for session in over {
            tracing::warn!(
                session,
                "the certificate of the session's guest has expired"
            );
            self.end_because(session, Some(EXPIRED));
        }
        next
    }

    /// Kills workers that have exceeded their grace period.
    pub fn kill_overdue(&mut self, now: Instant) {
        for worker in self.workers.values_mut() {
            if worker.deadline.is_some_and(|deadline| deadline <= now) {
                worker.kill_overdue(now);
            }
        }
    }

    /// When the next worker is killed.
    pub fn deadline(&self) -> Option<Instant> {
        let deadlines = self.workers.values().filter_map(|worker| worker.deadline);
        deadlines.min()
    }

    /// Whether no worker is left except for [stuck](Worker::is_stuck) ones, for which nobody
    /// can wait.
    pub fn have_ended(&self) -> bool {
        self.workers.values().all(Worker::is_stuck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_worker_that_kills_do_not_end() {
        // As a worker in an uninterruptible system call, a process that nobody reaps stays.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pidfd = crate::worker::pidfd(child.id()).unwrap();
        let mut workers = Workers::default();
        workers.insert(7, Worker::adopt((child.id(), pidfd), None, 0, 1));
        assert!(!workers.have_ended());
        workers.end_all();
        let mut kills = 0;
        while let Some(deadline) = workers.deadline() {
            assert!(!workers.have_ended());
            workers.kill_overdue(deadline - Duration::from_millis(1));
            assert_eq!(workers.deadline(), Some(deadline), "it is not due yet");
            workers.kill_overdue(deadline);
            kills += 1;
            assert!(kills < 60, "it is killed for a minute");
        }
        assert!(kills > 1, "a worker may need a moment to exit");
        assert!(workers.have_ended());
        workers.end_all();
        assert!(workers.have_ended(), "it had its chance");
        child.wait().unwrap();
    }
}
