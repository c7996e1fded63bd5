//! The files for containers of a claim: configuration, certificates and key, and the CDI
//! file that mounts them.
//!
//! Only root can access the directory of all claims. That of one claim, and its files, are
//! readable by every user, because a container's user is not known before it runs. The
//! container sees only this directory, and no other user of the host can reach it.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use paragpu_communicator_secure::issue;
use paragpu_config::Address;
use paragpu_config::guest::Tcp;
use serde_json::{Value, json};

use crate::claim::Data;
use crate::{DRIVER, Error};

/// The directories for claims' files.
#[derive(Debug, Clone)]
pub struct Places {
    /// Contains a directory for each claim.
    pub claims: PathBuf,
    /// The container runtime reads CDI files from here.
    pub cdi: PathBuf,
    /// The guest's libraries on this node, for containers whose images lack them.
    pub libraries: Option<PathBuf>,
}

/// The files of one claim.
#[derive(Debug)]
pub struct Files<'a> {
    places: &'a Places,
    uid: &'a str,
    directory: PathBuf,
}

impl<'a> Files<'a> {
    /// The files of the claim with this uid, which must be [plain](crate::claim::is_plain).
    #[must_use]
    pub fn new(places: &'a Places, uid: &'a str) -> Self {
        let directory = places.claims.join(uid);
        Self {
            places,
            uid,
            directory,
        }
    }

    /// Returns the public key (PEM). Creates a key if there is none.
    pub fn key(&self) -> Result<String, Error> {
        for (directory, mode) in [(&self.places.claims, 0o700), (&self.directory, 0o755)] {
            let mut builder = DirBuilder::new();
            let made = builder.recursive(true).mode(mode).create(directory);
            made.map_err(Error::file(directory))?;
        }
        let public = self.directory.join("lease.pub");
        match fs::read_to_string(&public) {
            Ok(key) => return Ok(key),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::file(&public)(error)),
        }
        let (private, key) = issue::key()?;
        self.write("lease.key", &private)?;
        // Written last: if it exists, the pair is complete.
        self.write("lease.pub", &key)?;
        Ok(key)
    }

    /// Writes the address and the certificates of the lease, and the CDI file.
    pub fn write_for(&self, data: &Data) -> Result<(), Error> {
        self.write("ca.pem", &data.authority)?;
        self.write("lease.pem", &data.certificate)?;
        let path = |name| self.directory.join(name);
        let tcp = Tcp {
            address: Address(Some(data.endpoint.clone())),
            ca: path("ca.pem"),
            certificate: path("lease.pem"),
            key: path("lease.key"),
            key_shared: true,
            ..Tcp::default()
        };
        let text = tcp.file().map_err(Error::file(&path("guest.toml")))?;
        self.write("guest.toml", &text)?;
        let file = self.cdi();
        let made = DirBuilder::new().recursive(true).create(&self.places.cdi);
        made.map_err(Error::file(&self.places.cdi))?;
        replace(&file, &self.edits().to_string())
    }

    /// The name of the CDI device.
    #[must_use]
    pub fn device(&self) -> String {
        format!("{DRIVER}/claim={}", self.uid)
    }

    fn cdi(&self) -> PathBuf {
        self.places.cdi.join(format!("{DRIVER}-{}.json", self.uid))
    }

    fn edits(&self) -> Value {
        let mount = |path: &Path| {
            let path = text_of(path);
            json!({
                "hostPath": path, "containerPath": path,
                "options": ["ro", "nosuid", "nodev", "bind"],
            })
        };
        let configuration = self.directory.join("guest.toml");
        let mut environment = vec![format!("PARAGPU_CONFIG={}", configuration.display())];
        let mut mounts = vec![mount(&self.directory)];
        if let Some(libraries) = &self.places.libraries {
            environment.push(format!("LD_LIBRARY_PATH={}", libraries.display()));
            mounts.push(mount(libraries));
        }
        json!({
            "cdiVersion": "0.6.0",
            "kind": format!("{DRIVER}/claim"),
            "devices": [{
                "name": self.uid,
                "containerEdits": {"env": environment, "mounts": mounts},
            }],
        })
    }

    /// Removes all files of the claim.
    pub fn remove(&self) -> Result<(), Error> {
        let file = self.cdi();
        gone(fs::remove_file(&file)).map_err(Error::file(&file))?;
        gone(fs::remove_dir_all(&self.directory)).map_err(Error::file(&self.directory))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        replace(&self.directory.join(name), text)
    }
}

fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A path as UTF-8, for JSON.
fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Replaces a file that every user can read.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), Error> {
    paragpu_control::files::replace(path, text, 0o644).map_err(Error::file(path))
}
