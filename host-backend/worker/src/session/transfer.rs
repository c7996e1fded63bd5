//! A session's move and checkpoint: the daemon's orders, the tasks in progress, and the
//! delay that they cause.

use std::sync::Arc;
use std::time::Duration;

use super::shortage::Shortage;
use crate::error::SessionEnd;
use crate::transfer::delay::Delay;
use crate::transfer::identity::Identity;
use crate::transfer::orders::{Order, Orders};
use crate::transfer::staging_ring::StagingRing;

/// The two tasks, which can be in progress together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskKind {
    Move,
    Checkpoint,
}

/// A session's moves and checkpoints. A `T` is a task that runs in steps.
pub(crate) struct Transfer<T> {
    /// The owner of the session.
    identity: Identity,
    /// Orders of the daemon.
    orders: Arc<Orders>,
    /// The move in progress.
    moving: Option<T>,
    /// The session is new, and executes no call before the move has stopped it.
    holds_calls: bool,
    /// The checkpoint in progress.
    writing: Option<T>,
    /// The delay that moves and checkpoints cause to the program's calls.
    delay: Delay,
    /// Staging memory of a failed move, reused by the next one.
    ring: Option<StagingRing>,
    /// Memory that the other worker of a move keeps.
    pub(crate) shortage: Shortage,
}

impl<T> Transfer<T> {
    pub(super) fn new(identity: Identity) -> Self {
        Self {
            identity,
            orders: Arc::new(Orders::new(drop)),
            moving: None,
            holds_calls: false,
            writing: None,
            delay: Delay::default(),
            ring: None,
            shortage: Shortage::default(),
        }
    }

    /// The owner of the session.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn set_identity(&mut self, identity: Identity) {
        self.identity = identity;
    }

    /// Orders of the daemon.
    pub(crate) fn orders(&self) -> &Arc<Orders> {
        &self.orders
    }

    pub(crate) fn set_orders(&mut self, orders: Arc<Orders>) {
        self.orders = orders;
    }

    /// The staging memory of the last migration.
    pub(crate) fn take_ring(&mut self) -> Option<StagingRing> {
        self.ring.take()
    }

    /// Keeps staging memory for the next migration.
    pub(crate) fn keep_ring(&mut self, ring: StagingRing) {
        self.ring = Some(ring);
    }

    /// Whether a move is in progress.
    #[cfg(test)]
    pub(crate) fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// Takes the daemon's next order, unless a checkpoint is being written.
    pub(crate) fn take_order(&mut self) -> Option<Order> {
        match self.writing {
            Some(_) => None,
            None => self.orders.take(),
        }
    }

    /// Begins a checkpoint. A move in progress goes on measuring.
    pub(crate) fn begin_checkpoint(&mut self, task: T) {
        if self.moving.is_none() {
            self.delay.start();
        }
        self.writing = Some(task);
    }

    /// Has a new session execute no call before the move that is ordered already has stopped it.
    pub(crate) fn hold_calls(&mut self) {
        self.holds_calls = true;
    }

    /// Whether the session executes no calls yet.
    pub(crate) fn holds_calls(&mut self) -> bool {
        self.holds_calls &= self.moving.is_some();
        self.holds_calls
    }

    /// Records that the session is stopped. From now on it executes calls whenever it continues.
    pub(crate) fn stopped(&mut self) {
        self.holds_calls = false;
    }

    /// Begins to measure a new move, and its first step.
    pub(crate) fn begin_move(&mut self) {
        self.delay.start();
        self.delay.begin();
    }

    /// Ends the first step. Without a task, the move was refused.
    pub(crate) fn begun(&mut self, task: Option<T>) {
        self.delay.end();
        self.moving = task.or(self.moving.take());
    }

    /// Takes the task for a step that begins now.
    pub(crate) fn begin_step(&mut self, kind: TaskKind) -> Option<T> {
        let task = self.task(kind).take()?;
        self.delay.begin();
        Some(task)
    }

    /// Ends the step, and keeps the task if it is not finished.
    pub(crate) fn end_step(
        &mut self,
        kind: TaskKind,
        stepped: Result<Option<T>, SessionEnd>,
    ) -> Result<(), SessionEnd> {
        self.delay.end();
        *self.task(kind) = stepped?;
        Ok(())
    }

    /// Takes the tasks in progress, to give them up.
    pub(crate) fn take_tasks(&mut self) -> impl Iterator<Item = T> + use<T> {
        [self.moving.take(), self.writing.take()]
            .into_iter()
            .flatten()
    }

    fn task(&mut self, kind: TaskKind) -> &mut Option<T> {
        match kind {
            TaskKind::Move => &mut self.moving,
            TaskKind::Checkpoint => &mut self.writing,
        }
    }

    /// Whether a step of a move may begin. If calls wait, they come first for a while.
    pub(crate) fn is_due(&self) -> bool {
        self.delay.is_due()
    }

    /// Records that no call is waiting.
    pub(crate) fn caught_up(&mut self) {
        self.delay.caught_up();
    }

    /// Maximum delay of a call so far.
    pub(crate) fn longest_delay(&self) -> Duration {
        self.delay.longest()
    }

    /// A task in progress: the move, or else the checkpoint.
    pub(crate) fn current(&self) -> Option<&T> {
        self.moving.as_ref().or(self.writing.as_ref())
    }
}
