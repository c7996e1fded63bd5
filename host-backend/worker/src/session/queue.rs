//! Limits how much work a stream queues; [`streams`](super::stream) also limits the work
//! of all streams together.
//!
//! Like NVIDIA's driver, a full stream blocks the call that adds work, and later
//! calls queue in the connection. Without a limit, a guest could fill the host's
//! memory with work behind a kernel that never ends.

use std::collections::VecDeque;
use std::sync::Arc;

use paragpu_device::{EventId, Result, StreamId, Work};

use super::gpu::Gpu;
use super::host_function::HostFunctions;

/// Work items between two marks.
const STEP: u32 = 256;
/// Maximum number of queued work items. A graph launch that counts for more may still
/// queue behind two others.
const MAX_QUEUED: u64 = 8192;
/// Bytes of parameters, operations, dependencies or bodies that count as another work item.
const PIECE: usize = 1024;
/// Bytes that a device may keep for each dependency of a node while a launch of its graph waits.
const DEPENDENCY: usize = 16;
/// The same for each body of a conditional node.
const BODY: usize = 32;

/// The number of work items that `work` counts as, which a device keeps until it begins: work
/// of a stream, or of a node with so many dependencies.
pub(crate) fn pieces(work: &Work<'_>, dependencies: usize) -> u32 {
    let kept = match work {
        Work::Launch(launch) => launch.parameters.len(),
        Work::Memory(operations) => size_of_val(&**operations),
        Work::Conditional(conditional) => conditional.bodies.len().saturating_mul(BODY),
        _ => 0,
    };
    let bytes = kept.saturating_add(dependencies.saturating_mul(DEPENDENCY));
    u32::try_from(1 + bytes / PIECE).unwrap_or(u32::MAX)
}

/// The work queued in one stream.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Marks with the number of work items before each, oldest first: [`STEP`], or
    /// one larger item.
    marks: VecDeque<(EventId, u32)>,
    /// Work items before the marks.
    marked: u64,
    /// Work items since the last mark.
    since: u32,
}

impl Queue {
    /// Work items that are not known to be complete.
    pub(super) fn len(&self) -> u64 {
        self.marked + u64::from(self.since)
    }

    /// Removes complete work.
    pub(super) fn sweep(&mut self, gpu: &mut Gpu, stream: StreamId) {
        // After an error nothing is queued.
        if let Ok(false) = gpu.stream_query(stream) {
            return self.forget_passed(gpu);
        }
        self.abandon(gpu);
        (self.marked, self.since) = (0, 0);
    }

    fn forget_passed(&mut self, gpu: &mut Gpu) {
        while let Some(&(mark, before)) = self.marks.front() {
            // After an error nothing is queued.
            if let Ok(false) = gpu.event_query(mark) {
                break;
            }
            gpu.free_mark(mark);
            self.marks.pop_front();
            self.marked -= u64::from(before);
        }
    }

    /// Counts work items that are about to be submitted. Returns false if they must wait.
    ///
    /// # Errors
    /// The error of a mark.
    pub(super) fn admit(&mut self, gpu: &mut Gpu, stream: StreamId, pieces: u32) -> Result<bool> {
        let since = self.since.saturating_add(pieces);
        if since <= STEP {
            self.since = since;
            return Ok(true);
        }
        self.forget_passed(gpu);
        let waiting = self.len() + u64::from(pieces);
        if waiting > MAX_QUEUED && self.marks.len() > 1 {
            return Ok(false);
        }
        if self.since > 0 {
            self.marks.push_back((gpu.mark(stream)?, self.since));
            self.marked += u64::from(self.since);
        }
        self.since = pieces;
        Ok(true)
    }

    /// Frees the marks of a destroyed stream.
    pub(super) fn abandon(&mut self, gpu: &mut Gpu) {
        for (mark, _) in self.marks.drain(..) {
            gpu.free_mark(mark);
        }
    }
}

/// Maximum unfinished work of all streams while a host function has not ended. NVIDIA's driver
/// accepts about a thousand launches and then blocks in the next call. The worker's
/// thread that would block is the one that receives the function's completion, and the calls
/// for which the function may wait, so it must never submit that many. If launches are paced,
/// each is followed by a mark.
pub(super) const BEHIND: u64 = 480;

/// Work that completes only after the guest has run a function.
#[derive(Debug)]
pub(crate) enum Blocker {
    /// The host function itself.
    Function(u64),
    /// The launch of a graph with host functions, and a mark behind it.
    Graph(EventId),
}

/// Limits the work submitted behind host functions.
pub(super) struct Blockers {
    functions: Arc<HostFunctions>,
    /// Work items submitted to all streams.
    given: u64,
    /// Each with the number of work items submitted before it, oldest first.
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

    /// Whether [`BEHIND`] work items were submitted behind the oldest. They have ended if they do
    /// not depend on it.
    pub(super) fn have_many_behind(&mut self, gpu: &mut Gpu) -> bool {
        while let Some((blocker, before)) = self.waiting.front() {
            // Work before the oldest does not depend on a function.
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

    pub(super) fn functions_run(&self) -> bool {
        self.functions.are_running()
    }

    /// Counts a work item.
    pub(super) fn count(&mut self) {
        self.given += 1;
    }

    /// Records that the last work item was a blocker.
    pub(super) fn add(&mut self, gpu: &mut Gpu, blocker: Blocker) {
        self.waiting.push_back((blocker, self.given));
        while let Some((first, _)) = self.waiting.front()
            && self.has_ended(gpu, first)
        {
            self.forget_first(gpu);
        }
    }

    /// After an error nothing is queued.
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

#[cfg(test)]
mod tests {
    use paragpu_device::{Conditional, ConditionalKind, FunctionId, Launch, MemoryOperation};

    use super::*;

    #[test]
    fn work_counts_by_what_a_device_keeps_for_it() {
        assert_eq!(pieces(&Work::Empty, 0), 1);
        assert_eq!(pieces(&Work::Empty, PIECE / DEPENDENCY), 2);
        let launch = |bytes| Launch::of_one_thread(FunctionId(1), vec![0; bytes]);
        assert_eq!(pieces(&Work::Launch(launch(PIECE - 1)), 0), 1);
        assert_eq!(pieces(&Work::Launch(launch(4 * PIECE)), 0), 5);
        let barrier = MemoryOperation::Barrier { is_local: true };
        let operations = vec![barrier; 256];
        assert!(pieces(&Work::Memory(operations.into()), 0) > 4);
        let conditional = Conditional {
            condition: 1,
            kind: ConditionalKind::Switch,
            value: 0,
            assigns: false,
            bodies: vec![0; 1024],
        };
        assert_eq!(pieces(&Work::Conditional(conditional), 0), 33);
        assert_eq!(pieces(&Work::Empty, usize::MAX), u32::MAX);
    }
}
