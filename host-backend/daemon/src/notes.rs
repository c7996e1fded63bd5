//! Records of running sessions on disk, one file each. A daemon that starts after a crash
//! finds them, and reaches their workers.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paragpu_control::files::own_regular;
use paragpu_control::socket::Control;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::door;
use crate::session::{Facts, now};
use crate::worker::pidfd;

/// The directory of records. A lock in it keeps other daemons out.
#[derive(Debug)]
pub struct Notes {
    directory: PathBuf,
    boot: String,
    _lock: std::fs::File,
}

/// A session of an earlier daemon whose worker still runs.
#[derive(Debug)]
pub struct SurvivingSession {
    /// The constant facts about the session.
    pub facts: Facts,
    /// The process ID of its worker.
    pub pid: u32,
    /// A pidfd of that process.
    pub pidfd: OwnedFd,
    /// Its schedule of checkpoints, if it has one.
    pub again: Option<CheckpointSchedule>,
    /// The connection to its worker, if that can be reached.
    pub control: Option<Control>,
    /// What identifies the accounts in which it has slots.
    pub accounts: Vec<u64>,
}

/// A schedule of checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointSchedule {
    /// Where the checkpoint is written; an absolute path.
    pub directory: PathBuf,
    /// The time between two checkpoints.
    pub every: Duration,
}

#[derive(Serialize, Deserialize)]
struct Note {
    facts: Facts,
    pid: u32,
    /// Clock ticks from boot to the worker's start. Together with the boot ID and the
    /// process ID, they identify a process uniquely.
    started: u64,
    boot: String,
    again: Option<CheckpointSchedule>,
    /// The name of its worker's [`door`]; empty if it has none.
    door: String,
    accounts: Vec<u64>,
}

/// File name extension of records that are being written.
const FRESH: &str = "fresh";
/// File name extension of the doors of workers.
const DOOR: &str = "door";
/// File name extension of the records of checkpointed sessions.
const PARKED: &str = "parked";

#[derive(Serialize, Deserialize)]
struct ParkedNote {
    token: [u8; 16],
    /// Seconds since 1970.
    until: u64,
}

impl Notes {
    /// Opens the directory, and creates it if needed.
    ///
    /// # Errors
    /// [`Error::Running`] if another daemon uses it, [`Error::NotAllowed`],
    /// [`Error::NotCreated`], [`Error::System`].
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let failed = || format!("use the state directory {}", directory.display());
        let lock = lock(directory).map_err(|source| match source.kind() {
            // Root's only obstacle are the daemon's own rules.
            std::io::ErrorKind::PermissionDenied
                if rustix::process::geteuid().is_root() && !directory.exists() =>
            {
                Error::NotCreated(directory.to_owned())
            }
            std::io::ErrorKind::PermissionDenied => Error::NotAllowed(directory.to_owned()),
            _ => Error::system(failed())(source),
        })?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::Running(directory.to_owned())),
            Err(errno) => return Err(Error::system(failed())(errno)),
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(Error::system("read the boot ID"))?;
        Ok(Self {
            directory: directory.to_owned(),
            boot: boot.trim().to_owned(),
            _lock: lock,
        })
    }

    /// Records a session whose worker is process `pid`, and that has slots in `accounts`. Returns
    /// the door for its worker. A failure is logged: the session is served all the same.
    pub fn write(&self, facts: &Facts, pid: u32, accounts: Vec<u64>) -> Option<OwnedFd> {
        // `None`: it has exited. There is nothing for a later daemon to find.
        let started = start_time(pid)?;
        let name = format!("{}.{DOOR}", facts.session);
        let door = door::make(&self.directory, &name);
        if let Err(error) = &door {
            tracing::warn!(
                session = facts.session, %error,
                "no later daemon can reach the session's worker"
            );
        }
        let note = Note {
            facts: facts.clone(),
            pid,
            started,
            boot: self.boot.clone(),
            again: None,
            door: door.as_ref().map(|_| name).unwrap_or_default(),
            accounts,
        };
        self.put(facts.session, &note);
        door.ok()
    }

    /// Records the schedule of checkpoints of a session, or that it has none.
    pub fn write_again(&self, session: u64, again: Option<CheckpointSchedule>) {
        let note = std::fs::read(self.path(session)).ok();
        let note = note.and_then(|text| serde_json::from_slice::<Note>(&text).ok());
        if let Some(note) = note {
            self.put(session, &Note { again, ..note });
        }
    }

    /// Updates the facts of a recorded session.
    pub fn renew(&self, facts: &Facts) {
        let note = std::fs::read(self.path(facts.session)).ok();
        let note = note.and_then(|text| serde_json::from_slice::<Note>(&text).ok());
        if let Some(note) = note {
            let facts = facts.clone();
            self.put(facts.session, &Note { facts, ..note });
        }
    }

    fn put(&self, session: u64, note: &Note) {
        let path = self.path(session);
        // Renamed: a record that is cut short would cost the session its next daemon.
        let fresh = path.with_extension(FRESH);
        let written = serde_json::to_vec(note)
            .map_err(std::io::Error::from)
            .and_then(|text| std::fs::write(&fresh, text))
            .and_then(|()| std::fs::rename(&fresh, &path));
        if let Err(error) = written {
            let _ = std::fs::remove_file(&fresh);
            tracing::warn!(
                session, %error,
                "the session's record cannot be written: after a restart the daemon would know the \
                 earlier one, or not the session at all"
            );
        }
    }

    /// Removes the record of a session.
    pub fn remove(&self, session: u64) {
        // There is none if it could not be made.
        let _ = std::fs::remove_file(self.path(session).with_extension(DOOR));
        match std::fs::remove_file(self.path(session)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(session, %error, "the record of an ended session cannot be removed");
            }
            _ => {}
        }
    }

    /// Returns the sessions whose workers still run, by number. Removes all other records.
    #[must_use]
    pub fn find(&self) -> Vec<SurvivingSession> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten();
        let mut found = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            match path.extension() {
                Some(extension) if extension == "json" => {}
                Some(extension) if extension == FRESH => {
                    let _ = std::fs::remove_file(&path);
                    continue;
                }
                _ => continue,
            }
            let note = std::fs::read(&path)
                .ok()
                .and_then(|text| serde_json::from_slice::<Note>(&text).ok());
            match note.and_then(|note| self.alive(note)) {
                Some(session) => found.push(session),
                None => {
                    let _ = std::fs::remove_file(path.with_extension(DOOR));
                    let _ = std::fs::remove_file(&path);
                }
            }
        }
        found.sort_by_key(|found| found.facts.session);
        found
    }

    /// Records the token of a checkpointed session that has ended, so that a later daemon
    /// also lets its guest wait. `left` is how long.
    pub fn park(&self, token: [u8; 16], left: Duration) {
        let note = ParkedNote {
            token,
            until: now() + left.as_secs(),
        };
        let written = serde_json::to_vec(&note)
            .map_err(std::io::Error::from)
            .and_then(|text| std::fs::write(self.parked_path(&token), text));
        if let Err(error) = written {
            tracing::warn!(
                %error,
                "a checkpointed session cannot be recorded: after a restart its guest is refused"
            );
        }
    }

    /// Removes the record of a session that has been restored or is no longer expected.
    pub fn unpark(&self, token: &[u8; 16]) {
        // There is no file if the record could not be written.
        let _ = std::fs::remove_file(self.parked_path(token));
    }

    /// Returns the tokens of the checkpointed sessions, and how long their guests may still
    /// wait. Removes expired records.
    #[must_use]
    pub fn parked(&self) -> Vec<([u8; 16], Duration)> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten();
        let mut found = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != PARKED) {
                continue;
            }
            let note = std::fs::read(&path)
                .ok()
                .and_then(|text| serde_json::from_slice::<ParkedNote>(&text).ok());
            match note.map(|note| (note.token, note.until.saturating_sub(now()))) {
                Some((token, left @ 1..)) => found.push((token, Duration::from_secs(left))),
                _ => drop(std::fs::remove_file(&path)),
            }
        }
        found
    }

    /// The name is a hash, because file names leak more easily than contents and the token
    /// is a secret.
    fn parked_path(&self, token: &[u8; 16]) -> PathBuf {
        let name = blake3::hash(token).to_hex();
        self.directory.join(name.as_str()).with_extension(PARKED)
    }

    fn alive(&self, note: Note) -> Option<SurvivingSession> {
        let pidfd = pidfd(note.pid).ok()?;
        // Compared after the pidfd is open: from then on the process ID cannot be reused
        // unnoticed.
        let same = note.boot == self.boot && start_time(note.pid) == Some(note.started);
        same.then(|| SurvivingSession {
            control: door::knock(&self.directory, &note.door).ok(),
            accounts: note.accounts,
            facts: note.facts,
            pid: note.pid,
            pidfd,
            again: note.again,
        })
    }

    fn path(&self, session: u64) -> PathBuf {
        self.directory.join(format!("{session}.json"))
    }
}

/// Makes the directory accessible to its owner only, and opens the lock file in it.
/// Refuses symbolic links and files of other users, which could redirect what is written
/// here.
fn lock(directory: &Path) -> std::io::Result<std::fs::File> {
    if let Some(parent) = directory.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match rustix::fs::mkdir(directory, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(directory, flags | OFlags::DIRECTORY, Mode::empty()).map_err(no_link)?;
    let owner = rustix::fs::fstat(&folder)?.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        return Err(std::io::Error::other(format!("it belongs to user {owner}")));
    }
    rustix::fs::fchmod(&folder, Mode::RWXU)?;
    let flags = flags | OFlags::CREATE | OFlags::RDWR | OFlags::NONBLOCK;
    let lock = openat(&folder, "lock", flags, Mode::RUSR | Mode::WUSR).map_err(no_link)?;
    own_regular(lock.into(), "lock")
}

/// Explains the error of an open with `NOFOLLOW`.
fn no_link(errno: Errno) -> std::io::Error {
    match errno {
        Errno::LOOP => std::io::Error::other("it is a symbolic link"),
        other => other.into(),
    }
}

/// The start time of a running process, in clock ticks since boot (proc(5), stat field 22).
/// `None` if it has exited, even if it has not been reaped.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses, which may itself contain blanks and
    // parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}
