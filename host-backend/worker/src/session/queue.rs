//! Limits how much work a stream queues.
//!
//! Like NVIDIA's driver, a full stream blocks the call that adds work, and later
//! calls queue in the connection. Without a limit, a guest could fill the host's
//! memory with work behind a kernel that never ends.

use std::collections::VecDeque;
use std::sync::Arc;

use paragpu_device::{EventId, Result, StreamId};

use super::gpu::Gpu;
use super::host_function::HostFunctions;

/// Work between two marks.
const STEP: u32 = 256;
/// Pieces of work that may wait. A piece that is more than that, a graph's launch,
/// may wait behind two others all the same.
const MOST: u64 = 8192;

/// The work that was given to one stream.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Each stands behind so many pieces of work, [`STEP`] or one that is more; the
    /// oldest first.
    marks: VecDeque<(EventId, u32)>,
    /// Work before the marks.
    marked: u64,
    /// Work since the last mark.
    since: u32,
}

impl Queue {
    /// Counts work that is about to be given, of so many pieces; false if it must
    /// wait.
    ///
    /// # Errors
    /// The device's answer about a mark.
    pub(super) fn admit(&mut self, gpu: &mut Gpu, stream: StreamId, pieces: u32) -> Result<bool> {
        let since = self.since.saturating_add(pieces);
        if since <= STEP {
            self.since = since;
            return Ok(true);
        }
        while let Some(&(mark, before)) = self.marks.front() {
            // After an error nothing waits any more.
            if let Ok(false) = gpu.event_query(mark) {
                break;
            }
            gpu.free_mark(mark);
            self.marks.pop_front();
            self.marked -= u64::from(before);
        }
        let waiting = self.marked + u64::from(self.since) + u64::from(pieces);
        if waiting > MOST && self.marks.len() > 1 {
            return Ok(false);
        }
        if self.since > 0 {
            self.marks.push_back((gpu.mark(stream)?, self.since));
            self.marked += u64::from(self.since);
        }
        self.since = pieces;
        Ok(true)
    }

    /// The stream is no more.
    pub(super) fn abandon(&mut self, gpu: &mut Gpu) {
        for (mark, _) in self.marks.drain(..) {
            gpu.free_mark(mark);
        }
    }
}

/// Work of all streams that may be given behind a host function that has not
/// ended. NVIDIA's driver takes about a thousand launches and then blocks in the
/// call that brings another. The end of the function comes to the thread that
/// would block there, so it must never bring so many.
const BEHIND: u64 = 256;

/// What does not end before the guest has run a function.
#[derive(Debug)]
pub(crate) enum Blocker {
    /// The host function itself.
    Function(u64),
    /// The launch of a graph with host functions: a mark behind it.
    Graph(EventId),
}

/// Limits how much work is given behind host functions.
pub(super) struct Blockers {
    functions: Arc<HostFunctions>,
    /// Pieces of work given to all streams.
    given: u64,
    /// With how many pieces had been given before each; the oldest first.
    waiting: VecDeque<(Blocker, u64)>,
}

impl std::fmt::Debug for Blockers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Blockers");
        shown.field("given", &self.given);
        shown
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

impl Blockers {
    pub(super) fn new(functions: Arc<HostFunctions>) -> Self {
        Self {
            functions,
            given: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Has so much been given behind one that more must wait?
    pub(super) fn are_full(&mut self, gpu: &mut Gpu) -> bool {
        while let Some((blocker, before)) = self.waiting.front() {
            // What was given before the oldest needs no function to end.
            if self.given - before < BEHIND {
                return false;
            }
            if !self.has_ended(gpu, blocker) {
                return true;
            }
            self.forget_first(gpu);
        }
        false
    }

    /// A piece of work is given.
    pub(super) fn count(&mut self) {
        self.given += 1;
    }

    /// The last piece was one of these.
    pub(super) fn add(&mut self, gpu: &mut Gpu, blocker: Blocker) {
        self.waiting.push_back((blocker, self.given));
        while let Some((first, _)) = self.waiting.front()
            && self.has_ended(gpu, first)
        {
            self.forget_first(gpu);
        }
    }

    /// After an error nothing waits any more.
    fn has_ended(&self, gpu: &mut Gpu, blocker: &Blocker) -> bool {
        match blocker {
            Blocker::Function(id) => !self.functions.has(*id),
            Blocker::Graph(mark) => !matches!(gpu.event_query(*mark), Ok(false)),
        }
    }

    fn forget_first(&mut self, gpu: &mut Gpu) {
        if let Some((Blocker::Graph(mark), _)) = self.waiting.pop_front() {
            gpu.free_mark(mark);
        }
    }
}
