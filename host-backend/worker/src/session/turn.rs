//! Paces launches on a GPU with shares.
//!
//! A turn has to end soon after its time, so the number of launches in flight is
//! limited. Marks behind the launches measure how long kernels take, and thereby
//! how many may be queued in the GPU. Without shares there are no marks.
//!
//! Kernels of several streams may wait for each other. So a kernel that stays delays launches in
//! other streams, but does not keep them from the GPU.
//!
//! Work may also wait for the program: for a host function, an event or a word. Launches behind
//! it do not run, and the program may end the wait by a call behind them. So after a while they
//! neither count nor keep others from the GPU.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_control::turn::OVERRUN;
use paragpu_device::{EventId, Result, StreamId};
use paragpu_protocol::handle::StreamHandle;

use super::gpu::Gpu;
use super::stream::Streams;
use crate::error::{Fault, Outcome};
use crate::turns::{TurnState, Turns};

/// Target amount of queued work in the GPU: enough to keep it busy.
const QUEUED_WORK: Duration = Duration::from_millis(1);
/// Launches that may always be queued: one runs, and one follows.
const FEW: usize = 2;
/// Maximum number of queued launches, so that long kernels behind short ones do not
/// overrun the turn by much.
const MAX_LAUNCHES: usize = 64;
/// A launch that is in flight for longer does not count towards these limits in other streams.
/// Launches behind work that has waited for longer do not count in any.
const STAYS: Duration = Duration::from_millis(100);
/// A launch that these limits have delayed for longer is admitted in the session's turn: the
/// kernels before it in its stream may wait for a call behind it.
const DELAYED: Duration = Duration::from_secs(1);
/// When to request another turn while a kernel of the last one still runs, after its end. The
/// daemon must have found first that the turn is overrun.
const AGAIN: Duration = OVERRUN.saturating_add(Duration::from_millis(100));
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

/// What was launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Launched {
    /// A kernel, or a graph of the device alone.
    Kernel,
    /// A graph with host functions.
    GraphThatCallsHost,
}

/// What a mark is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Launch(Launched),
    /// Work that may [wait](Streams::wait) for the program.
    Wait,
}

/// A mark behind a launch in flight, or behind work that it follows.
#[derive(Debug)]
struct Mark {
    event: EventId,
    launched: Instant,
    stream: StreamHandle,
    before: Before,
}

impl Mark {
    fn stays(&self, now: Instant) -> bool {
        self.launched + STAYS < now
    }
}

/// Paces the session's launches.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    turns: Arc<Turns>,
    /// Of the launches in flight, in their order.
    marks: VecDeque<Mark>,
    /// Since when these delay a launch.
    delayed: Option<Instant>,
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

    /// Stalls the call if it must not launch in this stream now.
    pub(crate) fn admit(
        &mut self,
        gpu: &mut Gpu,
        streams: &mut Streams,
        stream: StreamHandle,
    ) -> Outcome<()> {
        if !self.turns.is_paced() {
            return Ok(());
        }
        if let Some(event) = streams.mark_wait(gpu, stream)? {
            self.add(event, stream, Before::Wait);
        }
        match self.may_launch(gpu, streams, stream) {
            true => Ok(()),
            false => Err(Fault::Stall),
        }
    }

    fn add(&mut self, event: EventId, stream: StreamHandle, before: Before) {
        self.marks.push_back(Mark {
            event,
            launched: Instant::now(),
            stream,
            before,
        });
    }

    /// Whether launches are in flight.
    fn has_launches(&self) -> bool {
        let mut marks = self.marks.iter();
        marks.any(|mark| mark.before != Before::Wait)
    }

    /// The launches in flight that are not behind work that has waited for long.
    fn running<'a>(&'a self, streams: &'a Streams, now: Instant) -> impl Iterator<Item = &'a Mark> {
        let mut waiting: Vec<StreamHandle> = Vec::new();
        self.marks.iter().filter(move |mark| {
            let waits = match mark.before {
                Before::Wait => mark.stays(now),
                Before::Launch(Launched::GraphThatCallsHost) => {
                    mark.stays(now) && streams.host_functions_run()
                }
                Before::Launch(Launched::Kernel) => false,
            };
            if waits {
                waiting.push(mark.stream);
            }
            mark.before != Before::Wait && !waiting.contains(&mark.stream)
        })
    }

    fn may_launch(&mut self, gpu: &mut Gpu, streams: &Streams, stream: StreamHandle) -> bool {
        self.look(gpu);
        let now = Instant::now();
        let running = self.running(streams, now);
        let waiting = running
            .filter(|mark| mark.stream == stream || !mark.stays(now))
            .count();
        let ahead = u32::try_from(waiting).unwrap_or(u32::MAX);
        let ahead = self.mean.saturating_mul(ahead);
        // The first launches give the estimate.
        let known = !self.mean.is_zero();
        let room = waiting < FEW || known && ahead < QUEUED_WORK;
        let room = room && waiting < MAX_LAUNCHES;
        let delayed = match room {
            true => None,
            false => Some(*self.delayed.get_or_insert(now)),
        };
        let room = delayed.is_none_or(|since| since + DELAYED < now);
        let launches = match self.turns.state() {
            TurnState::Ours => room,
            TurnState::Ends(end) if end + AGAIN < now && self.has_launches() => {
                self.turns.request_again();
                false
            }
            TurnState::Ends(end) => room && now + ahead < end,
            TurnState::Passed => {
                self.turns.request_again();
                false
            }
            TurnState::Late => false,
            TurnState::Away | TurnState::Wanted | TurnState::Left => {
                self.turns.request();
                false
            }
        };
        self.delayed = delayed.filter(|_| !launches);
        launches
    }

    /// Records a launch.
    pub(crate) fn launched(
        &mut self,
        gpu: &mut Gpu,
        stream: StreamHandle,
        id: StreamId,
        what: Launched,
    ) -> Result<()> {
        if self.turns.is_paced() {
            let event = gpu.mark(id)?;
            self.add(event, stream, Before::Launch(what));
        }
        Ok(())
    }

    /// Finds completed launches. After an error, drops all marks.
    fn look(&mut self, gpu: &mut Gpu) {
        let (mut over, mut first) = (0, None);
        // Streams whose next launch is not complete.
        let mut open = Vec::new();
        self.marks.retain(|mark| {
            if open.contains(&mark.stream) {
                return true;
            }
            if let Ok(false) = gpu.event_query(mark.event) {
                open.push(mark.stream);
                return true;
            }
            gpu.free_mark(mark.event);
            if mark.before != Before::Wait {
                first.get_or_insert(mark.launched);
                over += 1;
            }
            false
        });
        if let Some(first) = first {
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

    /// Ends the turn if its time is over or the session is idle. If all that is left waits for
    /// the program, others may launch meanwhile.
    pub(crate) fn end_if_due(&mut self, gpu: &mut Gpu, streams: &Streams) {
        if !self.turns.is_paced() {
            return;
        }
        let state = self.turns.state();
        if matches!(state, TurnState::Away | TurnState::Wanted | TurnState::Left) {
            return;
        }
        self.look(gpu);
        let now = Instant::now();
        if self.has_launches() {
            let waits = self.running(streams, now).next().is_none();
            if waits && matches!(state, TurnState::Ends(_)) {
                self.turns.pass();
            }
            return;
        }
        let idle = now.saturating_duration_since(*self.over.get_or_insert(now));
        let over = match state {
            TurnState::Ends(end) => end <= now || idle >= IDLE_WANTED,
            TurnState::Passed | TurnState::Late => true,
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
            TurnState::Passed | TurnState::Late => POLL_INTERVAL.1,
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
            TurnState::Ours | TurnState::Passed | TurnState::Late => Some(IDLE),
            TurnState::Away | TurnState::Wanted | TurnState::Left => None,
        }
    }
}
