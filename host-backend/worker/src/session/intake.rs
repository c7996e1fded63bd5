//! The position in the guest's call sequence, and the queue of calls that were
//! received but not executed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use paragpu_protocol::call::info;
use paragpu_protocol::frame::{ACKNOWLEDGE_EVERY, Control, FrameHeader, HEADER_LEN};

use super::host_account::Charge;
use super::link::Link;
use crate::error::SessionEnd;

/// Overhead of a queued call in bytes.
const OVERHEAD: usize = 96;
/// Maximum bytes in the queue while a call waits for staging memory.
const BACKLOG: usize = 16 << 20;
/// Maximum bytes in the queue while the guest runs host functions, whose completion
/// may be behind them.
const MAX_BACKLOG: usize = 256 << 20;
/// Bytes of the queue that are not charged to the VM.
const OWN: usize = 1 << 20;
/// Granularity of charges in bytes.
const CHARGED: u64 = 1 << 20;
/// Limits of the queue while host functions run and calls could also be executed.
const EARLY_BYTES: usize = 64 << 10;
const EARLY_CALLS: usize = 256;
/// Interval of probes of a guest from which nothing is received.
const PROBE: Duration = Duration::from_secs(1);

/// A queued call.
pub(crate) struct QueuedCall {
    pub(crate) header: FrameHeader,
    pub(crate) payload: Vec<u8>,
    /// It was executed out of order.
    pub(crate) executed: bool,
}

impl QueuedCall {
    /// Whether it may be executed before the calls ahead of it. Only synchronous calls
    /// are found in this state: posted ones are executed when they arrive.
    fn may_overtake(&self) -> bool {
        !self.executed && info(self.header.kind).is_some_and(|call| call.early)
    }
}

/// The session's position in the call sequence, and its queue.
pub(crate) struct Intake {
    /// Sequence number of the last call received.
    received: u64,
    /// Bytes of calls received and not acknowledged.
    unacknowledged: usize,
    /// Another worker has the state. Calls received since are not acknowledged, because
    /// that worker must receive them too.
    is_copied: bool,
    /// The queue, in call order.
    backlog: VecDeque<QueuedCall>,
    backlog_bytes: usize,
    /// The host memory charged for the queue.
    held: Charge,
    /// The number of queued calls that may overtake others.
    overtakers: usize,
    /// The time of the last probe.
    probed: Instant,
    /// Since when staging memory has been full.
    full_since: Option<Instant>,
}

impl Intake {
    /// Charges the queue to `held`.
    pub(crate) fn new(held: Charge) -> Self {
        Self {
            received: 0,
            unacknowledged: 0,
            is_copied: false,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            held,
            overtakers: 0,
            probed: Instant::now(),
            full_since: None,
        }
    }

    /// Sequence number of the last call received.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Sets it, for a session that arrived.
    pub(crate) fn set_received(&mut self, received: u64) {
        self.received = received;
    }

    /// Checks a call's sequence number.
    pub(crate) fn admit(&mut self, header: FrameHeader, link: &mut Link) -> Result<(), SessionEnd> {
        let (got, expected) = (header.sequence, self.received + 1);
        if got != expected {
            return Err(SessionEnd::Sequence { got, expected });
        }
        self.received = expected;
        link.begins(header.slot);
        Ok(())
    }

    /// Records that a call of `length` bytes was executed or queued. Acknowledges calls
    /// periodically: the guest keeps unacknowledged ones for the next connection.
    pub(crate) fn acknowledge(&mut self, length: usize, link: &mut Link) -> Result<(), SessionEnd> {
        self.unacknowledged += HEADER_LEN + length;
        if self.unacknowledged < ACKNOWLEDGE_EVERY || !link.is_durable() || self.is_copied {
            return Ok(());
        }
        self.unacknowledged = 0;
        link.send(Control::Taken.kind(), 0, &[&self.received.to_le_bytes()])
    }

    /// Records that a new connection's handshake acknowledged all calls.
    pub(crate) fn acknowledged(&mut self) {
        self.unacknowledged = 0;
    }

    /// Records whether another worker has the state.
    pub(crate) fn set_copied(&mut self, is_copied: bool) {
        self.is_copied = is_copied;
    }

    /// Whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Queues a call.
    pub(crate) fn queue(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        executed: bool,
    ) -> Result<(), SessionEnd> {
        self.backlog_bytes += OVERHEAD + payload.len();
        if self.backlog_bytes > MAX_BACKLOG {
            return Err(SessionEnd::TooMuch("bytes to copy behind a host function"));
        }
        let call = QueuedCall {
            header,
            payload: payload.to_vec(),
            executed,
        };
        self.overtakers += usize::from(call.may_overtake());
        self.backlog.push_back(call);
        Ok(())
    }

    /// Takes the first queued call.
    pub(crate) fn next(&mut self) -> Option<QueuedCall> {
        let next = self.backlog.pop_front()?;
        self.backlog_bytes -= OVERHEAD + next.payload.len();
        self.overtakers -= usize::from(next.may_overtake());
        if self.held.bytes() > 0 {
            let keeps = match self.backlog_bytes.saturating_sub(OWN) {
                0 => 0,
                wanted => wanted as u64 + CHARGED,
            };
            self.held.shrink(self.held.bytes().saturating_sub(keeps));
        }
        Some(next)
    }

    /// The first queued call that may be executed before those ahead of it: its index in
    /// the queue, its header and its payload.
    pub(crate) fn overtaker(&self) -> Option<(usize, FrameHeader, Vec<u8>)> {
        if self.overtakers == 0 {
            return None;
        }
        let index = self.backlog.iter().position(QueuedCall::may_overtake)?;
        let call = self.backlog.get(index)?;
        Some((index, call.header, call.payload.clone()))
    }

    /// Records that the call at this index was executed.
    pub(crate) fn mark_executed(&mut self, index: usize) {
        if let Some(call) = self.backlog.get_mut(index) {
            self.overtakers -= usize::from(call.may_overtake());
            call.executed = true;
        }
    }

    /// Puts a call back at the front.
    pub(crate) fn put_back(&mut self, call: QueuedCall) {
        self.backlog_bytes += OVERHEAD + call.payload.len();
        self.overtakers += usize::from(call.may_overtake());
        self.backlog.push_front(call);
    }

    /// The queued calls, in order.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &QueuedCall> {
        self.backlog.iter()
    }

    /// Charges the queue beyond the bytes that every session may have. Returns false if
    /// the VM's account has no room.
    fn counts(&mut self) -> bool {
        let wanted = self.backlog_bytes.saturating_sub(OWN) as u64;
        match wanted.checked_sub(self.held.bytes()) {
            None | Some(0) => true,
            Some(more) => self.held.grow(more.max(CHARGED)).is_ok(),
        }
    }

    /// Whether more calls may be queued.
    pub(crate) fn takes_more(&mut self, host_functions_run: bool) -> bool {
        let most = match host_functions_run {
            true => MAX_BACKLOG,
            false => BACKLOG,
        };
        self.backlog_bytes < most && self.counts()
    }

    /// Whether more calls may be received early.
    pub(crate) fn takes_early(&self) -> bool {
        self.backlog_bytes < EARLY_BYTES && self.backlog.len() < EARLY_CALLS
    }

    /// Whether a probe of the guest is due.
    pub(crate) fn is_probe_due(&mut self) -> bool {
        let due = self.probed.elapsed() > PROBE;
        if due {
            self.probed = Instant::now();
        }
        due
    }

    /// Records that staging memory is full. Returns for how long.
    pub(crate) fn note_full(&mut self) -> Duration {
        self.full_since.get_or_insert_with(Instant::now).elapsed()
    }

    /// Records that staging memory has room.
    pub(crate) fn note_room(&mut self) {
        self.full_since = None;
    }
}
