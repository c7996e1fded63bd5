//! The link to the destination.

use std::io::BufWriter;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use paragpu_communicator::Error;
use paragpu_communicator_stream::handshake;
use paragpu_protocol::codec::decode_all;
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{ARRIVE, Move, Refusal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::answers::Answers;
use super::{SILENCE, carried};
use crate::transfer::send_stage::SendStage;
use crate::transfer::state::{Kind, Scanner, StateError, Writer};

/// Maximum size of a communicator's name and of an address, in bytes.
const MAX_ADDRESS: usize = 1024;
/// Interval of messages that this end is waiting.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

type PeerWriter = BufWriter<UnixStream>;

/// The writer of the link.
#[derive(Debug)]
enum Out {
    /// The session's thread.
    Here(Box<Writer<PeerWriter>>),
    /// A separate thread, which also hashes.
    Away(SendStage<PeerWriter>),
    /// None: the link is lost.
    Lost,
}

/// The destination.
#[derive(Debug)]
pub(super) struct Peer {
    out: Out,
    scanner: Scanner<Answers>,
    /// When its last answer was complete, or the next one began.
    last_received: Instant,
    /// When it was last notified that this end is waiting.
    last_sent: Instant,
}

/// Sends the frame that a record announced.
pub(super) fn send_descriptors(
    socket: BorrowedFd<'_>,
    fds: &[BorrowedFd<'_>],
) -> Result<(), StateError> {
    let deadline = Some(Instant::now() + SILENCE);
    handshake::send_with_fds(socket, ARRIVE, 0, 0, &[], fds, deadline).map_err(carried)
}

/// Replaces an error of the link with a sentence.
pub(super) fn broken(error: StateError) -> StateError {
    let why = match &error {
        StateError::Io(error) => error.to_string(),
        StateError::Incomplete => "it was closed".to_owned(),
        _ => return error,
    };
    StateError::Impossible(format!(
        "the link to the destination broke, so the session continues here: {why}"
    ))
}

impl Peer {
    /// A destination that knows which session will arrive.
    pub(super) fn new(socket: UnixStream) -> std::io::Result<Self> {
        let other = socket.try_clone()?;
        let writer = BufWriter::with_capacity(1 << 20, socket);
        Ok(Self {
            out: Out::Here(Box::new(Writer::new(writer))),
            scanner: Scanner::new(Answers::new(other)),
            last_received: Instant::now(),
            last_sent: Instant::now(),
        })
    }

    pub(super) fn writer(&mut self) -> Result<&mut Writer<PeerWriter>, StateError> {
        match &mut self.out {
            Out::Here(writer) => Ok(writer),
            _ => Err(StateError::Order("another thread writes to the link")),
        }
    }

    /// Bytes written.
    pub(super) fn bytes(&self) -> u64 {
        match &self.out {
            Out::Here(writer) => writer.bytes,
            _ => 0,
        }
    }

    /// Moves the writer to a thread.
    pub(super) fn send_off(&mut self) {
        self.out = match std::mem::replace(&mut self.out, Out::Lost) {
            Out::Here(writer) => Out::Away(SendStage::new(writer)),
            other => other,
        };
    }

    /// The thread that writes contents.
    pub(super) fn stage(&mut self) -> Result<&mut SendStage<PeerWriter>, StateError> {
        match &mut self.out {
            Out::Away(stage) => Ok(stage),
            _ => Err(StateError::Order("no thread writes contents")),
        }
    }

    /// Whether that thread has written everything. Nothing more is queued for it.
    pub(super) fn is_back(&mut self) -> Result<bool, StateError> {
        if let Out::Away(stage) = &mut self.out {
            stage.close();
            if !stage.is_over() {
                return Ok(false);
            }
            // The other end had nothing to answer meanwhile.
            self.last_received = Instant::now();
        }
        self.await_writer().map(|()| true)
    }

    /// Waits until that thread has written everything.
    pub(super) fn await_writer(&mut self) -> Result<(), StateError> {
        self.out = match std::mem::replace(&mut self.out, Out::Lost) {
            Out::Away(stage) => Out::Here(stage.finish()?),
            other => other,
        };
        Ok(())
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.scanner.get_ref().socket()
    }

    /// Whether an answer of the destination is complete. An error if that takes too long.
    pub(super) fn has_answer(&mut self) -> Result<bool, StateError> {
        let answers = self.scanner.get_mut();
        let had_begun = answers.has_begun();
        let complete = answers.collect()?;
        if complete || answers.has_begun() != had_begun {
            self.last_received = Instant::now();
        } else if self.last_received.elapsed() > SILENCE {
            return Err(StateError::Impossible(
                "the destination did not answer".into(),
            ));
        }
        Ok(complete)
    }

    /// The same, while the destination may be silent.
    pub(super) fn has_record(&mut self) -> Result<bool, StateError> {
        Ok(self.scanner.get_mut().collect()?)
    }

    /// An answer is due from now on.
    pub(super) fn expects_answer(&mut self) {
        self.last_received = Instant::now();
    }

    /// Waits until an answer is complete. An error if that takes too long.
    pub(super) fn await_answer(&mut self) -> Result<(), StateError> {
        if !self.scanner.get_ref().has_begun() {
            self.last_received = Instant::now();
        }
        while !self.has_answer()? {
            let left = SILENCE.saturating_sub(self.last_received.elapsed());
            let mut fds = [PollFd::from_borrowed_fd(self.socket(), PollFlags::IN)];
            // If it fails, `has_answer` decides.
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
        Ok(())
    }

    /// Replaces an error of the link with the destination's reason, if it gave up, or else with
    /// a sentence about the link.
    pub(super) fn why(&mut self, error: StateError) -> StateError {
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
        broken(error)
    }

    /// The next record, which must be of this kind. Waits for it, unless
    /// [`has_answer`](Self::has_answer) returned true.
    pub(super) fn expect(&mut self, kind: Kind) -> Result<Vec<u8>, StateError> {
        self.writer()?.flush()?;
        self.await_answer()?;
        self.take(kind)
    }

    /// The record that has arrived, which must be of this kind.
    pub(super) fn take(&mut self, kind: Kind) -> Result<Vec<u8>, StateError> {
        match self.scanner.record()? {
            (Kind::Refused, reason) => Err(StateError::Impossible(
                String::from_utf8_lossy(reason).into_owned(),
            )),
            (got, payload) if got == kind => Ok(payload.to_vec()),
            _ => Err(StateError::Order("an answer to another request")),
        }
    }

    /// Takes the answer to the first frame, which is complete: communicator and address of the
    /// session at the destination.
    pub(super) fn welcome(&mut self) -> Result<(String, String), StateError> {
        let answer = self.scanner.get_mut().take_frame();
        let (header, payload) = answer.map_err(|error| match error {
            Error::Protocol(error) => StateError::Impossible(format!(
                "the destination is not the socket of a paragpud for guests: {error}"
            )),
            other => carried(other),
        })?;
        if header.kind == Control::Welcome.kind() {
            let home: Move<'_> = decode_all(&payload)?;
            if home.communicator.0.len().max(home.address.0.len()) > MAX_ADDRESS {
                return Err(StateError::Impossible(
                    "the destination's address is too long".into(),
                ));
            }
            return Ok((home.communicator.0.to_owned(), home.address.0.to_owned()));
        }
        let refusal: Refusal<'_> = decode_all(&payload)?;
        Err(StateError::Impossible(refusal.reason.0.to_owned()))
    }

    /// Notifies the destination periodically that this end is waiting.
    pub(super) fn still(&mut self) -> Result<(), StateError> {
        if self.last_sent.elapsed() >= KEEPALIVE_INTERVAL {
            self.last_sent = Instant::now();
            let writer = self.writer()?;
            writer.put(Kind::Still, &[])?;
            writer.flush()?;
        }
        Ok(())
    }

    /// Notifies the destination that the session stays here.
    pub(super) fn call_off(&mut self, reason: &str) {
        // Losing the link has the same effect.
        let _ = self.writer().and_then(|writer| {
            writer.put(Kind::Refused, &[reason.as_bytes()])?;
            writer.flush()
        });
    }
}
