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
    pub(super) silence: Silence,
    /// The figures of a move that is complete, but for the worker's exit.
    pub(super) moved: Option<Figures>,
}

impl Ordered {
    /// One that begins now.
    pub(super) fn new(console: u64, kind: Kind) -> Self {
        Self {
            console,
            kind,
            silence: Silence::Heard(Instant::now()),
            moved: None,
        }
    }
}

/// When a worker with an order last sent something. A thread of the worker answers the daemon
/// whatever the session does, unless the process is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// Then.
    Heard(Instant),
    /// Then, and it was asked for its counters since.
    Asked(Instant),
    /// Too long ago: its operator does not wait any longer.
    TooLong,
}

impl Silence {
    /// Silence after which a worker is asked.
    const ASKED_AFTER: Duration = Duration::from_secs(20);
    /// The longest silence for which an operator waits.
    pub(super) const LONGEST: Duration = Duration::from_secs(60);

    /// When the next state is due.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Heard(at) => Some(at + Self::ASKED_AFTER),
            Self::Asked(at) => Some(at + Self::LONGEST),
            Self::TooLong => None,
        }
    }

    /// Enters the next state if it is due, and returns it.
    pub(super) fn advance(&mut self, now: Instant) -> Option<Self> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        *self = match *self {
            Self::Heard(at) => Self::Asked(at),
            Self::Asked(_) | Self::TooLong => Self::TooLong,
        };
        Some(*self)
    }

    /// The worker sent something.
    pub(super) fn hear(&mut self, now: Instant) {
        if *self != Self::TooLong {
            *self = Self::Heard(now);
        }
    }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copies {
    /// How many there will be.
    pub(super) all: u32,
    /// How many there are.
    pub(super) done: u32,
    /// Bytes read for these.
    pub(super) bytes: u64,
    pub(super) began: Instant,
}

impl Copies {
    /// How far the order came that ends with an error.
    pub(super) fn failed(&self, error: &str) -> String {
        let Self { done, all, .. } = self;
        format!("{done} of {all} copies are restored: {error}")
    }
}

/// A restore that waits for the host's GPUs, or for a worker.
#[derive(Debug)]
pub(super) struct Restoring {
    pub(super) console: u64,
    pub(super) wanted: Wanted,
    /// Index of its GPU, once those of the host are known.
    pub(super) position: Option<u32>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_worker_is_asked_and_then_given_up() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut silence = Silence::Heard(began);
        assert_eq!(silence.advance(at(19)), None);
        assert_eq!(silence.advance(at(20)), Some(Silence::Asked(began)));
        assert_eq!(
            silence.advance(at(59)),
            None,
            "it has the rest of the minute"
        );
        silence.hear(at(59));
        assert_eq!(silence.advance(at(78)), None, "it answered");
        assert_eq!(silence.advance(at(79)), Some(Silence::Asked(at(59))));
        assert_eq!(silence.advance(at(119)), Some(Silence::TooLong));
        silence.hear(at(120));
        assert_eq!(silence.deadline(), None, "the operator was answered");
    }
}
