//! Sends objects while the program runs: images, the layout of modules, the calls that
//! recreate objects, and memory that is handed over.
//!
//! Other threads do the long work: reading images, searching code for names,
//! writing to the link. The thread that serves the session does the rest in slices.
//! Objects that the program creates in the meantime are sent in further rounds, so
//! that little is left for the stop.

use std::collections::BTreeSet;
use std::io::BufWriter;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use paragpu_protocol::codec::{Bytes, encode_all};
use paragpu_protocol::handle::ObjectKind;

use super::peer::send_descriptors;
use super::{SLICE, Source, Stage};
use crate::images::Stored;
use crate::session::Session;
use crate::transfer::lack::Lack;
use crate::transfer::precopy::{Owners, owners};
use crate::transfer::replay::Item;
use crate::transfer::shared::Batch;
use crate::transfer::state::{ImagePart, Kind, StateError, Writer};
use crate::transfer::stop::{write_image, write_items};
use crate::transfer::survey;

/// Maximum number of rounds that send objects while the program runs.
const ROUNDS: u32 = 4;
/// How long rounds may lack an offer of shared memory, or room. Then the objects are sent after the
/// stop, which loads all modules while the program waits. A session that moves with this one
/// may be behind: its worker starts with a context of its device, and its images are sent
/// first.
const LACKS: Duration = Duration::from_secs(5);
/// Maximum number of times that the program loads further modules before the move gives
/// up.
pub(super) const RELOADS: u32 = 64;

/// The objects that exist at the destination.
#[derive(Debug, Default)]
pub(super) struct Recreated {
    /// The images that it has or was offered.
    images: BTreeSet<[u8; 32]>,
    /// The objects that it has.
    items: Arc<Vec<Item>>,
    /// The memory that it shares with the sessions that move with this one.
    sharing: Vec<u8>,
    /// It lacks something of other sessions, and has not created the objects.
    lacks: bool,
    /// Since when that is so.
    lacks_since: Option<Instant>,
    /// The calls that created them.
    pub(super) owners: Owners,
    /// Modules whose variables the device has not located yet.
    unplaced: Vec<u64>,
    /// Rounds begun.
    rounds: u32,
    /// How often there were further modules.
    reloads: u32,
    /// Receives which mappings another thread offered to the destination.
    named: Option<Receiver<Vec<bool>>>,
}

/// Offers memory to the destination.
fn offer(
    writer: &mut Writer<BufWriter<UnixStream>>,
    socket: BorrowedFd<'_>,
    batch: &Batch,
) -> Result<(), StateError> {
    if batch.payload.is_empty() {
        return Ok(());
    }
    writer.put(Kind::Shared, &[&batch.payload])?;
    writer.flush()?;
    let fds: Vec<BorrowedFd<'_>> = batch.descriptors.iter().map(AsFd::as_fd).collect();
    send_descriptors(socket, &fds)
}

impl Source {
    /// Begins to send the objects that the destination lacks.
    pub(super) fn begin_round(&mut self, session: &Session) -> Result<(), StateError> {
        self.recreated.rounds += 1;
        self.ask_images(session)?;
        self.stage = Stage::Missing;
        Ok(())
    }

    /// Whether another round is due because the program created or destroyed
    /// objects that take long to recreate.
    pub(super) fn is_behind(&self, session: &Session) -> bool {
        let heavy = |owners: Owners| -> Owners {
            let mut heavy = owners;
            heavy.retain(|(kind, _), _| matches!(kind, ObjectKind::Module | ObjectKind::Memory));
            heavy
        };
        self.copies_before
            && self.recreated.rounds < ROUNDS
            && heavy(owners(session)) != heavy(self.recreated.owners.clone())
    }

    /// Queries which of the session's images the destination lacks, for those not queried
    /// before.
    fn ask_images(&mut self, session: &Session) -> Result<(), StateError> {
        let writer = self.peer.writer()?;
        for hash in session.objects.image_hashes()? {
            if !self.recreated.images.insert(hash) {
                continue;
            }
            let name = ImagePart {
                hash,
                size: session.objects.image(&hash)?.size,
                offset: 0,
                data: Bytes(&[]),
            };
            writer.put(Kind::Image, &[&encode_all(&name)])?;
        }
        writer.put(Kind::ImageNames, &[])?;
        writer.flush()
    }

    /// Receives the list of images that the destination lacks.
    fn missing(&mut self, session: &Session) -> Result<Vec<Stored>, StateError> {
        let missing = self.peer.expect(Kind::Missing)?;
        let hashes = missing.as_chunks::<32>().0.iter();
        hashes.map(|hash| session.objects.image(hash)).collect()
    }

    /// Sends the images that the destination lacks, and searches the code of
    /// modules for the names of their variables.
    pub(super) fn send_images(&mut self, session: &mut Session) -> Result<(), StateError> {
        let images = self.missing(session)?;
        let modules: Vec<u64> = session.objects.live.names(ObjectKind::Module).collect();
        let surveys = session.objects.surveys(&mut session.gpu, &modules);
        self.recreated.unplaced = modules;
        self.peer.send_off();
        self.peer.stage()?.run(move |writer| {
            for image in &images {
                write_image(image, writer)?;
            }
            writer.flush()?;
            survey::run(surveys);
            Ok(())
        });
        self.stage = Stage::SendingImages;
        Ok(())
    }

    /// Has the device locate variables, in slices, and then sends the objects.
    pub(super) fn place(&mut self, session: &mut Session) -> Result<(), StateError> {
        let began = Instant::now();
        while let Some(module) = self.recreated.unplaced.pop() {
            // If the device cannot locate a module's variables, sending the objects
            // fails. A module that was unloaded meanwhile is not among them.
            if let Ok(module) = session.objects.modules.id(module) {
                let _ = session.gpu.module_variables(module);
            }
            if began.elapsed() >= SLICE {
                return Ok(());
            }
        }
        let images = session.objects.image_hashes()?;
        if !images
            .iter()
            .all(|hash| self.recreated.images.contains(hash))
        {
            // The program may load modules as fast as they are sent.
            self.recreated.reloads += 1;
            if self.recreated.reloads > RELOADS {
                return Err(StateError::Impossible(format!(
                    "its program loads modules without end: {RELOADS} times there were new \
                     ones to send; try again later"
                )));
            }
            // The program has loaded another module meanwhile.
            self.ask_images(session)?;
            self.stage = Stage::Missing;
            return Ok(());
        }
        self.recreated.owners = owners(session);
        self.recreated.items = Arc::new(self.items(session)?);
        // Only for these objects: the program may map more while they are sent.
        self.shared.begin(session)?;
        let items = Arc::clone(&self.recreated.items);
        self.send_sharing(session.sharing.parts(&session.memory), false)?;
        self.peer.send_off();
        self.peer
            .stage()?
            .run(move |writer| write_items(&items, writer));
        self.stage = Stage::SendingObjects;
        Ok(())
    }

    /// The session's objects, if it can move.
    fn items(&self, session: &mut Session) -> Result<Vec<Item>, StateError> {
        match self.gates {
            Some(_) => session.items_together(),
            None => session.items(),
        }
    }

    /// Sends which memory the session shares, if it moves with others.
    fn send_sharing(&mut self, sharing: Vec<u8>, stopped: bool) -> Result<(), StateError> {
        if self.gates.is_some() || sharing != self.recreated.sharing {
            let writer = self.peer.writer()?;
            writer.put(Kind::Sharing, &[&[u8::from(stopped)], &sharing])?;
            self.recreated.sharing = sharing;
        }
        Ok(())
    }

    /// Receives the answer to a round. Returns false, and begins another round, if the
    /// destination lacks something that the sessions that move with this one may provide.
    pub(super) fn await_recreated(&mut self, session: &Session) -> Result<bool, StateError> {
        let lack = Lack::of(&self.peer.expect(Kind::Ready)?)?;
        self.recreated.lacks = lack.is_some();
        let Some(lack) = lack else {
            self.recreated.lacks_since = None;
            return Ok(true);
        };
        let since = *self.recreated.lacks_since.get_or_insert_with(Instant::now);
        let is_late = since.elapsed() > LACKS;
        if let Lack::Room { limit, .. } = &lack {
            // What all of them have now may fit, though not what they had in their last rounds.
            let all = session.memory.arena().share().used();
            if limit.map_or(is_late, |limit| all > limit) {
                return Err(lack.into_error());
            }
        }
        if is_late {
            // The destination has nothing to copy to.
            self.copies_before = false;
            return Ok(true);
        }
        self.begin_round(session)?;
        Ok(false)
    }

    /// Has the destination recreate the objects, whose memory is handed over.
    fn end_objects(&mut self) -> Result<(), StateError> {
        let writer = self.peer.writer()?;
        writer.put(Kind::ObjectsEnd, &[])?;
        writer.flush()
    }

    pub(super) fn handed_over(&mut self, session: &mut Session) -> Result<(), StateError> {
        let taken = self.peer.expect(Kind::Taken)?;
        for address in self.shared.answered(&taken)? {
            // The program may have mapped other memory of this size there.
            let memory = (ObjectKind::Memory, address);
            self.recreated.owners.remove(&memory);
        }
        if self.shared.is_taken() {
            session.transfer.shortage.begin();
        }
        Ok(())
    }

    /// Hands over some more of the objects' memory, which another thread exports, or ends the
    /// objects.
    pub(super) fn go_on_handing_over(&mut self, session: &mut Session) -> Result<(), StateError> {
        let Some(round) = self.shared.next(session) else {
            self.stage = Stage::Recreated;
            return self.end_objects();
        };
        let socket = self.peer.socket().try_clone_to_owned()?;
        let (told, named) = channel();
        self.peer.send_off();
        self.peer.stage()?.run(move |writer| {
            let batch = round.run();
            offer(writer, socket.as_fd(), &batch)?;
            let _ = told.send(batch.named);
            Ok(())
        });
        self.recreated.named = Some(named);
        self.stage = Stage::Exporting;
        Ok(())
    }

    /// Continues once the other thread has offered the memory to the destination.
    pub(super) fn exported(&mut self, session: &mut Session) -> Result<(), StateError> {
        let named = self.recreated.named.take();
        let named = named.and_then(|named| named.try_recv().ok());
        let named = named.ok_or(StateError::Order("no memory was exported"))?;
        if !self.shared.named(&named) {
            return self.go_on_handing_over(session);
        }
        self.stage = Stage::HandingOver;
        Ok(())
    }

    /// Hands over the memory of a stopped session, which has nothing else to do.
    fn hand_over_now(&mut self, session: &mut Session) -> Result<(), StateError> {
        while let Some(round) = self.shared.next(session) {
            let batch = round.run();
            let socket = self.peer.socket().try_clone_to_owned()?;
            offer(self.peer.writer()?, socket.as_fd(), &batch)?;
            if self.shared.named(&batch.named) {
                self.handed_over(session)?;
            }
        }
        self.end_objects()
    }

    /// Has the destination recreate the objects that the stopped session has
    /// created since the last round.
    pub(super) fn catch_up(&mut self, session: &mut Session) -> Result<(), StateError> {
        let items = self.items(session)?;
        let sharing = session.sharing.parts(&session.memory);
        let same = !self.recreated.lacks
            && items == *self.recreated.items
            && sharing == self.recreated.sharing
            && !self.shared.is_behind(session)?;
        if same {
            return Ok(());
        }
        self.ask_images(session)?;
        let images = self.missing(session)?;
        let writer = self.peer.writer()?;
        for image in &images {
            write_image(image, writer)?;
        }
        self.send_sharing(sharing, true)?;
        write_items(&items, self.peer.writer()?)?;
        self.recreated.items = Arc::new(items);
        self.shared.begin(session)?;
        self.hand_over_now(session)?;
        match Lack::of(&self.peer.expect(Kind::Ready)?)? {
            None => Ok(()),
            Some(lack) => Err(lack.into_error()),
        }
    }
}
