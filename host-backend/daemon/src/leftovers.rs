//! Directories of former VMs, which processes of the spawner empty while nobody waits.
//!
//! A VM may have written any number of files. Its directory is therefore renamed first,
//! which makes its name and its user free: nobody but the VM's workers, which have ended,
//! had a descriptor of it, and the folder around it is the daemon's alone.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// Maximum number of directories that are emptied at once.
const AT_ONCE: usize = 2;
/// Maximum number of directories that are not empty yet.
const MOST: usize = 64;
/// Number of processes that are started for one, one after another.
const ATTEMPTS: u32 = 3;
/// The beginning of their names. Directories of VMs are named by hashes.
const PREFIX: &str = "gone-";

/// A directory that is being emptied.
#[derive(Debug)]
struct Emptying {
    leftover: Leftover,
    process: OwnedFd,
}

/// A directory with its user in the range.
#[derive(Debug)]
struct Leftover {
    path: PathBuf,
    user: u32,
    /// How often processes may still be started for it: one of an earlier daemon may be emptying
    /// it as well, and have something left when the first of ours ends.
    attempts: u32,
}

/// The directories of former VMs.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Those that no process empties yet.
    waiting: VecDeque<Leftover>,
    emptying: Vec<Emptying>,
    /// How many were set aside, for their names.
    count: u64,
}

impl Leftovers {
    /// Whether this is a directory of a former VM, by its name.
    #[must_use]
    pub fn is_one(path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(PREFIX))
    }

    /// Renames the directory of this user, to be emptied.
    ///
    /// # Errors
    /// One sentence: too many are not empty yet, or it cannot be renamed.
    pub fn set_aside(&mut self, path: &Path, user: u32) -> Result<(), String> {
        if self.waiting.len() + self.emptying.len() >= MOST {
            return Err(format!(
                "{MOST} earlier directories are still being emptied"
            ));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let aside = format!("{PREFIX}{name}-{}-{}", std::process::id(), self.count);
        let aside = path.with_file_name(aside);
        std::fs::rename(path, &aside).map_err(|error| error.to_string())?;
        self.count += 1;
        self.adopt(aside, user);
        Ok(())
    }

    /// Records a directory that was set aside.
    pub fn adopt(&mut self, path: PathBuf, user: u32) {
        self.waiting.push_back(Leftover {
            path,
            user,
            attempts: ATTEMPTS,
        });
    }

    /// Removes the directories that have been emptied, and has further ones emptied by
    /// `empty`, which returns the process.
    pub fn advance(&mut self, mut empty: impl FnMut(OwnedFd, u32) -> Result<OwnedFd, String>) {
        let has_ended = |one: &mut Emptying| {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            !matches!(
                waitid(WaitId::PidFd(one.process.as_fd()), options),
                Ok(None)
            )
        };
        for Emptying { leftover, .. } in self.emptying.extract_if(.., has_ended) {
            match std::fs::remove_dir(&leftover.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    if leftover.attempts > 0 {
                        self.waiting.push_back(leftover);
                        continue;
                    }
                    let directory = leftover.path.display();
                    tracing::warn!(%directory, %error, "images of a former VM are left until the next start");
                }
                _ => {}
            }
        }
        while self.emptying.len() < AT_ONCE
            && let Some(mut leftover) = self.waiting.pop_front()
        {
            leftover.attempts = leftover.attempts.saturating_sub(1);
            let process = open_path(&leftover.path)
                .map_err(|errno| errno.to_string())
                .and_then(|directory| empty(directory, leftover.user));
            match process {
                Ok(process) => self.emptying.push(Emptying { leftover, process }),
                Err(error) => {
                    let directory = leftover.path.display();
                    tracing::warn!(%directory, error, "images of a former VM cannot be removed");
                }
            }
        }
    }

    /// The processes that empty directories. Their end calls for
    /// [`advance`](Self::advance).
    pub fn processes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.emptying.iter().map(|one| one.process.as_fd())
    }
}

/// Opens a directory as a path (`O_PATH`): only its user may read it.
///
/// # Errors
/// Errors of the operating system.
pub fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    /// A process that empties nothing, and how to end it.
    fn process() -> (std::process::Child, OwnedFd) {
        let child = Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        (child, pidfd)
    }

    #[test]
    fn directories_leave_at_once_and_are_emptied_a_few_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut leftovers = Leftovers::default();
        for number in 0..MOST {
            let path = folder.path().join("name");
            std::fs::create_dir(&path).unwrap();
            leftovers
                .set_aside(&path, u32::try_from(number).unwrap())
                .unwrap();
            assert!(!path.exists());
        }
        let one_more = folder.path().join("name");
        std::fs::create_dir(&one_more).unwrap();
        assert!(leftovers.set_aside(&one_more, 1).is_err() && one_more.exists());
        let entries = || std::fs::read_dir(folder.path()).unwrap().flatten();
        let aside = || {
            entries()
                .filter(|one| Leftovers::is_one(&one.path()))
                .count()
        };
        assert_eq!(aside(), MOST);

        let mut children = Vec::new();
        let mut begin = |leftovers: &mut Leftovers| {
            leftovers.advance(|_, _| {
                let (child, pidfd) = process();
                children.push(child);
                Ok(pidfd)
            });
            children.len()
        };
        assert_eq!(begin(&mut leftovers), AT_ONCE);
        assert_eq!(
            begin(&mut leftovers),
            AT_ONCE,
            "nobody waits for those that run"
        );
        drop(children.remove(0).stdin.take());
        let first = leftovers.processes().next().unwrap();
        let mut ended = [rustix::event::PollFd::from_borrowed_fd(
            first,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut ended, None).unwrap();
        leftovers.advance(|_, _| Err("no more".into()));
        assert_eq!(aside(), MOST - 1);
        for mut child in children {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }
}
