//! Loads certificates and keys from files.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paragpu_config::files;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use crate::CertificateError;
use crate::chain::ChainLimit;

/// The three files in the configuration of one side.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a> {
    /// The section of the settings, for messages, such as `tcp`.
    pub section: &'a str,
    /// Certificates of the authorities that may have issued the other side's certificate.
    pub ca: &'a Path,
    /// This side's certificate, and those between it and an authority.
    pub certificate: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// Whether other users may read the private key, because it is protected otherwise.
    pub key_shared: bool,
}

impl<'a> Files<'a> {
    /// The files of a section, with a key that only its owner may read.
    #[must_use]
    pub fn new(section: &'a str, ca: &'a Path, certificate: &'a Path, key: &'a Path) -> Self {
        Self {
            section,
            ca,
            certificate,
            key,
            key_shared: false,
        }
    }
}

/// The ciphers that a connection may use, by how long their keys last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyLifetime {
    /// The fastest ciphers. A connection ends after 2^24 records in one direction, and its
    /// session continues over another one.
    Replaceable,
    /// Ciphers whose keys never wear out, for a connection that cannot be replaced.
    Lasting,
}

/// The credentials of one side, as client or server. It shows its certificate, and trusts
/// only those of its authorities. It speaks TLS 1.3 only, without resumption: each
/// connection checks the certificates again.
#[derive(Debug, Clone)]
pub struct Credentials {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Credentials {
    /// Reads the files.
    pub fn load(files: Files<'_>, wear: KeyLifetime) -> Result<Self, CertificateError> {
        let roots = Arc::new(authorities(&files)?);
        let failed = refused(&files, "certificate", files.certificate);
        let chain = certificates(files.certificate).map_err(|reason| failed(&reason))?;
        let key = private_key(&files)?;
        let provider = Arc::new(provider(wear));
        let versions = &[&rustls::version::TLS13];
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(|error| failed(&error))?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    refused(&files, "key", files.key)(&"it is the key of another certificate")
                }
                _ => failed(&error),
            })?;
        client.resumption = Resumption::disabled();
        client.enable_secret_extraction = true;
        let trusted = refused(&files, "ca", files.ca);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| trusted(&error))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|error| failed(&error))?
            .with_client_cert_verifier(Arc::new(ChainLimit(verifier)))
            .with_single_cert(chain, key)
            .map_err(|error| failed(&error))?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    /// The client's end of a connection to a machine with this name or address.
    ///
    /// # Errors
    /// One sentence.
    pub fn client(&self, name: &str) -> Result<Connection, String> {
        // A certificate names a link-local address without the interface.
        let name = name.split_once('%').map_or(name, |(address, _)| address);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| format!("{name:?} is neither a host's name nor an address"))?;
        ClientConnection::new(Arc::clone(&self.client), name)
            .map(Connection::from)
            .map_err(|error| error.to_string())
    }

    /// The server's end of a connection.
    ///
    /// # Errors
    /// One sentence.
    pub fn server(&self) -> Result<Connection, String> {
        ServerConnection::new(Arc::clone(&self.server))
            .map(Connection::from)
            .map_err(|error| error.to_string())
    }
}

fn provider(wear: KeyLifetime) -> CryptoProvider {
    // Both have keys of 32 bytes, as `Secured` requires.
    let lasting = cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
    CryptoProvider {
        cipher_suites: match wear {
            KeyLifetime::Replaceable => vec![cipher_suite::TLS13_AES_256_GCM_SHA384, lasting],
            KeyLifetime::Lasting => vec![lasting],
        },
        ..default_provider()
    }
}

fn refused<'a>(
    files: &Files<'_>,
    key: &str,
    path: &'a Path,
) -> impl Fn(&dyn std::fmt::Display) -> CertificateError + use<'a> {
    let key = format!("{}.{key}", files.section);
    move |reason| CertificateError {
        key: key.clone(),
        path: PathBuf::from(path),
        reason: reason.to_string(),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let (_, text) = files::read(path).map_err(|error| error.to_string())?;
    let list = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    if list.is_empty() {
        return Err("it contains no certificate in PEM format".into());
    }
    Ok(list)
}

fn authorities(files: &Files<'_>) -> Result<RootCertStore, CertificateError> {
    let failed = refused(files, "ca", files.ca);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(files.ca).map_err(|reason| failed(&reason))? {
        #[cfg(feature = "identity")]
        crate::identity::check_authority(&certificate).map_err(|reason| failed(&reason))?;
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    Ok(roots)
}

fn private_key(named: &Files<'_>) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let failed = refused(named, "key", named.key);
    let user = rustix::process::geteuid().as_raw();
    let (status, text) = files::read(named.key).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => failed(&format!(
            "{error}: this program's user ({user}) must be its owner"
        )),
        _ => failed(&error),
    })?;
    if status.mode() & 0o077 != 0 && !named.key_shared {
        let ours = status.uid() == user || user == 0;
        return Err(failed(&match ours {
            true => "other users may read it: run chmod 600".to_owned(),
            false => format!("other users may read it: run chown {user} and chmod 600"),
        }));
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound => failed(&"it contains no private key in PEM format"),
        error => failed(&error),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::issue::Authority;

    #[test]
    fn a_key_that_others_may_read_is_refused_with_what_to_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.key");
        std::fs::write(&path, "no key").unwrap();
        let files = Files::new("tcp", &path, &path, &path);
        let refused = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode).unwrap();
            private_key(&files).unwrap_err().to_string()
        };
        let open = refused(0o644);
        assert!(
            open.contains("tcp.key") && open.contains("run chmod 600"),
            "{open}"
        );
        assert!(!refused(0o600).contains("chmod"));
    }

    #[test]
    fn a_file_that_cannot_be_the_named_one_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let until = SystemTime::now() + Duration::from_secs(3600);
        let authority = Authority::open(&folder.path().join("authority")).unwrap();
        let issued = authority.host(&["host".into()], until).unwrap();
        let pipe = folder.path().join("pipe");
        let mut command = std::process::Command::new("mkfifo");
        assert!(command.arg(&pipe).status().unwrap().success());
        let (ca, own) = (issued.ca.as_path(), issued.certificate.as_path());
        let key = issued.key.as_path();
        let sound = Files::new("tcp", ca, own, key);
        Credentials::load(sound, KeyLifetime::Lasting).unwrap();
        let zeros = Path::new("/dev/zero");
        for (files, named, said) in [
            (Files { ca: &pipe, ..sound }, "ca", "it is a pipe"),
            (Files { ca: zeros, ..sound }, "ca", "it is a device"),
            (Files { ca: key, ..sound }, "ca", "no certificate"),
            (Files { ca: own, ..sound }, "ca", "is not an authority"),
            (
                Files {
                    certificate: &pipe,
                    ..sound
                },
                "certificate",
                "it is a pipe",
            ),
            (
                Files {
                    key: &pipe,
                    ..sound
                },
                "key",
                "it is a pipe",
            ),
            (
                Files {
                    key: folder.path(),
                    ..sound
                },
                "key",
                "it is a directory",
            ),
        ] {
            let error = Credentials::load(files, KeyLifetime::Lasting).unwrap_err();
            let error = error.to_string();
            let begins = error.starts_with(&format!("tcp.{named} = "));
            assert!(begins && error.contains(said), "{error}");
        }
        std::fs::copy(own, pipe.with_extension("key")).unwrap();
        let text = pipe.with_extension("key");
        std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = private_key(&Files {
            key: &text,
            ..sound
        })
        .unwrap_err();
        assert!(error.to_string().ends_with("no private key in PEM format"));
    }

    #[test]
    fn a_key_of_another_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let until = SystemTime::now() + Duration::from_secs(3600);
        let authority = Authority::open(folder.path()).unwrap();
        let [one, other] = ["one", "other"].map(|name| authority.host(&[name.into()], until));
        let (one, other) = (one.unwrap(), other.unwrap());
        let files = Files::new("tcp", &one.ca, &one.certificate, &other.key);
        let refused = Credentials::load(files, KeyLifetime::Lasting).unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.starts_with("tcp.key = ")
                && refused.ends_with("the key of another certificate"),
            "{refused}"
        );
    }
}
