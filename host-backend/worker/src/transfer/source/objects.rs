//! Sends objects while the program runs: images, the layout of modules, the calls
//! that recreate objects, and memory that is handed over.
//!
//! Other threads do what takes long: reading images, searching code for names,
//! writing to the link. The thread that serves the session does the rest in slices.
//! Objects that the program creates in the meantime are sent in further rounds, so
//! that little is left for the stop.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use paragpu_protocol::codec::{Bytes, encode_all};
use paragpu_protocol::handle::ObjectKind;

use super::{SLICE, Source, Stage};
use crate::images::Stored;
use crate::session::Session;
use crate::transfer::precopy::{Owners, owners};
use crate::transfer::replay::Item;
use crate::transfer::state::{ImagePart, Kind, StateError};
use crate::transfer::stop::{write_image, write_items};
use crate::transfer::survey;

/// Most rounds in which objects travel while the program runs.
const ROUNDS: u32 = 4;

/// The objects that exist at the destination.
#[derive(Debug, Default)]
pub(super) struct Recreated {
    /// The images that it has or was offered.
    images: BTreeSet<[u8; 32]>,
    /// The objects that it has.
    items: Arc<Vec<Item>>,
    /// The calls that created them.
    pub(super) owners: Owners,
    /// Modules of which the device has not said yet where their variables are.
    unplaced: Vec<u64>,
    /// Rounds that were begun.
    rounds: u32,
}

impl Source {
    /// Begins to send the objects that the destination lacks.
    pub(super) fn begin_round(&mut self, session: &Session) -> Result<(), StateError> {
        self.recreated.rounds += 1;
        self.ask_images(session)?;
        self.stage = Stage::Missing;
        Ok(())
    }

    /// Has the program made or unmade what takes long to recreate, and is another
    /// round due?
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

    /// Asks which of the session's images the destination lacks, if it was not
    /// asked before.
    fn ask_images(&mut self, session: &Session) -> Result<(), StateError> {
        let writer = self.peer.writer()?;
        for hash in session.image_hashes()? {
            if !self.recreated.images.insert(hash) {
                continue;
            }
            let name = ImagePart {
                hash,
                size: session.image(&hash)?.size,
                offset: 0,
                data: Bytes(&[]),
            };
            writer.put(Kind::Image, &[&encode_all(&name)])?;
        }
        writer.put(Kind::ImageNames, &[])?;
        writer.flush()
    }

    /// The images that the destination said it lacks.
    fn missing(&mut self, session: &Session) -> Result<Vec<Stored>, StateError> {
        let missing = self.peer.expect(Kind::Missing)?;
        let hashes = missing.as_chunks::<32>().0.iter();
        hashes.map(|hash| session.image(hash)).collect()
    }

    /// The destination has said what it lacks: sends that, and looks through
    /// the code of modules for the names of their variables.
    pub(super) fn send_images(&mut self, session: &mut Session) -> Result<(), StateError> {
        let images = self.missing(session)?;
        let modules: Vec<u64> = session.objects.live.names(ObjectKind::Module).collect();
        let surveys = session.surveys(&modules);
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

    /// Lets the device say where variables are, in slices; then the objects go.
    pub(super) fn place(&mut self, session: &mut Session) -> Result<(), StateError> {
        let began = Instant::now();
        while let Some(module) = self.recreated.unplaced.pop() {
            // One that the device does not tell of is refused with the objects;
            // one that was unloaded meanwhile is not among them.
            if let Ok(module) = session.objects.modules.id(module) {
                let _ = session.gpu.module_variables(module);
            }
            if began.elapsed() >= SLICE {
                return Ok(());
            }
        }
        let images = session.image_hashes()?;
        if !images
            .iter()
            .all(|hash| self.recreated.images.contains(hash))
        {
            // The program has loaded another one meanwhile.
            self.ask_images(session)?;
            self.stage = Stage::Missing;
            return Ok(());
        }
        self.recreated.owners = owners(session);
        self.recreated.items = Arc::new(session.items()?);
        // Of these alone: the program may map more while they are sent.
        self.shared.begin(session)?;
        let items = Arc::clone(&self.recreated.items);
        self.peer.send_off();
        self.peer
            .stage()?
            .run(move |writer| write_items(&items, writer));
        self.stage = Stage::SendingObjects;
        Ok(())
    }

    /// Hands some of the objects' memory over; true if an answer to that
    /// comes. If there is nothing more, tells the destination to recreate them.
    fn hand_over(&mut self, session: &mut Session) -> Result<bool, StateError> {
        let Some(batch) = self.shared.next(session) else {
            let writer = self.peer.writer()?;
            writer.put(Kind::ObjectsEnd, &[])?;
            writer.flush()?;
            return Ok(false);
        };
        let writer = self.peer.writer()?;
        writer.put(Kind::Shared, &[&batch.payload])?;
        writer.flush()?;
        let fds: Vec<BorrowedFd<'_>> = batch.descriptors.iter().map(AsFd::as_fd).collect();
        self.peer.send_descriptors(&fds)?;
        Ok(true)
    }

    pub(super) fn handed_over(&mut self) -> Result<(), StateError> {
        let taken = self.peer.expect(Kind::Taken)?;
        self.shared.answered(&taken)
    }

    pub(super) fn go_on_handing_over(&mut self, session: &mut Session) -> Result<(), StateError> {
        self.stage = match self.hand_over(session)? {
            true => Stage::HandingOver,
            false => Stage::Recreated,
        };
        Ok(())
    }

    /// Has the destination recreate what the stopped session has made since it
    /// was last sent objects.
    pub(super) fn catch_up(&mut self, session: &mut Session) -> Result<(), StateError> {
        let items = session.items()?;
        if items == *self.recreated.items && !self.shared.is_behind(session)? {
            return Ok(());
        }
        self.ask_images(session)?;
        let images = self.missing(session)?;
        let writer = self.peer.writer()?;
        for image in &images {
            write_image(image, writer)?;
        }
        write_items(&items, writer)?;
        self.recreated.items = Arc::new(items);
        self.shared.begin(session)?;
        while self.hand_over(session)? {
            self.handed_over()?;
        }
        self.peer.expect(Kind::Ready).map(drop)
    }
}
