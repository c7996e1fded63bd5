//! Why a command failed.

use std::io::Write as _;
use std::path::PathBuf;

pub use paragpu_client::chain;
use thiserror::Error;

/// Why a command failed.
#[derive(Debug, Error)]
pub enum Error {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] paragpu_config::Error),
    /// Nobody answers at the control socket.
    #[error(
        "no paragpud answers at {}: {reason}; {}",
        path.display(),
        match reason.kind() {
            std::io::ErrorKind::PermissionDenied =>
                "only members of its group may use it (ls -l), which is paragpu in the Debian packages: usermod -aG paragpu USER",
            _ => "is it running (systemctl status paragpud)?",
        }
    )]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The operating system's error.
        reason: std::io::Error,
    },
    /// The daemon accepts no connection or answers no request.
    #[error(
        "paragpud ({}) does not answer within {} s: is it stopped (ps -C paragpud shows T, and \
         kill -CONT continues it), or is the host overloaded? Its log (journalctl -u paragpud) \
         may tell. Sessions run on meanwhile; a restart ends them",
        path.display(),
        paragpu_control::admin::PATIENCE.as_secs()
    )]
    Silent {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon ended the connection.
    #[error(
        "paragpud ({}) ended the connection: it was stopped or restarted (systemctl status \
         paragpud), or this is its socket for guests",
        path.display()
    )]
    Ended {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon said something else.
    #[error("the daemon's answer cannot be decoded; is it from another release?")]
    Answer(#[from] paragpu_control::frame::FrameError),
    /// The daemon did not serve the request.
    #[error("{0}")]
    Refused(String),
    /// A domain of libvirt's was not changed.
    #[error(transparent)]
    Libvirt(#[from] paragpu_libvirt::Error),
    /// There is no lease.
    #[error(transparent)]
    Pool(#[from] paragpu_pool::Error),
    /// A certificate cannot be made.
    #[error(transparent)]
    Certificate(#[from] paragpu_communicator_secure::issue::IssueError),
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file is no program and no library.
    #[error("{} is not a program for this machine", path.display())]
    NoObject {
        /// Which.
        path: PathBuf,
    },
    /// The guest's libraries are not installed.
    #[error(
        "{} does not exist; install paragpu-guest, or give its directory with --libraries",
        path.display()
    )]
    NoLibraries {
        /// The missing file.
        path: PathBuf,
    },
    /// The loader would not find the libraries in their folder.
    #[error(
        "{} has a space or colon in its name, at which the loader would split it; name the folder \
         by a link without them",
        path.display()
    )]
    Unloadable {
        /// The folder.
        path: PathBuf,
    },
    /// A program cannot be run.
    #[error("cannot run {program:?}")]
    Run {
        /// Which.
        program: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The facts about runtimes are refused.
    #[error(transparent)]
    Facts(paragpu_redirect::facts::Error),
    /// Standard output does not take it.
    #[error("cannot print")]
    Output(#[source] std::io::Error),
}

impl Error {
    /// The exit status. A program that cannot be run has that of the shell.
    pub fn status(&self) -> u8 {
        match self {
            Self::Run { source, .. } | Self::Pool(paragpu_pool::Error::Run { source, .. }) => {
                match source.kind() {
                    std::io::ErrorKind::NotFound => 127,
                    _ => 126,
                }
            }
            _ => 1,
        }
    }
}

/// Prints bytes.
pub fn print(bytes: impl AsRef<[u8]>) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(bytes.as_ref())
        .and_then(|()| stdout.flush())
        .map_err(Error::Output)
}

/// Prints a value as JSON in one line, so that values can be read as they come.
pub fn print_json_line(value: &impl serde::Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string(value).map_err(|error| Error::Output(error.into()))?;
    text.push('\n');
    print(text)
}

/// Prints a value as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Error> {
    let mut text =
        serde_json::to_string_pretty(value).map_err(|error| Error::Output(error.into()))?;
    text.push('\n');
    print(text)
}
