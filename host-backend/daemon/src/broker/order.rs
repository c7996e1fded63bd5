//! Orders that workers carry out, and their state.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use paragpu_control::admin::Figures;

use super::unnamed_checkpoint::UnnamedCheckpoint;
use crate::handshake::{Guest, SessionRequest};
use crate::notes::CheckpointSchedule;

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
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A checkpoint, or a restore.
    State {
        /// End the session when it is done.
        puts_away: bool,
        /// The schedule of further checkpoints.
        again: Option<CheckpointSchedule>,
        /// The file to write, if the worker cannot create one.
        fresh: Option<UnnamedCheckpoint>,
    },
    /// A move, as part of this migration.
    Migration(u64),
    /// A change of communicator, as part of this migration.
    Relocation {
        id: u64,
        communicator: String,
        began: Instant,
    },
}

/// A restore that waits for a worker.
#[derive(Debug)]
pub(super) struct Restoring {
    pub(super) console: u64,
    pub(super) directory: PathBuf,
    /// Index of its GPU.
    pub(super) position: u32,
    /// When it is given up.
    pub(super) until: Instant,
}

/// A session that was checkpointed with `--end` and may be restored.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) token: [u8; 16],
    pub(super) until: Instant,
    pub(super) guest: Option<(Guest, Box<SessionRequest>)>,
}

impl Parked {
    pub(super) fn new(token: [u8; 16], left: Duration) -> Self {
        Self {
            token,
            until: Instant::now() + left,
            guest: None,
        }
    }
}
