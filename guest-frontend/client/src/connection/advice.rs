//! What a user can do if no session begins, or the device's context fails.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use paragpu_communicator::Error as TravelError;
use paragpu_protocol::status::Status;
use rustix::io::Errno;

use crate::error::{Error, is_timeout};

/// Whether the program has registered memory of its own.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// The program registers memory of its own.
pub(crate) fn note_registered() {
    REGISTERED.store(true, Ordering::Relaxed);
}

/// The advice after a failure of the device's context.
pub(super) fn after_failure(status: Status) -> Option<&'static str> {
    (status == Status::ILLEGAL_ADDRESS && REGISTERED.load(Ordering::Relaxed)).then_some(
        "memory registered with cudaHostRegister has another address on the device: give kernels \
         the one that cudaHostGetDevicePointer returns",
    )
}

/// The advice if the connection broke during the handshake.
pub(super) fn broken_advice(error: &TravelError) -> &'static str {
    match error {
        TravelError::Protocol(_) => {
            "is the address that of paragpud? What answers there does not speak its protocol"
        }
        TravelError::Io { source, .. } if is_limit(source) => {
            "this process may not have more memory, descriptors or threads: see ulimit -v, -n and \
             -u, and the limits of its control group"
        }
        error if is_timeout(error) => {
            "is the address that of paragpud, and is its host overloaded (systemctl status \
             paragpud)? What listens there accepts connections, but does not answer"
        }
        _ => {
            "is the address that of paragpud? Its log may say why it closed the connection \
             (journalctl -u paragpud)"
        }
    }
}

/// Whether the system refuses this process what it needs.
fn is_limit(error: &std::io::Error) -> bool {
    let limits = [Errno::NOMEM, Errno::MFILE, Errno::NFILE];
    limits
        .iter()
        .any(|limit| error.raw_os_error() == Some(limit.raw_os_error()))
}

/// The error if a guest cannot use its VM's device.
pub(super) fn no_channel(node: &Path, error: TravelError) -> Error {
    let errno = match &error {
        TravelError::Io { source, .. } => Errno::from_io_error(source),
        _ => None,
    };
    let advice = match errno {
        // The module reports this if no channel is free.
        Some(Errno::NOSPC) => return Error::ChannelsTaken(node.display().to_string()),
        // Or if the device is gone, or nobody on the host serves it.
        Some(Errno::NODEV) => {
            return Error::DeviceGone {
                node: node.display().to_string(),
                source: error,
            };
        }
        _ => {
            "is the module `paragpu` loaded, and does this user belong to the group of the device \
             file?"
        }
    };
    Error::NoAnswer {
        place: format!("the device {}", node.display()),
        advice,
        source: Box::new(error),
    }
}

/// The advice if a guest cannot use its host's vsock.
pub(super) fn vsock_advice(error: &TravelError) -> &'static str {
    use std::io::ErrorKind;
    let kind = match error {
        TravelError::Io { source, .. } => source.kind(),
        _ => ErrorKind::Other,
    };
    match kind {
        // Some devices reset connections to a port without a listener, others do
        // not answer.
        ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused | ErrorKind::TimedOut => {
            "is paragpud running there with `vsock.port` or `vsock.unix` set to this port, and is \
             vsock.cid right?"
        }
        _ => {
            "this machine has no vsock device: does the VM have one, and is its driver loaded \
             (vmw_vsock_virtio_transport, vmw_vsock_vmci_transport or hv_sock)?"
        }
    }
}

/// The advice if a guest cannot reach the daemon of its machine.
pub(super) fn unix_advice(error: &TravelError) -> &'static str {
    let denied = std::io::ErrorKind::PermissionDenied;
    match error {
        TravelError::Io { source, .. } if source.kind() == denied => {
            "only members of its group may use it (ls -l), which is paragpu in the Debian \
             packages: usermod -aG paragpu USER"
        }
        _ => "is paragpud running (systemctl status paragpud)?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_process_are_not_the_hosts_fault() {
        for errno in [Errno::NOMEM, Errno::MFILE] {
            let error = TravelError::io("cannot map the shared memory", errno);
            assert!(broken_advice(&error).contains("ulimit"), "{errno}");
        }
        let reset = TravelError::io("cannot read", Errno::CONNRESET);
        assert!(broken_advice(&reset).contains("paragpud"));
    }
}
