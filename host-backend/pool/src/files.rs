//! The files that a lease's programs read: their configuration, certificates and key.

use std::path::PathBuf;

use paragpu_communicator_secure::{Credentials, KeyLifetime};
use paragpu_config::Address;
use paragpu_config::guest::Tcp;
use paragpu_control::files::replace;
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
        self.write_configuration(&Tcp {
            address: Address(Some(lease.address.clone())),
            ca: path("ca.pem"),
            certificate: path("lease.pem"),
            key: path("lease.key"),
            ..Tcp::default()
        })
    }

    /// Loads the credentials that [`write_for`](Self::write_for) wrote.
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
        self.write_configuration(&Tcp {
            address: Address(Some(lease.address.clone())),
            over: format!("the lease is over: {why}"),
            ..Tcp::default()
        })
    }

    fn write_configuration(&self, tcp: &Tcp) -> Result<(), Error> {
        let text = tcp.file().map_err(|source| Error::File {
            path: self.configuration(),
            source,
        })?;
        self.write("guest.toml", &text)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.directory.join(name);
        replace(&path, text, 0o600).map_err(|source| Error::File { path, source })
    }
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
        // A family of emoji with joiners, and an accent of its own.
        let name = "\u{1f468}\u{200d}\u{1f467} e\u{301} \"lease\"";
        let directory = directory.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        let files = Files::new(directory.clone(), "key").unwrap();
        let lease = lease();
        let read = || {
            let file = files.configuration();
            Sources::only(&file).load::<Guest>().unwrap().values.tcp
        };
        files.write_for(&lease).unwrap();
        assert_eq!(read().address.0.as_deref(), Some("gpu1:7474"));
        assert_eq!(read().key, directory.join("lease.key"));
        assert_eq!(read().over, "");
        // The engine's message may contain any characters.
        let why = "\"gpu1\" is\nlost\\ \u{1b}é \u{200d}e\u{301}";
        files.end(&lease, why).unwrap();
        let plain = "the lease is over: \"gpu1\" is lost\\  é \u{200d}e\u{301}";
        assert_eq!(read().over, plain);
        assert_eq!(read().key, PathBuf::new());
    }
}
