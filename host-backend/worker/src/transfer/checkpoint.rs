//! Checkpoints: a session's state in a directory, as one file, `session.paragpu`, that
//! is replaced atomically.
//!
//! [`state`](super::state) has the layout of the file. `contents.rs` copies memory to and from
//! it, `blocks.rs` reads and writes its parts on the threads of `threads.rs`.

mod blocks;
mod contents;
#[cfg(all(test, feature = "software"))]
mod tests;
mod threads;

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Seek};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use paragpu_communicator::Receiver;
use paragpu_control::files::{give_name, unnamed};
use paragpu_protocol::codec::{decode_all, encode_all};

use self::contents::{Hasher, Sealed};
use super::attempts::Attempts;
use super::identity::Identity;
use super::orders::{CheckpointTarget, Figures, Orders, Phase, Progress, Report, micros};
use super::regions::sealed;
use super::replay::FULL;
use super::state::{BLOCK, FILE, HEADER, Kind, Layout, Scanner, StateError, Writer};
use super::stop::{Filling, NotStopped, put_gathered, write_image, write_items};
use crate::error::SessionEnd;
use crate::session::{Session, Task};

/// A checkpoint in progress.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    target: CheckpointTarget,
    /// Whether to end the session once it is written.
    end: bool,
    began: Instant,
    attempts: Attempts,
}

impl Checkpoint {
    pub(crate) fn new(target: CheckpointTarget, end: bool) -> Self {
        Self {
            target,
            end,
            began: Instant::now(),
            attempts: Attempts::new(),
        }
    }
}

impl Task for Checkpoint {
    /// [`SessionEnd::PutAway`] if the session ends with it.
    fn step(
        mut self: Box<Self>,
        session: &mut Session,
        receiver: &mut dyn Receiver,
    ) -> Result<Option<Box<dyn Task>>, SessionEnd> {
        if !self.attempts.is_due() {
            return Ok(Some(self));
        }
        let written = match session.attempt_to_stop(receiver, &mut self.attempts) {
            Ok(true) => {
                let CheckpointTarget { directory, file } = &self.target;
                match file {
                    Some(file) => session.write_into(file, None),
                    None => session.write_file(directory),
                }
                .map_err(|error| error.in_directory(directory, "written").to_string())
            }
            Ok(false) => return Ok(Some(self)),
            Err(NotStopped::Continues(reason)) => Err(reason),
            Err(NotStopped::Ended(end)) => return Err(broken_off(session, end)),
        };
        let orders = session.transfer.orders();
        // Without the daemon that ordered it, the session could not be restored for its program.
        let ends = self.end && orders.is_heard();
        match written {
            Ok(bytes) => orders.report(Report::Done(Figures {
                bytes,
                pre_copied: 0,
                handed_over: 0,
                fetched: 0,
                stopped: micros(self.attempts.downtime()),
                felt: micros(session.transfer.longest_delay()),
                total: micros(self.began.elapsed()),
            })),
            Err(reason) => {
                orders.report(Report::Failed(reason));
                return Ok(None);
            }
        }
        match ends {
            true => Err(SessionEnd::PutAway),
            false => Ok(None),
        }
    }

    fn give_up(self: Box<Self>, session: &mut Session, reason: &str) {
        let failed = Report::Failed(reason.to_owned());
        session.transfer.orders().report(failed);
    }

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }
}

/// Ends the checkpoint because the session or its connection ended.
fn broken_off(session: &Session, end: SessionEnd) -> SessionEnd {
    let reason = match &end {
        // This worker's exit tells the daemon.
        SessionEnd::Goodbye => return end,
        SessionEnd::Connection(error) if error.is_loss() => {
            "the program lost its connection while the session was being checkpointed: try again"
                .to_owned()
        }
        end => format!("the session ended during its checkpoint: {end}"),
    };
    session.transfer.orders().report(Report::Failed(reason));
    end
}

impl Session {
    /// Writes the file durably, including its name.
    pub(crate) fn write_file(&mut self, directory: &Path) -> Result<u64, StateError> {
        std::fs::create_dir_all(directory)?;
        let mut beside = tempfile::Builder::new();
        let beside = beside.prefix(".session-");
        let (path, bytes) = match unnamed(directory) {
            Some(file) => {
                let bytes = self.write_into(&file, None)?;
                let named = beside.make_in(directory, |path| give_name(&file, path))?;
                (named.into_temp_path(), bytes)
            }
            None => {
                // For its owner only: it contains the token and the program's data.
                let file = beside.make_in(directory, |path| {
                    let mut new = OpenOptions::new();
                    // Write-only: a confined worker cannot read there.
                    new.write(true).create_new(true).mode(0o600).open(path)
                })?;
                let bytes = self.write_into(file.as_file(), None)?;
                (file.into_temp_path(), bytes)
            }
        };
        path.persist(directory.join(FILE))
            .map_err(|error| StateError::Io(error.error))?;
        File::open(directory)?.sync_all()?;
        Ok(bytes)
    }

    /// Writes the state to an empty file durably. Returns its bytes.
    pub(super) fn write_into(
        &mut self,
        file: &File,
        hasher: Option<Hasher>,
    ) -> Result<u64, StateError> {
        let orders = std::sync::Arc::clone(self.transfer.orders());
        let head = self.head();
        let from = (2 * HEADER + head.len() + LAYOUT) as u64;
        let contents = from.next_multiple_of(BLOCK);
        // First, because the session may be refused.
        let items = self.items()?;
        let written = self.write_contents(file, contents, hasher, progress(&orders))?;
        let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, file));
        let layout = Layout {
            contents,
            records: written.end,
        };
        writer.put(Kind::Head, &[&head])?;
        writer.put(Kind::Layout, &[&encode_all(&layout)])?;
        writer.seek(layout.records)?;
        let mut payload = Vec::new();
        for (chunk, hash) in written.chunks {
            chunk.put_sealed(hash, &mut payload);
            put_gathered(&mut writer, Kind::Spans, &mut payload, FULL)?;
        }
        put_gathered(&mut writer, Kind::Spans, &mut payload, 1)?;
        for hash in self.objects.image_hashes()? {
            write_image(&self.objects.image(&hash)?, &mut writer)?;
        }
        write_items(&items, &mut writer)?;
        writer.put(Kind::ObjectsEnd, &[])?;
        let bookkeeping = self.bookkeeping()?;
        writer.put(Kind::Bookkeeping, &[&bookkeeping])?;
        self.write_frames(&mut writer)?;
        writer.end()?;
        file.sync_all()?;
        Ok(file.metadata()?.len())
    }

    /// Restores the session of a file into a new session. Returns the file's bytes.
    ///
    /// # Errors
    /// [`StateError`]; the session is then unusable.
    pub fn read_file(&mut self, file: &File) -> Result<u64, StateError> {
        // The daemon, which knows the file's path, has opened it.
        self.read_from(file, None).map_err(|error| match error {
            StateError::Io(error) => {
                StateError::Impossible(format!("the checkpoint cannot be read: {error}"))
            }
            other => other,
        })
    }

    pub(super) fn read_from(
        &mut self,
        mut file: &File,
        hasher: Option<Hasher>,
    ) -> Result<u64, StateError> {
        let orders = std::sync::Arc::clone(self.transfer.orders());
        let bytes = file.metadata()?.len();
        let mut scanner = Scanner::new(BufReader::with_capacity(1 << 20, file));
        // The daemon chose it; that of a copy differs from the original's.
        let given = self.transfer.identity().token;
        let (head, is_copy) = match scanner.record()? {
            (Kind::Head, payload) => {
                let mut identity = Identity::decode(payload)?;
                let is_copy = given != [0; 16] && given != identity.token;
                if is_copy {
                    identity.token = given;
                }
                let length = payload.len();
                self.take_identity(identity)?;
                (length, is_copy)
            }
            _ => return Err(StateError::Order("it does not begin with its head")),
        };
        let layout: Layout = match scanner.record()? {
            (Kind::Layout, payload) => decode_all(payload)?,
            _ => return Err(StateError::Order("it has no layout")),
        };
        let from = (2 * HEADER + head + LAYOUT) as u64;
        let ends = (layout.contents, layout.records);
        if ends.0 != from.next_multiple_of(BLOCK) || ends.1 < ends.0 {
            return Err(StateError::Order("its parts overlap"));
        }
        if ends.1 > bytes {
            return Err(StateError::Incomplete);
        }
        expect_zeros(&mut file, from, ends.0)?;
        scanner.seek(layout.records)?;
        let mut filling = Filling::default();
        let mut chunks: Option<Vec<Sealed>> = Some(Vec::new());
        loop {
            match scanner.record()? {
                (Kind::Spans, payload) => {
                    let Some(chunks) = &mut chunks else {
                        return Err(StateError::Order("contents after the objects"));
                    };
                    chunks.extend(sealed(payload)?);
                    if (chunks.len() as u64).saturating_mul(BLOCK) > ends.1 - ends.0 {
                        return Err(StateError::Order("its contents have another size"));
                    }
                }
                (kind @ Kind::ObjectsEnd, payload) => {
                    self.take_record(&mut filling, kind, payload)?;
                    let Some(chunks) = chunks.take() else {
                        return Err(StateError::Order("contents after the objects"));
                    };
                    self.read_contents(file, &chunks, ends, hasher, progress(&orders))?;
                }
                (Kind::End, _) if chunks.is_some() => {
                    return Err(StateError::Order("its objects are missing"));
                }
                (Kind::End, _) => {
                    scanner.finish()?;
                    self.settle(&mut filling)?;
                    self.make_pinned(&filling)?;
                    return Ok(bytes);
                }
                (Kind::Contents, _) => {
                    return Err(StateError::Order("contents among the records"));
                }
                (kind, payload) => {
                    self.take_record(&mut filling, kind, payload)?;
                    // The program has waited, unless it is a copy, too.
                    if kind == Kind::Bookkeeping && !is_copy {
                        self.objects.events.set_away(age(file)?);
                    }
                }
            }
        }
    }

    /// The head record, with the owner of the session, for a session that has left its
    /// window.
    pub(crate) fn head(&self) -> Vec<u8> {
        let pinned = self.host.pinned_without_window();
        let identity = self.transfer.identity();
        let expires = self.transfer.orders().expiry();
        identity.encode(self.memory.arena().live(), pinned, expires)
    }

    /// Adopts the identity of the session that arrives.
    pub(crate) fn take_identity(&mut self, identity: Identity) -> Result<(), StateError> {
        let ordinal = self.gpu.ordinal();
        if identity.ordinal != ordinal {
            return Err(StateError::Impossible(format!(
                "the session belongs to the guest's device {}, not {ordinal}",
                identity.ordinal
            )));
        }
        self.transfer.set_identity(identity);
        Ok(())
    }
}

/// Size of the payload of [`Kind::Layout`].
const LAYOUT: usize = 16;

/// The time since a file was written. Zero if the clock was set back since.
fn age(file: &File) -> Result<Duration, StateError> {
    let written = file.metadata()?.modified()?;
    Ok(written.elapsed().unwrap_or_default())
}

/// Reports how much of the memory is copied.
fn progress(orders: &Orders) -> impl FnMut(u64, u64) {
    |done, all| {
        orders.report(Report::Progress(Progress {
            phase: Phase::Stopped,
            done,
            all,
        }));
    }
}

/// Checks the bytes between the first records and the contents.
fn expect_zeros(file: &mut &File, from: u64, to: u64) -> Result<(), StateError> {
    let mut bytes = Vec::new();
    file.seek(std::io::SeekFrom::Start(from))?;
    file.take(to - from).read_to_end(&mut bytes)?;
    match bytes.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err(StateError::Contents),
    }
}
