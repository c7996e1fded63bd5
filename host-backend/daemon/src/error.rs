//! Errors that stop the daemon or keep it from starting.

use std::path::PathBuf;

pub(crate) use paragpu_protocol::chain;
use thiserror::Error;

/// Why the daemon cannot start or continue.
#[derive(Debug, Error)]
pub enum Error {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] paragpu_config::Error),
    /// Another daemon answers at this socket.
    #[error("another paragpud answers at {}", .0.display())]
    Running(PathBuf),
    /// Its directory belongs to another user.
    #[error(
        "cannot use the state directory {}: permission denied; run paragpud as root or by its \
         unit, or give it --socket and --control in a directory of this user's", .0.display()
    )]
    NotAllowed(PathBuf),
    /// Landlock keeps paragpud from creating the directory.
    #[error(
        "cannot create the state directory {}: paragpud may not create directories directly \
         below /, nor below those of programs and configuration; create it first", .0.display()
    )]
    NotCreated(PathBuf),
    /// The path of a socket exists and is not a socket.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// `vsock.port` is set, and the kernel has no vsock.
    #[error(
        "cannot listen at vsock port {0}: this kernel has no vsock; load the module vhost_vsock, \
         or leave vsock.port out"
    )]
    NoVsock(u32),
    /// `daemon.group` names no group.
    #[error(
        "there is no group {0:?} in /etc/group: give the number of one that is kept elsewhere \
         (getent group)"
    )]
    Group(String),
    /// A file of `migration` or `tcp` in host.toml cannot be used.
    #[error(transparent)]
    Certificate(#[from] paragpu_communicator_secure::CertificateError),
    /// The value of a key cannot be used.
    #[error("`{key}`")]
    Key {
        /// The key in host.toml.
        key: &'static str,
        /// Why.
        #[source]
        source: Box<Self>,
    },
    /// The operating system refused.
    #[error("cannot {action}")]
    System {
        /// The operation that failed.
        action: String,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// For `map_err`: an [`Error::System`] with the failed action.
    pub fn system<E: Into<std::io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        |source| Self::System {
            action: action.into(),
            source: source.into(),
        }
    }

    /// For `map_err`: names the key whose value caused the error, unless the error says what
    /// to do already.
    pub fn of_key(key: &'static str) -> impl FnOnce(Self) -> Self {
        move |error| match error {
            Self::System { .. } | Self::Group(_) | Self::NotASocket(_) => Self::Key {
                key,
                source: Box::new(error),
            },
            other => other,
        }
    }
}
