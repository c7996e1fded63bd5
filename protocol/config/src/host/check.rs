//! Conflicts between values of a host's configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Host;
use crate::Endpoint;
use crate::configuration::{Conflict, check_socket};

/// Checks the values together.
pub(super) fn all(host: &Host) -> Result<(), Conflict> {
    tcp(host)?;
    sockets(host)?;
    leases(host)?;
    tls(host)?;
    migration(host)?;
    vsock(host)?;
    metrics(host)?;
    vms(host)
}

/// Guests on other machines need TLS, unless the network is trusted.
fn tcp(host: &Host) -> Result<(), Conflict> {
    if let Some(address) = host.tcp.listen.0
        && !address.ip().is_loopback()
        && !host.tcp.is_secured()
        && !host.tcp.allow_remote
    {
        return Err(Conflict::new(
            "tcp.listen".into(),
            format!(
                "is {address}, which other machines reach, and connections are neither \
                 encrypted nor authenticated: name tcp.ca, tcp.certificate and tcp.key, which \
                 `paragpu certificate` makes, listen at 127.0.0.1 or [::1], or set \
                 tcp.allow_remote = true where every machine of the network is trusted"
            ),
        ));
    }
    Ok(())
}

/// Each socket has a path of its own, which is not too long.
fn sockets(host: &Host) -> Result<(), Conflict> {
    let daemon = &host.daemon;
    // Beside the socket for guests.
    let devices = daemon.socket.with_extension("devices");
    let metrics = match &host.metrics.listen {
        Endpoint::Unix(path) => path.as_path(),
        _ => Path::new(""),
    };
    let of_vms = host.vsock.unix.0.iter();
    let named = [
        ("daemon.socket", daemon.socket.as_path()),
        ("daemon.socket", devices.as_path()),
        ("daemon.control", daemon.control.as_path()),
        ("lease.socket", host.lease.socket.as_path()),
        ("metrics.listen", metrics),
    ];
    let mut seen = BTreeMap::new();
    let named = named.into_iter();
    for (key, path) in named.chain(of_vms.map(|it| ("vsock.unix", it.path.as_path()))) {
        if path.as_os_str().is_empty() {
            continue;
        }
        check_socket(key, path)?;
        let other = seen.insert(path, key);
        if let Some(other) = other.filter(|other| *other != key) {
            let conflict = Conflict::new(
                key.to_owned(),
                format!("is a socket of {other}, too: give each a path of its own"),
            );
            return Err(conflict.required_by(other));
        }
    }
    Ok(())
}

/// Users of leases come over TCP, with certificates.
fn leases(host: &Host) -> Result<(), Conflict> {
    if !host.lease.socket.as_os_str().is_empty() {
        let missing = match () {
            () if host.lease.authority.as_os_str().is_empty() => Some("lease.authority"),
            () if !host.tcp.is_secured() => Some("tcp.ca"),
            () if host.tcp.listen.0.is_none() => Some("tcp.listen"),
            () => None,
        };
        if let Some(key) = missing {
            let conflict = Conflict::new(
                key.to_owned(),
                "is empty, and users of leases come over tcp with certificates: see \
                 docs/pool.md"
                    .into(),
            );
            return Err(conflict.required_by("lease.socket"));
        }
    }
    Ok(())
}

/// Certificate, key and authority belong together.
fn tls(host: &Host) -> Result<(), Conflict> {
    crate::tls::check(&[
        ("tcp.ca", &host.tcp.ca),
        ("tcp.certificate", &host.tcp.certificate),
        ("tcp.key", &host.tcp.key),
    ])?;
    crate::tls::check(&[
        ("migration.ca", &host.migration.ca),
        ("migration.certificate", &host.migration.certificate),
        ("migration.key", &host.migration.key),
    ])
}

/// Hosts authenticate each other.
fn migration(host: &Host) -> Result<(), Conflict> {
    if host.migration.listen.0.is_some() && host.migration.ca.as_os_str().is_empty() {
        let conflict = Conflict::new(
            "migration.ca".into(),
            "is empty, but both hosts need a certificate to migrate a session: set \
             migration.ca, migration.certificate and migration.key (`paragpu \
             certificate` creates them)"
                .into(),
        );
        return Err(conflict.required_by("migration.listen"));
    }
    Ok(())
}

/// Each VM has a socket of its own.
fn vsock(host: &Host) -> Result<(), Conflict> {
    let sockets = &host.vsock.unix.0;
    for (place, socket) in sockets.iter().enumerate() {
        for earlier in sockets.iter().take(place) {
            if earlier.path == socket.path {
                let path = socket.path.display();
                return Err(Conflict::new(
                    "vsock.unix".into(),
                    format!("names the socket {path} twice"),
                ));
            }
            if earlier.vm == socket.vm {
                return Err(Conflict::new(
                    "vsock.unix".into(),
                    format!(
                        "names two VMs {:?}, with the sockets {} and {}: write VM=PATH with \
                         a name of its own for each",
                        socket.vm,
                        earlier.path.display(),
                        socket.path.display()
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// Only this machine can ask for metrics.
fn metrics(host: &Host) -> Result<(), Conflict> {
    if let Endpoint::Tcp(address) = &host.metrics.listen
        && !address.ip().is_loopback()
    {
        return Err(Conflict::new(
            "metrics.listen".into(),
            format!(
                "is {address}, which other machines reach, and every request is answered: \
                 listen at 127.0.0.1, [::1] or a unix socket, behind a proxy where others ask"
            ),
        ));
    }
    Ok(())
}

/// Devices and context identifiers (CIDs) of VMs.
fn vms(host: &Host) -> Result<(), Conflict> {
    let mut cids = BTreeMap::new();
    let given = &host.device.indices.0;
    distinct("device.indices", given)?;
    for (name, vm) in host.vm.iter() {
        if name.contains(' ') && !is_numbered(name) {
            return Err(Conflict::new(
                format!("vm.{name}"),
                "names no VM: only users (\"uid 1000\") and CIDs (\"cid 5\") have a blank".into(),
            ));
        }
        distinct(&format!("vm.{name}.devices"), &vm.devices.0)?;
        let strange = vm.devices.0.iter().find(|device| !given.contains(device));
        if let Some(device) = strange.filter(|_| !given.is_empty()) {
            return Err(Conflict::new(
                format!("vm.{name}.devices"),
                format!("has device {device}, which device.indices does not give to guests"),
            ));
        }
        match vm.cid {
            0 => {}
            cid @ (1 | 2) => {
                return Err(Conflict::new(
                    format!("vm.{name}.cid"),
                    format!("is {cid}, which is the host's: VMs have 3 and more"),
                ));
            }
            cid => {
                if let Some(other) = cids.insert(cid, name) {
                    return Err(Conflict::new(
                        format!("vm.{name}.cid"),
                        format!(
                            "is {cid}, which vm.{other}.cid is already: give each VM a context \
                             identifier of its own"
                        ),
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Whether a tenant is a user or a CID.
fn is_numbered(name: &str) -> bool {
    let number = ["uid ", "cid "]
        .into_iter()
        .find_map(|kind| name.strip_prefix(kind));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Checks that a list has no device twice: a guest would see one GPU as two.
fn distinct(key: &str, devices: &[u32]) -> Result<(), Conflict> {
    let mut seen = BTreeSet::new();
    match devices.iter().find(|device| !seen.insert(**device)) {
        Some(twice) => Err(Conflict::new(
            key.to_owned(),
            format!("has device {twice} twice"),
        )),
        None => Ok(()),
    }
}
