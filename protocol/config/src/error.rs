//! Errors of a configuration, and the origin of a value.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The default.
    Default,
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The environment variable with this name.
    Environment(String),
    /// The caller: a command line option.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File { path, line } => write!(formatter, "{}:{line}", path.display()),
            Self::Environment(name) => write!(formatter, "environment variable {name}"),
            Self::CommandLine => formatter.write_str("command line"),
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, Error)]
pub enum Error {
    /// A file or directory cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// Text that is not TOML, an unknown key, or a value that has the wrong type, is out
    /// of range, or contradicts another.
    #[error("{origin}: {reason}")]
    Refused {
        /// The origin of the text.
        origin: Origin,
        /// What is wrong with which key, and what is expected.
        reason: String,
    },
}
