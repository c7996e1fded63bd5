//! Checkpoints: a session's state in a directory, as one file, `session.paragpu`, that
//! is replaced atomically.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Instant;

use paragpu_communicator::Receiver;

use super::attempts::Attempts;
use super::identity::Identity;
use super::orders::{CheckpointTarget, Figures, Phase, Progress, Report, micros};
use super::state::{FILE, Kind, Scanner, StateError, Writer};
use super::stop::{Filling, NotStopped};
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
            Ok(true) => match &self.target {
                CheckpointTarget::Directory(directory) => session.write_file(directory),
                CheckpointTarget::File(file) => session.write_into(file),
            }
            .map_err(|error| error.to_string()),
            Ok(false) => return Ok(Some(self)),
            Err(NotStopped::Continues(reason)) => Err(reason),
            Err(NotStopped::Ended(end)) => return Err(end),
        };
        let orders = session.transfer.orders();
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
        match self.end {
            true => Err(SessionEnd::PutAway),
            false => Ok(None),
        }
    }

    fn attempts(&self) -> &Attempts {
        &self.attempts
    }
}

impl Session {
    /// Writes the file durably, including its name.
    pub(crate) fn write_file(&mut self, directory: &Path) -> Result<u64, StateError> {
        std::fs::create_dir_all(directory)?;
        // For its owner only: it contains the token and the program's data.
        let file = tempfile::Builder::new()
            .prefix(".session-")
            // Write-only: a confined worker cannot read there.
            .make_in(directory, |path| {
                let mut new = OpenOptions::new();
                new.write(true).create_new(true).mode(0o600).open(path)
            })?;
        let bytes = self.write_into(file.as_file())?;
        file.persist(directory.join(FILE))
            .map_err(|error| StateError::Io(error.error))?;
        File::open(directory)?.sync_all()?;
        Ok(bytes)
    }

    /// Writes the state to a file durably.
    fn write_into(&mut self, file: &File) -> Result<u64, StateError> {
        let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, file));
        let head = self.head();
        writer.put(Kind::Head, &[&head])?;
        let orders = std::sync::Arc::clone(self.transfer.orders());
        self.write_whole(&mut writer, |done, all| {
            orders.report(Report::Progress(Progress {
                phase: Phase::Stopped,
                done,
                all,
            }));
        })?;
        writer.flush()?;
        file.sync_all()?;
        Ok(writer.bytes)
    }

    /// Restores the session of a file into a new session.
    ///
    /// # Errors
    /// [`StateError`]; the session is then unusable.
    pub fn read_file(&mut self, file: File) -> Result<(), StateError> {
        self.read_whole(Scanner::new(BufReader::with_capacity(1 << 20, file)))
    }

    pub(crate) fn read_whole<R: std::io::Read>(
        &mut self,
        mut scanner: Scanner<R>,
    ) -> Result<(), StateError> {
        match scanner.record()? {
            (Kind::Head, payload) => self.take_identity(Identity::decode(payload)?)?,
            _ => return Err(StateError::Order("it does not begin with its head")),
        }
        // The window is not handed over.
        self.leave_window(self.transfer.identity().pinned);
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

    /// The head record, with the owner of the session, for a session that has left its
    /// window.
    pub(crate) fn head(&self) -> Vec<u8> {
        let pinned = self.host.pinned_without_window();
        let identity = self.transfer.identity();
        identity.encode(self.memory.arena().live(), pinned)
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
