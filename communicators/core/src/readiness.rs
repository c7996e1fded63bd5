//! Waiting for descriptors.

use std::time::Instant;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

use crate::Error;

/// Polls descriptors until one is ready. Returns false if `deadline` passed before.
///
/// # Errors
/// [`Error::Io`] with this `context`, if poll(2) fails.
pub fn poll_until(
    fds: &mut [PollFd<'_>],
    deadline: Option<Instant>,
    context: &'static str,
) -> Result<bool, Error> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A time that is too long for the system is no limit.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(fds, timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::io(context, errno)),
        }
    }
}
