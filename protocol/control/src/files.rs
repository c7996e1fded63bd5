//! Opens files in directories that others can write, creates files without names, and
//! replaces files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, linkat, open};
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

/// Creates a file without a name on the file system of a directory, to be written by its owner
/// only. Nothing is left of it if the processes that have it open end. `None` if it cannot be
/// created; some file systems, such as NFS, have no such files.
#[must_use]
pub fn unnamed(directory: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = open(directory, flags, Mode::RUSR | Mode::WUSR).ok()?;
    Some(file.into())
}

/// Gives a file of [`unnamed`] a name in its directory, which nothing has yet.
pub fn give_name(file: &File, path: &Path) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// Replaces a file atomically, so that it is never incomplete, even after a crash. `mode` is
/// that of the new file, less the umask. Follows no link in the directory, to which others may
/// write, such as a VM that shares it.
pub fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.new"));
    // One that an interrupted call or somebody else has left.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for text in ["a long text", "short"] {
            replace(&path, text, 0o600).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        // Nothing is left beside it.
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_file_has_no_name_until_it_is_given_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut file = unnamed(directory.path()).expect("not on NFS");
        file.write_all(b"text").unwrap();
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
        give_name(&file, &path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let taken = give_name(&file, &path).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn what_others_put_beside_a_file_is_neither_written_nor_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("other"), "of another").unwrap();
        std::os::unix::fs::symlink(path("other"), path(".file.new")).unwrap();
        replace(&path("file"), "text", 0o600).unwrap();
        assert_eq!(
            std::fs::read_to_string(path("other")).unwrap(),
            "of another"
        );
        assert!(path("file").symlink_metadata().unwrap().is_file());
        // A file that everybody can read, or has open.
        let left = File::create(path(".file.new")).unwrap();
        left.set_permissions(std::fs::Permissions::from_mode(0o666))
            .unwrap();
        replace(&path("file"), "secret", 0o600).unwrap();
        let mode = path("file").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(left.metadata().unwrap().len(), 0);
    }

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
