//! Errors of opening a session.

use paragpu_communicator::Error as TravelError;
use paragpu_communicator_secure::CertificateError;
pub use paragpu_protocol::chain;
use paragpu_protocol::handshake::HandshakeError;
use paragpu_protocol::status::Status;
use thiserror::Error;

/// The error of a call: a CUDA driver API result other than success.
pub type Result<T, E = Status> = std::result::Result<T, E>;

/// Why there is no session.
#[derive(Debug, Error)]
pub enum Error {
    /// The configuration is unusable.
    #[error("the configuration is unusable")]
    Configuration(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nothing answers at the configured address.
    #[error("no host answers at {place}; {advice}")]
    NoAnswer {
        /// The address.
        place: String,
        /// The advice to the user.
        advice: &'static str,
        /// The error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The VM's device is gone, or nobody on the host serves it any more. Its sessions ended with
    /// it.
    #[error(
        "no host answers at the device {node}; its process on the host has ended, or it was \
         unplugged: plug the device in again, or restart this VM"
    )]
    DeviceGone {
        /// The device node.
        node: String,
        /// The error.
        #[source]
        source: TravelError,
    },
    /// Other processes use every channel of the VM's device.
    #[error(
        "all channels of the device {0} are in use by other processes of this VM: end one, or \
         start paragpu-qemu-device for the VM with more (--channels)"
    )]
    ChannelsTaken(String),
    /// No communicator of the automatic order found a host.
    #[error(
        "no host was found: {0}; set `communicator` in /etc/paragpu/guest.toml, or run `paragpu doctor`"
    )]
    NothingFound(String),
    /// The host refused the guest.
    #[error("the host refuses a session: {0}")]
    Refused(String),
    /// The session is on another host, or uses another communicator.
    #[error("the host says that the session is at {communicator} {address}")]
    Elsewhere {
        /// How to reach it.
        communicator: String,
        /// The address.
        address: String,
    },
    /// The two sides are incompatible.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The host's answer to the hello is not one.
    #[error("the host's answer to the hello cannot be read: {0}")]
    BadAnswer(String),
    /// The connection broke during the handshake.
    #[error("the connection to {place} broke during the handshake; {advice}")]
    Broke {
        /// The communicator and the address.
        place: String,
        /// The advice to the user.
        advice: &'static str,
        /// The error.
        #[source]
        source: TravelError,
    },
    /// A certificate or key of this side cannot be used.
    #[error(
        "{0}; `paragpu certificate DIRECTORY --vm NAME` on the host makes a VM's files, and \
         `paragpu doctor` looks at them"
    )]
    Certificate(CertificateError),
    /// The two sides do not trust each other's certificates.
    #[error(
        "this VM and the host {name} do not trust each other: {reason}; both certificates must be \
         good today and of an authority in the other's tcp.ca, and the host's must name it as \
         tcp.address or tcp.name do"
    )]
    Untrusted {
        /// How the configuration names the host.
        name: String,
        /// The TLS error.
        reason: String,
    },
    /// The host closed the connection after its first bytes of TLS.
    #[error(
        "the host {0} closed the connection during the TLS handshake: does tcp.address name its \
         tcp.listen, not its migration.listen? The log of its paragpud may say more (journalctl -u \
         paragpud)"
    )]
    Closed(String),
    /// The host at the other end does not speak TLS.
    #[error(
        "what listens on {0} does not speak TLS: name tcp.ca, tcp.certificate and tcp.key in its \
         host.toml, or none of them in this guest.toml"
    )]
    NoTls(String),
    /// The address range of the device's memory is taken.
    #[error(
        "cannot reserve the address range {address:#x} for device memory; {}",
        match source.kind() {
            std::io::ErrorKind::AlreadyExists =>
                "something in this process has most of it already, such as a second copy of paragpu \
                 (dlmopen) or a heap of Java's ZGC above 48 GiB (-Xmx)",
            _ => "is the address space limited (ulimit -v)?",
        }
    )]
    Reserve {
        /// First address.
        address: u64,
        /// Errors of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A device ordinal out of range.
    #[error("there is no device {0}")]
    NoDevice(u32),
}

impl Error {
    /// The CUDA result for this error: no device if no host was found; not ready if the
    /// host is unusable.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::NoAnswer { .. } | Self::DeviceGone { .. } | Self::NothingFound(_) => {
                Status::NO_DEVICE
            }
            Self::NoDevice(_) => Status::INVALID_DEVICE,
            Self::Handshake(_) => Status::SYSTEM_DRIVER_MISMATCH,
            _ => Status::SYSTEM_NOT_READY,
        }
    }

    /// Whether the host did not answer in time, so that another attempt would wait as long.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        is_timeout(self)
    }
}

/// Whether the error or one of its sources is a timeout.
pub(crate) fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    let own = error.downcast_ref::<std::io::Error>();
    own.is_some_and(|own| own.kind() == std::io::ErrorKind::TimedOut)
        || error.source().is_some_and(is_timeout)
}
