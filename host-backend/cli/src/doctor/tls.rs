//! Checks certificates of both sides: validity, identity and expiry.

use std::time::{Duration, SystemTime};

use paragpu_communicator_secure::{Credentials, Described, Files, KeyLifetime, describe};
use paragpu_config::guest::Guest;
use paragpu_config::host::Host;

use super::report::{Report, State};
use crate::config::unreadable;

/// Time before the expiry of a certificate from which on it is reported.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Checks the certificates for guests at `tcp.listen` and for daemons of other hosts.
pub(super) fn of_host(report: &mut Report, host: &Host) {
    const SIDE: &str = "host";
    let tcp = &host.tcp;
    match tcp.listen.0 {
        None if !tcp.is_secured() => {
            report.add(
                SIDE,
                "tcp",
                State::Absent,
                "host.toml does not set tcp.listen",
            );
        }
        Some(address) if !tcp.is_secured() => {
            let others = !address.ip().is_loopback();
            let state = if others { State::Warning } else { State::Good };
            let reach = match others {
                true => "reachable from other machines",
                false => "reachable only from this machine",
            };
            let detail = format!("{address}, {reach}: neither encrypted nor authenticated");
            let finding = report.add(SIDE, "tcp", state, detail);
            if others {
                finding.advise(
                    "`paragpu certificate DIRECTORY NAME` makes tcp.ca, tcp.certificate and \
                     tcp.key; without them every machine of the network is trusted",
                );
            }
        }
        _ => {
            host_wears(
                report,
                Files::new("tcp", &tcp.ca, &tcp.certificate, &tcp.key),
            );
        }
    }
    let migration = &host.migration;
    if !migration.ca.as_os_str().is_empty() {
        host_wears(
            report,
            Files::new(
                "migration",
                &migration.ca,
                &migration.certificate,
                &migration.key,
            ),
        );
    }
}

/// Checks the certificate that this VM presents to hosts.
pub(super) fn of_guest(report: &mut Report, guest: &Guest) {
    const SIDE: &str = "guest";
    let tcp = &guest.tcp;
    if tcp.ca.as_os_str().is_empty() {
        if let Some(address) = &tcp.address.0 {
            let detail = format!("{address} without TLS: tcp.ca is not set");
            report.add(SIDE, "tcp", State::Absent, detail);
        }
        return;
    }
    let files = Files {
        key_shared: tcp.key_shared,
        ..Files::new("tcp", &tcp.ca, &tcp.certificate, &tcp.key)
    };
    let Some(described) = usable(report, SIDE, "tcp", files) else {
        return;
    };
    match &described.identity {
        Some(identity) => {
            let memory = match identity.memory {
                0 => "memory as the host allows".into(),
                bytes => format!("{} of memory", crate::sessions::bytes(bytes)),
            };
            let detail = format!("TLS as VM {}, {memory}", identity.vm);
            report.add(SIDE, "tcp", State::Good, detail);
        }
        None => report
            .add(SIDE, "tcp", State::Bad, "the certificate names no VM")
            .advise("`paragpu certificate DIRECTORY --vm NAME` on the host makes one"),
    }
}

/// Checks that a certificate of this host is usable and not a VM's.
fn host_wears(report: &mut Report, files: Files<'_>) {
    const SIDE: &str = "host";
    let what = files.section;
    // paragpud may be another user.
    if let Some(path) = unreadable(&files) {
        let detail = format!("not checked: this user may not read {}", path.display());
        report
            .add(SIDE, what, State::Warning, detail)
            .advise("`paragpu doctor` checks it for root, or for paragpud's user");
        return;
    }
    let Some(described) = usable(report, SIDE, what, files) else {
        return;
    };
    if described.identity.is_some() {
        report
            .add(SIDE, what, State::Bad, "the certificate is a VM's")
            .advise("`paragpu certificate DIRECTORY NAME` makes a host's");
        return;
    }
    let detail = format!("TLS as {}", described.names.join(", "));
    report.add(SIDE, what, State::Good, detail);
}

/// The certificate, if the three files are usable today.
fn usable(
    report: &mut Report,
    side: &'static str,
    what: &str,
    files: Files<'_>,
) -> Option<Described> {
    if let Err(error) = Credentials::load(files, KeyLifetime::Replaceable) {
        report
            .add(side, what, State::Bad, error.to_string())
            .advise("`paragpu certificate` makes these files; see `paragpu help certificate`");
        return None;
    }
    let described = match describe(files.certificate) {
        Ok(described) => described,
        Err(problem) => {
            let detail = format!("{}: {problem}", files.certificate.display());
            report.add(side, what, State::Bad, detail);
            return None;
        }
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let left = described
        .expires
        .saturating_sub(now.unwrap_or_default().as_secs());
    let path = files.certificate.display();
    if left == 0 {
        report
            .add(side, what, State::Bad, format!("{path} has expired"))
            .advise("create a new one, and send paragpud SIGHUP on a host");
    } else if left < EXPIRY_WARNING.as_secs() {
        let detail = format!("{path} expires in {} hours", left / 3600);
        report.add(side, what, State::Warning, detail);
    }
    Some(described)
}
