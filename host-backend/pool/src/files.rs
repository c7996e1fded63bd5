//! What a lease's programs read: their configuration, certificates and key.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use paragpu_control::lease::Lease;

use crate::Error;

/// The files of a lease, in a directory of its own.
#[derive(Debug)]
pub(crate) struct Files {
    directory: PathBuf,
}

impl Files {
    /// In `directory`, with the private key.
    pub(crate) fn new(directory: PathBuf, key: &str) -> Result<Self, Error> {
        let files = Self { directory };
        files.write("lease.key", key)?;
        Ok(files)
    }

    /// The configuration for `PARAGPU_CONFIG`.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.directory.join("guest.toml")
    }

    /// The way to a lease. Programs that start from now on go there, and those
    /// that have lost their host.
    pub(crate) fn lead_to(&self, lease: &Lease) -> Result<(), Error> {
        self.write("ca.pem", &lease.authority)?;
        self.write("lease.pem", &lease.certificate)?;
        let path = |name| self.directory.join(name);
        let text = format!(
            "communicator = \"tcp\"\n\n[tcp]\naddress = {:?}\nca = {:?}\ncertificate = {:?}\nkey = \
             {:?}\n",
            lease.address,
            path("ca.pem"),
            path("lease.pem"),
            path("lease.key"),
        );
        self.write("guest.toml", &text)
    }

    /// Replaces a file at once, so that no program reads half of it.
    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.directory.join(name);
        let new = self.directory.join(format!(".{name}.new"));
        write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|source| Error::File { path, source })
    }
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}
