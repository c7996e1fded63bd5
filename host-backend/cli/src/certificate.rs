//! Makes an authority and certificates of it, for links between hosts.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use crate::error::{Error, print};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long an authority is good.
const AUTHORITY: u32 = 20 * 365;

/// `paragpu certificate`.
pub fn make(directory: &Path, names: &[String], days: u32) -> Result<(), Error> {
    let name = names.first().map(String::as_str).unwrap_or_default();
    if names
        .iter()
        .any(|name| name.is_empty() || name.contains(['/', '\0']))
        || name == "ca"
    {
        return Err(Error::Refused(format!(
            "{name:?} names no host: give the name or address that --to gives"
        )));
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed(directory))?;
    let (ca, ca_key) = (directory.join("ca.pem"), directory.join("ca.key"));
    if !ca.exists() {
        authority(&ca, &ca_key)?;
    }
    let key = std::fs::read_to_string(&ca_key).map_err(failed(&ca_key))?;
    let key = KeyPair::from_pem(&key).map_err(unusable(&ca_key))?;
    let issuer = Issuer::new(authority_params(), key);
    let own = directory.join(format!("{name}.pem"));
    let mut params = CertificateParams::new(names).map_err(unusable(&own))?;
    params.distinguished_name = called(name);
    // Some programs that check certificates insist on it (RFC 5280, 4.2.1.1).
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // A host takes sessions and sends them.
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    good_for(&mut params, days);
    let key = KeyPair::generate().map_err(unusable(&own))?;
    let certificate = params.signed_by(&key, &issuer).map_err(unusable(&own))?;
    let own_key = directory.join(format!("{name}.key"));
    write(&own_key, &key.serialize_pem(), 0o600)?;
    write(&own, &certificate.pem(), 0o644)?;
    print(format!(
        "[migration]\nca = {:?}\ncertificate = {:?}\nkey = {:?}\n",
        absolute(&ca),
        absolute(&own),
        absolute(&own_key)
    ))
}

fn authority(ca: &Path, ca_key: &Path) -> Result<(), Error> {
    let key = KeyPair::generate().map_err(unusable(ca))?;
    let mut params = authority_params();
    good_for(&mut params, AUTHORITY);
    let certificate = params.self_signed(&key).map_err(unusable(ca))?;
    write(ca_key, &key.serialize_pem(), 0o600)?;
    write(ca, &certificate.pem(), 0o644)
}

/// The same each time, so that a certificate names the authority of `ca.pem`.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = called("paragpu migration authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn called(name: &str) -> DistinguishedName {
    let mut called = DistinguishedName::new();
    called.push(DnType::CommonName, name);
    called
}

/// From a day ago, for clocks that differ.
fn good_for(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now();
    params.not_before = (now - DAY).into();
    params.not_after = (now + DAY * days).into();
}

/// Writes a new file; one that is there stays, and is an error.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let file: Result<File, _> = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(failed(path))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<'_> {
    |source| Error::Write {
        path: path.to_owned(),
        source,
    }
}

fn unusable(path: &Path) -> impl FnOnce(rcgen::Error) -> Error + use<'_> {
    move |error| Error::Refused(format!("{}: {error}", path.display()))
}
