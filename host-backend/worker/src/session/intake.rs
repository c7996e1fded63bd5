//! The position in the guest's call sequence, and the calls that were taken in but
//! not executed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use paragpu_protocol::frame::{ACKNOWLEDGE_EVERY, FrameHeader, HEADER_LEN};

use crate::error::SessionEnd;

/// Bytes that a call takes while it waits, beside its payload.
const WAITING: usize = 96;
/// Bytes of calls taken in while one waits for staging memory.
const BACKLOG: usize = 16 << 20;
/// The same while the guest runs host functions, whose end may be among them.
const MOST_BACKLOG: usize = 256 << 20;
/// Bytes, and calls, taken in early while host functions run.
const EARLY_BYTES: usize = 64 << 10;
const EARLY_CALLS: usize = 256;
/// How often a guest that is not listened to is asked whether it lives.
const PROBE: Duration = Duration::from_secs(1);

/// A call that was taken in and not executed.
pub(crate) struct Waiting {
    pub(crate) header: FrameHeader,
    pub(crate) payload: Vec<u8>,
    /// Executed out of order already.
    pub(crate) executed: bool,
}

/// The calls taken in.
pub(crate) struct Intake {
    /// Number of the last call taken in.
    received: u64,
    /// Bytes of calls taken in that the guest was not told of.
    untold: usize,
    /// Another worker has the state: the guest is not told of calls taken in
    /// since, which that worker must get as well.
    is_copied: bool,
    /// In order; executed before anything that comes later.
    backlog: VecDeque<Waiting>,
    backlog_bytes: usize,
    /// When the guest was last asked whether it lives.
    probed: Instant,
    /// Since when there has been no room in staging memory.
    crowded: Option<Instant>,
}

impl Intake {
    pub(crate) fn new() -> Self {
        Self {
            received: 0,
            untold: 0,
            is_copied: false,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            probed: Instant::now(),
            crowded: None,
        }
    }

    /// Number of the last call taken in.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The same of a session that came.
    pub(crate) fn set_received(&mut self, received: u64) {
        self.received = received;
    }

    /// Checks a call's place in the sequence.
    pub(crate) fn admit(&mut self, sequence: u64) -> Result<(), SessionEnd> {
        let expected = self.received + 1;
        if sequence != expected {
            return Err(SessionEnd::Sequence {
                got: sequence,
                expected,
            });
        }
        self.received = expected;
        Ok(())
    }

    /// A call of so many bytes was dealt with or queued. `Some` when
    /// an acknowledgement is due: the guest keeps the calls behind it for
    /// another connection.
    pub(crate) fn taken_in(&mut self, length: usize, durable: bool) -> Option<u64> {
        self.untold += HEADER_LEN + length;
        if self.untold < ACKNOWLEDGE_EVERY || !durable || self.is_copied {
            return None;
        }
        self.untold = 0;
        Some(self.received)
    }

    /// Another connection stands, with which the guest was told everything.
    pub(crate) fn told(&mut self) {
        self.untold = 0;
    }

    /// Another worker has the state, or has it no longer.
    pub(crate) fn set_copied(&mut self, is_copied: bool) {
        self.is_copied = is_copied;
    }

    /// Does no call wait?
    pub(crate) fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Puts a call by.
    pub(crate) fn put_by(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        executed: bool,
    ) -> Result<(), SessionEnd> {
        self.backlog_bytes += WAITING + payload.len();
        if self.backlog_bytes > MOST_BACKLOG {
            return Err(SessionEnd::TooMuch("bytes to copy behind a host function"));
        }
        self.backlog.push_back(Waiting {
            header,
            payload: payload.to_vec(),
            executed,
        });
        Ok(())
    }

    /// Takes the first of the calls that wait.
    pub(crate) fn next(&mut self) -> Option<Waiting> {
        let next = self.backlog.pop_front()?;
        self.backlog_bytes -= WAITING + next.payload.len();
        Some(next)
    }

    /// It waits on.
    pub(crate) fn put_back(&mut self, call: Waiting) {
        self.backlog_bytes += WAITING + call.payload.len();
        self.backlog.push_front(call);
    }

    /// The calls that wait, in order.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.backlog.iter()
    }

    /// Is there room for more calls that wait, while host functions run or not?
    pub(crate) fn takes_more(&self, host_functions_run: bool) -> bool {
        let most = match host_functions_run {
            true => MOST_BACKLOG,
            false => BACKLOG,
        };
        self.backlog_bytes < most
    }

    /// Is there room for more calls that are taken in early?
    pub(crate) fn takes_early(&self) -> bool {
        self.backlog_bytes < EARLY_BYTES && self.backlog.len() < EARLY_CALLS
    }

    /// Is it time to ask the guest whether it lives?
    pub(crate) fn is_probe_due(&mut self) -> bool {
        let due = self.probed.elapsed() > PROBE;
        if due {
            self.probed = Instant::now();
        }
        due
    }

    /// There is no room in staging memory: for how long there has been none.
    pub(crate) fn crowded(&mut self) -> Duration {
        self.crowded.get_or_insert_with(Instant::now).elapsed()
    }

    /// There is room.
    pub(crate) fn has_room(&mut self) {
        self.crowded = None;
    }
}
