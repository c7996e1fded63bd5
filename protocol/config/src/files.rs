//! Reads the files of a configuration, and those that it names.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Maximum size in bytes. A bundle of all public authorities has a quarter of it.
const MAX_BYTES: u64 = 1 << 20;

/// The number of `/dev/null`.
const NULL: u64 = libc::makedev(1, 3);

/// Opens a regular file, or `/dev/null`. Does not wait, whatever is there.
///
/// # Errors
/// Errors of the operating system, or one clause.
pub fn open(path: &Path) -> io::Result<File> {
    // NONBLOCK: a pipe without a writer opens at once, and is seen to be one.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let status = file.metadata()?;
    let kind = status.file_type();
    let found = match () {
        () if kind.is_file() => return Ok(file),
        // The usual name for an empty file.
        () if kind.is_char_device() && status.rdev() == NULL => return Ok(file),
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () => "a device",
    };
    let reason = format!("it is {found}, where a regular file is needed");
    Err(io::Error::other(reason))
}

/// Reads a regular file of at most 1 MiB. Returns its status, too.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<(Metadata, Vec<u8>)> {
    let file = open(path)?;
    let status = file.metadata()?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("it has more than 1 MiB"));
    }
    Ok((status, bytes))
}

/// Reads a text of at most 1 MiB from a regular file.
///
/// # Errors
/// As [`open`].
pub fn read_text(path: &Path) -> io::Result<String> {
    let (_, bytes) = read(path)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::other(format!("it is not UTF-8 text: see its byte {}", at + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut command = std::process::Command::new("mkfifo");
        assert!(command.arg(path("pipe")).status().unwrap().success());
        std::fs::write(path("long"), vec![b' '; 1 + MAX_BYTES as usize]).unwrap();
        std::fs::write(path("latin"), b"name = \"b\xfcro\"").unwrap();
        std::fs::write(path("good"), vec![b' '; MAX_BYTES as usize]).unwrap();
        std::os::unix::fs::symlink(path("good"), path("link")).unwrap();
        for (name, said) in [
            ("pipe", "it is a pipe"),
            ("", "it is a directory"),
            ("/dev/zero", "it is a device"),
            ("long", "more than 1 MiB"),
            ("latin", "not UTF-8 text: see its byte 10"),
            ("missing", "No such file"),
        ] {
            let error = read_text(&path(name)).unwrap_err().to_string();
            assert!(error.contains(said), "{name}: {error}");
        }
        assert_eq!(read_text(Path::new("/dev/null")).unwrap(), "");
        assert_eq!(read_text(&path("link")).unwrap().len() as u64, MAX_BYTES);
    }
}
