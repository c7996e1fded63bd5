//! Stops a session so that its state can be read, and restores the state elsewhere.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use paragpu_communicator::{Receiver, Wait};
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::{Bytes, decode_all};
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};
use paragpu_protocol::table::ModuleLoad;

use super::attempts::{Attempts, Failed};
use super::lack::Lack;
use super::mover::Mover;
use super::replay::{FULL, Item};
use super::sharing;
use super::state::{ImagePart, Kind, StateError, Writer};
use crate::error::{Fault, SessionEnd};
use crate::images::Stored;
use crate::live::Recorded;
use crate::session::Session;
use crate::session::host_memory::Pinned;
use crate::session::intake::Intake;
use crate::session::link::Link;
use crate::session::objects::Objects;

/// Maximum bytes of an image in one record.
const PART: usize = 1 << 20;

/// Why a session was not stopped.
#[derive(Debug)]
pub(crate) enum NotStopped {
    /// It ended.
    Ended(SessionEnd),
    /// It continues; one sentence.
    Continues(String),
}

impl From<SessionEnd> for NotStopped {
    fn from(end: SessionEnd) -> Self {
        Self::Ended(end)
    }
}

impl Objects {
    /// The hashes of the images of the session's modules.
    pub(crate) fn image_hashes(&self) -> Result<Vec<[u8; 32]>, StateError> {
        let mut hashes = Vec::new();
        for (_, creates, call) in self.live.in_order() {
            if creates && let Some(hash) = image_of(call)? {
                hashes.push(hash);
            }
        }
        hashes.sort_unstable();
        hashes.dedup();
        Ok(hashes)
    }

    /// The image of one of the session's modules.
    pub(crate) fn image(&self, hash: &[u8; 32]) -> Result<Stored, StateError> {
        self.modules.image(hash).map_err(|_| forgotten())
    }

    /// Stores a part of an image, unless the host already has the image.
    pub(crate) fn take_image(&mut self, payload: &[u8]) -> Result<(), StateError> {
        let part: ImagePart<'_> = decode_all(payload)?;
        let images = self.modules.images();
        if part.offset == 0 && images.holds(&part.hash, part.size) {
            return Ok(());
        }
        match images.write(&part.hash, part.size, part.offset, part.data.0) {
            Err(Fault::Call(error)) => Err(StateError::Impossible(error.to_string())),
            Err(_) => Err(StateError::Order("an image")),
            Ok(()) => Ok(()),
        }
    }
}

impl Intake {
    /// The queued calls, as payloads of records.
    pub(crate) fn queued_calls(&self) -> impl Iterator<Item = ([u8; HEADER_LEN + 1], &[u8])> {
        self.waiting().map(|waiting| {
            let mut head = [0; HEADER_LEN + 1];
            let (header, executed) = head.split_at_mut(HEADER_LEN);
            header.copy_from_slice(&waiting.header.to_bytes());
            executed.fill(u8::from(waiting.executed));
            (head, waiting.payload.as_slice())
        })
    }

    /// Queues a call that another worker had queued.
    pub(crate) fn queue_encoded(&mut self, record: &[u8]) -> Result<(), StateError> {
        let Some((header, rest)) = record.split_first_chunk::<HEADER_LEN>() else {
            return Err(StateError::Order("a call without a header"));
        };
        let Some((executed, payload)) = rest.split_first() else {
            return Err(StateError::Order("a call without a header"));
        };
        let header = FrameHeader::from_bytes(header)
            .map_err(|_| StateError::Order("a call without a header"))?;
        self.queue(header, payload, *executed != 0)
            .map_err(|end| StateError::Impossible(end.to_string()))
    }
}

impl Link {
    /// Keeps frames that another worker had sent.
    pub(crate) fn keep_frames(&self, mut record: &[u8]) -> Result<(), StateError> {
        const MALFORMED: StateError = StateError::Order("a frame without a header");
        while let Some((header, rest)) = record.split_first_chunk::<HEADER_LEN>() {
            let header = FrameHeader::from_bytes(header).map_err(|_| MALFORMED)?;
            let Some((payload, next)) = rest.split_at_checked(header.payload_len()) else {
                return Err(MALFORMED);
            };
            self.sender().keep(header, payload);
            record = next;
        }
        match record {
            [] => Ok(()),
            _ => Err(MALFORMED),
        }
    }
}

impl Session {
    /// Tries to [stop](Self::stop) the session. Returns false if it continues for now.
    pub(crate) fn attempt_to_stop(
        &mut self,
        receiver: &mut dyn Receiver,
        attempts: &mut Attempts,
    ) -> Result<bool, NotStopped> {
        let patience = attempts.begin();
        if self.stop(receiver, patience)? {
            attempts.succeed();
            return Ok(true);
        }
        match attempts.fail() {
            Failed::Again(patience) => {
                tracing::info!(
                    ?patience,
                    "the session's work is not complete, so it continues"
                );
                Ok(false)
            }
            Failed::Last(patience) => Err(NotStopped::Continues(format!(
                "its GPU was still busy after a wait of {} s: a kernel may run for long or wait \
                 for its program, so try again later",
                patience.as_secs()
            ))),
        }
    }

    /// Stops executing calls, and waits until the device is idle and all pending calls
    /// are answered. Returns false if that took longer than `patience`. Calls that arrive
    /// meanwhile are queued, except those that host functions need to complete.
    /// Afterwards the session can continue with [`serve`](Session::serve) as before.
    pub(crate) fn stop(
        &mut self,
        receiver: &mut dyn Receiver,
        patience: Duration,
    ) -> Result<bool, NotStopped> {
        self.recall(receiver);
        let deadline = Instant::now() + patience;
        loop {
            // Calls are received although none is executed. Otherwise a blocked
            // guest could not report completion of its host functions, and the
            // device would wait forever.
            let nothing = |_: FrameHeader, _: &[u8]| Ok(None::<()>);
            self.queue_arrived(receiver, Self::takes_more, nothing)?;
            self.execute_overtakers()?;
            self.answer_completed()?;
            self.replies.link.flush()?;
            // After a sticky error the driver does not allow reading memory.
            if let Some(lost) = self.replies.errors.sticky() {
                return Err(NotStopped::Continues(format!(
                    "the session's context is lost ({}), so it cannot move",
                    lost.status
                )));
            }
            let over = self.gpu.context_query().map_err(|error| {
                NotStopped::Continues(format!("the session's work failed: {error}"))
            })?;
            self.replies.gather_failure(&mut self.gpu);
            if over
                && self.replies.completion.is_empty()
                && self.copies.tokens.is_empty()
                && self.objects.host_functions.is_empty()
            {
                // Work may have completed since the poll above. Its replies and output
                // must be sent before the state is read, or they would be lost with this
                // worker.
                self.answer_completed()?;
                self.replies.forward_output(&mut self.gpu)?;
                self.replies.link.flush()?;
                // Until the session continues, here or elsewhere, other sessions
                // can use the GPU.
                self.pacing.leave();
                return Ok(true);
            }
            // A kernel may wait for a word that its program writes after a call that is
            // queued here. Such a kernel ends only if the session is served.
            if Instant::now() >= deadline {
                return Ok(false);
            }
            if let Wait::Until(end) = self.pace()
                && !over
            {
                // Not the whole sleep: the completion of a host function arrives as a
                // frame, which does not wake this thread.
                let left = end.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(Duration::from_millis(1)));
            }
        }
    }

    /// Writes the queued calls and the frames kept for the guest.
    pub(crate) fn write_frames<W: std::io::Write>(
        &self,
        to: &mut Writer<W>,
    ) -> Result<(), StateError> {
        for (head, payload) in self.intake.queued_calls() {
            to.put(Kind::Waiting, &[&head, payload])?;
        }
        let mut payload = Vec::new();
        self.replies
            .link
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

    /// Applies a record of a state to a new session.
    pub(crate) fn take_record(
        &mut self,
        filling: &mut Filling,
        kind: Kind,
        payload: &[u8],
    ) -> Result<(), StateError> {
        match kind {
            Kind::Image => self.objects.take_image(payload),
            Kind::Objects => Item::take(payload, &mut filling.items),
            Kind::Sharing => {
                let parts = sharing::Parts::decode(payload)?;
                self.sharing.leave_others(
                    &mut self.gpu,
                    &mut self.memory,
                    &mut self.objects,
                    &mut self.replies,
                    &parts,
                )?;
                filling.sharing = Some(parts);
                Ok(())
            }
            Kind::ObjectsEnd => {
                self.settle(filling)?;
                self.recreate(filling)?;
                filling.sharing = None;
                filling.lacks_unmapped = false;
                filling.made = std::mem::take(&mut filling.items);
                Ok(())
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
            Kind::Waiting => self.intake.queue_encoded(payload),
            Kind::Kept => self.replies.link.keep_frames(payload),
            _ => Err(StateError::Order("a record out of place")),
        }
    }

    /// Makes the session's objects equal to those received: first its memory, which others
    /// wait for, then what it shares of theirs, then the objects that need both.
    pub(super) fn recreate(&mut self, filling: &mut Filling) -> Result<(), StateError> {
        filling.lack = match self.recreate_in_order(filling) {
            Err(error) if filling.lacks_unmapped => {
                tracing::debug!(%error, "objects may need memory that the program has unmapped");
                Some(Lack::Unmapped)
            }
            recreated => recreated?,
        };
        Ok(())
    }

    fn recreate_in_order(&mut self, filling: &Filling) -> Result<Option<Lack>, StateError> {
        if let Some(parts) = &filling.sharing {
            if let Some(lack) = self.map_memory(&filling.items, parts)? {
                return Ok(Some(lack));
            }
            let (gpu, memory) = (&mut self.gpu, &mut self.memory);
            if !self
                .sharing
                .share(gpu, memory, &mut self.replies.link, parts)?
            {
                return Ok(Some(Lack::Offers));
            }
        }
        self.replace_objects(&filling.items)?;
        Ok(None)
    }

    /// Creates the objects that waited for the window, or for its absence.
    pub(crate) fn make_pinned(&mut self, filling: &Filling) -> Result<(), StateError> {
        let is_left = self.transfer.identity().pinned == Pinned::Guest;
        if is_left && self.host.window().is_none() {
            return self.leave_window(&filling.made);
        }
        match self.replace_objects(&filling.made)? {
            true => Ok(()),
            false => Err(StateError::Order("pinned memory without a window")),
        }
    }

    /// Waits for copies that [`take_record`](Self::take_record) began.
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

/// Writes the live objects; the caller then writes [`Kind::ObjectsEnd`].
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

/// Writes the gathered bytes as one record if they are at least `least` bytes.
pub(crate) fn put_gathered<W: std::io::Write>(
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
    /// Objects received, to be created when all have arrived.
    pub(super) items: Vec<Item>,
    /// The memory that the session shares, if it moves with others.
    pub(super) sharing: Option<sharing::Parts>,
    /// Why the last objects were not created.
    pub(super) lack: Option<Lack>,
    /// The program has unmapped memory of `items` since, which is no longer among them.
    lacks_unmapped: bool,
    made: Vec<Item>,
    mover: Option<Mover>,
}

impl Filling {
    /// Removes the memory at these addresses, which is not to be created.
    pub(super) fn forget_memory(&mut self, unmapped: &HashSet<u64>) -> Result<(), StateError> {
        if unmapped.is_empty() {
            return Ok(());
        }
        self.lacks_unmapped = true;
        let mut kept = Vec::with_capacity(self.items.len());
        for item in self.items.drain(..) {
            let mapping = item.mapping()?;
            if mapping.is_none_or(|map| !unmapped.contains(&map.address.0)) {
                kept.push(item);
            }
        }
        self.items = kept;
        Ok(())
    }
}

fn image_of(call: &Recorded) -> Result<Option<[u8; 32]>, StateError> {
    if call.number != ModuleLoad::INFO.number {
        return Ok(None);
    }
    let load: ModuleLoad<'_> = decode_all(&call.payload)?;
    Ok(Some(load.hash))
}
