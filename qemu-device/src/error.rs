//! Errors of the device process.

use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

/// Why the device process cannot start or continue.
#[derive(Debug, Error)]
pub enum Error {
    /// The window's size is not one that a BAR can have.
    #[error("a window of {0} bytes: the size must be a power of two, at most 256 GiB")]
    WindowSize(u64),
    /// Too many or too few channels.
    #[error("{0} channels: a window has 1 to 512")]
    ChannelCount(u16),
    /// The channels would be too small.
    #[error(
        "a window of {} MiB is too small for {channel_count} channels: each needs {} MiB",
        .window_size >> 20, crate::layout::MIN_CHANNEL_SIZE >> 20
    )]
    ChannelSize {
        /// Bytes of the window.
        window_size: u64,
        /// Number of channels requested.
        channel_count: u16,
    },
    /// The VM's name cannot be used in logs and listings.
    #[error(
        "{0:?} cannot be the name of a VM: 1 to 64 printable characters without spaces and slashes, \
         and no address"
    )]
    VmName(String),
    /// Another process listens at the socket's path.
    #[error("another process serves {}", .0.display())]
    SocketInUse(PathBuf),
    /// The socket's path exists and is something else.
    #[error("{} exists and is not a socket of this user", .0.display())]
    SocketForeign(PathBuf),
    /// The socket cannot be created.
    #[error("cannot listen at {}", path.display())]
    Listen {
        /// The socket's path.
        path: PathBuf,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// Signal handlers cannot be installed.
    #[error("cannot receive signals")]
    Signals {
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// A system call failed that must not fail.
    #[error("cannot {action}")]
    System {
        /// The operation that failed.
        action: &'static str,
        /// The system error.
        #[source]
        source: Errno,
    },
}

impl Error {
    /// For `map_err`: `action` completes "cannot …".
    pub(crate) fn system(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::System { action, source }
    }
}
