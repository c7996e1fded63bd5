//! The daemon's view of a worker process.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use paragpu_control::socket::{Control, ControlError, Inbox, Received};
use paragpu_control::spawn::Spawn;
use paragpu_control::worker::{FromWorker, ToWorker};
use paragpu_log::cut;
use rustix::net::Shutdown;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

use crate::error::chain;
use crate::received_fd::{PeerKind, ReceivedFd};
use crate::spawner::Spawner;
use crate::spawner_process::SpawnerProcess;

/// Grace period between a request to end and a kill.
pub const GRACE: Duration = Duration::from_secs(1);
/// Number of kills, [`GRACE`] apart, after which a worker counts as stuck.
const KILLS: u32 = 5;

/// The state of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is opening its device.
    Starting,
    /// It waits for a session.
    Idle,
    /// It serves the session with this number.
    Serving(u64),
    /// It was dismissed before it had a session, and is about to exit.
    Leaving,
}

/// A session that begins takes processor time. Until it has had some, workers that nobody
/// waits for are not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// It makes its first calls: half of the idle workers are enough, until this time.
    Calls(Instant),
    /// It begins: idle workers are not needed, until this time if it does not begin earlier.
    Begins(Instant),
}

impl Room {
    /// When it is over.
    #[must_use]
    pub fn end(self) -> Instant {
        let (Self::Calls(end) | Self::Begins(end)) = self;
        end
    }
}

/// The control socket of a worker. Closing it closes the descriptors in its unread
/// messages, so a thread does it.
#[derive(Debug)]
pub struct WorkerSocket(Option<Control>);

impl WorkerSocket {
    fn new(control: Control) -> Self {
        Self(Some(control))
    }
}

impl std::ops::Deref for WorkerSocket {
    type Target = Control;

    fn deref(&self) -> &Control {
        match &self.0 {
            Some(control) => control,
            None => unreachable!("a control socket is there until it is dropped"),
        }
    }
}

impl Drop for WorkerSocket {
    fn drop(&mut self) {
        if let Some(control) = self.0.take() {
            let socket = control.into_fd();
            // The worker is notified immediately, whatever the thread is closing.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
            drop(ReceivedFd::new(socket, PeerKind::Worker));
        }
    }
}

/// One worker process.
#[derive(Debug)]
pub struct Worker {
    /// Its process ID.
    pub pid: u32,
    /// The index of its device among the daemon's.
    pub ordinal: u32,
    /// Its state.
    pub state: State,
    /// Its pidfd, which is readable once it has exited.
    pub pidfd: OwnedFd,
    /// Its control socket; `None` once that is closed, and for a worker that
    /// an earlier daemon started.
    pub control: Option<WorkerSocket>,
    /// Why it failed or how the session ended, in the worker's words.
    pub last_word: Option<String>,
    /// Whether it has reported the end of its session.
    pub finished: bool,
    /// Whether a request for counters is unanswered.
    pub queried: bool,
    /// Whether it was requested to end its session.
    pub ending: bool,
    /// Whether its session ends because it was checkpointed, so that it can be restored.
    pub puts_away: bool,
    /// When it is killed if it has not exited.
    pub deadline: Option<Instant>,
    /// How often it was killed because it had not exited in time.
    pub kills: u32,
    /// What its session needs while it begins.
    pub room: Option<Room>,
    /// Whether it is a child of this process, which must reap it.
    child: bool,
    /// Whether it becomes its VM's user.
    pub apart: bool,
}

impl Worker {
    /// Starts a worker for the device with index `ordinal`.
    ///
    /// # Errors
    /// As [`Spawner::spawn`], and errors of pidfd_open(2).
    pub fn start(spawner: &Spawner, spawn: &Spawn, ordinal: u32) -> Result<Self, ControlError> {
        let (mut child, control) = spawner.spawn(spawn)?;
        let pid = child.id();
        let pidfd = match pidfd(pid) {
            Ok(pidfd) => pidfd,
            Err(errno) => {
                // Without a pidfd its end would go unnoticed.
                let _ = child.kill();
                let _ = child.wait();
                return Err(errno.into());
            }
        };
        let state = State::Starting;
        Ok(Self {
            control: Some(WorkerSocket::new(control)),
            child: true,
            ..Self::of(pid, pidfd, ordinal, state)
        })
    }

    /// Starts a worker that becomes its VM's user.
    ///
    /// # Errors
    /// One sentence.
    pub fn start_apart(
        apart: &mut SpawnerProcess,
        spawn: &Spawn,
        ordinal: u32,
    ) -> Result<Self, String> {
        let (pid, pidfd, control) = apart.spawn(spawn)?;
        Ok(Self {
            control: Some(WorkerSocket::new(control)),
            child: true,
            apart: true,
            ..Self::of(pid, pidfd, ordinal, State::Starting)
        })
    }

    /// A worker that an earlier daemon started and that still has `session`. `control`: the
    /// connection to it, if it can be reached.
    #[must_use]
    pub fn adopt(
        (pid, pidfd): (u32, OwnedFd),
        control: Option<Control>,
        ordinal: u32,
        session: u64,
    ) -> Self {
        Self {
            control: control.map(WorkerSocket::new),
            ..Self::of(pid, pidfd, ordinal, State::Serving(session))
        }
    }

    fn of(pid: u32, pidfd: OwnedFd, ordinal: u32, state: State) -> Self {
        Self {
            pid,
            ordinal,
            state,
            pidfd,
            control: None,
            last_word: None,
            finished: false,
            queried: false,
            ending: false,
            puts_away: false,
            deadline: None,
            kills: 0,
            room: None,
            child: false,
            apart: false,
        }
    }

    /// Whether an earlier daemon started it.
    #[must_use]
    pub const fn is_adopted(&self) -> bool {
        !self.child
    }

    /// Whether it serves its session, which neither ended nor was requested to end.
    #[must_use]
    pub fn serves(&self) -> bool {
        matches!(self.state, State::Serving(_)) && !self.finished && !self.ending
    }

    /// Returns its next message; `None` if there are no more. Drops a control socket that
    /// is closed or sends garbage.
    pub fn receive(&mut self, inbox: &mut Inbox) -> Option<FromWorker> {
        let control = self.control.as_ref()?;
        let message = match control.receive(inbox, false) {
            Ok(Received::Nothing) => return None,
            Ok(Received::Packet) => inbox.message(),
            Err(error) => Err(error),
        };
        match message {
            Ok(message) => {
                match &message {
                    FromWorker::Counters(_) => self.queried = false,
                    FromWorker::Failed { reason } => self.last_word = Some(cut(reason)),
                    FromWorker::Finished { reason, .. } => {
                        self.finished = true;
                        self.last_word = reason.as_deref().map(cut);
                    }
                    _ => {}
                }
                Some(message)
            }
            Err(error) => {
                if !matches!(error, ControlError::Closed) {
                    let reason = not_understood(&error);
                    tracing::warn!(
                        worker = self.pid,
                        reason,
                        "a worker sent an invalid message"
                    );
                    self.last_word.get_or_insert(reason);
                }
                self.control = None;
                None
            }
        }
    }

    /// Requests counters, unless a request is unanswered: a worker that does not read must
    /// not fill its socket and so block the daemon.
    pub fn query(&mut self) {
        if !self.queried
            && let Some(control) = &self.control
        {
            self.queried = control.try_send(&ToWorker::Query, &[]).is_ok();
        }
    }

    /// Tells it to end its session, for a reason that its guest is told, and sets when it is
    /// killed if it does not. Only the first call has an effect.
    pub fn end(&mut self, reason: Option<&str>, deadline: Instant) {
        if self.ending {
            return;
        }
        self.ending = true;
        self.deadline.get_or_insert(deadline);
        match &self.control {
            // A worker that cannot be reached is killed at the deadline.
            Some(control) => {
                let reason = reason.map(str::to_owned);
                drop(control.try_send(&ToWorker::End { reason }, &[]));
            }
            // SIGKILL, because the first process of a PID namespace ignores signals that it
            // does not handle.
            None => self.kill(),
        }
    }

    /// Dismisses an idle or starting worker by closing its control socket.
    pub fn dismiss(&mut self, deadline: Instant) {
        self.state = State::Leaving;
        self.control = None;
        self.deadline.get_or_insert(deadline);
    }

    /// Kills it because it has not exited in time; again after [`GRACE`], until it is stuck.
    pub fn kill_overdue(&mut self, now: Instant) {
        self.kill();
        self.kills = self.kills.saturating_add(1);
        self.deadline = (!self.is_stuck()).then_some(now + GRACE);
        let session = match self.state {
            State::Serving(session) => Some(session),
            _ => None,
        };
        match self.kills {
            1 => tracing::warn!(
                worker = self.pid,
                session,
                "a worker did not end in time and is killed"
            ),
            KILLS => tracing::error!(
                worker = self.pid,
                session,
                "a killed worker does not end: its threads (/proc/PID/task/*/wchan) wait for a \
                 driver, or for the FUSE server of a file that its guest passed; end that \
                 server, or write 1 to its /sys/fs/fuse/connections/*/abort"
            ),
            _ => {}
        }
    }

    /// Whether it was killed again and again, and did not exit: a thread is in an
    /// uninterruptible system call. It exits once that returns.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.kills >= KILLS
    }

    /// Kills its process.
    pub fn kill(&self) {
        // It may have exited meanwhile.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Reaps an exited process. `None` if an earlier daemon was its parent.
    pub fn reap(&mut self) -> Option<ExitStatus> {
        if !self.child {
            return None;
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw)?;
        let (_, status) = waitpid(Some(pid), WaitOptions::empty()).ok()??;
        Some(ExitStatus::from_raw(status.as_raw()))
    }
}

/// Reports the likeliest cause of an invalid message: an upgrade replaced the worker
/// program while the daemon kept running.
fn not_understood(error: &ControlError) -> String {
    format!(
        "paragpu-worker sent an invalid message ({}): it and paragpud must be of the same \
         release; after an upgrade restart paragpud",
        chain(error)
    )
}

/// Opens a pidfd of a process.
///
/// # Errors
/// As pidfd_open(2).
pub fn pidfd(pid: u32) -> Result<OwnedFd, rustix::io::Errno> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(rustix::io::Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}
