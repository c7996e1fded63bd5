//! The waits between pre-copy and the switchover: for the sessions that move together
//! with this one, and for a guest that reconnects to the destination by itself.
//!
//! If the link between the hosts breaks during the switchover, the guest decides: it has
//! one connection, and the session continues on the side that accepted it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use paragpu_communicator::Receiver;
use paragpu_protocol::codec::{Text, encode_all};
use paragpu_protocol::frame::{Control, FrameHeader};
use paragpu_protocol::handshake::Move;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Source;
use super::peer::broken;
use crate::guest_life::GuestLife;
use crate::intake::refusal_reason;
use crate::session::Session;
use crate::transfer::handover::{self, Handover};
use crate::transfer::orders::{Report, Step};
use crate::transfer::state::{Kind, StateError};
use crate::transfer::stop::NotStopped;

/// How long a guest may take to connect to the destination. A running guest is
/// notified within a second.
const FOLLOWS: Duration = Duration::from_secs(60);
/// How long a guest may take to send its pinned memory to a destination.
const GUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a stopped session waits for the others before it executes another call: longer
/// than most kernels take.
const LINGER: Duration = Duration::from_millis(5);
/// Maximum time between two polls of the guest's connection.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Pipes with one writer, the daemon, and a reader in each of the sessions that move
/// together. The byte is never read, so every session sees it. Likewise every session
/// sees the end of file without a byte.
#[derive(Debug)]
pub(super) struct Gates {
    stop: OwnedFd,
    rest: OwnedFd,
    commit: OwnedFd,
    /// The daemon knows that this session is ready to stop.
    reported: bool,
}

impl Gates {
    pub(super) fn new([stop, rest, commit]: [OwnedFd; 3]) -> Self {
        Self {
            stop,
            rest,
            commit,
            reported: false,
        }
    }

    /// An error if the sessions that move together stay, because one of them cannot move
    /// or the time limit is over.
    pub(super) fn still(&self) -> Result<(), StateError> {
        is_open(self.commit.as_fd()).map(drop)
    }
}

/// Whether the gate is open. An error if it never will be.
fn is_open(gate: BorrowedFd<'_>) -> Result<bool, StateError> {
    let flags = ready(gate, Duration::ZERO);
    if flags.contains(PollFlags::IN) {
        Ok(true)
    } else if flags.is_empty() {
        Ok(false)
    } else {
        Err(StateError::Impossible(
            "the sessions that move with it stay".into(),
        ))
    }
}

fn ready(fd: BorrowedFd<'_>, patience: Duration) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let patience = Timespec::try_from(patience).ok();
    let polled = poll(&mut fds, patience.as_ref());
    let [fd] = fds;
    match polled {
        Ok(_) => fd.revents(),
        Err(_) => PollFlags::empty(),
    }
}

impl From<StateError> for NotStopped {
    fn from(error: StateError) -> Self {
        Self::Continues(broken(error).to_string())
    }
}

impl Source {
    /// Asks to stop after pre-copy. Returns whether the session may stop.
    pub(super) fn may_stop(&mut self, session: &Session) -> Result<bool, StateError> {
        self.peer.still()?;
        if !self.attempts.is_due() {
            return Ok(false);
        }
        let Some(gates) = &mut self.gates else {
            return Ok(true);
        };
        if !gates.reported {
            gates.reported = true;
            session.transfer.orders().report(Report::Held(Step::Copied));
        }
        // Those that stopped earlier may have given up in the meantime.
        is_open(gates.rest.as_fd())?;
        is_open(gates.stop.as_fd())
    }

    /// Notifies the destination that it has everything except the guest.
    pub(super) fn await_guest_at_destination(&mut self) -> Result<(), StateError> {
        let alone = [u8::from(self.gates.is_none())];
        self.peer.writer()?.put(Kind::Await, &[&alone])?;
        self.peer.expect(Kind::Ready).map(drop)
    }

    /// Sends the guest to the destination and waits until it has arrived.
    pub(super) fn await_guest(
        &mut self,
        session: &mut Session,
        receiver: &mut dyn Receiver,
    ) -> Result<(), NotStopped> {
        let (communicator, address) = &self.home;
        let home = format!("{communicator} {address}");
        let goal = Move {
            communicator: Text(communicator),
            address: Text(address),
        };
        session.intake.set_copied(true);
        session
            .replies
            .link
            .sender()
            .notify(Control::Move.kind(), &[&encode_all(&goal)]);
        let deadline = Instant::now() + FOLLOWS;
        loop {
            if !ready(self.peer.socket(), POLL_INTERVAL).is_empty() && self.peer.has_record()? {
                self.peer.expect(Kind::Here)?;
                return Ok(());
            }
            self.gates.as_ref().map_or(Ok(()), Gates::still)?;
            if let Some(reason) = queue_late_calls(session, receiver)? {
                return Err(NotStopped::Continues(format!(
                    "its program cannot follow to {home}: {reason}"
                )));
            }
            if Instant::now() >= deadline {
                return Err(NotStopped::Continues(format!(
                    "its program did not connect to {home} within {} s: it may be stopped, so try \
                     again",
                    FOLLOWS.as_secs()
                )));
            }
        }
    }

    /// Waits until the sessions that move with this one are also stopped: until then they
    /// may write to memory that this one shares with them. Returns false if this session
    /// must be served for a while before the next attempt to stop it.
    ///
    /// The others' work may wait for work of this session that is still queued here: on
    /// one GPU a kernel of NCCL waits for its counterpart on the other. So this session
    /// executes further calls, one at a time. Before each, it waits as long as the last
    /// one took, or sessions with long kernels would never all be stopped.
    pub(super) fn await_stopped(
        &mut self,
        session: &mut Session,
        receiver: &mut dyn Receiver,
    ) -> Result<bool, NotStopped> {
        let mut pause = LINGER;
        self.report_held(session, Step::Stopped);
        loop {
            if self.await_rest(pause)? {
                return Ok(true);
            }
            if queue_late_calls(session, receiver)?.is_some() || session.intake.is_empty() {
                continue;
            }
            session.transfer.orders().ask_to_resume();
            while !session.transfer.orders().take_resumed() {
                // All were stopped before this session could resume.
                if self.await_rest(POLL_INTERVAL)? {
                    return Ok(true);
                }
            }
            let began = Instant::now();
            if !session.execute_first()? {
                self.relieve_now(session)?;
            }
            if !session.attempt_to_stop(receiver, &mut self.attempts)? {
                return Ok(false);
            }
            pause = began.elapsed().max(POLL_INTERVAL);
            self.report_held(session, Step::Stopped);
        }
    }

    /// Waits until the sessions that move with this one are stopped, at most this long.
    /// Returns whether they are.
    fn await_rest(&mut self, patience: Duration) -> Result<bool, StateError> {
        let Some(gates) = &self.gates else {
            return Ok(true);
        };
        let deadline = Instant::now() + patience;
        loop {
            if is_open(gates.rest.as_fd())? {
                return Ok(true);
            }
            self.peer.still()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            ready(gates.rest.as_fd(), left.min(Duration::from_millis(1)));
        }
    }

    /// Waits until the sessions that move with this one are also complete.
    pub(super) fn await_others(
        &mut self,
        session: &mut Session,
        receiver: &mut dyn Receiver,
    ) -> Result<(), NotStopped> {
        self.report_held(session, Step::Complete);
        let Some(gates) = &self.gates else {
            return Ok(());
        };
        while !is_open(gates.commit.as_fd())? {
            // The destination sends something only if it gives up.
            let arrived = !ready(self.peer.socket(), Duration::from_millis(1)).is_empty();
            if arrived && self.peer.has_record()? {
                self.peer.expect(Kind::Still)?;
            }
            self.peer.still()?;
            if !self.local
                && let Some(reason) = queue_late_calls(session, receiver)?
            {
                return Err(NotStopped::Continues(format!(
                    "its program did not reach the destination: {reason}"
                )));
            }
        }
        Ok(())
    }

    /// Waits until the destination closes the link. By then the guest no longer
    /// uses the window that it shared with this host, and the operator may remove
    /// the VM's device. So it is if its process ends.
    ///
    /// A guest whose new connection broke before its welcome says that it stays, too late.
    /// It loses this connection now, and connects to the destination again.
    pub(super) fn await_guest_left(&self, session: &mut Session, receiver: &mut dyn Receiver) {
        let deadline = Instant::now() + GUEST_TIMEOUT;
        let interval = Duration::from_millis(1);
        let life = handover::current().as_ref().map(Handover::life);
        let is_over = || match &life {
            Some(GuestLife::Process(process)) => !ready(process.as_fd(), Duration::ZERO).is_empty(),
            Some(GuestLife::Over) => true,
            Some(GuestLife::Channel | GuestLife::Unknown) | None => false,
        };
        while ready(self.peer.socket(), interval).is_empty()
            && !is_over()
            && Instant::now() < deadline
        {
            if let Ok(Some(reason)) = queue_late_calls(session, receiver) {
                tracing::info!(
                    reason,
                    "a guest did not reach the destination of its session"
                );
                return;
            }
        }
    }

    /// Reports that the session waits at a gate for those that move with it.
    fn report_held(&self, session: &Session, step: Step) {
        if self.gates.is_some() {
            session.transfer.orders().report(Report::Held(step));
        }
    }
}

/// Checks that the session can move.
pub(super) fn may_leave(session: &Session, local: bool, follows: &str) -> Result<(), StateError> {
    let unnamed = session.transfer.identity().token == [0; 16];
    let reason = if (!local || !follows.is_empty()) && unnamed {
        "the session ends with its connection, so its program cannot follow it: set \
         limits.reconnect in host.toml above 0 for the sessions that begin from then on"
    } else {
        return Ok(());
    };
    Err(StateError::Impossible(reason.into()))
}

/// Queues calls that arrived after the state was copied. They are not acknowledged: the guest
/// resends them to the destination, or they are executed here if the session stays. Returns the
/// reason if the guest cannot follow.
fn queue_late_calls(
    session: &mut Session,
    receiver: &mut dyn Receiver,
) -> Result<Option<String>, NotStopped> {
    let refuses = |header: FrameHeader, payload: &[u8]| match header.kind == Control::Stays.kind() {
        true => refusal_reason(payload).map(Some),
        false => Ok(None),
    };
    Ok(session.queue_arrived(receiver, Session::takes_more, refuses)?)
}
