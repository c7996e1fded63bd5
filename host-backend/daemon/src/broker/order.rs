//! Orders that workers carry out, and their state.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use paragpu_control::admin::Figures;

use super::unnamed_checkpoint::UnnamedCheckpoint;
use crate::handshake::{Guest, SessionRequest};

/// A console key that no connection has: the daemon itself gave the order.
pub(super) const NOBODY: u64 = 0;

/// The outcome of an order: its figures, or one sentence about the failure.
pub(super) type Outcome = Result<Figures, String>;

/// An order that a worker has not completed.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) console: u64,
    pub(super) kind: Kind,
}

/// The order.
#[derive(Debug)]
pub(super) enum Kind {
    /// A checkpoint.
    State {
        directory: PathBuf,
        /// End the session when it is done.
        puts_away: bool,
        /// The interval of further checkpoints.
        every: Option<Duration>,
        /// The file to write, if the worker cannot create one.
        fresh: Option<UnnamedCheckpoint>,
    },
    /// A restore.
    Restore,
    /// A restore of a copy.
    Copy(Wanted),
    /// A move, as part of this migration.
    Migration(u64),
    /// A change of communicator, as part of this migration.
    Relocation {
        id: u64,
        communicator: String,
        began: Instant,
    },
}

/// What a restore is to restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The directory of the checkpoint.
    pub(super) directory: PathBuf,
    /// Whether the agent of a lease ordered it.
    pub(super) by_agent: bool,
    /// For copies instead of the session itself.
    pub(super) copies: Option<Copies>,
}

/// Copies that are restored one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copies {
    /// How many there will be.
    pub(super) all: u32,
    /// How many there are.
    pub(super) done: u32,
    /// Bytes read for these.
    pub(super) bytes: u64,
    pub(super) began: Instant,
}

/// A restore that waits for a worker.
#[derive(Debug)]
pub(super) struct Restoring {
    pub(super) console: u64,
    pub(super) wanted: Wanted,
    /// Index of its GPU.
    pub(super) position: u32,
    /// When it is given up.
    pub(super) until: Instant,
}

/// A session that was checkpointed with `--end` and may be restored, or of which copies were
/// restored.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) token: [u8; 16],
    pub(super) until: Instant,
    /// The programs that wait for it, or for copies, the last one last.
    pub(super) guests: Vec<(Guest, Box<SessionRequest>)>,
}

impl Parked {
    pub(super) fn new(token: [u8; 16], left: Duration) -> Self {
        Self {
            token,
            until: Instant::now() + left,
            guests: Vec::new(),
        }
    }
}
