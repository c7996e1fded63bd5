//! Checkpoint files for workers that may not create any: the daemon creates a file without a
//! name, the worker fills it, and the daemon names it if it is of the worker's session.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paragpu_control::files;
use paragpu_control::state::{self, FILE};
use rustix::fs::{Mode, OFlags, open};

use super::token::token;
use crate::session::Session;

/// A file that does not have its final name yet.
#[derive(Debug, Clone)]
pub(super) struct UnnamedCheckpoint {
    directory: PathBuf,
    /// Its temporary name: from the start, or of an unnamed file while it is checked.
    name: String,
    unnamed: Option<Arc<File>>,
    /// When the guest's certificate expires, as the worker was told.
    expires: Option<u64>,
}

impl UnnamedCheckpoint {
    /// Creates one for a session whose guest's certificate expires at `expires`, in a
    /// directory, which is created if it does not exist. Only its owner
    /// can read it: it will contain the token and the program's data.
    pub(super) fn make(directory: &Path, expires: Option<u64>) -> io::Result<(Self, File)> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o777).create(directory)?;
        let name: String = token().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!(".session-{name}");
        let (file, unnamed) = match files::unnamed(directory) {
            Some(file) => (file.try_clone()?, Some(Arc::new(file))),
            None => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = open(directory.join(&name), flags, Mode::from_raw_mode(0o600))?;
                (file.into(), None)
            }
        };
        let fresh = Self {
            directory: directory.to_owned(),
            name,
            unnamed,
            expires,
        };
        Ok((fresh, file))
    }

    /// Handles the end of the worker's work: names the file, or removes it, also if it is not
    /// of this session, which the worker serves.
    pub(super) fn settle<T>(
        &self,
        outcome: Result<T, String>,
        session: Option<&Session>,
    ) -> Result<T, String> {
        let outcome = outcome.and_then(|figures| {
            self.link()?;
            self.check(session).map(|()| figures)
        });
        if outcome.is_err() {
            self.remove();
            return outcome;
        }
        let named = std::fs::rename(self.path(), self.directory.join(FILE))
            .and_then(|()| File::open(&self.directory)?.sync_all());
        match named {
            Ok(()) => outcome,
            // Not removed: its session may have ended.
            Err(error) => Err(format!(
                "the state was written to {}, but cannot be renamed to {FILE}: {error}",
                self.path().display()
            )),
        }
    }

    /// Gives an unnamed file its temporary name.
    fn link(&self) -> Result<(), String> {
        let Some(file) = &self.unnamed else {
            return Ok(());
        };
        files::give_name(file, &self.path())
            .map_err(|error| format!("{} cannot be created: {error}", self.path().display()))
    }

    /// Checks that the file begins with the head of this session. A restore believes it.
    fn check(&self, session: Option<&Session>) -> Result<(), String> {
        let session = session.ok_or("its session ended")?;
        let (owner, _) = state::owner(&self.directory, &self.name)
            .map_err(|error| format!("the worker's file is refused: {error}"))?;
        let facts = &session.facts;
        let is_own = owner.vm == facts.vm
            && owner.ordinal == facts.ordinal
            && owner.token == session.token
            && owner.expires == self.expires;
        is_own
            .then_some(())
            .ok_or_else(|| "the worker's file is not of its session".to_owned())
    }

    fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Removes it.
    pub(super) fn remove(&self) {
        // It may have no name, or have been removed with its directory.
        let _ = std::fs::remove_file(self.path());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use paragpu_control::state::{Head, Kind, Writer};
    use paragpu_protocol::codec::{Text, encode_all};

    use super::*;
    use crate::session::Facts;

    fn session() -> Session {
        Session {
            facts: Facts {
                session: 1,
                vm: "own".into(),
                guest_pid: 7,
                ordinal: 0,
                device: "software:0".into(),
                communicator: "tcp".into(),
                begun: 0,
                expires: Some(100),
                claim: [0; 16],
            },
            process: None,
            token: [5; 16],
            mark: [0; 16],
            worker: 1,
            arrives: false,
            counters: None,
        }
    }

    /// Whether the file of a worker with this head gets its name.
    fn is_named(vm: &str, token: u8, ordinal: u32, expires: u64) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let (fresh, file) = UnnamedCheckpoint::make(folder.path(), Some(100)).unwrap();
        let head = encode_all(&Head {
            ordinal,
            token: [token; 16],
            device_count: 1,
            guest_pid: 7,
            vm: Text(vm),
            device: Text("GPU"),
            device_memory: 0,
            pinned: 0,
            expires,
        });
        Writer::new(&file).put(Kind::Head, &[&head]).unwrap();
        let settled = fresh.settle(Ok(()), Some(&session())).is_ok();
        let names = std::fs::read_dir(folder.path()).unwrap().flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        assert_eq!(names, if settled { vec![FILE] } else { vec![] });
        settled
    }

    #[test]
    fn a_file_of_another_session_gets_no_name() {
        assert!(is_named("own", 5, 0, 100));
        assert!(!is_named("victim", 5, 0, 100));
        assert!(!is_named("own", 6, 0, 100));
        assert!(!is_named("own", 5, 1, 100));
        assert!(!is_named("own", 5, 0, 0));
    }

    #[test]
    fn nothing_is_left_of_a_file_that_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let (_fresh, mut file) = UnnamedCheckpoint::make(folder.path(), None).unwrap();
        file.write_all(b"text").unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_without_a_head_gets_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let (fresh, mut file) = UnnamedCheckpoint::make(folder.path(), None).unwrap();
        file.write_all(b"text").unwrap();
        assert!(fresh.settle(Ok(()), Some(&session())).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
