//! Paces launches on a GPU with shares.
//!
//! A turn has to end soon after its time, so the number of launches in flight is
//! limited. Marks behind the launches measure how long kernels take, and so how many
//! may be queued in the GPU. Without shares there are no marks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_device::{EventId, Result, StreamId};

use super::gpu::Gpu;
use crate::error::{Fault, Outcome};
use crate::turns::{Stand, Turns};

/// How much work may wait in the GPU: enough to keep it busy.
const AHEAD: Duration = Duration::from_millis(1);
/// Launches that may always wait there: one runs, and one follows.
const FEW: usize = 2;
/// Launches that wait there at most, so that long kernels behind short ones do
/// not overrun the turn by much.
const MOST: usize = 64;
/// A session without work keeps its turn for so long, and for so long where
/// others wait: many programs wait a moment between two kernels.
const IDLE: Duration = Duration::from_millis(1);
const IDLE_WANTED: Duration = Duration::from_micros(200);
/// A session without a turn is woken when it gets one; it looks so often for
/// the rest.
const AWAY: Duration = Duration::from_millis(10);
/// Least and longest time between two looks at a GPU that has enough work.
const LOOKS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
/// Looks at the GPU are so far apart while a turn ends.
const ENDING: Duration = Duration::from_micros(50);

/// The session's launches in its turn.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    turns: Arc<Turns>,
    /// Behind each launch that is not over, and when it was launched.
    marks: VecDeque<(EventId, Instant)>,
    /// When a launch was last found over.
    over: Option<Instant>,
    /// How long a launch takes, about.
    mean: Duration,
}

impl Pacing {
    pub(crate) fn follow(&mut self, turns: Arc<Turns>) {
        self.turns = turns;
    }

    /// May something be launched now? A stall where it must wait.
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
        // The first tell how long a launch takes.
        let known = !self.mean.is_zero() && self.marks.len() < MOST;
        let room = self.marks.len() < FEW || known && ahead < AHEAD;
        match self.turns.stand() {
            Stand::Ours => room,
            Stand::Ends(end) => room && Instant::now() + ahead < end,
            Stand::Away | Stand::Wanted | Stand::Left => {
                self.turns.want();
                false
            }
        }
    }

    /// Something was launched.
    pub(crate) fn launched(&mut self, gpu: &mut Gpu, stream: StreamId) -> Result<()> {
        if self.turns.is_paced() {
            self.marks.push_back((gpu.mark(stream)?, Instant::now()));
        }
        Ok(())
    }

    /// Finds launches that are over. After an error none is waited for.
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
                // One that grew is believed at once: a turn that is too long costs
                // others more than a GPU that waits for a moment.
                false => took.max((self.mean * 7 + took) / 8),
            };
            self.over = Some(now);
        }
    }

    /// Nothing is launched for a while: others need not wait.
    pub(crate) fn leave(&self) {
        self.turns.leave();
    }

    /// Ends the turn where its time is over, or the session has no work.
    pub(crate) fn tend(&mut self, gpu: &mut Gpu) {
        if !self.turns.is_paced() {
            return;
        }
        let stand = self.turns.stand();
        if matches!(stand, Stand::Away | Stand::Wanted | Stand::Left) {
            return;
        }
        self.look(gpu);
        if !self.marks.is_empty() {
            return;
        }
        let now = Instant::now();
        let idle = now.saturating_duration_since(*self.over.get_or_insert(now));
        let over = match stand {
            Stand::Ends(end) => end <= now || idle >= IDLE_WANTED,
            _ => idle >= IDLE,
        };
        if over {
            self.over = None;
            self.turns.give_up();
        }
    }

    /// How long a launch that stalls may rest, while other calls wait for the
    /// device or not; `None` if it does not wait for this.
    pub(crate) fn rest(&self, others_wait: bool) -> Option<Duration> {
        if !self.turns.is_paced() {
            return None;
        }
        Some(match self.turns.stand() {
            Stand::Away | Stand::Wanted | Stand::Left if others_wait => LOOKS.1,
            Stand::Away | Stand::Wanted | Stand::Left => AWAY,
            Stand::Ours => (self.mean / 2).clamp(LOOKS.0, LOOKS.1),
            Stand::Ends(_) => ENDING,
        })
    }

    /// Do launches wait for a turn?
    pub(crate) fn awaits_turn(&self) -> bool {
        self.turns.is_paced() && self.turns.stand() == Stand::Wanted
    }

    /// Waits for one, until then at most.
    pub(crate) fn await_turn(&self, until: Instant) {
        self.turns.wait(until);
    }

    /// How long at most calls are waited for.
    pub(crate) fn longest_wait(&self) -> Option<Duration> {
        if !self.turns.is_paced() {
            return None;
        }
        match self.turns.stand() {
            Stand::Ends(_) => Some(ENDING),
            Stand::Ours => Some(IDLE),
            Stand::Away | Stand::Wanted | Stand::Left => None,
        }
    }
}
