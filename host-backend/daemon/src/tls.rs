//! The certificates of this host, for daemons of other hosts and for guests.
#![forbid(unsafe_code)]

use paragpu_communicator_secure::{Credentials, Files, KeyLifetime, describe};
use paragpu_config::host::{Host, Migration};

use crate::Error;
use crate::session::now;

/// Loads the certificate for daemons of other hosts; `None` if `migration.ca` is not set.
///
/// # Errors
/// [`Error::Certificate`].
pub fn among_hosts(migration: &Migration) -> Result<Option<Credentials>, Error> {
    if migration.ca.as_os_str().is_empty() {
        return Ok(None);
    }
    let files = Files::new(
        "migration",
        &migration.ca,
        &migration.certificate,
        &migration.key,
    );
    load(files, KeyLifetime::Replaceable).map(Some)
}

/// Loads the certificate for guests at `tcp.listen`; `None` if they connect without TLS.
///
/// # Errors
/// [`Error::Certificate`].
pub fn for_guests(host: &Host) -> Result<Option<Credentials>, Error> {
    if !host.tcp.is_secured() {
        return Ok(None);
    }
    let tcp = &host.tcp;
    let files = Files::new("tcp", &tcp.ca, &tcp.certificate, &tcp.key);
    // Keys of the fastest ciphers have a usage limit, which ends the connection. A
    // session that cannot reconnect needs a cipher without one.
    let wear = match host.limits.reconnect {
        0 => KeyLifetime::Lasting,
        _ => KeyLifetime::Replaceable,
    };
    load(files, wear).map(Some)
}

/// Loads them, and warns if the certificate has expired: every peer would refuse it.
fn load(files: Files<'_>, wear: KeyLifetime) -> Result<Credentials, Error> {
    let credentials = Credentials::load(files, wear)?;
    if describe(files.certificate).is_ok_and(|it| it.expires < now()) {
        tracing::warn!(
            certificate = %files.certificate.display(),
            "{}.certificate has expired: create a new one (`paragpu certificate`), and send \
             paragpud SIGHUP",
            files.section
        );
    }
    Ok(credentials)
}
