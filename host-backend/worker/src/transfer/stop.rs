//! Stops a session so that its state can be read, and restores the state elsewhere.

use std::time::{Duration, Instant};

use paragpu_communicator::{Receiver, Wait};
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::{Bytes, decode_all};
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};
use paragpu_protocol::table::ModuleLoad;

use super::attempts::{Attempts, Failed};
use super::mover::Mover;
use super::replay::{FULL, Item};
use super::state::{ImagePart, Kind, StateError, Writer};
use crate::error::{Fault, SessionEnd};
use crate::images::Stored;
use crate::live::Recorded;
use crate::session::Session;

/// Bytes of an image in one record.
const PART: usize = 1 << 20;

/// Why a session was not stopped.
#[derive(Debug)]
pub(crate) enum Unstopped {
    /// It ended.
    Ended(SessionEnd),
    /// It continues; one sentence.
    Goes(String),
}

impl From<SessionEnd> for Unstopped {
    fn from(end: SessionEnd) -> Self {
        Self::Ended(end)
    }
}

impl Session {
    /// [Stops](Self::stop) the session; false if it continues for now.
    pub(crate) fn attempt_to_stop(
        &mut self,
        receiver: &mut dyn Receiver,
        attempts: &mut Attempts,
    ) -> Result<bool, Unstopped> {
        let patience = attempts.begin();
        if self.stop(receiver, patience)? {
            attempts.succeed();
            return Ok(true);
        }
        match attempts.fail() {
            Failed::Again(patience) => {
                tracing::info!(?patience, "the session's work is not over, so it goes on");
                Ok(false)
            }
            Failed::Last(patience) => Err(Unstopped::Goes(format!(
                "its GPU still had work of it when that was waited for, {} s at last: a kernel \
                 may run for long or wait for its program, so try again later",
                patience.as_secs()
            ))),
        }
    }

    /// Executes no more calls, and waits until the device has none left and
    /// everybody who waited for one has the reply; false if that took longer
    /// than `patience`. Calls that come meanwhile are queued; what host functions
    /// need to end is executed. The session continues with
    /// [`serve`](Session::serve) as if nothing had been.
    pub(crate) fn stop(
        &mut self,
        receiver: &mut dyn Receiver,
        patience: Duration,
    ) -> Result<bool, Unstopped> {
        self.recall(receiver);
        let deadline = Instant::now() + patience;
        loop {
            // Calls are taken in although none is executed. A guest that could not
            // send would not report the end of its host functions, and the device
            // would wait for that report forever.
            while self.takes_more()
                && let Some(frame) = receiver.receive(Wait::Poll).map_err(SessionEnd::from)?
            {
                self.take_behind(frame.header, frame.payload)?;
            }
            self.look()?;
            self.link.flush()?;
            // After a sticky error the driver lets nobody read the memory.
            if let Some(lost) = self.errors.sticky() {
                return Err(Unstopped::Goes(format!(
                    "the session's context is lost ({}): there is nothing to move",
                    lost.status
                )));
            }
            let over = self
                .gpu
                .context_query()
                .map_err(|error| Unstopped::Goes(format!("the session's work failed: {error}")))?;
            self.gather_failure();
            if over
                && self.completion.is_empty()
                && self.copies.tokens.is_empty()
                && self.objects.host_functions.is_empty()
            {
                // Work may have ended since the look above. Its replies and output must
                // be out before the state is read, or they would be lost with this
                // worker.
                self.look()?;
                self.forward_output()?;
                self.link.flush()?;
                // Until the session continues, here or elsewhere, the GPU is others'.
                self.pacing.leave();
                return Ok(true);
            }
            // A kernel may wait for a word that its program writes after a call that
            // is queued here. Only serving on lets such a kernel end.
            if Instant::now() >= deadline {
                return Ok(false);
            }
            if let Wait::Until(end) = self.pace()
                && !over
            {
                // Never the whole nap: the end of a host function is a frame, which wakes
                // nobody here.
                let left = end.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(Duration::from_millis(1)));
            }
        }
    }

    /// The calls that were queued, as records' payloads.
    pub(crate) fn waiting_calls(&self) -> impl Iterator<Item = ([u8; HEADER_LEN + 1], &[u8])> {
        self.intake.waiting().map(|waiting| {
            let mut head = [0; HEADER_LEN + 1];
            let (header, executed) = head.split_at_mut(HEADER_LEN);
            header.copy_from_slice(&waiting.header.to_bytes());
            executed.fill(u8::from(waiting.executed));
            (head, waiting.payload.as_slice())
        })
    }

    /// Writes the calls that were queued, and the frames that are kept for the
    /// guest.
    pub(crate) fn write_frames<W: std::io::Write>(
        &self,
        to: &mut Writer<W>,
    ) -> Result<(), StateError> {
        for (head, payload) in self.waiting_calls() {
            to.put(Kind::Waiting, &[&head, payload])?;
        }
        let mut payload = Vec::new();
        self.link
            .sender()
            .each_kept(|header, parts| -> Result<(), StateError> {
                payload.extend_from_slice(&header.to_bytes());
                parts
                    .iter()
                    .for_each(|part| payload.extend_from_slice(part));
                put_gathered(to, Kind::Kept, &mut payload, FULL)
            })?;
        put_gathered(to, Kind::Kept, &mut payload, 1)
    }

    /// Keeps the frames that another worker sent.
    fn keep_frames(&self, mut record: &[u8]) -> Result<(), StateError> {
        const RUBBISH: StateError = StateError::Order("a frame without a header");
        while let Some((header, rest)) = record.split_first_chunk::<HEADER_LEN>() {
            let header = FrameHeader::from_bytes(header).map_err(|_| RUBBISH)?;
            let Some((payload, next)) = rest.split_at_checked(header.payload_len()) else {
                return Err(RUBBISH);
            };
            self.link.sender().keep(header, payload);
            record = next;
        }
        match record {
            [] => Ok(()),
            _ => Err(RUBBISH),
        }
    }

    /// Puts a call by that another session had queued.
    pub(crate) fn put_waiting(&mut self, record: &[u8]) -> Result<(), StateError> {
        let Some((header, rest)) = record.split_first_chunk::<HEADER_LEN>() else {
            return Err(StateError::Order("a call without a header"));
        };
        let Some((executed, payload)) = rest.split_first() else {
            return Err(StateError::Order("a call without a header"));
        };
        let header = FrameHeader::from_bytes(header)
            .map_err(|_| StateError::Order("a call without a header"))?;
        self.intake
            .put_by(header, payload, *executed != 0)
            .map_err(|end| StateError::Impossible(end.to_string()))
    }

    /// The images that the session's modules are of.
    pub(crate) fn image_hashes(&self) -> Result<Vec<[u8; 32]>, StateError> {
        let mut hashes = Vec::new();
        for (_, creates, call) in self.objects.live.in_order() {
            if creates && let Some(hash) = image_of(call)? {
                hashes.push(hash);
            }
        }
        hashes.sort_unstable();
        hashes.dedup();
        Ok(hashes)
    }

    /// An image that one of the session's modules is of.
    pub(crate) fn image(&self, hash: &[u8; 32]) -> Result<Stored, StateError> {
        self.objects.modules.image(hash).map_err(|_| forgotten())
    }

    /// Takes a part of an image in.
    pub(crate) fn take_image(&mut self, payload: &[u8]) -> Result<(), StateError> {
        let part: ImagePart<'_> = decode_all(payload)?;
        let images = self.objects.modules.images();
        if part.offset == 0 && images.holds(&part.hash, part.size) {
            return Ok(());
        }
        let taken = images.write(&part.hash, part.size, part.offset, part.data.0);
        match taken {
            // Parts after the first of an image that was here already.
            Err(_) if images.holds(&part.hash, part.size) => Ok(()),
            Err(Fault::Call(error)) => Err(StateError::Impossible(error.to_string())),
            Err(_) => Err(StateError::Order("an image")),
            Ok(()) => Ok(()),
        }
    }

    /// Writes all that follows the head of a whole state; the session is
    /// stopped. `progress` is told bytes of memory written, and all.
    pub(crate) fn write_whole<W: std::io::Write>(
        &mut self,
        to: &mut Writer<W>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(), StateError> {
        for hash in self.image_hashes()? {
            write_image(&self.image(&hash)?, to)?;
        }
        write_items(&self.items()?, to)?;
        to.put(Kind::ObjectsEnd, &[])?;
        let chunks = self.chunks(false)?;
        let all: u64 = chunks.iter().map(super::regions::Chunk::size).sum();
        let mut mover = Mover::new(self)?;
        let (mut payload, mut done) = (Vec::new(), 0);
        let written = mover.read_all(self, &chunks, |chunk, bytes| {
            done += chunk.size();
            progress(done, all);
            // Memory is zero if nothing else is said.
            if bytes.iter().all(|byte| *byte == 0) && !chunk.is_variable() {
                return Ok(());
            }
            chunk.put(bytes, &mut payload);
            put_gathered(to, Kind::Contents, &mut payload, FULL)
        });
        mover.release(self);
        written?;
        put_gathered(to, Kind::Contents, &mut payload, 1)?;
        let bookkeeping = self.bookkeeping()?;
        to.put(Kind::Bookkeeping, &[&bookkeeping])?;
        self.write_frames(to)?;
        to.end()
    }

    /// Takes the records of a state in, up to its end or until `more` is
    /// false; a fresh session becomes the one that was written.
    pub(crate) fn take_record(
        &mut self,
        filling: &mut Filling,
        kind: Kind,
        payload: &[u8],
    ) -> Result<(), StateError> {
        match kind {
            Kind::Image => self.take_image(payload),
            Kind::Objects => Item::take(payload, &mut filling.items),
            Kind::ObjectsEnd => {
                self.settle(filling)?;
                filling.made = std::mem::take(&mut filling.items);
                self.become_items(&filling.made).map(drop)
            }
            Kind::Contents => {
                let mut mover = match filling.mover.take() {
                    Some(mover) => mover,
                    None => Mover::new(self)?,
                };
                let written = super::regions::parts(payload).and_then(|parts| {
                    parts
                        .into_iter()
                        .try_for_each(|(chunk, bytes)| mover.write(self, chunk, bytes))
                });
                filling.mover = Some(mover);
                written
            }
            Kind::Bookkeeping => self.take_bookkeeping(payload),
            Kind::Waiting => self.put_waiting(payload),
            Kind::Kept => self.keep_frames(payload),
            _ => Err(StateError::Order("a record of another place")),
        }
    }

    /// Makes what waited for the window, or for there to be none.
    pub(crate) fn make_pinned(&mut self, filling: &Filling) -> Result<(), StateError> {
        match self.become_items(&filling.made)? {
            true => Ok(()),
            false => Err(StateError::Order("pinned memory without a window")),
        }
    }

    /// Waits for what [`take_record`](Self::take_record) began.
    pub(crate) fn settle(&mut self, filling: &mut Filling) -> Result<(), StateError> {
        if let Some(mut mover) = filling.mover.take() {
            let settled = mover.settle(self);
            mover.keep(self);
            settled?;
        }
        Ok(())
    }
}

fn forgotten() -> StateError {
    StateError::Impossible(
        "the image of a module of the session is no longer in this host's cache".into(),
    )
}

/// Writes an image in parts.
pub(crate) fn write_image<W: std::io::Write>(
    image: &Stored,
    to: &mut Writer<W>,
) -> Result<(), StateError> {
    let bytes = image.load().map_err(|_| forgotten())?;
    for (index, part) in bytes.chunks(PART).enumerate() {
        let record = ImagePart {
            hash: image.hash,
            size: bytes.len() as u64,
            offset: (index * PART) as u64,
            data: Bytes(part),
        };
        let mut head = Vec::new();
        let tail = paragpu_protocol::codec::Field::encode(&record, &mut head);
        to.put(Kind::Image, &[&head, tail])?;
    }
    Ok(())
}

/// Writes the live objects; [`Kind::ObjectsEnd`] is to follow.
pub(crate) fn write_items<W: std::io::Write>(
    items: &[Item],
    to: &mut Writer<W>,
) -> Result<(), StateError> {
    let mut payload = Vec::new();
    for item in items {
        item.put(&mut payload);
        put_gathered(to, Kind::Objects, &mut payload, FULL)?;
    }
    put_gathered(to, Kind::Objects, &mut payload, 1)
}

/// Writes what was gathered as one record where it is `least` bytes and more.
fn put_gathered<W: std::io::Write>(
    to: &mut Writer<W>,
    kind: Kind,
    gathered: &mut Vec<u8>,
    least: usize,
) -> Result<(), StateError> {
    if gathered.len() >= least {
        to.put(kind, &[gathered])?;
        gathered.clear();
    }
    Ok(())
}

/// State that is being restored into a session.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// Objects that came, to be made when they are complete.
    pub(super) items: Vec<Item>,
    made: Vec<Item>,
    mover: Option<Mover>,
}

fn image_of(call: &Recorded) -> Result<Option<[u8; 32]>, StateError> {
    if call.number != ModuleLoad::INFO.number {
        return Ok(None);
    }
    let load: ModuleLoad<'_> = decode_all(&call.payload)?;
    Ok(Some(load.hash))
}
