//! What holder and agent say to each other: lines of JSON.

use std::path::PathBuf;

use paragpu_control::frame::Message;
use paragpu_control::lease::{Lease, Name};
use serde::{Deserialize, Serialize};

/// From the holder to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum ToAgent {
    /// First: the claim. See [`paragpu_control::lease::Claim`].
    Claim {
        memory: u64,
        key: String,
        again: Option<Name>,
        checkpoint: u64,
    },
    /// The holder is there.
    Alive {},
    /// The lease is at another host, too: the sessions are to go there.
    Carry { to: String },
    /// The lease is not needed any more.
    Release {},
    /// Takes up the session that was written there.
    Restore { directory: PathBuf },
}

/// From the agent to the holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase")]
pub(crate) enum FromAgent {
    /// The lease stands.
    Lease { lease: Box<Lease>, host: String },
    /// The agent is there.
    Alive {},
    /// The lease should go elsewhere, to one host if somebody chose it.
    Leave {
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// The sessions are elsewhere, and were stopped for so many milliseconds at
    /// most; or they are not.
    Carried { pause: f64, error: Option<String> },
    /// The session is back; or it is not.
    Restored { error: Option<String> },
    /// The lease is over, by order.
    Over { reason: String },
}

impl Message for ToAgent {
    // A key and a path.
    const MOST: usize = 16 << 10;
}

impl Message for FromAgent {
    // Two certificates, and the paths of as many sessions as a lease may have.
    const MOST: usize = 1 << 20;
}
