//! The files that a lease's programs read: their configuration, certificates and key.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use paragpu_communicator_secure::{Credentials, KeyLifetime};
use paragpu_control::lease::Lease;

use crate::Error;

/// The files of a lease, in their own directory.
#[derive(Debug)]
pub(crate) struct Files {
    directory: PathBuf,
}

impl Files {
    /// Creates `directory` and writes the private key.
    pub(crate) fn new(directory: PathBuf, key: &str) -> Result<Self, Error> {
        let files = Self { directory };
        files.write("lease.key", key)?;
        Ok(files)
    }

    /// The path of the configuration, for `PARAGPU_CONFIG`.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.directory.join("guest.toml")
    }

    /// Writes the address and the certificates of a lease. New programs, and those that
    /// have lost their host, connect there.
    pub(crate) fn write_for(&self, lease: &Lease) -> Result<(), Error> {
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

    /// Loads the credentials that [`lead_to`](Self::lead_to) wrote.
    pub(crate) fn credentials(&self) -> Result<Credentials, Error> {
        let path = |name| self.directory.join(name);
        let files = paragpu_communicator_secure::Files {
            section: "tcp",
            ca: &path("ca.pem"),
            certificate: &path("lease.pem"),
            key: &path("lease.key"),
            key_shared: false,
        };
        // The daemon at the other end does not support TLS key updates, which rustls sends
        // when keys wear out.
        Ok(Credentials::load(files, KeyLifetime::Lasting)?)
    }

    /// Writes why the lease is over, for programs that look for their host.
    pub(crate) fn end(&self, lease: &Lease, why: &str) -> Result<(), Error> {
        let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
        let why: String = why.chars().map(plain).collect();
        let text = format!(
            "communicator = \"tcp\"\n\n[tcp]\naddress = {:?}\nover = {:?}\n",
            lease.address,
            format!("the lease is over: {why}"),
        );
        self.write("guest.toml", &text)
    }

    /// Replaces a file atomically, so that no program reads half of it.
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

#[cfg(test)]
pub(crate) mod tests {
    use paragpu_config::Sources;
    use paragpu_config::guest::Guest;
    use paragpu_control::lease::Name;

    use super::*;

    /// A lease of 1 GiB at gpu1.
    pub(crate) fn lease() -> Lease {
        Lease {
            name: Name {
                vm: "lease-0-1".into(),
                serial: 7,
            },
            memory: 1 << 30,
            gpu: 0,
            address: "gpu1:7474".into(),
            arrivals: None,
            authority: "ca".into(),
            certificate: "certificate".into(),
            expires: 0,
            written: Vec::new(),
        }
    }

    #[test]
    fn programs_read_where_the_lease_is_and_why_it_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(directory.path().to_owned(), "key").unwrap();
        let lease = lease();
        let read = || {
            let file = files.configuration();
            Sources::only(&file).load::<Guest>().unwrap().values.tcp
        };
        files.write_for(&lease).unwrap();
        assert_eq!(read().address.0.as_deref(), Some("gpu1:7474"));
        assert_eq!(read().over, "");
        // The engine's message may contain any characters.
        files.end(&lease, "\"gpu1\" is\nlost\\ \u{1b}é").unwrap();
        assert_eq!(read().over, "the lease is over: \"gpu1\" is lost\\  é");
    }
}
