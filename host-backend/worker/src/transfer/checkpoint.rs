//! A session's state in a directory: one file, `session.paragpu`, that is
//! there whole or not at all.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::time::Instant;

use paragpu_communicator::Receiver;
use paragpu_protocol::codec::{decode_all, encode_all};

use super::orders::{Figures, Report, micros};
use super::state::{Head, Kind, Scanner, StateError, Writer};
use super::stop::{Attempts, Filling, Unstopped};
use crate::error::End;
use crate::pinned::Pinned;
use crate::session::Session;

/// Name of the file.
pub const FILE: &str = "session.paragpu";

/// A [`Head`] that owns its texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The guest's ordinal of the device.
    pub ordinal: u32,
    /// Secret with which the guest resumes the session.
    pub token: [u8; 16],
    /// How many devices the guest has.
    pub device_count: u32,
    /// The guest's process, as the guest counts.
    pub guest_pid: u32,
    /// The VM, user or address.
    pub vm: String,
    /// Name of the GPU it comes from.
    pub device: String,
    /// Where the contents of the session's pinned memory are.
    pub pinned: Pinned,
}

impl Identity {
    /// Reads the head record.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn decode(payload: &[u8]) -> Result<Self, StateError> {
        let head: Head<'_> = decode_all(payload)?;
        Ok(Self {
            ordinal: head.ordinal,
            token: head.token,
            device_count: head.device_count,
            guest_pid: head.guest_pid,
            vm: head.vm.0.to_owned(),
            device: head.device.0.to_owned(),
            pinned: Pinned::of(head.pinned)?,
        })
    }

    pub(crate) fn encode(&self, device_memory: u64, pinned: Pinned) -> Vec<u8> {
        encode_all(&Head {
            ordinal: self.ordinal,
            token: self.token,
            device_count: self.device_count,
            guest_pid: self.guest_pid,
            vm: paragpu_protocol::codec::Text(&self.vm),
            device: paragpu_protocol::codec::Text(&self.device),
            device_memory,
            pinned: pinned as u8,
        })
    }
}

/// Whose state a directory holds. Only the head is looked at.
///
/// # Errors
/// [`StateError`].
pub fn identity(directory: &Path) -> Result<Identity, StateError> {
    let mut scanner = Scanner::new(BufReader::new(File::open(directory.join(FILE))?));
    match scanner.record()? {
        (Kind::Head, payload) => Identity::decode(payload),
        _ => Err(StateError::Order("it does not begin with its head")),
    }
}

/// A checkpoint that is under way.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    directory: PathBuf,
    /// The session ends when it is written.
    end: bool,
    began: Instant,
    pub(crate) attempts: Attempts,
}

impl Checkpoint {
    pub(crate) fn new(directory: PathBuf, end: bool) -> Self {
        Self {
            directory,
            end,
            began: Instant::now(),
            attempts: Attempts::new(),
        }
    }
}

impl Session {
    /// Goes on with a checkpoint between two turns. [`End::PutAway`] where the
    /// session was to end with it.
    pub(crate) fn go_on_writing(&mut self, receiver: &mut dyn Receiver) -> Result<(), End> {
        let due = |checkpoint: &mut Checkpoint| checkpoint.attempts.is_due();
        let Some(mut checkpoint) = self.writing.take_if(due) else {
            return Ok(());
        };
        let written = match self.attempt_to_stop(receiver, &mut checkpoint.attempts) {
            Ok(true) => self
                .write_file(&checkpoint.directory)
                .map_err(|error| error.to_string()),
            Ok(false) => {
                self.writing = Some(checkpoint);
                return Ok(());
            }
            Err(Unstopped::Goes(reason)) => Err(reason),
            Err(Unstopped::Ended(end)) => return Err(end),
        };
        let orders = std::sync::Arc::clone(&self.orders);
        match written {
            Ok(bytes) => orders.report(Report::Done(Figures {
                bytes,
                ahead: 0,
                handed_over: 0,
                fetched: 0,
                stopped: micros(checkpoint.attempts.stood_still()),
                total: micros(checkpoint.began.elapsed()),
            })),
            Err(reason) => {
                orders.report(Report::Failed(reason));
                return Ok(());
            }
        }
        match checkpoint.end {
            true => Err(End::PutAway),
            false => Ok(()),
        }
    }

    /// Writes the file, and makes it and its name last.
    pub(crate) fn write_file(&mut self, directory: &Path) -> Result<u64, StateError> {
        std::fs::create_dir_all(directory)?;
        // Its owner only: it holds the token and the program's data.
        let file = tempfile::Builder::new()
            .prefix(".session-")
            .tempfile_in(directory)?;
        let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, file));
        let head = self
            .identity
            .encode(self.arena.live(), self.pinned_without_window());
        writer.put(Kind::Head, &[&head])?;
        let orders = std::sync::Arc::clone(&self.orders);
        self.write_whole(&mut writer, |done, all| {
            orders.report(Report::Progress {
                phase: 2,
                done,
                all,
            });
        })?;
        let bytes = writer.bytes;
        let file = writer
            .into_inner()
            .into_inner()
            .map_err(|error| StateError::Io(error.into_error()))?;
        file.as_file().sync_all()?;
        file.persist(directory.join(FILE))
            .map_err(|error| StateError::Io(error.error))?;
        File::open(directory)?.sync_all()?;
        Ok(bytes)
    }

    /// A fresh session becomes the one of a directory.
    ///
    /// # Errors
    /// [`StateError`]: the session is of no use then.
    pub fn read_file(&mut self, directory: &Path) -> Result<(), StateError> {
        let file = BufReader::with_capacity(1 << 20, File::open(directory.join(FILE))?);
        self.read_whole(Scanner::new(file))
    }

    pub(crate) fn read_whole<R: std::io::Read>(
        &mut self,
        mut scanner: Scanner<R>,
    ) -> Result<(), StateError> {
        match scanner.record()? {
            (Kind::Head, payload) => self.take_identity(Identity::decode(payload)?)?,
            _ => return Err(StateError::Order("it does not begin with its head")),
        }
        // Nobody hands the window over.
        self.leave_window(self.identity.pinned);
        let mut filling = Filling::default();
        loop {
            match scanner.record()? {
                (Kind::End, _) => {
                    self.settle(&mut filling)?;
                    return self.make_pinned(&filling);
                }
                (kind, payload) => self.take_record(&mut filling, kind, payload)?,
            }
        }
    }

    /// The session that comes is to be this one.
    pub(crate) fn take_identity(&mut self, identity: Identity) -> Result<(), StateError> {
        if identity.ordinal != self.ordinal {
            return Err(StateError::Impossible(format!(
                "the session is of the guest's device {}, not {}",
                identity.ordinal, self.ordinal
            )));
        }
        self.identity = identity;
        Ok(())
    }
}
