//! Errors of changing a domain.

use std::path::PathBuf;

use thiserror::Error;

/// Why a domain was not changed, or its device process was not started.
#[derive(Debug, Error)]
pub enum Error {
    /// The name cannot be part of a path and of a unit's name.
    #[error(
        "{0:?} cannot be the name of a VM (letters, digits, dots, dashes and underscores, at most \
         64, and no IP address); give the device a name with --vm"
    )]
    VmName(String),
    /// There is no libvirt on this machine.
    #[error("libvirt's library cannot be loaded; on Debian it is in the package libvirt0")]
    Library(#[source] libloading::Error),
    /// libvirt's daemon does not answer.
    #[error(
        "libvirt does not answer ({message}); is its daemon running (systemctl status libvirtd), \
         and may this user use it?"
    )]
    Connect {
        /// libvirt's error.
        message: String,
    },
    /// Another hypervisor than QEMU.
    #[error("{uri} is not QEMU on this machine, but the device process shares memory with its VM")]
    Elsewhere {
        /// The connection, as libvirt names it.
        uri: String,
    },
    /// No such domain.
    #[error("there is no domain {domain} at {uri}; `virsh -c {uri} list --all` shows all")]
    NoDomain {
        /// The domain as it was given.
        domain: String,
        /// The connection, as libvirt names it.
        uri: String,
    },
    /// A call of libvirt failed.
    #[error("libvirt did not {action}: {message}")]
    Libvirt {
        /// Completes "did not …".
        action: &'static str,
        /// libvirt's error.
        message: String,
    },
    /// The running domain should change, but it is not running.
    #[error("the domain {0} is not running; use --config to change its configuration")]
    NotRunning(String),
    /// The domain is migrating from another host.
    #[error("the domain {0} has not arrived yet: its migration is still in progress")]
    OnItsWay(String),
    /// The configuration should change, but there is none.
    #[error("the domain {0} is transient: it has no configuration; use --live")]
    Transient(String),
    /// The domain already has the device.
    #[error("the domain {domain} already has the device ({place})")]
    Attached {
        /// The name of the domain.
        domain: String,
        /// The parts of the domain that were searched.
        place: &'static str,
    },
    /// The domain does not have the device.
    #[error("the domain {domain} does not have the device ({place})")]
    NotAttached {
        /// The name of the domain.
        domain: String,
        /// The parts of the domain that were searched.
        place: &'static str,
    },
    /// The running domain has no free port for the device.
    #[error(
        "the domain {0} has no free PCIe port to plug the device into while it runs; \
         `paragpu attach {0} --config` adds it for the next start"
    )]
    NoPort(String),
    /// Another domain uses the socket.
    #[error(
        "{} is the device of the domain {domain}; give this one another VM name with --vm",
        socket.display()
    )]
    SocketOfOther {
        /// The socket.
        socket: PathBuf,
        /// The other domain's name or number.
        domain: String,
    },
    /// There is no socket of a device process at the path that the user gave.
    #[error("{} is not the socket of a device process: start paragpu-qemu-device there first", .0.display())]
    NoSocket(PathBuf),
    /// The guest has not released the device.
    #[error(
        "the guest of {domain} has not released the device within {seconds} s; nothing else was \
         changed, and libvirt removes it once the guest does (a guest that has not booted \
         cannot)"
    )]
    Held {
        /// The domain's name.
        domain: String,
        /// How long the command waited.
        seconds: u64,
    },
    /// The device process cannot be started.
    #[error("the device process of {vm} does not start: {reason}")]
    Process {
        /// The VM.
        vm: String,
        /// One sentence.
        reason: String,
    },
    /// `paragpu arrive` cannot be started.
    #[error("paragpu arrive, which would give {domain} its device here, does not start: {reason}")]
    Arrival {
        /// The domain's UUID.
        domain: String,
        /// One sentence.
        reason: String,
    },
    /// There is no supervisor that could start a device process.
    #[error(
        "this host has neither systemd nor start-stop-daemon, which start device processes; start \
         paragpu-qemu-device yourself and give its --socket"
    )]
    NoSupervisor,
    /// A file or a program of the system cannot be used.
    #[error("cannot {action} {}", path.display())]
    System {
        /// Completes "cannot …".
        action: &'static str,
        /// The path of the file or program.
        path: PathBuf,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// libvirt's description of a domain is invalid.
    #[error("the domain's XML cannot be read: {0}")]
    Xml(String),
}

impl Error {
    /// For `map_err`: `action` completes "cannot …".
    pub(crate) fn system(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::System {
            action,
            path,
            source,
        }
    }
}
