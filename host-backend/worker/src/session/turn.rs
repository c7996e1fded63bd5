//! Paces launches on a GPU with shares.
//!
//! A turn has to end soon after its time, so the number of launches in flight is
//! limited. Marks behind the launches measure how long kernels take, and thereby
//! how many may be queued in the GPU. Without shares there are no marks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_device::{EventId, Result, StreamId};

use super::gpu::Gpu;
use crate::error::{Fault, Outcome};
use crate::turns::{TurnState, Turns};

/// Target amount of queued work in the GPU: enough to keep it busy.
const QUEUED_WORK: Duration = Duration::from_millis(1);
/// Launches that may always be queued: one runs, and one follows.
const FEW: usize = 2;
/// Maximum number of queued launches, so that long kernels behind short ones do not
/// overrun the turn by much.
const MAX_LAUNCHES: usize = 64;
/// How long an idle session keeps its turn, without and with other sessions
/// waiting: many programs pause briefly between two kernels.
const IDLE: Duration = Duration::from_millis(1);
const IDLE_WANTED: Duration = Duration::from_micros(200);
/// Poll interval of a session without a turn. It is woken when it gets one.
const IDLE_POLL: Duration = Duration::from_millis(10);
/// Minimum and maximum time between two polls of a GPU that has enough work.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
/// Poll interval of the GPU while a turn ends.
const ENDING: Duration = Duration::from_micros(50);

/// Paces the session's launches.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    turns: Arc<Turns>,
    /// A mark behind each launch in flight, and the launch time.
    marks: VecDeque<(EventId, Instant)>,
    /// When a launch was last seen to complete.
    over: Option<Instant>,
    /// Estimated duration of a launch.
    mean: Duration,
}

impl Pacing {
    pub(crate) fn follow(&mut self, turns: Arc<Turns>) {
        self.turns = turns;
    }

    /// Whether launches are paced.
    pub(crate) fn is_paced(&self) -> bool {
        self.turns.is_paced()
    }

    /// Stalls the call if it must not launch now.
    pub(crate) fn admit(&mut self, gpu: &mut Gpu) -> Outcome<()> {
        if !self.turns.is_paced() || self.may_launch(gpu) {
            return Ok(());
        }
        Err(Fault::Stall)
    }

    fn may_launch(&mut self, gpu: &mut Gpu) -> bool {
        self.look(gpu);
        let waiting = u32::try_from(self.marks.len()).unwrap_or(u32::MAX);
        let ahead = self.mean.saturating_mul(waiting);
        // The first launches give the estimate.
        let known = !self.mean.is_zero() && self.marks.len() < MAX_LAUNCHES;
        let room = self.marks.len() < FEW || known && ahead < QUEUED_WORK;
        match self.turns.state() {
            TurnState::Ours => room,
            TurnState::Ends(end) => room && Instant::now() + ahead < end,
            TurnState::Away | TurnState::Wanted | TurnState::Left => {
                self.turns.request();
                false
            }
        }
    }

    /// Records a launch.
    pub(crate) fn launched(&mut self, gpu: &mut Gpu, stream: StreamId) -> Result<()> {
        if self.turns.is_paced() {
            self.marks.push_back((gpu.mark(stream)?, Instant::now()));
        }
        Ok(())
    }

    /// Finds completed launches. After an error, drops all marks.
    fn look(&mut self, gpu: &mut Gpu) {
        let mut over = 0;
        let first = self.marks.front().map(|(_, launched)| *launched);
        while let Some(&(mark, _)) = self.marks.front() {
            if let Ok(false) = gpu.event_query(mark) {
                break;
            }
            gpu.free_mark(mark);
            self.marks.pop_front();
            over += 1;
        }
        if let Some(first) = first.filter(|_| over > 0) {
            let now = Instant::now();
            let began = self.over.map_or(first, |last| last.max(first));
            let took = now.saturating_duration_since(began) / over;
            self.mean = match self.mean.is_zero() {
                true => took,
                // An increase takes effect immediately: a turn that is too long costs
                // other sessions more than a brief idle time of the GPU.
                false => took.max((self.mean * 7 + took) / 8),
            };
            self.over = Some(now);
        }
    }

    /// Gives up the turn, because nothing will be launched for a while.
    pub(crate) fn leave(&self) {
        self.turns.leave();
    }

    /// Ends the turn if its time is over or the session is idle.
    pub(crate) fn end_if_due(&mut self, gpu: &mut Gpu) {
        if !self.turns.is_paced() {
            return;
        }
        let state = self.turns.state();
        if matches!(state, TurnState::Away | TurnState::Wanted | TurnState::Left) {
            return;
        }
        self.look(gpu);
        if !self.marks.is_empty() {
            return;
        }
        let now = Instant::now();
        let idle = now.saturating_duration_since(*self.over.get_or_insert(now));
        let over = match state {
            TurnState::Ends(end) => end <= now || idle >= IDLE_WANTED,
            _ => idle >= IDLE,
        };
        if over {
            self.over = None;
            self.turns.give_up();
        }
    }

    /// How long a stalled launch can sleep, with or without other pending calls.
    /// `None` if it does not wait for a turn.
    pub(crate) fn rest(&self, others_wait: bool) -> Option<Duration> {
        if !self.turns.is_paced() {
            return None;
        }
        Some(match self.turns.state() {
            TurnState::Away | TurnState::Wanted | TurnState::Left if others_wait => POLL_INTERVAL.1,
            TurnState::Away | TurnState::Wanted | TurnState::Left => IDLE_POLL,
            TurnState::Ours => (self.mean / 2).clamp(POLL_INTERVAL.0, POLL_INTERVAL.1),
            TurnState::Ends(_) => ENDING,
        })
    }

    /// Whether launches wait for a turn.
    pub(crate) fn awaits_turn(&self) -> bool {
        self.turns.is_paced() && self.turns.state() == TurnState::Wanted
    }

    /// Waits for a turn, until a deadline.
    pub(crate) fn await_turn(&self, until: Instant) {
        self.turns.wait(until);
    }

    /// Maximum wait for calls.
    pub(crate) fn longest_wait(&self) -> Option<Duration> {
        if !self.turns.is_paced() {
            return None;
        }
        match self.turns.state() {
            TurnState::Ends(_) => Some(ENDING),
            TurnState::Ours => Some(IDLE),
            TurnState::Away | TurnState::Wanted | TurnState::Left => None,
        }
    }
}
