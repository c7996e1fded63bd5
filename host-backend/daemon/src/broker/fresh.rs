//! Checkpoint files for workers that may not create any: the daemon creates a file under a
//! temporary name, the worker fills it, and the daemon renames it.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use paragpu_control::state::FILE;
use rustix::fs::{Mode, OFlags, open};

use super::admit::token;
use super::orders::Outcome;

/// A file without its name yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fresh {
    directory: PathBuf,
    path: PathBuf,
}

impl Fresh {
    /// Makes one in a directory, which is made if it does not exist. Its owner
    /// only reads it: it will hold the token and the program's data.
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

    /// The worker is done with it: the state is there from here on, or the file
    /// is gone.
    pub(super) fn settle(&self, outcome: Outcome) -> Outcome {
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
                "the state is whole in {}, and cannot be named {FILE}: {error}",
                self.path.display()
            )),
        }
    }

    /// Removes it.
    pub(super) fn remove(&self) {
        // It may be gone with its directory.
        let _ = std::fs::remove_file(&self.path);
    }
}
