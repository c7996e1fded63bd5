//! Why a domain was not changed.

use std::path::PathBuf;

use thiserror::Error;

/// Why a domain was not changed, or its device process not started.
#[derive(Debug, Error)]
pub enum Error {
    /// The name cannot be part of a path and a unit.
    #[error(
        "{0:?} cannot be the name of a VM (letters, digits, dots, dashes and underscores, at most \
         64); give the device a name with --vm"
    )]
    VmName(String),
    /// There is no libvirt on this machine.
    #[error("libvirt's library cannot be used; on Debian the package libvirt0 has it")]
    Library(#[source] libloading::Error),
    /// Nobody answers.
    #[error(
        "libvirt does not answer ({message}); is its daemon running (systemctl status libvirtd), \
         and may this user use it?"
    )]
    Connect {
        /// libvirt's error.
        message: String,
    },
    /// Another hypervisor than QEMU.
    #[error("{uri} is no QEMU on this machine: the device's process and its VM share memory")]
    Elsewhere {
        /// The connection, as libvirt names it.
        uri: String,
    },
    /// No such domain.
    #[error("there is no domain {domain} at {uri}; `virsh -c {uri} list --all` shows all")]
    NoDomain {
        /// As it was given.
        domain: String,
        /// The connection, as libvirt names it.
        uri: String,
    },
    /// libvirt did not do something.
    #[error("libvirt did not {action}: {message}")]
    Libvirt {
        /// Completes "did not …".
        action: &'static str,
        /// libvirt's error.
        message: String,
    },
    /// The running domain was to change, but it does not run.
    #[error("the domain {0} does not run; --config changes what it will start with")]
    NotRunning(String),
    /// It comes from another host.
    #[error("the domain {0} has not arrived yet: its migration is still in progress")]
    OnItsWay(String),
    /// The configuration was to change, but there is none.
    #[error("the domain {0} is transient: it has no configuration, only --live can change it")]
    Transient(String),
    /// It is there already.
    #[error("the domain {domain} has the device already ({place})")]
    Attached {
        /// Its name.
        domain: String,
        /// Where it was looked for.
        place: &'static str,
    },
    /// It does not exist.
    #[error("the domain {domain} does not have the device ({place})")]
    NotAttached {
        /// Its name.
        domain: String,
        /// Where it was looked for.
        place: &'static str,
    },
    /// The running domain has no place for the device.
    #[error(
        "the domain {0} has no free PCIe port to plug the device into while it runs; \
         `paragpu attach {0} --config` adds it for the next start"
    )]
    NoPort(String),
    /// Another domain uses the socket.
    #[error(
        "{} is the device of the domain {domain}; another name for this one's is given with --vm",
        socket.display()
    )]
    SocketOfOther {
        /// The socket.
        socket: PathBuf,
        /// The other domain's name or number.
        domain: String,
    },
    /// A device process of the user's own has no socket there.
    #[error("{} is not the socket of a device process: start paragpu-qemu-device there first", .0.display())]
    NoSocket(PathBuf),
    /// The guest holds on to the device.
    #[error(
        "the guest of {domain} has not let go of the device within {seconds} s; nothing else was \
         changed, and libvirt takes it away when the guest does (a guest that has not booted \
         cannot)"
    )]
    Held {
        /// The domain's name.
        domain: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The device process does not start.
    #[error("the device process of {vm} does not start: {reason}")]
    Process {
        /// The VM.
        vm: String,
        /// One sentence.
        reason: String,
    },
    /// `paragpu arrive` does not start.
    #[error("paragpu arrive, which would give {domain} its device here, does not start: {reason}")]
    Arrival {
        /// The domain's UUID.
        domain: String,
        /// One sentence.
        reason: String,
    },
    /// Nothing that could start a device process.
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
        /// What.
        path: PathBuf,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// libvirt's description of a domain is not what it should be.
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
