//! The host's side: configuration, daemon, GPUs.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use paragpu_config::host::{DeviceKind, Host};
use paragpu_control::admin::{DeviceInfo, Request, Response, Stats};
use paragpu_control::terminal::counted;
use paragpu_protocol::handshake::VERSION;

use super::confinement;
use super::report::{Report, State};
use crate::control::Control;
use crate::error::{Error, chain};

const SIDE: &str = "host";

/// Whether this machine is a host: it is configured as one, or the daemon's socket
/// exists.
pub(super) fn is_one(control: Option<&Path>) -> bool {
    control.is_some()
        || Host::load_with_origins().map_or(true, |loaded| {
            !loaded.files.is_empty() || loaded.values.daemon.control.exists()
        })
}

/// Checks everything.
pub(super) fn examine(report: &mut Report, control: Option<&Path>) {
    let loaded = match Host::load_with_origins() {
        Ok(loaded) => loaded,
        Err(error) => {
            report
                .add(SIDE, "configuration", State::Bad, chain(&error))
                .advise(match is_closed(&error) {
                    true => "this user may not read it: run `paragpu doctor` as root",
                    false => "paragpud does not start until this is corrected",
                });
            return;
        }
    };
    report.configuration(SIDE, &loaded);
    super::tls::of_host(report, &loaded.values);
    vsock(report, &loaded.values);
    libvirt(report);
    let stats = daemon(report, control);
    driver(report, &loaded.values, stats.as_ref());
    if let Some(stats) = stats {
        devices(report, &stats);
    }
}

/// Whether this user may not read a file of the configuration.
fn is_closed(error: &paragpu_config::Error) -> bool {
    use std::io::ErrorKind::PermissionDenied;
    matches!(error, paragpu_config::Error::Read { source, .. } if source.kind() == PermissionDenied)
}

/// Checks the requirements of vsock, if it is configured.
fn vsock(report: &mut Report, host: &Host) {
    let port = host.vsock.port;
    if port != 0 {
        if Path::new("/dev/vhost-vsock").exists() {
            report.add(SIDE, "vsock", State::Good, format!("port {port}"));
        } else {
            report
                .add(
                    SIDE,
                    "vsock",
                    State::Warning,
                    format!("port {port}, but there is no /dev/vhost-vsock for VMs"),
                )
                .advise("load the module vhost_vsock, or use vsock.unix");
        }
    }
    for socket in &host.vsock.unix.0 {
        let path = socket.path.display();
        let problem = match socket.path.metadata() {
            Ok(found) if found.file_type().is_socket() => None,
            Ok(_) => Some("is not a socket"),
            Err(_) => Some("does not exist"),
        };
        if let Some(problem) = problem {
            report
                .add(
                    SIDE,
                    "vsock",
                    State::Warning,
                    format!("VM {}: {path} {problem}", socket.vm),
                )
                .advise("paragpud makes it when it starts or reads its configuration again");
        } else {
            let detail = format!("VM {}: {path}", socket.vm);
            report.add(SIDE, "vsock", State::Good, detail);
        }
    }
}

/// Checks the requirements of `paragpu attach` by looking at files only, not at libvirt.
fn libvirt(report: &mut Report) {
    if !paragpu_libvirt::is_installed() {
        report.add(
            SIDE,
            "libvirt",
            State::Absent,
            "not installed: needed for `paragpu attach` only",
        );
        return;
    }
    let host = paragpu_libvirt::host::Host::this();
    let hook = Path::new(paragpu_libvirt::hook::PLACE);
    let is_program = |found: std::fs::Metadata| found.permissions().mode() & 0o111 != 0;
    let problem = if !hook.metadata().is_ok_and(is_program) {
        Some((
            format!("{} does not exist or is not executable", hook.display()),
            "install paragpu-host, and restart libvirt's daemon, which then finds it",
        ))
    } else if host.supervisor.is_none() {
        Some((
            "neither systemd nor start-stop-daemon is installed".into(),
            "start paragpu-qemu-device yourself: `paragpu attach --socket`",
        ))
    } else {
        None
    };
    match problem {
        Some((detail, advice)) => report
            .add(SIDE, "libvirt", State::Warning, detail)
            .advise(advice),
        None => {
            let detail = format!("hook {}", hook.display());
            report.add(SIDE, "libvirt", State::Good, detail);
        }
    }
}

/// The kind of GPU that guests get: that of the running daemon, whose options override
/// host.toml, if it has any.
fn kind_of(host: &Host, stats: Option<&Stats>) -> DeviceKind {
    let device = stats.filter(|stats| stats.ready);
    let device = device.and_then(|stats| stats.devices.first());
    match device.and_then(|device| device.device.split_once(':')) {
        Some(("cuda", _)) => DeviceKind::Cuda,
        Some(("software", _)) if host.device.kind != DeviceKind::Auto => DeviceKind::Software,
        _ => host.device.kind,
    }
}

/// Checks NVIDIA's driver by looking at files only.
fn driver(report: &mut Report, host: &Host, stats: Option<&Stats>) {
    let kind = kind_of(host, stats);
    if kind == DeviceKind::Software {
        report.add(
            SIDE,
            "NVIDIA driver",
            State::Absent,
            "not needed: device.kind is \"software\"",
        );
        return;
    }
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    match version.as_deref().and_then(|text| text.lines().next()) {
        Some(line) => {
            report.add(SIDE, "NVIDIA driver", State::Good, line.trim());
        }
        // In a container, for example.
        None if kind == DeviceKind::Cuda && stats.is_some_and(|stats| stats.ready) => {}
        None if kind == DeviceKind::Cuda => {
            report
                .add(
                    SIDE,
                    "NVIDIA driver",
                    State::Bad,
                    "not loaded, and device.kind is \"cuda\"",
                )
                .advise("install it, or set device.kind = \"software\"");
        }
        // Its reason follows. It may have been started with another `device.kind`.
        None if stats.is_some_and(|stats| stats.problem.is_some()) => {
            report.add(SIDE, "NVIDIA driver", State::Absent, "not loaded");
        }
        None => {
            report.add(
                SIDE,
                "NVIDIA driver",
                State::Absent,
                "not loaded: the software GPU is used",
            );
        }
    }
}

/// Reports devices that host.toml gives VMs, and guests of this host do not get.
fn devices_of_vms(report: &mut Report, devices: &[DeviceInfo]) {
    let Ok(host) = Host::load() else { return };
    let index = |device: &DeviceInfo| device.device.rsplit_once(':')?.1.parse().ok();
    let given: Vec<u32> = devices.iter().filter_map(index).collect();
    for (vm, limits) in host.vm.iter() {
        let listed = limits.devices.0.iter();
        for missing in listed.filter(|device| !given.contains(device)) {
            report
                .add(
                    SIDE,
                    "devices of VMs",
                    State::Warning,
                    format!(
                        "[vm.{vm:?}] has device {missing}, which guests of this host do not get"
                    ),
                )
                .advise("correct `devices` in this table of host.toml");
        }
    }
}

/// Checks the daemon. Returns its status if it reports it.
fn daemon(report: &mut Report, given: Option<&Path>) -> Option<Stats> {
    let control = match Control::connect(given) {
        Ok(control) => control,
        Err(error) => {
            report.add(SIDE, "daemon", State::Bad, chain(&error));
            return None;
        }
    };
    match control.ask(&Request::Version {}) {
        Ok(Response::Version {
            daemon,
            protocol,
            pid,
            shared_user,
            ungrouped,
        }) => {
            let same = protocol == VERSION.to_string();
            let state = if same { State::Good } else { State::Warning };
            report.add(
                SIDE,
                "daemon",
                state,
                format!("paragpud {daemon}, process {pid}, protocol {protocol}"),
            );
            confinement::examine(report, pid, shared_user.as_deref());
            confinement::groups(report, ungrouped.as_deref());
        }
        Err(error @ (Error::Silent { .. } | Error::Ended { .. })) => {
            report.add(SIDE, "daemon", State::Bad, chain(&error));
            return None;
        }
        Ok(_) | Err(_) => {
            report
                .add(
                    SIDE,
                    "daemon",
                    State::Bad,
                    "speaks another protocol version",
                )
                .advise("this command and paragpud are of different releases");
            return None;
        }
    }
    match control.ask(&Request::Stats {}) {
        Ok(Response::Stats(stats)) => return Some(stats),
        Ok(_) => report.add(SIDE, "daemon", State::Bad, "does not report its status"),
        Err(error) => report.add(SIDE, "daemon", State::Bad, chain(&error)),
    };
    None
}

/// Reports the daemon's devices and sessions.
fn devices(report: &mut Report, stats: &Stats) {
    if let Some(problem) = &stats.problem {
        report.add(SIDE, "devices", State::Bad, problem.clone());
    } else if !stats.ready {
        report.add(SIDE, "devices", State::Warning, "still looking for them");
    }
    let any_works = stats.devices.iter().any(|it| it.problem.is_none());
    for device in &stats.devices {
        let state = match (&device.problem, any_works) {
            (None, _) => State::Good,
            (Some(_), true) => State::Warning,
            (Some(_), false) => State::Bad,
        };
        let name = if device.name.is_empty() {
            "not opened yet"
        } else {
            &device.name
        };
        let detail = match &device.problem {
            Some(problem) => format!("{}: {problem}", device.device),
            None => format!(
                "{}: {name}, {}, {}, {}",
                device.device,
                crate::sessions::bytes(device.memory),
                counted(device.sessions, "session"),
                counted(device.idle, "idle worker")
            ),
        };
        report.add(SIDE, format!("device {}", device.ordinal), state, detail);
    }
    if stats.ready {
        devices_of_vms(report, &stats.devices);
    }
    let full = stats.sessions >= stats.session_limit;
    let state = if full { State::Warning } else { State::Good };
    let detail = format!("{} of at most {}", stats.sessions, stats.session_limit);
    report.add(SIDE, "sessions", state, detail);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_daemons_kind_of_gpu_is_examined() {
        let stats = |kind: &str, ready: bool| -> Stats {
            let device = serde_json::json!({
                "ordinal": 0, "device": format!("{kind}:0"), "name": "", "memory": 0, "idle": 0,
                "starting": 0, "sessions": 0, "problem": null,
            });
            let stats = serde_json::json!({
                "sessions": 0, "session_limit": 1, "waiting": 0, "pending": 0, "begun": 0,
                "refused": 0, "crashed": 0, "uptime": 1.0, "ready": ready, "vms": [],
                "devices": [device], "problem": null,
            });
            serde_json::from_value(stats).unwrap()
        };
        let mut host = Host::default();
        let kind = |host: &Host, stats: &Stats| kind_of(host, Some(stats));
        let searching = stats("cuda", false);
        let software = stats("software", true);
        assert_eq!(kind(&host, &searching), DeviceKind::Auto);
        assert_eq!(kind(&host, &stats("cuda", true)), DeviceKind::Cuda);
        assert_eq!(kind(&host, &software), DeviceKind::Auto);
        host.device.kind = DeviceKind::Cuda;
        assert_eq!(kind(&host, &software), DeviceKind::Software);
        assert_eq!(kind_of(&host, None), DeviceKind::Cuda);
    }
}
