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
    /// A file is not TOML.
    #[error("{origin}: {reason}")]
    Syntax {
        /// Where.
        origin: Origin,
        /// What the parser said.
        reason: String,
    },
    /// A key, section or variable that does not exist.
    #[error("{origin}: there is no {what} `{key}`{hint}")]
    Unknown {
        /// Where.
        origin: Origin,
        /// `key`, `section` or `variable`.
        what: &'static str,
        /// As it was written.
        key: String,
        /// The nearest valid one as the end of the sentence; may be empty.
        hint: String,
    },
    /// A value of the wrong type, out of range, or at odds with another.
    #[error("{origin}: `{key}` {reason}")]
    Value {
        /// Where.
        origin: Origin,
        /// The key.
        key: String,
        /// What it should be.
        reason: String,
    },
}
