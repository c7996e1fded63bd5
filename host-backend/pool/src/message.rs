//! The messages between holder and agent: lines of JSON.

use std::path::PathBuf;

use paragpu_control::frame::Message;
use paragpu_control::lease::{Lease, Name};
use serde::{Deserialize, Serialize};

/// The version of these messages. It increases with every change that an earlier release
/// would misunderstand. Both sides first send theirs in a `hello`, which never changes.
pub(crate) const VERSION: u32 = 1;

/// Checks that this side supports a peer of this version and release.
///
/// # Errors
/// One sentence, in which the peer is `who`.
pub(crate) fn check(who: &str, version: u32, release: &str) -> Result<(), String> {
    if version == VERSION {
        return Ok(());
    }
    // The peer's text is printed on a terminal, so it must not contain control characters.
    let release: String = release
        .chars()
        .filter(|c| !c.is_control())
        .take(40)
        .collect();
    Err(format!(
        "{who} speaks version {version} of the pool's protocol (paragpu {release}), this side \
         version {VERSION} (paragpu {RELEASE}): install the same release on both"
    ))
}

/// This release.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// From the holder to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum ToAgent {
    /// First: the version and release of this side.
    Hello { version: u32, release: String },
    /// Second: the claim. See [`paragpu_control::lease::Claim`].
    Claim {
        memory: u64,
        key: String,
        again: Option<Name>,
        checkpoint: u64,
    },
    /// The holder's heartbeat.
    Alive {},
    /// The lease also exists on another host. Moves the sessions there.
    Carry { to: String },
    /// The holder no longer needs the lease.
    Release {},
    /// Restores the session that is checkpointed in this directory.
    Restore { directory: PathBuf },
}

/// From the agent to the holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase")]
pub(crate) enum FromAgent {
    /// First: the version and release of this side.
    Hello { version: u32, release: String },
    /// The lease exists.
    Lease { lease: Box<Lease>, host: String },
    /// The agent's sign of life.
    Alive {},
    /// The lease should move to another host, to a given one if the engine named it.
    Leave {
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// It may as well stay: a failed move is not repeated.
        #[serde(default)]
        optional: bool,
    },
    /// The sessions have moved, and were delayed for at most `pause` milliseconds; or the
    /// reason why they have not.
    Carried { pause: f64, error: Option<String> },
    /// The session is restored, or the reason why not.
    Restored { error: Option<String> },
    /// The lease is over.
    Over { reason: String },
}

impl ToAgent {
    /// The first message of this side.
    pub(crate) fn hello() -> Self {
        let release = RELEASE.into();
        Self::Hello {
            version: VERSION,
            release,
        }
    }
}

impl FromAgent {
    /// The first message of this side.
    pub(crate) fn hello() -> Self {
        let release = RELEASE.into();
        Self::Hello {
            version: VERSION,
            release,
        }
    }
}

impl Message for ToAgent {
    // Enough for a key and a path.
    const MAX_LEN: usize = 16 << 10;
}

impl Message for FromAgent {
    // Enough for two certificates, and for the paths of as many sessions as a lease may
    // have.
    const MAX_LEN: usize = 1 << 20;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused_with_both_named() {
        assert_eq!(check("the host", VERSION, "9.9.9"), Ok(()));
        let said = check("the host", VERSION + 1, "9.9.9\u{1b}[2J").unwrap_err();
        for words in ["version 2 ", "paragpu 9.9.9[2J", "version 1 ", RELEASE] {
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn the_first_words_are_the_same_in_every_release() {
        let hello = ToAgent::Hello {
            version: 7,
            release: "r".into(),
        };
        let text = r#"{"say":"hello","version":7,"release":"r"}"#;
        assert_eq!(serde_json::to_string(&hello).unwrap(), text);
        let hello = FromAgent::Hello {
            version: 7,
            release: "r".into(),
        };
        assert_eq!(serde_json::to_string(&hello).unwrap(), text);
    }
}
