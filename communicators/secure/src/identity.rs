//! The VM of a guest's certificate, and its limits.
//!
//! They are encoded in a subject alternative name of type URI:
//! `paragpu:vm/NAME?memory=BYTES&sessions=COUNT`. Omitted values are not limited by the
//! certificate. An unknown parameter is an error, because ignoring a limit that a later
//! release added would grant too much.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use paragpu_config::files;
use paragpu_protocol::{MAX_VM_NAME, is_vm_name};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The contents of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The names and addresses of hosts that it names.
    pub names: Vec<String>,
    /// The VM that it names.
    pub identity: Option<Identity>,
    /// When it expires, in seconds since 1970.
    pub expires: u64,
}

/// Reads the first certificate of a file.
///
/// # Errors
/// One clause.
pub fn describe(path: &Path) -> Result<Described, String> {
    let (_, text) = files::read(path).map_err(|error| error.to_string())?;
    let certificate = CertificateDer::from_pem_slice(&text).map_err(|error| error.to_string())?;
    let (_, parsed) = X509Certificate::from_der(&certificate)
        .map_err(|error| format!("cannot be read: {error}"))?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|error| format!("has names that cannot be read: {error}"))?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => address(bytes),
        _ => None,
    });
    Ok(Described {
        names: names.collect(),
        identity: Identity::of(&certificate)?,
        expires: u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0),
    })
}

/// Checks that a certificate is an authority's.
///
/// # Errors
/// One clause.
pub(crate) fn check_authority(certificate: &CertificateDer<'_>) -> Result<(), String> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| format!("it cannot be read: {error}"))?;
    let usage = parsed.key_usage().ok().flatten();
    let signs = usage.is_none_or(|usage| usage.value.key_cert_sign());
    if parsed.is_ca() && signs {
        return Ok(());
    }
    Err(format!(
        "{} is not an authority: name the file with the certificate that signed those of the other \
         side, such as ca.pem of `paragpu certificate`",
        parsed.subject()
    ))
}

fn address(bytes: &[u8]) -> Option<String> {
    let four = <[u8; 4]>::try_from(bytes).map(|four| IpAddr::from(four).to_string());
    let sixteen = || <[u8; 16]>::try_from(bytes).map(|it| IpAddr::from(it).to_string());
    four.or_else(|_| sixteen()).ok()
}

const SCHEME: &str = "paragpu:vm/";

/// The contents of a guest's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The VM's name.
    pub vm: String,
    /// Maximum device memory of all its sessions together, in bytes; 0 for no limit.
    pub memory: u64,
    /// Maximum number of concurrent sessions; 0 for no limit.
    pub sessions: u32,
    /// The serial number of its lease; 0 for none. The certificate is valid only while the
    /// host has that lease.
    pub lease: u64,
    /// When it expires, in seconds since 1970; 0 for never.
    pub expires: u64,
}

impl Identity {
    /// Reads the identity in a certificate; `None` for a certificate without one, which is
    /// not for a guest.
    ///
    /// # Errors
    /// One clause.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Option<Self>, String> {
        let (_, certificate) = X509Certificate::from_der(certificate)
            .map_err(|error| format!("cannot be read: {error}"))?;
        let names = certificate
            .subject_alternative_name()
            .map_err(|error| format!("has names that cannot be read: {error}"))?;
        let uris = names.iter().flat_map(|names| &names.value.general_names);
        let mut uris = uris.filter_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix(SCHEME),
            _ => None,
        });
        let Some(uri) = uris.next() else {
            return Ok(None);
        };
        if uris.next().is_some() {
            return Err("names two VMs".into());
        }
        let expires = certificate.validity().not_after.timestamp();
        let expires = u64::try_from(expires).unwrap_or(1);
        Self::read(uri, expires).map(Some)
    }

    fn read(uri: &str, expires: u64) -> Result<Self, String> {
        let (vm, limits) = uri.split_once('?').unwrap_or((uri, ""));
        check_name(vm)?;
        let mut identity = Self {
            vm: vm.to_owned(),
            memory: 0,
            sessions: 0,
            lease: 0,
            expires,
        };
        let mut seen = BTreeSet::new();
        for limit in limits.split('&').filter(|limit| !limit.is_empty()) {
            let (key, value) = limit.split_once('=').unwrap_or((limit, ""));
            let number = value.parse::<u64>().ok();
            match (key, number) {
                _ if !seen.insert(key) => return Err(format!("limits {key:?} twice")),
                ("memory", Some(bytes)) => identity.memory = bytes,
                ("lease", Some(serial)) => identity.lease = serial,
                ("sessions", Some(count)) => {
                    identity.sessions = u32::try_from(count).unwrap_or(u32::MAX);
                }
                _ => {
                    return Err(format!(
                        "has a limit {limit:?} that this release does not know"
                    ));
                }
            }
        }
        Ok(identity)
    }

    /// The URI that encodes this identity, without [`expires`](Self::expires), which a
    /// certificate states itself.
    ///
    /// # Errors
    /// One clause: the VM's name is invalid.
    pub fn uri(&self) -> Result<String, String> {
        check_name(&self.vm)?;
        let limits = [
            ("memory", self.memory),
            ("sessions", u64::from(self.sessions)),
            ("lease", self.lease),
        ];
        let limits: Vec<String> = limits
            .iter()
            .filter(|(_, value)| *value != 0)
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let query = if limits.is_empty() { "" } else { "?" };
        Ok(format!("{SCHEME}{}{query}{}", self.vm, limits.join("&")))
    }
}

/// Checks a VM's name for use in a certificate.
fn check_name(vm: &str) -> Result<(), String> {
    if !is_vm_name(vm, |c| c.is_ascii_alphanumeric() || "._-~".contains(c)) {
        let start: String = vm.chars().take(MAX_VM_NAME).collect();
        return Err(format!(
            "names the VM {start:?}: a name has 1 to {MAX_VM_NAME} letters, digits and . _ - ~, and \
             is no address"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_uri_says_is_read_again() {
        for (memory, sessions, lease) in [
            (0, 0, 0),
            (8 << 30, 0, 0),
            (0, 3, 0),
            (1, 1, 0),
            (1, 0, u64::MAX),
        ] {
            let identity = Identity {
                vm: "vm-1.example_~".into(),
                memory,
                sessions,
                lease,
                expires: 7,
            };
            let uri = identity.uri().unwrap();
            let read = Identity::read(uri.strip_prefix(SCHEME).unwrap(), 7);
            assert_eq!(read, Ok(identity));
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for uri in [
            "",
            "?memory=1",
            "10.0.0.1",
            "a b",
            "a/b",
            "a?memory=x",
            "a?memory=1&memory=2",
            "a?memory",
            "a?gpus=1",
            "a?memory=99999999999999999999",
        ] {
            assert!(Identity::read(uri, 1).is_err(), "{uri}");
        }
        assert!(Identity::read(&"x".repeat(65), 1).is_err());
    }
}
