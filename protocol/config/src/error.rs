//! Why a configuration is refused, and where a value came from.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// An environment variable of this name.
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
        /// What was being read.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Text that is not TOML, a key that does not exist, a value of the wrong
    /// type, out of range, or at odds with another.
    #[error("{origin}: {reason}")]
    Refused {
        /// Where.
        origin: Origin,
        /// What is wrong, with the key, and what would be right.
        reason: String,
    },
}
