//! Live migration, the end that the session leaves (D10).
//!
//! The other end is a worker that the destination's daemon picked. While the
//! program runs, objects are recreated there and memory is copied, chunk by
//! chunk, whatever the program does to it. Then the session stops; both ends
//! hash every chunk, and what differs travels. Up to the commit everything
//! here stays as it is: whatever fails before, the session goes on here.

use std::io::BufWriter;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use paragpu_communicator::{Receiver, Sender};
use paragpu_communicator_stream::handshake;
use paragpu_protocol::codec::{Bytes, Field, Text, decode_all, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{ARRIVE, Arrive, MAGIC, Refusal, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::handover;
use super::orders::{Figures, Report};
use super::regions::{Chunk, Mover};
use super::replay::FULL;
use super::state::{Kind, Scanner, StateError, Writer};
use super::stop::{PATIENCE, Unstopped};
use crate::error::End;
use crate::session::Session;

/// Longest silence of the other end.
const SILENCE: Duration = Duration::from_secs(20);
/// Most bytes of the answer to the first frame.
const MOST_ANSWER: usize = 64 * 1024;

paragpu_protocol::record! {
    /// The guest's connection; its descriptors follow in a frame of their own.
    Line<'a> {
        /// A [`paragpu_protocol::handshake::Transport`].
        transport: u8,
        /// Of `Pci`: the channel's number.
        channel: u32,
        /// Of `Pci`: bytes from the window's start to the channel's region.
        offset: u64,
        /// Of `Pci`: bytes of the region.
        size: u64,
        /// Bytes of a frame whose rest is in the connection.
        unfinished: Bytes<'a>,
    }
}

/// What the source waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Welcome,
    Missing,
    Recreated,
    Copying,
}

/// A migration that is under way.
#[derive(Debug)]
pub(crate) struct Source {
    writer: Writer<BufWriter<UnixStream>>,
    scanner: Scanner<UnixStream>,
    stage: Stage,
    began: Instant,
    heard: Instant,
    /// Chunks that are to be copied before the stop, last first.
    ahead: Vec<Chunk>,
    all: u64,
    done: u64,
    mover: Option<Mover>,
}

fn io(error: std::io::Error) -> StateError {
    StateError::from(error)
}

fn carried(error: paragpu_communicator::Error) -> StateError {
    StateError::Impossible(format!("the destination's daemon is lost: {error}"))
}

impl Source {
    /// Connects to the daemon at `to` and says who comes.
    fn open(session: &mut Session, to: &Path) -> Result<Self, StateError> {
        let socket = UnixStream::connect(to).map_err(|error| {
            StateError::Impossible(format!("no paragpud answers at {}: {error}", to.display()))
        })?;
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
        });
        let deadline = Some(Instant::now() + SILENCE);
        handshake::send_frame(&socket, ARRIVE, 0, 0, &arrive, deadline).map_err(carried)?;
        let other = socket.try_clone().map_err(io)?;
        Ok(Self {
            writer: Writer::new(BufWriter::with_capacity(1 << 20, socket)),
            scanner: Scanner::new(other),
            stage: Stage::Welcome,
            began: Instant::now(),
            heard: Instant::now(),
            ahead: Vec::new(),
            all: 0,
            done: 0,
            mover: None,
        })
    }

    fn socket(&self) -> BorrowedFd<'_> {
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

    fn expect(&mut self, kind: Kind) -> Result<Vec<u8>, StateError> {
        self.writer.flush()?;
        match self.scanner.record()? {
            (Kind::Refused, reason) => Err(StateError::Impossible(
                String::from_utf8_lossy(reason).into_owned(),
            )),
            (got, payload) if got == kind => Ok(payload.to_vec()),
            _ => Err(StateError::Order("an answer to another question")),
        }
    }

    fn welcomed(&mut self) -> Result<(), StateError> {
        let deadline = Some(Instant::now() + SILENCE);
        let (header, payload) =
            handshake::receive_exact_frame(self.socket(), MOST_ANSWER, deadline)
                .map_err(carried)?;
        if header.kind == Control::Welcome.kind() {
            return Ok(());
        }
        let refusal: Refusal<'_> = decode_all(&payload)?;
        Err(StateError::Impossible(refusal.reason.0.to_owned()))
    }

    fn ask_images(&mut self, session: &Session) -> Result<(), StateError> {
        for hash in session.image_hashes()? {
            let size = session.image(&hash)?.len() as u64;
            let name = super::state::ImagePart {
                hash,
                size,
                offset: 0,
                data: Bytes(&[]),
            };
            self.writer.put(Kind::Image, &[&encode_all(&name)])?;
        }
        self.writer.put(Kind::ImageNames, &[])?;
        self.writer.flush()
    }

    fn send_images(&mut self, session: &Session) -> Result<(), StateError> {
        let missing = self.expect(Kind::Missing)?;
        for hash in missing.as_chunks::<32>().0 {
            session.write_image(hash, &mut self.writer)?;
        }
        Ok(())
    }

    /// Does what can be done without making the program wait for the other
    /// end; true when everything was copied once.
    fn advance(&mut self, session: &mut Session) -> Result<bool, StateError> {
        if self.stage == Stage::Copying {
            return self.copy_ahead(session);
        }
        if !self.has_answer()? {
            return Ok(false);
        }
        match self.stage {
            Stage::Copying => {}
            Stage::Welcome => {
                self.welcomed()?;
                let head = session.identity.encode(session.arena.live());
                self.writer.put(Kind::Head, &[&head])?;
                self.ask_images(session)?;
                self.stage = Stage::Missing;
            }
            Stage::Missing => {
                self.send_images(session)?;
                session.write_objects(&mut self.writer)?;
                self.writer.flush()?;
                self.stage = Stage::Recreated;
            }
            Stage::Recreated => {
                self.expect(Kind::Ready)?;
                let mut chunks = session.chunks(false)?;
                self.all = chunks.iter().map(Chunk::size).sum();
                chunks.reverse();
                self.ahead = chunks;
                self.mover = Some(Mover::new(session)?);
                self.stage = Stage::Copying;
            }
        }
        Ok(false)
    }

    /// Copies a chunk or a few small ones ahead.
    fn copy_ahead(&mut self, session: &mut Session) -> Result<bool, StateError> {
        let Some(mover) = &mut self.mover else {
            return Ok(true);
        };
        while mover.has_room()
            && let Some(chunk) = self.ahead.pop()
        {
            // What was taken away meanwhile needs no copy.
            let _ = mover.begin_read(session, chunk);
        }
        let mut payload = Vec::new();
        while payload.len() < FULL
            && let Some((chunk, bytes)) = mover.finish_read(session, false)?
        {
            self.done += chunk.size();
            if chunk.is_variable() || bytes.iter().any(|byte| *byte != 0) {
                chunk.put(bytes, &mut payload);
            }
        }
        let over = self.ahead.is_empty() && mover.is_idle();
        if !payload.is_empty() {
            self.writer.put(Kind::Contents, &[&payload])?;
            self.writer.flush()?;
        }
        session.orders.report(Report::Progress {
            phase: 1,
            done: self.done,
            all: self.all,
        });
        Ok(over)
    }

    /// Everything after the stop, up to the commit.
    fn carry(
        &mut self,
        session: &mut Session,
        receiver: &mut dyn Receiver,
    ) -> Result<(), StateError> {
        self.ask_images(session)?;
        self.send_images(session)?;
        session.write_objects(&mut self.writer)?;
        self.expect(Kind::Ready)?;
        self.writer.put(Kind::HashAll, &[])?;
        self.writer.flush()?;
        let chunks = session.chunks(false)?;
        let mut mover = match self.mover.take() {
            Some(mover) => mover,
            None => Mover::new(session)?,
        };
        let mut hashes = Vec::with_capacity(chunks.len());
        let hashed = mover.read_all(session, &chunks, |_, _, bytes| {
            hashes.push(blake3::hash(bytes));
            Ok(())
        });
        let sent = hashed.and_then(|()| self.send_different(session, &mut mover, &chunks, &hashes));
        mover.release(session);
        sent?;
        let machine = session.machine()?;
        self.writer.put(Kind::Machine, &[&machine])?;
        session.write_frames(&mut self.writer)?;
        let settled = session.sender.settle(Instant::now() + SILENCE);
        if !matches!(settled, Ok(true)) {
            return Err(StateError::Impossible(
                "the program does not take the replies to its calls".into(),
            ));
        }
        self.pass_connection(session, &receiver.unfinished())?;
        self.expect(Kind::Ready).map(drop)
    }

    fn send_different(
        &mut self,
        session: &mut Session,
        mover: &mut Mover,
        chunks: &[Chunk],
        hashes: &[blake3::Hash],
    ) -> Result<(), StateError> {
        let theirs = self.expect(Kind::Hashes)?;
        let theirs = theirs.as_chunks::<32>().0;
        if theirs.len() != chunks.len() {
            return Err(StateError::Order("hashes of other contents"));
        }
        let different: Vec<Chunk> = chunks
            .iter()
            .zip(hashes.iter().zip(theirs))
            .filter(|(_, (ours, theirs))| ours.as_bytes() != *theirs)
            .map(|(chunk, _)| *chunk)
            .collect();
        let all: u64 = different.iter().map(Chunk::size).sum();
        let (mut payload, mut done) = (Vec::new(), 0);
        let orders = std::sync::Arc::clone(&session.orders);
        let writer = &mut self.writer;
        mover.read_all(session, &different, |_, chunk, bytes| {
            chunk.put(bytes, &mut payload);
            done += chunk.size();
            if payload.len() >= FULL {
                writer.put(Kind::Contents, &[&payload])?;
                payload.clear();
                orders.report(Report::Progress {
                    phase: 2,
                    done,
                    all,
                });
            }
            Ok(())
        })?;
        if !payload.is_empty() {
            writer.put(Kind::Contents, &[&payload])?;
        }
        Ok(())
    }

    fn pass_connection(&mut self, session: &Session, unfinished: &[u8]) -> Result<(), StateError> {
        let current = handover::current();
        let Some(current) = current.as_ref() else {
            return Err(StateError::Impossible(
                "the session has no connection to pass on".into(),
            ));
        };
        if session.window.is_some() != current.own_window {
            return Err(StateError::Impossible(
                "the session's window belongs to another connection than its calls: it cannot \
                 move yet"
                    .into(),
            ));
        }
        let (channel, offset, size) = current.channel;
        let mut head = Vec::new();
        let line = Line {
            transport: current.transport as u8,
            channel,
            offset,
            size,
            unfinished: Bytes(unfinished),
        };
        let tail = line.encode(&mut head);
        self.writer.put(Kind::Connection, &[&head, tail])?;
        self.writer.flush()?;
        let fds: Vec<BorrowedFd<'_>> = current.fds.iter().map(AsFd::as_fd).collect();
        let deadline = Some(Instant::now() + SILENCE);
        handshake::send_with_fds(self.socket(), ARRIVE, 0, 0, &[], &fds, deadline).map_err(carried)
    }
}

impl Session {
    /// Begins a migration.
    pub(crate) fn begin_migration(&mut self, to: &Path) {
        match Source::open(self, to) {
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
        let ahead = source.writer.bytes;
        let stopped = Instant::now();
        match self.stop(receiver, PATIENCE) {
            Ok(()) => {}
            Err(Unstopped::Goes(reason)) => {
                self.stay(*source, &reason);
                return Ok(());
            }
            Err(Unstopped::Ended(end)) => return Err(end),
        }
        if let Err(error) = source.carry(self, receiver) {
            self.stay(*source, &error.to_string());
            return Ok(());
        }
        if let Err(error) = source
            .writer
            .put(Kind::Commit, &[])
            .and_then(|()| source.writer.flush())
        {
            // It did not leave this process whole, so it did not arrive.
            self.stay(*source, &error.to_string());
            return Ok(());
        }
        // From here on the session is the destination's, whatever happens:
        // calls must not be executed twice.
        if let Err(error) = source.expect(Kind::Ready) {
            let reason = format!("the destination was lost at the switch: {error}");
            self.orders.report(Report::Failed(reason.clone()));
            return Err(End::Lost(reason));
        }
        let micros = |since: Instant| u64::try_from(since.elapsed().as_micros()).unwrap_or(0);
        self.orders.report(Report::Done(Figures {
            bytes: source.writer.bytes,
            ahead,
            stopped: micros(stopped),
            total: micros(source.began),
        }));
        Err(End::Moved)
    }

    /// The migration failed: the session goes on here.
    fn stay(&mut self, source: Source, reason: &str) {
        if let Some(mover) = source.mover {
            mover.release(self);
        }
        self.orders.report(Report::Failed(reason.to_owned()));
    }
}
