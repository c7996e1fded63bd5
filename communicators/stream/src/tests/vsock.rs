//! vsock, if the kernel has its loopback (CONFIG_VSOCKETS_LOOPBACK, module
//! `vsock_loopback`). The tests are skipped without it.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use ::vsock::VMADDR_CID_LOCAL;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Socket, streams};
use crate::sockets::{LARGEST_VSOCK_WRITE, connect_vsock, listen_vsock};

/// Asks the kernel for a free port (`VMADDR_PORT_ANY`).
const ANY_PORT: u32 = u32::MAX;

/// If this is set, the tests fail rather than skip without a loopback.
const REQUIRED: &str = "PARAGPU_TEST_VSOCK";

/// A connected pair over the loopback, if the kernel has one.
fn try_pair() -> Result<(OwnedFd, OwnedFd), String> {
    let listener = listen_vsock(ANY_PORT).map_err(|error| format!("{error:?}"))?;
    let port = listener.local_addr().unwrap().port();
    let guest = connect_vsock(VMADDR_CID_LOCAL, port).map_err(|error| format!("{error:?}"))?;
    let patience = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&listener, PollFlags::IN)];
    if poll(&mut fds, Some(&patience)).unwrap() == 0 {
        return Err("the connection did not arrive at the listener".into());
    }
    let (host, _) = listener.accept().unwrap();
    Ok((guest.into(), host.into()))
}

pub(super) fn pair() -> (OwnedFd, OwnedFd) {
    try_pair().unwrap()
}

/// Whether the calling test can run. If not, prints the reason past the capture of test
/// programs, so that `make test` counts it as skipped.
fn available() -> bool {
    static LACKS: OnceLock<Option<String>> = OnceLock::new();
    let Some(error) = LACKS.get_or_init(|| try_pair().err()) else {
        return true;
    };
    assert!(
        std::env::var_os(REQUIRED).is_none(),
        "{REQUIRED} is set, and there is no vsock loopback: {error}"
    );
    paragpu_corpora::skip(&format!("this kernel has no vsock loopback: {error}"));
    false
}

#[test]
fn writes_are_bounded_whatever_is_asked_for() {
    if available() {
        let (guest, _host) = pair();
        assert_eq!(
            crate::sockets::largest_write(&guest).unwrap(),
            LARGEST_VSOCK_WRITE
        );
    }
    let (unix, _peer) = super::pair(Socket::Unix);
    assert_eq!(crate::sockets::largest_write(&unix).unwrap(), usize::MAX);
}

mod polling {
    use super::*;
    paragpu_communicator::conformance_tests!(
        if available(),
        streams(Socket::Vsock, Duration::from_micros(50))
    );
}

mod sleeping {
    use super::*;
    paragpu_communicator::conformance_tests!(
        if available(),
        streams(Socket::Vsock, Duration::ZERO)
    );
}
