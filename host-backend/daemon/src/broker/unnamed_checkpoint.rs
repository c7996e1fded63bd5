//! Checkpoint files for workers that may not create any: the daemon creates a file under a
//! temporary name, the worker fills it, and the daemon renames it.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use paragpu_control::state::FILE;
use rustix::fs::{Mode, OFlags, open};

use super::token::token;

/// A file that does not have its final name yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnnamedCheckpoint {
    directory: PathBuf,
    path: PathBuf,
}

impl UnnamedCheckpoint {
    /// Creates one in a directory, which is created if it does not exist. Only its owner
    /// can read it: it will contain the token and the program's data.
    pub(super) fn make(directory: &Path) -> io::Result<(Self, File)> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o777).create(directory)?;
        let name: String = token().iter().map(|byte| format!("{byte:02x}")).collect();
        let path = directory.join(format!(".session-{name}"));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::from_raw_mode(0o600))?;
        let fresh = Self {
            directory: directory.to_owned(),
            path,
        };
        Ok((fresh, file.into()))
    }

    /// Handles the end of the worker's work: names the file, or removes it.
    pub(super) fn settle<T>(&self, outcome: Result<T, String>) -> Result<T, String> {
        if outcome.is_err() {
            self.remove();
            return outcome;
        }
        let named = std::fs::rename(&self.path, self.directory.join(FILE))
            .and_then(|()| File::open(&self.directory)?.sync_all());
        match named {
            Ok(()) => outcome,
            // Not removed: its session may have ended.
            Err(error) => Err(format!(
                "the state was written to {}, but cannot be renamed to {FILE}: {error}",
                self.path.display()
            )),
        }
    }

    /// Removes it.
    pub(super) fn remove(&self) {
        // It may have been removed with its directory.
        let _ = std::fs::remove_file(&self.path);
    }
}
