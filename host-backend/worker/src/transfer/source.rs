//! Live migration, the source's side.
//!
//! The destination is a worker that the other daemon picked. While the program runs,
//! objects are recreated there and memory is pre-copied in chunks. Then the session
//! stops, and the source sends what the destination lacks: dirty pages, or without
//! dirty tracking the chunks whose hashes differ. Until the commit, nothing changes
//! here, and after any failure the session continues here.

mod answers;
mod objects;
mod peer;
mod relief;
#[cfg(all(test, feature = "software"))]
mod relief_tests;
mod stop_and_copy;
mod switchover;
#[cfg(all(test, feature = "software"))]
mod tests;

use std::collections::HashSet;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use paragpu_communicator::Receiver;

use objects::Recreated;
use peer::Peer;
use switchover::{Gates, may_leave};

use super::attempts::Attempts;
use super::handover::{self, Token};
use super::orders::{Departure, Figures, Phase, Progress, Report, Route, micros};
use super::precopy::PreCopy;
use super::regions::Chunk;
use super::shared::{Delivery, Shared};
use super::state::{Kind, StateError};
use super::stop::NotStopped;
use crate::error::SessionEnd;
use crate::session::{Session, Task};

/// Maximum silence of the destination.
pub(super) const SILENCE: Duration = Duration::from_secs(20);
/// Maximum time for copies before calls are served. With a fast link, copying would
/// otherwise delay calls until the end.
const SLICE: Duration = Duration::from_micros(500);
/// Length of a step that is worth a line in the log: calls wait meanwhile.
const LONG_STEP: Duration = Duration::from_millis(3);
/// Chunks that the destination copies before it answers, so that it is not silent for
/// long: 8 GiB.
const FETCHES: usize = 4096;

/// The stage of the source, with the answer that it waits for.
///
/// Up to `Copied` the program runs, and each step is short. Then the session is
/// stopped, and one call of [`finish`](Source::finish) continues to `Moved`, or the
/// session is served here again. Before the commit nothing is lost: after any
/// failure the session continues here.
///
/// ```text
///  The program runs:
///
///    Welcome ──▶ Missing ──▶ SendingImages ──▶ Placing ──▶ SendingObjects
///                 ▲   ▲                           │              │
///                 │   └── an image was loaded ────┘              ▼
///                 │                           Exporting ──▶ HandingOver *
///                 │                                              │
///                 │                                              ▼
///                 ├─────────────────────────────────────── Recreated
///                 │ objects were created, or others offer        │
///                 │ no memory that it shares yet                 │
///                 │                                              ▼
///                 └── Flushing ◀── Copying ◀──────────────── Fetching *
///                        │
///                        ▼
///                      Copied ◀──┐
///                        │       │ work is not complete: serve, try again
///  The session stops:   ▼       │
///                     Stopping ──┘
///                        │
///                        ▼
///                     Stopped
///                        │
///                        ▼
///                    StopAndCopy ──▶ Switchover ──▶ Committing ──▶ Moved
///
///  * repeated, or skipped
/// ```
///
/// If the link breaks in `Committing`, the worker that reads the token owns the
/// session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The destination's daemon chooses a worker.
    Welcome,
    /// The destination answers which images it lacks.
    Missing,
    /// Sending them, and searching the code for names of variables.
    SendingImages,
    /// The device locates variables.
    Placing,
    /// Sending the objects.
    SendingObjects,
    /// Another thread exports memory and offers it to the destination.
    Exporting,
    /// The destination takes descriptors of memory.
    HandingOver,
    /// The destination recreates the objects.
    Recreated,
    /// The destination copies what it can from this session's device.
    Fetching,
    /// Pre-copy.
    Copying,
    /// The last of pre-copy is in transit.
    Flushing,
    /// Pre-copy is complete. Other sessions that move with this one are not ready yet.
    Copied,
    /// The session executes no calls, and its device drains.
    Stopping,
    /// The sessions that move with this one stop.
    Stopped,
    /// The source sends the rest: dirty pages and changed objects.
    StopAndCopy,
    /// The guest connects to the destination. Sessions that move together wait for each
    /// other.
    Switchover,
    /// Handing over the session.
    Committing,
}

/// Memory that the destination copies on its own.
#[derive(Debug, Default)]
struct Fetches {
    /// Chunks not announced to it yet.
    queue: Vec<Chunk>,
    /// Chunks announced to it.
    announced: HashSet<Chunk>,
}

/// A migration in progress.
#[derive(Debug)]
pub(crate) struct Source {
    peer: Peer,
    /// The guest's connection can be handed over.
    local: bool,
    /// The destination has not announced its device yet.
    asked_domain: bool,
    gates: Option<Gates>,
    attempts: Attempts,
    /// Communicator and address of the session at the destination.
    home: (String, String),
    stage: Stage,
    began: Instant,
    /// Pre-copy.
    copies_before: bool,
    /// The device tracks writes.
    watched: bool,
    recreated: Recreated,
    shared: Shared,
    fetches: Fetches,
    precopy: Option<PreCopy>,
    /// The worker that reads it owns the session.
    token: Token,
}

fn carried(error: paragpu_communicator::Error) -> StateError {
    StateError::Impossible(format!("the destination's daemon is lost: {error}"))
}

impl Source {
    /// Begins with a link over which the daemon has announced the session.
    fn open(session: &mut Session, departure: Departure) -> Result<Self, StateError> {
        let Departure {
            link,
            local,
            here,
            follows,
            gates,
            precopy,
            hand_over,
        } = departure;
        let same_host = local;
        // The session has a window although its calls use another connection. It leaves
        // the window, as for another host, and its program reconnects.
        let local = same_host && !has_foreign_window(session);
        may_leave(session, local, &follows)?;
        if here && !local {
            return Err(StateError::Impossible(
                "the window of the session is that of an earlier connection of its program: the \
                 session can move to another daemon, but not to another GPU of this one"
                    .into(),
            ));
        }
        let socket = UnixStream::from(link);
        socket.set_nonblocking(false).map_err(StateError::from)?;
        socket
            .set_write_timeout(Some(SILENCE))
            .map_err(StateError::from)?;
        let domain = match same_host && hand_over {
            true => session.gpu.memory_domain(),
            false => None,
        };
        Ok(Self {
            peer: Peer::new(socket).map_err(StateError::from)?,
            local,
            asked_domain: false,
            gates: gates.map(Gates::new),
            attempts: Attempts::new(),
            home: (String::new(), String::new()),
            stage: Stage::Welcome,
            began: Instant::now(),
            copies_before: precopy,
            watched: precopy && session.gpu.watch_writes(true).is_ok(),
            recreated: Recreated::default(),
            shared: Shared::new(domain),
            fetches: Fetches::default(),
            precopy: None,
            token: Token::new().map_err(StateError::from)?,
        })
    }

    /// All chunks of the session that are delivered this way.
    fn chunks(&self, session: &mut Session, delivery: Delivery) -> Result<Vec<Chunk>, StateError> {
        let mut chunks = session.chunks()?;
        chunks.retain(|chunk| self.shared.delivery_of(chunk) == delivery);
        Ok(chunks)
    }

    /// Has the destination copy some of its chunks. Returns true if an answer will
    /// follow.
    fn fetch(&mut self) -> Result<bool, StateError> {
        let queue = &mut self.fetches.queue;
        let some = queue.len().min(FETCHES);
        if some == 0 {
            return Ok(false);
        }
        let mut names = Vec::new();
        for chunk in queue.drain(..some) {
            chunk.put_name(&mut names);
            self.fetches.announced.insert(chunk);
        }
        let writer = self.peer.writer()?;
        writer.put(Kind::Fetch, &[&names])?;
        writer.flush()?;
        Ok(true)
    }

    /// Begins pre-copy, by this side or by the destination.
    fn begin_copying(&mut self, session: &mut Session) -> Result<(), StateError> {
        if self.fetch()? {
            self.stage = Stage::Fetching;
            return Ok(());
        }
        let chunks = self.chunks(session, Delivery::Sent)?;
        let owners = self.recreated.owners.clone();
        let mut precopy = match self.precopy.take() {
            Some(mut precopy) => {
                precopy.renew(session, owners, chunks);
                precopy
            }
            None => PreCopy::new(session, owners, chunks, self.watched)?,
        };
        if !self.copies_before {
            precopy.give_up();
        }
        self.precopy = Some(precopy);
        self.peer.send_off();
        self.stage = Stage::Copying;
        Ok(())
    }

    /// Does all work for which the program need not wait. Returns true when the session
    /// can stop.
    fn advance(&mut self, session: &mut Session) -> Result<bool, StateError> {
        match self.stage {
            Stage::Copying => {
                if !self.relieve(session)? && self.copy_before(session)? {
                    self.stage = Stage::Flushing;
                }
                return Ok(false);
            }
            Stage::Copied => return Ok(!self.relieve(session)? && self.may_stop(session)?),
            Stage::Placing => return self.place(session).map(|()| false),
            Stage::SendingImages | Stage::SendingObjects | Stage::Exporting | Stage::Flushing => {
                if self.peer.is_back()? {
                    self.sent(session)?;
                }
                return Ok(false);
            }
            _ => {}
        }
        if !self.peer.has_answer()? {
            return Ok(false);
        }
        match self.stage {
            Stage::Welcome => {
                self.home = self.peer.welcome()?;
                if !self.local && self.home.0.is_empty() {
                    return Err(StateError::Impossible(
                        "the window of the session is that of an earlier connection of its \
                         program, which would have to connect to the destination, where no guests \
                         are taken over its communicator: give another --communicator"
                            .into(),
                    ));
                }
                self.peer.writer()?.put(Kind::Head, &[&session.head()])?;
                if let Some(domain) = self.shared.domain() {
                    self.peer.writer()?.put(Kind::Domain, &[&domain])?;
                }
                self.asked_domain = self.shared.domain().is_some();
                self.begin_round(session)?;
            }
            Stage::Missing => {
                if std::mem::take(&mut self.asked_domain) {
                    let theirs = self.peer.expect(Kind::Domain)?;
                    self.shared.agree(&theirs);
                    // The images that it lacks follow.
                    return Ok(false);
                }
                self.send_images(session)?;
            }
            Stage::HandingOver => {
                self.handed_over(session)?;
                self.go_on_handing_over(session)?;
            }
            Stage::Recreated => {
                if !self.await_recreated(session)? {
                    return Ok(false);
                }
                if self.copies_before {
                    let mut fetches = self.chunks(session, Delivery::Fetched)?;
                    // The program may have mapped other memory there in the meantime.
                    fetches.retain(|chunk| {
                        !self.fetches.announced.contains(chunk)
                            && self.shared.is_current(session, chunk)
                    });
                    self.fetches.queue = fetches;
                }
                self.begin_copying(session)?;
            }
            Stage::Fetching => {
                self.peer.expect(Kind::Ready)?;
                self.begin_copying(session)?;
            }
            _ => {}
        }
        Ok(false)
    }

    /// Continues after the thread has written everything.
    fn sent(&mut self, session: &mut Session) -> Result<(), StateError> {
        match self.stage {
            Stage::SendingImages => self.stage = Stage::Placing,
            Stage::SendingObjects => self.go_on_handing_over(session)?,
            Stage::Exporting => self.exported(session)?,
            _ if self.is_behind(session) => self.begin_round(session)?,
            _ => self.stage = Stage::Copied,
        }
        Ok(())
    }

    /// Copies as much as the link accepts. Returns true when everything is copied.
    fn copy_before(&mut self, session: &mut Session) -> Result<bool, StateError> {
        let Some(precopy) = &mut self.precopy else {
            return Err(StateError::Order("nothing to copy"));
        };
        let stage = self.peer.stage()?;
        if stage.is_over() {
            return self.peer.await_writer().map(|()| false);
        }
        stage.retry();
        precopy.read(session)?;
        let began = Instant::now();
        while !stage.holds()
            && began.elapsed() < SLICE
            && let Some(batch) = precopy.mover.finish_read(session, false)?
        {
            let mut payload = stage.payload();
            for (chunk, bytes) in batch.each() {
                if precopy.samples.look(chunk, bytes) {
                    continue;
                }
                if precopy.copied.note(chunk) || bytes.iter().any(|byte| *byte != 0) {
                    chunk.put(bytes, &mut payload);
                }
            }
            if !payload.is_empty() {
                stage.offer(payload);
            }
            precopy.stop_if_wasteful(session)?;
            precopy.read(session)?;
        }
        session.transfer.orders().report(Report::Progress(Progress {
            phase: Phase::Running,
            done: precopy.copied.bytes.min(precopy.all),
            all: precopy.all,
        }));
        Ok(precopy.is_idle() && !stage.holds() && precopy.is_over(session)?)
    }

    /// Begins a migration, if the session can move.
    pub(crate) fn begin(session: &mut Session, departure: Departure) -> Option<Box<dyn Task>> {
        match Self::open(session, departure) {
            Ok(source) => Some(Box::new(source)),
            Err(error) => {
                let failed = Report::Failed(error.to_string());
                session.transfer.orders().report(failed);
                None
            }
        }
    }

    /// Stops the session and hands it over. Returns the migration if the session
    /// must be served for a while before the next attempt to stop it.
    fn finish(
        mut self: Box<Self>,
        session: &mut Session,
        receiver: &mut dyn Receiver,
    ) -> Result<Option<Box<dyn Task>>, SessionEnd> {
        let pre_copied = self.peer.bytes();
        self.stage = Stage::Stopping;
        match session.attempt_to_stop(receiver, &mut self.attempts) {
            Ok(true) => {}
            Ok(false) => {
                self.stage = Stage::Copied;
                return Ok(Some(self));
            }
            Err(NotStopped::Continues(reason)) => return self.stay(session, &reason),
            Err(NotStopped::Ended(end)) => return Err(self.broken_off(session, end)),
        }
        self.reached("device drained");
        session.transfer.stopped();
        self.stage = Stage::Stopped;
        match self.await_stopped(session, receiver) {
            Ok(true) => {}
            Ok(false) => {
                self.stage = Stage::Copied;
                return Ok(Some(self));
            }
            Err(NotStopped::Continues(reason)) => {
                self.peer.call_off(&reason);
                return self.stay(session, &reason);
            }
            Err(NotStopped::Ended(end)) => return Err(self.broken_off(session, end)),
        }
        self.stage = Stage::StopAndCopy;
        if let Err(error) = self.stop_and_copy(session, receiver) {
            let error = self.peer.why(error);
            return self.stay(session, &error.to_string());
        }
        self.stage = Stage::Switchover;
        let met = match self.local {
            true => Ok(()),
            false => self.await_guest(session, receiver),
        };
        match met.and_then(|()| self.await_others(session, receiver)) {
            Ok(()) => {}
            Err(NotStopped::Continues(reason)) => {
                self.peer.call_off(&reason);
                return self.stay(session, &reason);
            }
            Err(NotStopped::Ended(end)) => return Err(self.broken_off(session, end)),
        }
        self.stage = Stage::Committing;
        if let Err(error) = self.commit() {
            return self.stay(session, &error.to_string());
        }
        if self.local {
            // The other host's daemon counts the session for itself.
            session.memory.arena().share().leave();
        }
        let stopped = micros(self.attempts.downtime());
        let felt = micros(session.transfer.longest_delay());
        let (communicator, address) = std::mem::take(&mut self.home);
        session.transfer.orders().report(Report::Left(Route {
            communicator,
            address,
        }));
        if !self.local {
            self.await_guest_left(session, receiver);
        }
        session.transfer.orders().report(Report::Done(Figures {
            bytes: self.peer.bytes(),
            pre_copied,
            handed_over: self.shared.bytes(session, Delivery::Taken),
            fetched: self.shared.bytes(session, Delivery::Fetched),
            stopped,
            felt,
            total: micros(self.began.elapsed()),
        }));
        Err(SessionEnd::Moved)
    }

    /// Hands over the session. An error if it stays here after all.
    ///
    /// Once the token is handed over, its reader owns the session, so no call is executed
    /// twice. If the link breaks, exactly one of the two ends takes the token, whatever
    /// the other received. For a guest that reconnects by itself, the guest decides
    /// instead of the token. It has only one connection: if the destination accepted it,
    /// it has none here.
    fn commit(&mut self) -> Result<(), StateError> {
        if self.local {
            self.token.give().map_err(StateError::from)?;
        }
        let committed = self.peer.writer().and_then(|writer| {
            writer.put(Kind::Commit, &[])?;
            writer.flush()
        });
        let Err(error) = committed.and_then(|()| self.peer.expect(Kind::Ready)) else {
            return Ok(());
        };
        if !self.local || self.token.take() {
            // A guest that reconnects by itself may be there already.
            let why = match &error {
                StateError::Io(error) => error.to_string(),
                other => other.to_string(),
            };
            let reason = format!("the destination was lost at the switchover: {why}");
            return Err(StateError::Impossible(reason));
        }
        tracing::warn!(%error, "the link broke when the session was handed over");
        Ok(())
    }

    /// Ends the migration because the session or its connection ended.
    fn broken_off(mut self: Box<Self>, session: &mut Session, end: SessionEnd) -> SessionEnd {
        let reason = match &end {
            SessionEnd::Connection(error) if error.is_loss() => {
                "the program lost its connection while the session was being stopped: try again"
                    .to_owned()
            }
            end => format!("the session ended during its move: {end}"),
        };
        self.peer.call_off(&reason);
        match end {
            // This worker's exit tells the daemon. The sessions that move together with this one
            // move on.
            SessionEnd::Goodbye => self.put_back(session),
            _ => {
                let _ = self.stay(session, &reason);
            }
        }
        end
    }

    /// Has the session continue as before.
    fn put_back(self: Box<Self>, session: &mut Session) {
        session.intake.set_copied(false);
        if let Some(precopy) = self.precopy {
            precopy.mover.keep(session);
        }
        if self.watched {
            let _ = session.gpu.watch_writes(false);
        }
        if let Ok(link) = self.peer.socket().try_clone_to_owned() {
            session.transfer.shortage.end_with(link.into());
        }
    }

    /// Ends a failed migration: the session continues here.
    fn stay(
        self: Box<Self>,
        session: &mut Session,
        reason: &str,
    ) -> Result<Option<Box<dyn Task>>, SessionEnd> {
        tracing::debug!(stage = ?self.stage, reason, "the session stays");
        self.put_back(session);
        let orders = session.transfer.orders();
        orders.report(Report::Failed(reason.to_owned()));
        Ok(None)
    }
}

impl Task for Source {
    /// [`SessionEnd::Moved`] when another worker owns the session.
    fn step(
        mut self: Box<Self>,
        session: &mut Session,
        receiver: &mut dyn Receiver,
    ) -> Result<Option<Box<dyn Task>>, SessionEnd> {
        let (before, began) = (self.stage, Instant::now());
        let advanced = self.advance(session);
        let (took, gpu) = (began.elapsed(), session.gpu.ordinal());
        if took > LONG_STEP {
            let micros = took.as_micros();
            tracing::debug!(gpu, micros, stage = ?before, "a step of the move took long");
        }
        if self.stage != before {
            let micros = self.began.elapsed().as_micros();
            tracing::debug!(gpu, micros, stage = ?self.stage, "the session moves");
        }
        match advanced {
            Ok(false) => Ok(Some(self)),
            Ok(true) => self.finish(session, receiver),
            Err(error) => {
                let error = self.peer.why(error);
                self.stay(session, &error.to_string())
            }
        }
    }

    fn give_up(mut self: Box<Self>, session: &mut Session, reason: &str) {
        self.peer.call_off(reason);
        // It does not end.
        let _ = self.stay(session, reason);
    }

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }
}

/// Whether the session's window belongs to a different connection than its calls.
fn has_foreign_window(session: &Session) -> bool {
    let current = handover::current();
    let own = current
        .as_ref()
        .is_none_or(|current| current.window.is_some());
    session.host.window().is_some() && !own
}
