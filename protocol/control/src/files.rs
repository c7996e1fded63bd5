//! Opens files in directories that others can write.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;

/// Opens `name` in a directory to read it: a regular file, of this process's
/// user or of root, and not at the end of a link. Does not wait, whatever is
/// there.
///
/// # Errors
/// Errors of the operating system, or one sentence.
pub fn open_own(directory: &Path, name: &str) -> io::Result<File> {
    // NONBLOCK: a pipe without a writer opens at once, and is seen to be one.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match open(directory.join(name), flags | OFlags::NOCTTY, Mode::empty()) {
        Ok(file) => own_regular(file.into(), name),
        Err(Errno::LOOP) => Err(io::Error::other(format!("{name} is a link"))),
        Err(errno) => Err(errno.into()),
    }
}

/// The file, if it is a regular one of this process's user or of root.
///
/// # Errors
/// Errors of the operating system, or one sentence with the file's `name`.
pub fn own_regular(file: File, name: &str) -> io::Result<File> {
    let status = fstat(&file)?;
    if !FileType::from_raw_mode(status.st_mode).is_file() {
        return Err(io::Error::other(format!("{name} is not a regular file")));
    }
    let own = rustix::process::geteuid().as_raw();
    match status.st_uid {
        0 => Ok(file),
        owner if owner == own => Ok(file),
        owner => Err(io::Error::other(format!(
            "{name} belongs to user {owner}, not to user {own} or root"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), FileType::Fifo, mode, 0).unwrap();
        std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        assert!(open_own(directory.path(), "file").is_ok());
        for (name, sentence) in [
            ("folder", "not a regular file"),
            ("link", "is a link"),
            ("pipe", "not a regular file"),
        ] {
            let error = open_own(directory.path(), name).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}");
        }
        assert!(open_own(directory.path(), "socket").is_err());
        assert!(open_own(directory.path(), "missing").is_err());
    }
}
