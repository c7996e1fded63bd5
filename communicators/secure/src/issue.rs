//! Creates an authority and issues certificates.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use paragpu_config::files;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SubjectPublicKeyInfo,
};
use rustls::pki_types::ServerName;

use crate::Identity;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long an authority's certificate is valid.
const AUTHORITY: Duration = Duration::from_secs(20 * 365 * 24 * 60 * 60);

/// Why a certificate could not be issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// A file or directory cannot be used.
    #[error("cannot use {}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// The certificate exists, and is not to be renewed.
    #[error("{} exists: give --renew for a new certificate of the same key", .0.display())]
    Exists(PathBuf),
    /// A key or a name is unusable.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file that contains it, or that would be named after it.
        path: PathBuf,
        /// One clause.
        reason: String,
    },
}

/// An authority in a directory: `ca.pem` and `ca.key`.
#[derive(Debug)]
pub struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    renews: bool,
}

/// The files of an issued certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key, readable by its owner only.
    pub key: PathBuf,
}

impl Authority {
    /// Opens the authority in `directory`, and creates it if it does not exist.
    pub fn open(directory: &Path) -> Result<Self, IssueError> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed(directory))?;
        let directory = std::path::absolute(directory).map_err(failed(directory))?;
        let (ca, ca_key) = (directory.join("ca.pem"), directory.join("ca.key"));
        if !ca.exists() {
            // An interrupted call may have left the key alone.
            let left = ca_key.exists();
            let key = match left {
                true => read_key(&ca_key)?,
                false => KeyPair::generate().map_err(unusable(&ca))?,
            };
            let mut params = authority();
            (params.not_before, params.not_after) = span(SystemTime::now() + AUTHORITY);
            let certificate = params.self_signed(&key).map_err(unusable(&ca))?;
            if !left {
                write(&ca_key, &key.serialize_pem(), 0o600)?;
            }
            write(&ca, &certificate.pem(), 0o644)?;
        }
        Self::load(&directory)
    }

    /// Opens the authority in `directory`, which must exist.
    pub fn load(directory: &Path) -> Result<Self, IssueError> {
        let directory = directory.to_owned();
        let (ca, ca_key) = (directory.join("ca.pem"), directory.join("ca.key"));
        let key = read_key(&ca_key)?;
        let certificate = files::read_text(&ca).map_err(failed(&ca))?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(unusable(&ca))?;
        Ok(Self {
            directory,
            issuer,
            renews: false,
        })
    }

    /// From now on replaces certificates: a new one gets the private key of the old one, which
    /// must exist.
    #[must_use]
    pub fn renewing(self) -> Self {
        Self {
            renews: true,
            ..self
        }
    }

    /// Issues a certificate for a host with these names and addresses. It lets the host
    /// accept guests and migrations, and send migrations. The files are named after the
    /// first name.
    pub fn host(&self, names: &[String], until: SystemTime) -> Result<Issued, IssueError> {
        if let Some(name) = names.iter().find(|name| !names_host(name)) {
            return Err(IssueError::Unusable {
                path: name.into(),
                reason: "a host's name is a DNS name or an IP address".into(),
            });
        }
        let name = names.first().map_or("", String::as_str);
        let params = CertificateParams::new(names).map_err(unusable(Path::new(name)))?;
        let usages = [
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.issue(name, params, &usages, until)
    }

    /// Issues a certificate for a guest. It proves only which VM the guest belongs to: no
    /// host accepts a migration from its holder, and no guest accepts its holder as a host.
    /// The files are named after the VM.
    pub fn guest(&self, identity: &Identity) -> Result<Issued, IssueError> {
        let (params, until) = of_guest(identity)?;
        self.issue(&identity.vm, params, &GUEST, until)
    }

    /// Issues a guest's certificate (PEM) for a public key (PEM). Writes no files; the
    /// private key stays with its owner.
    pub fn lease(&self, identity: &Identity, key: &str) -> Result<String, IssueError> {
        let path = Path::new(&identity.vm);
        let (params, until) = of_guest(identity)?;
        let key = SubjectPublicKeyInfo::from_pem(key).map_err(unusable(path))?;
        let signed = self.sign(&identity.vm, params, &GUEST, until, &key);
        signed.map(|certificate| certificate.pem())
    }

    /// The authority's own certificate (PEM).
    pub fn certificate(&self) -> Result<String, IssueError> {
        let ca = self.directory.join("ca.pem");
        files::read_text(&ca).map_err(failed(&ca))
    }

    fn issue(
        &self,
        name: &str,
        params: CertificateParams,
        usages: &[ExtendedKeyUsagePurpose],
        until: SystemTime,
    ) -> Result<Issued, IssueError> {
        if name.is_empty() || name == "ca" || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(IssueError::Unusable {
                path: name.into(),
                reason: "no files can be named after it".into(),
            });
        }
        let issued = Issued {
            ca: self.directory.join("ca.pem"),
            certificate: self.directory.join(format!("{name}.pem")),
            key: self.directory.join(format!("{name}.key")),
        };
        let path = issued.certificate.as_path();
        if self.renews {
            let key = read_key(&issued.key)?;
            let certificate = self.sign(name, params, usages, until, &key)?;
            // No certificate has this name. A file that an interrupted call left is replaced.
            let beside = self.directory.join(format!(".{name}.pem"));
            let _ = std::fs::remove_file(&beside);
            write(&beside, &certificate.pem(), 0o644)?;
            std::fs::rename(&beside, path).map_err(failed(path))?;
            return Ok(issued);
        }
        let key = KeyPair::generate().map_err(unusable(path))?;
        let certificate = self.sign(name, params, usages, until, &key)?;
        write(&issued.key, &key.serialize_pem(), 0o600).map_err(exists)?;
        write(path, &certificate.pem(), 0o644).map_err(exists)?;
        Ok(issued)
    }

    fn sign(
        &self,
        name: &str,
        mut params: CertificateParams,
        usages: &[ExtendedKeyUsagePurpose],
        until: SystemTime,
        key: &impl PublicKeyData,
    ) -> Result<rcgen::Certificate, IssueError> {
        params.distinguished_name = called(name);
        // Some programs that check certificates require it (RFC 5280, 4.2.1.1).
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages.to_vec();
        (params.not_before, params.not_after) = span(until);
        let signed = params.signed_by(key, &self.issuer);
        signed.map_err(unusable(Path::new(name)))
    }
}

/// The rights that a guest's certificate grants.
const GUEST: [ExtendedKeyUsagePurpose; 1] = [ExtendedKeyUsagePurpose::ClientAuth];

/// The contents of a guest's certificate, and its expiry.
fn of_guest(identity: &Identity) -> Result<(CertificateParams, SystemTime), IssueError> {
    let path = Path::new(&identity.vm);
    let refused = |reason| IssueError::Unusable {
        path: path.to_owned(),
        reason,
    };
    let uri = identity.uri().map_err(refused)?;
    let mut params = CertificateParams::default();
    let uri = Ia5String::try_from(uri).map_err(unusable(path))?;
    params.subject_alt_names = vec![SanType::URI(uri)];
    let until = SystemTime::UNIX_EPOCH + Duration::from_secs(identity.expires);
    Ok((params, until))
}

/// Creates a private key and its public key (PEM).
///
/// # Errors
/// [`IssueError`]: the system has no randomness.
pub fn key() -> Result<(String, String), IssueError> {
    let key = KeyPair::generate().map_err(unusable(Path::new("key")))?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = called("paragpu authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Whether peers could connect to a name, or to names under it if it is `*.NAME`.
fn names_host(name: &str) -> bool {
    let under = name.strip_prefix("*.").unwrap_or(name);
    ServerName::try_from(under).is_ok()
}

fn called(name: &str) -> DistinguishedName {
    let mut called = DistinguishedName::new();
    called.push(DnType::CommonName, name);
    called
}

/// The validity begins a day ago, because clocks differ.
fn span<T: From<SystemTime>>(until: SystemTime) -> (T, T) {
    let from = SystemTime::now().min(until) - DAY;
    (from.into(), until.into())
}

/// Reads a private key.
fn read_key(path: &Path) -> Result<KeyPair, IssueError> {
    let key = files::read_text(path).map_err(failed(path))?;
    KeyPair::from_pem(&key).map_err(unusable(path))
}

/// Writes a new file. An existing one is kept, and is an error.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), IssueError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(failed(path))?;
    file.write_all(text.as_bytes()).map_err(|error| {
        // The next call would take an incomplete file for a key or certificate.
        let _ = std::fs::remove_file(path);
        failed(path)(error)
    })
}

fn exists(error: IssueError) -> IssueError {
    match error {
        IssueError::File { path, source } if source.kind() == std::io::ErrorKind::AlreadyExists => {
            IssueError::Exists(path)
        }
        other => other,
    }
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> IssueError + use<'_> {
    |source| IssueError::File {
        path: path.to_owned(),
        source,
    }
}

fn unusable(path: &Path) -> impl FnOnce(rcgen::Error) -> IssueError + use<'_> {
    move |error| IssueError::Unusable {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}
