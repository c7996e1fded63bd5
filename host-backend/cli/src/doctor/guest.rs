//! The guest's side: configuration, device, libraries, and connections to hosts.

use std::path::{Path, PathBuf};

use paragpu_client::connection::connect::connect;
use paragpu_client::managed_memory::can_migrate;
use paragpu_config::Communicator;
use paragpu_config::guest::Guest;
use paragpu_control::terminal::counted;

use super::report::{Report, State};
use crate::error::chain;
use crate::redirect::redirected;

const SIDE: &str = "guest";

/// Checks everything.
pub(super) fn examine(report: &mut Report) {
    let loaded = match Guest::load_with_origins() {
        Ok(loaded) => loaded,
        Err(error) => {
            report
                .add(SIDE, "configuration", State::Bad, chain(&error))
                .advise("no program finds a GPU until this is corrected");
            return;
        }
    };
    report.configuration(SIDE, &loaded);
    pci(report, &loaded.values);
    super::tls::of_guest(report, &loaded.values);
    libraries(report);
    redirector(report);
    managed_memory(report, &loaded.values);
    communicators(report, &loaded.values);
}

/// Checks the PCI device, its driver and its device file.
fn pci(report: &mut Report, guest: &Guest) {
    let device = ivshmem();
    let file = &guest.pci.device;
    match (device, file.exists()) {
        (_, true) => {
            report.add(
                SIDE,
                "PCI device",
                State::Good,
                format!("{} is there", file.display()),
            );
        }
        (Some((slot, Some(driver))), false) => {
            let detail = format!(
                "{slot} belongs to the driver {driver}, and {} is missing",
                file.display()
            );
            report
                .add(SIDE, "PCI device", State::Warning, detail)
                .advise("dmesg | grep paragpu says what the driver met");
        }
        (Some((slot, None)), false) => {
            report
                .add(
                    SIDE,
                    "PCI device",
                    State::Warning,
                    format!("{slot} has no driver"),
                )
                .advise("modprobe paragpu");
        }
        (None, false) => {
            report.add(SIDE, "PCI device", State::Absent, "this machine has none");
        }
    }
}

/// The first ivshmem device's slot and driver.
fn ivshmem() -> Option<(String, Option<String>)> {
    let has =
        |path: PathBuf, id: &str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == id);
    let devices = std::fs::read_dir("/sys/bus/pci/devices").ok()?;
    devices
        .flatten()
        .map(|entry| entry.path())
        .find_map(|path| {
            (has(path.join("vendor"), "0x1af4") && has(path.join("device"), "0x1110")).then(|| {
                let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
                let driver = std::fs::read_link(path.join("driver")).ok();
                (
                    name(&path).unwrap_or_default(),
                    driver.as_deref().and_then(name),
                )
            })
        })
}

/// Reports whether programs that carry NVIDIA's runtime use paragpu's.
fn redirector(report: &mut Report) {
    const SUBJECT: &str = "redirector";
    match redirected() {
        Ok(library) => {
            report.add(SIDE, SUBJECT, State::Good, library.display().to_string());
        }
        Err(reason) if reason.fails() => {
            report
                .add(SIDE, SUBJECT, State::Warning, reason.to_string())
                .advise("programs that carry NVIDIA's CUDA runtime need `paragpu run`");
        }
        Err(reason) => {
            report.add(SIDE, SUBJECT, State::Absent, reason.to_string());
        }
    }
}

/// Reports whether managed memory migrates in programs of this user.
fn managed_memory(report: &mut Report, guest: &Guest) {
    const SUBJECT: &str = "managed memory";
    if !guest.managed.migrate {
        report.add(
            SIDE,
            SUBJECT,
            State::Absent,
            "stays on the host, as configured",
        );
    } else if can_migrate() {
        report.add(
            SIDE,
            SUBJECT,
            State::Good,
            "migrates between program and GPU",
        );
    } else {
        let detail = "stays on the host: this user may not use userfaultfd(2) for system calls";
        report.add(SIDE, SUBJECT, State::Warning, detail).advise(
            "with the Debian packages, add the user to the group render; elsewhere sysctl \
                 vm.unprivileged_userfaultfd=1",
        );
    }
}

/// Reports which libraries programs will load.
fn libraries(report: &mut Report) {
    for library in [
        "libcudart.so.13",
        "libcudart.so.12",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
    ] {
        let Some(path) = find_library(library) else {
            report
                .add(
                    SIDE,
                    library,
                    State::Warning,
                    "not found where programs look",
                )
                .advise("install the guest package, or set LD_LIBRARY_PATH");
            continue;
        };
        // Our libraries contain the names of their environment variables.
        let ours = std::fs::read(&path).is_ok_and(|bytes| {
            let mark = b"PARAGPU_";
            bytes.windows(mark.len()).any(|part| part == mark)
        });
        if ours {
            report.add(SIDE, library, State::Good, path.display().to_string());
        } else {
            report
                .add(
                    SIDE,
                    library,
                    State::Warning,
                    format!("{} is not paragpu's", path.display()),
                )
                .advise("programs load it before paragpu's: remove it or set LD_LIBRARY_PATH");
        }
    }
}

fn find_library(name: &str) -> Option<PathBuf> {
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&listed)
        .filter(|directory| !directory.as_os_str().is_empty())
        .chain(configured_directories())
        .chain(
            [
                "/lib/x86_64-linux-gnu",
                "/usr/lib/x86_64-linux-gnu",
                "/lib64",
                "/usr/lib64",
                "/lib",
                "/usr/lib",
            ]
            .map(PathBuf::from),
        )
        .map(|directory| directory.join(name))
        .find(|path| path.exists())
}

/// The directories of /etc/ld.so.conf.d.
fn configured_directories() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir("/etc/ld.so.conf.d")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .flat_map(|text| {
            text.lines()
                .map(str::trim)
                .filter(|line| line.starts_with('/'))
                .map(PathBuf::from)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Connects with each communicator.
fn communicators(report: &mut Report, guest: &Guest) {
    let candidates = guest.candidates();
    if candidates.is_empty() {
        report
            .add(
                SIDE,
                "communicator",
                State::Bad,
                "\"auto\" finds neither device file nor socket nor port nor address",
            )
            .advise(
                "in a virtual machine give it a paragpu device, on the host start paragpud, or \
                 set vsock.port or tcp.address in /etc/paragpu/guest.toml",
            );
    }
    let mut served = None;
    for communicator in [
        Communicator::Pci,
        Communicator::Shm,
        Communicator::Unix,
        Communicator::Vsock,
        Communicator::Tcp,
    ] {
        let place = match communicator {
            Communicator::Pci => guest.pci.device.display().to_string(),
            Communicator::Shm => guest.shm.socket.display().to_string(),
            Communicator::Tcp => guest.tcp.address.0.clone().unwrap_or_default(),
            Communicator::Vsock if guest.vsock.port == 0 => String::new(),
            Communicator::Vsock => format!("{}:{}", guest.vsock.cid, guest.vsock.port),
            _ => guest.unix.socket.display().to_string(),
        };
        let there = match communicator {
            Communicator::Vsock | Communicator::Tcp => !place.is_empty(),
            _ => Path::new(&place).exists(),
        };
        let candidate = candidates.contains(&communicator);
        if !there && !candidate {
            let detail = match communicator {
                Communicator::Vsock => "no port".into(),
                Communicator::Tcp => "no address".into(),
                _ => format!("{place} does not exist"),
            };
            report.add(SIDE, communicator.to_string(), State::Absent, detail);
            continue;
        }
        let only = Guest {
            communicator,
            ..guest.clone()
        };
        match connect(&only, 0) {
            Ok(connected) => {
                let welcome = connected.welcome;
                connected.leave();
                let used = candidate && served.is_none();
                if used {
                    served = Some(communicator);
                }
                let detail = format!(
                    "{place}: {}, protocol {}{}",
                    counted(welcome.device_count, "device"),
                    welcome.version,
                    if used { "; programs use this" } else { "" },
                );
                report.add(SIDE, communicator.to_string(), State::Good, detail);
            }
            Err(error) => {
                let state = if candidate && served.is_none() && candidates.len() == 1 {
                    State::Bad
                } else {
                    State::Warning
                };
                report.add(SIDE, communicator.to_string(), state, chain(&error));
            }
        }
    }
    if served.is_none() && candidates.len() > 1 {
        report.add(SIDE, "communicator", State::Bad, "none offers a session");
    }
}
