//! Live migration, the end that the session leaves (D10).
//!
//! The other end is a worker that the destination's daemon picked. While the
//! program runs, objects are recreated there and memory is copied ahead, chunk
//! by chunk, whatever the program does to it. Then the session stops, and what
//! the destination does not have yet travels: what the device notes as written
//! since, and of contents that it does not watch what both ends hash
//! differently. Up to the commit everything here stays as it is: whatever
//! fails before, the session goes on here.

mod carry;
#[cfg(all(test, feature = "software"))]
mod tests;

use std::io::BufWriter;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use paragpu_communicator::Receiver;
use paragpu_communicator_stream::handshake;
use paragpu_protocol::codec::{Bytes, Text, decode_all, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{ARRIVE, Arrive, MAGIC, Move, Refusal, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ahead::{Ahead, Owners, owners};
use super::handover::{self, Token};
use super::orders::{Departure, Figures, Report, micros};
use super::parting::Gates;
use super::post::Post;
use super::regions::Chunk;
use super::replay::Item;
use super::shared::{Shared, Way};
use super::state::{Kind, Scanner, StateError, Writer};
use super::stop::{Attempts, Unstopped};
use crate::error::End;
use crate::session::Session;

/// Longest silence of the other end.
pub(super) const SILENCE: Duration = Duration::from_secs(20);
/// How long a guest may take to send a destination what it has pinned.
const PARTING: Duration = Duration::from_secs(300);
/// Most bytes of the answer to the first frame.
const MOST_ANSWER: usize = 64 * 1024;
/// Longest time for copies between two looks at what the program wants: a link
/// that keeps up would keep the program waiting until all is copied.
const SLICE: Duration = Duration::from_micros(500);
/// Chunks that the destination copies before it answers, so that it is not
/// silent for long: 8 GiB.
const FETCHES: usize = 4096;

type Link = BufWriter<UnixStream>;

/// What the source waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Welcome,
    Missing,
    HandingOver,
    Recreated,
    /// The destination copies what it can from this session's device.
    Fetching,
    Copying,
    /// All was copied once; the sessions that move with this one were not.
    Copied,
}

/// Who writes to the link.
#[derive(Debug)]
enum Out {
    /// The session's thread.
    Here(Box<Writer<Link>>),
    /// A thread of its own.
    Away(Post<Link>),
    /// Nobody: the link is lost.
    Lost,
}

/// A migration that is under way.
#[derive(Debug)]
pub(crate) struct Source {
    out: Out,
    pub(super) scanner: Scanner<UnixStream>,
    /// The guest's connection goes over.
    pub(super) local: bool,
    pub(super) gates: Option<Gates>,
    pub(crate) attempts: Attempts,
    /// When the destination was last told that this end waits.
    pub(super) still: Instant,
    /// Communicator and address of the session there.
    pub(super) home: (String, String),
    stage: Stage,
    began: Instant,
    heard: Instant,
    /// Memory is copied while the program runs.
    precopy: bool,
    /// The device notes what is written.
    watched: bool,
    /// The images that the destination has.
    images: Vec<[u8; 32]>,
    /// The objects that the destination has.
    items: Vec<Item>,
    /// What created them, as they were sent first.
    sent: Owners,
    shared: Shared,
    /// What the destination is to copy by itself and was not told yet.
    fetches: Vec<Chunk>,
    ahead: Option<Ahead>,
    /// A payload for which the thread that writes had no room.
    put_by: Option<Vec<u8>>,
    /// Whoever takes it has the session.
    token: Token,
}

fn io(error: std::io::Error) -> StateError {
    StateError::from(error)
}

fn carried(error: paragpu_communicator::Error) -> StateError {
    StateError::Impossible(format!("the destination's daemon is lost: {error}"))
}

impl Source {
    /// Says to the destination's daemon who comes.
    fn open(session: &mut Session, departure: Departure) -> Result<Self, StateError> {
        let Departure {
            link,
            local,
            wanted,
            follows,
            gates,
            precopy,
            hand_over,
        } = departure;
        let same_host = local;
        // A session keeps its window when its calls come another way. It leaves
        // the window as it does for another host, and its program follows.
        let local = same_host && !session.has_foreign_window();
        let follows = match same_host && !local && follows.is_empty() {
            true => session.communicator.clone(),
            false => follows,
        };
        session.may_leave(local, &follows)?;
        let socket = UnixStream::from(link);
        socket.set_nonblocking(false).map_err(io)?;
        socket.set_read_timeout(Some(SILENCE)).map_err(io)?;
        socket.set_write_timeout(Some(SILENCE)).map_err(io)?;
        let identity = &session.identity;
        let arrive = encode_all(&Arrive {
            magic: MAGIC,
            version: VERSION,
            vm: Text(&identity.vm),
            device: identity.ordinal,
            token: identity.token,
            guest_pid: identity.guest_pid,
            communicator: Text(&session.communicator),
            follows: Text(&follows),
            wanted,
        });
        let deadline = Some(Instant::now() + SILENCE);
        handshake::send_frame(&socket, ARRIVE, 0, 0, &arrive, deadline).map_err(carried)?;
        let other = socket.try_clone().map_err(io)?;
        let writer = BufWriter::with_capacity(1 << 20, socket);
        Ok(Self {
            out: Out::Here(Box::new(Writer::new(writer))),
            scanner: Scanner::new(other),
            local,
            gates: gates.map(Gates::new),
            attempts: Attempts::new(),
            still: Instant::now(),
            home: (String::new(), String::new()),
            stage: Stage::Welcome,
            began: Instant::now(),
            heard: Instant::now(),
            precopy,
            watched: precopy && session.device.watch_writes(true).is_ok(),
            images: Vec::new(),
            items: Vec::new(),
            sent: Owners::new(),
            shared: Shared::new(match same_host && hand_over {
                true => session.device.memory_domain(),
                false => None,
            }),
            fetches: Vec::new(),
            ahead: None,
            put_by: None,
            token: Token::new().map_err(io)?,
        })
    }

    pub(super) fn writer(&mut self) -> Result<&mut Writer<Link>, StateError> {
        match &mut self.out {
            Out::Here(writer) => Ok(writer),
            _ => Err(StateError::Order("somebody else writes")),
        }
    }

    /// Lets a thread write contents.
    fn send_off(&mut self) {
        self.out = match std::mem::replace(&mut self.out, Out::Lost) {
            Out::Here(writer) => Out::Away(Post::new(writer)),
            other => other,
        };
    }

    /// Waits until that thread has written everything.
    fn call_back(&mut self) -> Result<(), StateError> {
        self.out = match std::mem::replace(&mut self.out, Out::Lost) {
            Out::Away(post) => Out::Here(post.finish()?),
            other => other,
        };
        Ok(())
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.scanner.get_ref().as_fd()
    }

    /// Has the other end said something? An error where it is silent too long.
    fn has_answer(&mut self) -> Result<bool, StateError> {
        let fd = self.socket();
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let there = matches!(poll(&mut fds, Some(&now)), Ok(count) if count > 0);
        if there {
            self.heard = Instant::now();
        } else if self.heard.elapsed() > SILENCE {
            return Err(StateError::Impossible(
                "the destination did not answer".into(),
            ));
        }
        Ok(there)
    }

    /// The sentence of the other end where it gave up, instead of an error of
    /// the link.
    fn told(&mut self, error: StateError) -> StateError {
        if !matches!(error, StateError::Io(_) | StateError::Incomplete) {
            return error;
        }
        while matches!(self.has_answer(), Ok(true)) {
            match self.scanner.record() {
                Ok((Kind::Refused, reason)) => {
                    return StateError::Impossible(String::from_utf8_lossy(reason).into_owned());
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        error
    }

    pub(super) fn expect(&mut self, kind: Kind) -> Result<Vec<u8>, StateError> {
        self.writer()?.flush()?;
        match self.scanner.record()? {
            (Kind::Refused, reason) => Err(StateError::Impossible(
                String::from_utf8_lossy(reason).into_owned(),
            )),
            (got, payload) if got == kind => Ok(payload.to_vec()),
            _ => Err(StateError::Order("an answer to another question")),
        }
    }

    /// Waits until the destination ends the link: the guest, which is its own, has
    /// then left the window that it shared with this host, and whoever ordered the
    /// move may take a VM's device away.
    fn await_parting(&self) {
        let deadline = Instant::now() + PARTING;
        let mut fds = [PollFd::from_borrowed_fd(self.socket(), PollFlags::IN)];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
    }

    fn welcomed(&mut self) -> Result<(), StateError> {
        let deadline = Some(Instant::now() + SILENCE);
        let (header, payload) =
            handshake::receive_exact_frame(self.socket(), MOST_ANSWER, deadline)
                .map_err(carried)?;
        if header.kind == Control::Welcome.kind() {
            let home: Move<'_> = decode_all(&payload)?;
            self.home = (home.communicator.0.to_owned(), home.address.0.to_owned());
            return Ok(());
        }
        let refusal: Refusal<'_> = decode_all(&payload)?;
        Err(StateError::Impossible(refusal.reason.0.to_owned()))
    }

    fn ask_images(&mut self, session: &Session) -> Result<(), StateError> {
        let images = session.image_hashes()?;
        let writer = self.writer()?;
        for hash in &images {
            let size = session.image(hash)?.len() as u64;
            let name = super::state::ImagePart {
                hash: *hash,
                size,
                offset: 0,
                data: Bytes(&[]),
            };
            writer.put(Kind::Image, &[&encode_all(&name)])?;
        }
        writer.put(Kind::ImageNames, &[])?;
        writer.flush()?;
        self.images = images;
        Ok(())
    }

    fn send_images(&mut self, session: &Session) -> Result<(), StateError> {
        let missing = self.expect(Kind::Missing)?;
        let writer = self.writer()?;
        for hash in missing.as_chunks::<32>().0 {
            session.write_image(hash, writer)?;
        }
        Ok(())
    }

    fn send_objects(&mut self, session: &mut Session) -> Result<(), StateError> {
        self.items = session.items()?;
        let items = std::mem::take(&mut self.items);
        let written = self
            .writer()
            .and_then(|writer| super::stop::write_items(&items, writer));
        self.items = items;
        written?;
        self.shared.begin(session)
    }

    /// Hands some of the objects' memory over; true where an answer to that
    /// comes. Where there is nothing more, the destination is to recreate them.
    fn hand_over(&mut self, session: &mut Session) -> Result<bool, StateError> {
        let Some(batch) = self.shared.next(session) else {
            let writer = self.writer()?;
            writer.put(Kind::ObjectsEnd, &[])?;
            writer.flush()?;
            return Ok(false);
        };
        let writer = self.writer()?;
        writer.put(Kind::Shared, &[&batch.payload])?;
        writer.flush()?;
        let fds: Vec<BorrowedFd<'_>> = batch.descriptors.iter().map(AsFd::as_fd).collect();
        self.send_descriptors(&fds)?;
        Ok(true)
    }

    fn handed_over(&mut self) -> Result<(), StateError> {
        let taken = self.expect(Kind::Taken)?;
        self.shared.answered(&taken)
    }

    /// The frame that a record announced.
    fn send_descriptors(&self, fds: &[BorrowedFd<'_>]) -> Result<(), StateError> {
        let deadline = Some(Instant::now() + SILENCE);
        handshake::send_with_fds(self.socket(), ARRIVE, 0, 0, &[], fds, deadline).map_err(carried)
    }

    /// All that the stopped or running session has and that gets there in this
    /// way.
    fn chunks(&self, session: &mut Session, way: Way) -> Result<Vec<Chunk>, StateError> {
        let mut chunks = session.chunks(false)?;
        chunks.retain(|chunk| self.shared.way_of(chunk) == way);
        Ok(chunks)
    }

    /// Lets the destination copy some of what it is to; true where an answer to
    /// that comes.
    fn fetch(&mut self) -> Result<bool, StateError> {
        let some = self.fetches.len().min(FETCHES);
        if some == 0 {
            return Ok(false);
        }
        let mut names = Vec::new();
        for chunk in self.fetches.drain(..some) {
            chunk.put_name(&mut names);
        }
        let writer = self.writer()?;
        writer.put(Kind::Fetch, &[&names])?;
        writer.flush()?;
        Ok(true)
    }

    /// Copies ahead from here on, or lets the destination do so.
    fn begin_copying(&mut self, session: &mut Session) -> Result<(), StateError> {
        if self.fetch()? {
            self.stage = Stage::Fetching;
            return Ok(());
        }
        let chunks = self.chunks(session, Way::Sent)?;
        let sent = std::mem::take(&mut self.sent);
        let mut ahead = Ahead::new(session, sent, chunks, self.watched)?;
        if !self.precopy {
            ahead.give_up();
        }
        self.ahead = Some(ahead);
        self.send_off();
        self.stage = Stage::Copying;
        Ok(())
    }

    /// Does what can be done without making the program wait for the other
    /// end; true when it is time for the stop.
    fn advance(&mut self, session: &mut Session) -> Result<bool, StateError> {
        if self.stage == Stage::Copying {
            if !self.copy_ahead(session)? {
                return Ok(false);
            }
            self.stage = Stage::Copied;
        }
        if self.stage == Stage::Copied {
            return self.may_stop(session);
        }
        if !self.has_answer()? {
            return Ok(false);
        }
        match self.stage {
            Stage::Copying | Stage::Copied => {}
            Stage::Welcome => {
                self.welcomed()?;
                let pinned = session.pinned_without_window();
                let head = session.identity.encode(session.arena.live(), pinned);
                self.writer()?.put(Kind::Head, &[&head])?;
                if let Some(domain) = self.shared.domain() {
                    self.writer()?.put(Kind::Domain, &[&domain])?;
                }
                self.ask_images(session)?;
                self.stage = Stage::Missing;
            }
            Stage::Missing => {
                if self.shared.domain().is_some() {
                    let theirs = self.expect(Kind::Domain)?;
                    self.shared.agree(&theirs);
                }
                self.send_images(session)?;
                // The program may have loaded another one meanwhile.
                if session.image_hashes()? != self.images {
                    self.ask_images(session)?;
                    self.send_images(session)?;
                }
                self.sent = owners(session);
                self.send_objects(session)?;
                self.go_on_handing_over(session)?;
            }
            Stage::HandingOver => {
                self.handed_over()?;
                self.go_on_handing_over(session)?;
            }
            Stage::Recreated => {
                self.expect(Kind::Ready)?;
                if self.precopy {
                    let mut fetches = self.chunks(session, Way::Fetched)?;
                    // The program may have mapped other memory there since.
                    fetches.retain(|chunk| self.shared.is_current(session, chunk));
                    self.fetches = fetches;
                }
                self.begin_copying(session)?;
            }
            Stage::Fetching => {
                self.expect(Kind::Ready)?;
                self.begin_copying(session)?;
            }
        }
        Ok(false)
    }

    fn go_on_handing_over(&mut self, session: &mut Session) -> Result<(), StateError> {
        self.stage = match self.hand_over(session)? {
            true => Stage::HandingOver,
            false => Stage::Recreated,
        };
        Ok(())
    }

    /// Copies ahead as far as the link takes it.
    fn copy_ahead(&mut self, session: &mut Session) -> Result<bool, StateError> {
        let (Some(ahead), Out::Away(post)) = (&mut self.ahead, &self.out) else {
            return Err(StateError::Order("nothing to copy ahead"));
        };
        if post.failed() {
            return self.call_back().map(|()| false);
        }
        if let Some(payload) = self.put_by.take() {
            self.put_by = post.offer(payload);
        }
        ahead.read(session)?;
        let zeros = ahead.sends_zeros();
        let began = Instant::now();
        while self.put_by.is_none()
            && began.elapsed() < SLICE
            && let Some(batch) = ahead.mover.finish_read(session, false)?
        {
            let mut payload = post.payload();
            for (chunk, bytes) in batch.each() {
                if ahead.samples.look(chunk, bytes) {
                    continue;
                }
                ahead.copied += chunk.size();
                if zeros || chunk.is_variable() || bytes.iter().any(|byte| *byte != 0) {
                    chunk.put(bytes, &mut payload);
                }
            }
            if !payload.is_empty() {
                self.put_by = post.offer(payload);
            }
            ahead.judge(session)?;
            ahead.read(session)?;
        }
        session.orders.report(Report::Progress {
            phase: 1,
            done: ahead.copied.min(ahead.all),
            all: ahead.all,
        });
        if !ahead.is_idle() || self.put_by.is_some() || !ahead.is_over(session)? {
            return Ok(false);
        }
        self.call_back().map(|()| true)
    }
}

impl Session {
    /// Does its window belong to another connection than its calls?
    fn has_foreign_window(&self) -> bool {
        let current = handover::current();
        self.window.is_some() && current.as_ref().is_some_and(|current| !current.own_window)
    }

    /// Begins a migration.
    pub(crate) fn begin_migration(&mut self, departure: Departure) {
        match Source::open(self, departure) {
            Ok(source) => self.moving = Some(Box::new(source)),
            Err(error) => self.orders.report(Report::Failed(error.to_string())),
        }
    }

    /// Goes on with a migration between two turns. [`End::Moved`] when the
    /// session is another worker's.
    pub(crate) fn go_on_moving(&mut self, receiver: &mut dyn Receiver) -> Result<(), End> {
        let Some(mut source) = self.moving.take() else {
            return Ok(());
        };
        match source.advance(self) {
            Ok(false) => {
                self.moving = Some(source);
                Ok(())
            }
            Ok(true) => self.finish_migration(source, receiver),
            Err(error) => {
                let error = source.told(error);
                self.stay(*source, &error.to_string());
                Ok(())
            }
        }
    }

    fn finish_migration(
        &mut self,
        mut source: Box<Source>,
        receiver: &mut dyn Receiver,
    ) -> Result<(), End> {
        let ahead = match &source.out {
            Out::Here(writer) => writer.bytes,
            _ => 0,
        };
        match self.attempt_to_stop(receiver, &mut source.attempts) {
            Ok(true) => {}
            Ok(false) => {
                self.moving = Some(source);
                return Ok(());
            }
            Err(Unstopped::Goes(reason)) => {
                self.stay(*source, &reason);
                return Ok(());
            }
            Err(Unstopped::Ended(end)) => return Err(self.broken_off(*source, end)),
        }
        source.reached("the device has nothing left to do");
        if let Err(error) = source.carry(self, receiver) {
            let error = source.told(error);
            self.stay(*source, &error.to_string());
            return Ok(());
        }
        let parted = match source.local {
            true => Ok(()),
            false => source.await_guest(self, receiver),
        };
        match parted.and_then(|()| source.await_others(self, receiver)) {
            Ok(()) => {}
            Err(Unstopped::Goes(reason)) => {
                source.call_off(&reason);
                self.stay(*source, &reason);
                return Ok(());
            }
            Err(Unstopped::Ended(end)) => return Err(self.broken_off(*source, end)),
        }
        if source.local
            && let Err(error) = source.token.give()
        {
            self.stay(*source, &io(error).to_string());
            return Ok(());
        }
        // From here on the session is of whoever takes it, so that no call is
        // executed twice.
        let committed = source.writer().and_then(|writer| {
            writer.put(Kind::Commit, &[])?;
            writer.flush()
        });
        let served = committed.and_then(|()| source.expect(Kind::Ready).map(drop));
        if let Err(error) = served {
            // A guest that the destination took in has no connection here any
            // more; one that it did not goes on here. It has only one.
            if !source.local || source.token.take() {
                let reason = format!("the destination was lost at the switch: {error}");
                self.stay(*source, &reason);
                return Ok(());
            }
            tracing::warn!(%error, "the link broke when the session was taken");
        }
        let (communicator, address) = std::mem::take(&mut source.home);
        self.orders.report(Report::Left(communicator, address));
        if !source.local {
            source.await_parting();
        }
        self.orders.report(Report::Done(Figures {
            bytes: source.writer().map_or(0, |writer| writer.bytes),
            ahead,
            handed_over: source.shared.bytes(self, Way::Taken),
            fetched: source.shared.bytes(self, Way::Fetched),
            stopped: micros(source.attempts.stood_still()),
            total: micros(source.began.elapsed()),
        }));
        Err(End::Moved)
    }

    /// The session ended, or its connection did.
    fn broken_off(&mut self, mut source: Source, end: End) -> End {
        let reason = format!("the session did not wait for its move: {end}");
        source.call_off(&reason);
        self.stay(source, &reason);
        end
    }

    /// The migration failed: the session goes on here.
    fn stay(&mut self, source: Source, reason: &str) {
        self.is_copied = false;
        if let Some(ahead) = source.ahead {
            ahead.mover.keep(self);
        }
        if source.watched {
            let _ = self.device.watch_writes(false);
        }
        self.orders.report(Report::Failed(reason.to_owned()));
    }
}
