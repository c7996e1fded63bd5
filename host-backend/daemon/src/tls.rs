//! The certificates of this host, for daemons of other hosts and for guests.
#![forbid(unsafe_code)]

use paragpu_communicator_secure::{Credentials, Files, Wear};
use paragpu_config::host::{Host, Migration};

use crate::Error;

/// What other hosts are shown; `None` where `migration` names no files.
///
/// # Errors
/// [`Error::Certificate`].
pub fn among_hosts(migration: &Migration) -> Result<Option<Credentials>, Error> {
    if migration.ca.as_os_str().is_empty() {
        return Ok(None);
    }
    let files = Files {
        section: "migration",
        ca: &migration.ca,
        certificate: &migration.certificate,
        key: &migration.key,
        key_shared: false,
    };
    Ok(Some(Credentials::load(files, Wear::Replaceable)?))
}

/// What guests at `tcp.listen` are shown; `None` if they come without TLS.
///
/// # Errors
/// [`Error::Certificate`].
pub fn for_guests(host: &Host) -> Result<Option<Credentials>, Error> {
    if !host.tcp.is_secured() {
        return Ok(None);
    }
    let files = Files {
        section: "tcp",
        ca: &host.tcp.ca,
        certificate: &host.tcp.certificate,
        key: &host.tcp.key,
        key_shared: false,
    };
    // A session that cannot continue over another connection must not lose its own.
    let wear = match host.limits.reconnect {
        0 => Wear::Lasting,
        _ => Wear::Replaceable,
    };
    Ok(Some(Credentials::load(files, wear)?))
}
