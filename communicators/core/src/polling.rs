//! Decides how long to poll for a frame before sleeping.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::Error;

/// How a receiver waits for a frame: it polls for `spin`, then sleeps in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polling {
    /// Maximum time spent polling before a sleep. Zero: sleep at once.
    pub spin: Duration,
}

impl Polling {
    /// Sleeps at once, without spending processor time on waiting.
    pub const NONE: Self = Self {
        spin: Duration::ZERO,
    };
}

impl Default for Polling {
    /// 50 µs: longer than a round trip to a polling peer, shorter than a scheduler's time
    /// slice.
    fn default() -> Self {
        Self {
            spin: Duration::from_micros(50),
        }
    }
}

/// Predicts when a wait ends from how long recent waits took.
///
/// A program waits for the same kernels again and again. Waking up from a sleep takes tens
/// of microseconds, and hundreds where the kernel has stopped an idle processor. A thread
/// that sleeps until shortly before a predicted end and polls around it sees the end at once,
/// and needs the processor for a small part of the wait.
#[derive(Debug, Default)]
pub struct Forecast {
    /// How long the last waits took; zero for none.
    recent: [Duration; RECENT],
    /// Where the next one is stored.
    next: usize,
}

/// Waits that are remembered: a program's loop may contain several.
const RECENT: usize = 4;
/// Shorter waits end while a thread polls anyway; in longer ones a wake-up costs little.
const PREDICTED: Range<Duration> = Duration::from_micros(150)..Duration::from_millis(250);
/// A prediction is true within a sixteenth of the wait, but at least and at most so much.
const PRECISION: (u32, Duration, Duration) =
    (16, Duration::from_micros(150), Duration::from_millis(4));

impl Forecast {
    /// Records how long a wait took.
    pub fn record(&mut self, took: Duration) {
        if PREDICTED.contains(&took)
            && let Some(place) = self.recent.get_mut(self.next)
        {
            *place = took;
            self.next = (self.next + 1) % RECENT;
        }
    }

    /// When to poll during a wait that began at `began`: around the first predicted end
    /// for which a thread has not polled until `polled`.
    #[must_use]
    pub fn window(&self, began: Instant, polled: Instant) -> Option<Range<Instant>> {
        let (part, least, most) = PRECISION;
        let likely = self.recent.iter().filter(|took| !took.is_zero());
        let windows = likely.map(|took| {
            let margin = (*took / part).clamp(least, most);
            began + took.saturating_sub(margin)..began + *took + margin
        });
        let ahead = windows.filter(|window| window.end > polled);
        ahead.min_by_key(|window| window.start)
    }
}

/// Adapts the polling time to the peer's behaviour.
///
/// It polls in full while that finds frames, and half as long after each wait that was
/// longer than the limit, down to 1/16. If frames arrive as soon as this side sleeps, or if
/// another process ran on this processor meanwhile, polling probably keeps the peer from
/// running. It then polls for 1/16 of the time in the next 1, 3, 7, … 255 waits before it
/// tries the full time again.
#[derive(Debug)]
pub struct Adaptive {
    limit: Duration,
    budget: Duration,
    /// Of polling for the full time.
    full: Backoff,
    /// Of the sleeps.
    forecast: Forecast,
    /// Of polling around predicted ends.
    around_ends: Backoff,
    /// Whether waits poll at all.
    polls: bool,
}

impl Adaptive {
    /// Starts with the full polling time.
    #[must_use]
    pub fn new(polling: Polling) -> Self {
        Self {
            limit: polling.spin,
            budget: polling.spin,
            full: Backoff::default(),
            forecast: Forecast::default(),
            around_ends: Backoff::default(),
            polls: true,
        }
    }

    /// Sets whether waits poll before they sleep, and around predicted ends.
    pub fn set_polls(&mut self, polls: bool) {
        self.polls = polls;
    }

    /// When to poll during a sleep until `deadline`, as [`Forecast::window`]; `None` to sleep
    /// to the end.
    fn window(
        &self,
        began: Instant,
        polled: Instant,
        deadline: Option<Instant>,
    ) -> Option<Range<Instant>> {
        let window = self.forecast.window(began, polled)?;
        let is_in_time = deadline.is_none_or(|end| window.start < end);
        (self.polls && !self.limit.is_zero() && is_in_time).then_some(window)
    }

    /// The polling time of the next wait.
    fn budget(&self) -> Duration {
        match self.polls {
            true => self.budget,
            false => Duration::ZERO,
        }
    }

    /// Records that polling found a frame.
    fn found(&mut self, spin: &Spin) {
        if spin.crowded {
            self.hindered();
            return;
        }
        if self.budget == self.limit {
            self.full.end();
        }
        self.budget = self.limit;
    }

    /// Records that polling found nothing, and that a frame arrived after a sleep of
    /// `slept`.
    fn slept(&mut self, spin: &Spin, slept: Duration) {
        self.forecast.record(slept);
        if !self.polls {
            return;
        }
        if spin.crowded {
            self.hindered();
        } else if slept > self.limit {
            self.budget = (self.budget / 2).max(self.limit / 16);
        } else if self.budget == self.limit {
            self.hindered();
        } else if self.full.allows() {
            self.budget = self.limit;
        }
    }

    fn hindered(&mut self) {
        self.full.begin();
        self.budget = self.limit / 16;
    }
}

/// Leaves out phases of polling while other threads need the processor. A thread that yields to
/// another waits for the end of that one's time slice; one that sleeps is woken at once.
/// It leaves out 1, and if the next phase is hindered too, 3, 7, … 255.
#[derive(Debug, Default)]
pub struct Backoff {
    /// The last number of phases to leave out.
    penalty: u32,
    /// How many of these are left.
    left: u32,
}

impl Backoff {
    /// Whether the next phase is not left out.
    pub fn allows(&mut self) -> bool {
        let allows = self.left == 0;
        self.left = self.left.saturating_sub(1);
        allows
    }

    /// Records how a phase ended.
    pub fn note(&mut self, phase: &Spin) {
        match phase.crowded {
            true => self.begin(),
            false => self.end(),
        }
    }

    fn begin(&mut self) {
        self.penalty = (2 * self.penalty + 1).min(255);
        self.left = self.penalty;
    }

    fn end(&mut self) {
        self.penalty = 0;
    }
}

/// The outcome of a wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Waited<T> {
    /// What was waited for.
    Found(T),
    /// A waker ended it.
    Woken,
    /// It is over.
    Late,
}

/// A receiver that polls before it sleeps, and while it sleeps when the wait is likely to end.
pub trait Waiter {
    /// What it waits for.
    type Found;

    /// Decides how long to poll.
    fn adaptive(&mut self) -> &mut Adaptive;

    /// Polls until the wait ends, or the phase.
    ///
    /// # Errors
    /// The end of the connection; errors of the communicator.
    fn poll(&mut self, spin: &mut Spin) -> Result<Waited<Self::Found>, Error>;

    /// Sleeps until the wait ends, or the deadline passes.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn sleep(&mut self, deadline: Option<Instant>) -> Result<Waited<Self::Found>, Error>;

    /// Waits until the deadline at most.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn wait(&mut self, deadline: Option<Instant>) -> Result<Waited<Self::Found>, Error> {
        let mut spin = Spin::new(self.adaptive().budget(), deadline);
        let mut waited = self.poll(&mut spin)?;
        match waited {
            Waited::Found(_) => self.adaptive().found(&spin),
            Waited::Woken => {}
            Waited::Late => {
                let began = Instant::now();
                waited = self.sleep_and_poll(began, deadline)?;
                if let Waited::Found(_) = waited {
                    self.adaptive().slept(&spin, began.elapsed());
                }
            }
        }
        Ok(waited)
    }

    /// The part of a wait after the first phase of polling.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn sleep_and_poll(
        &mut self,
        began: Instant,
        deadline: Option<Instant>,
    ) -> Result<Waited<Self::Found>, Error> {
        let mut polled = began;
        let predicts = self.adaptive().around_ends.allows();
        loop {
            let window = match predicts {
                true => self.adaptive().window(began, polled, deadline),
                false => None,
            };
            let alarm = window.as_ref().map(|window| window.start).or(deadline);
            let mut waited = self.sleep(alarm)?;
            if let (Waited::Late, Some(window)) = (&waited, window) {
                polled = window.end;
                let mut spin = Spin::until(window.end, deadline);
                waited = self.poll(&mut spin)?;
                self.adaptive().around_ends.note(&spin);
                if let Waited::Late = waited {
                    continue;
                }
            }
            return Ok(waited);
        }
    }
}

/// Checks in the first, busy part of a [`Spin`]: about 1-2 µs in shared memory, a round
/// trip between two running processors.
const BUSY_CHECKS: u32 = 64;

/// Checks of the busy part for each reading of the clock.
const CHECKS_PER_CLOCK: u32 = 8;

/// If another thread wants the processor, a yield lasts for that one's time slice, perhaps
/// milliseconds. So phases of less time have only the busy part, and those around predicted ends
/// yield only this often.
const WORTH_YIELDING: Duration = Duration::from_micros(5);
const BETWEEN_YIELDS: Duration = Duration::from_micros(20);

/// If yielding the processor took longer than this, another thread ran meanwhile, or the
/// kernel was interrupted.
const CROWDED: Duration = Duration::from_micros(5);

/// A phase around a predicted end lasts for many interruptions. It may lose this much time,
/// and this part of it, before another thread is taken to need the processor.
const TOLERATED: (Duration, u32) = (Duration::from_micros(50), 8);

/// One polling phase. First it is busy with `pause`. Then it yields the processor between
/// two checks, so that a peer on the same core can run. If another thread did run, the
/// phase ends, because the scheduler favours a thread that wakes from a sleep over one that
/// yields.
#[derive(Debug)]
pub struct Spin {
    end: Option<Instant>,
    began: bool,
    budget: Duration,
    looks: u32,
    /// When a phase around a predicted end yields next.
    yields: Option<Instant>,
    /// Time lost while yielding, if the phase may lose some.
    lost: Option<Duration>,
    crowded: bool,
}

impl Spin {
    /// Starts a phase of at most `budget`, which ends by `deadline`. The time counts from
    /// the first reading of the clock.
    #[must_use]
    pub fn new(budget: Duration, deadline: Option<Instant>) -> Self {
        Self {
            end: deadline,
            began: false,
            budget,
            looks: 0,
            yields: None,
            lost: None,
            crowded: false,
        }
    }

    /// A phase around a predicted end: until `end`, or `deadline` if that is earlier.
    #[must_use]
    pub fn until(end: Instant, deadline: Option<Instant>) -> Self {
        Self {
            lost: Some(Duration::ZERO),
            ..Self::new(end.saturating_duration_since(Instant::now()), deadline)
        }
    }

    /// Whether the phase ended because another thread needed the processor.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Pauses for a moment. Returns false once the phase is over.
    pub fn again(&mut self) -> bool {
        if self.budget.is_zero() || self.crowded {
            return false;
        }
        self.looks = self.looks.saturating_add(1);
        let busy = self.looks <= BUSY_CHECKS && several_processors();
        if busy && !self.looks.is_multiple_of(CHECKS_PER_CLOCK) {
            std::hint::spin_loop();
            return true;
        }
        let now = Instant::now();
        if !self.began {
            self.began = true;
            let end = now + self.budget;
            self.end = Some(self.end.map_or(end, |deadline| deadline.min(end)));
        }
        if self.end.is_some_and(|end| now >= end) {
            return false;
        }
        if busy {
            return true;
        }
        if self.budget < WORTH_YIELDING {
            return false;
        }
        if self.lost.is_some() && several_processors() {
            let yields = self.yields.get_or_insert(now + BETWEEN_YIELDS);
            if now < *yields {
                std::hint::spin_loop();
                return true;
            }
            *yields = now + BETWEEN_YIELDS;
        }
        std::thread::yield_now();
        self.yielded(now.elapsed());
        true
    }

    /// Judges by the time that a yield took whether another thread needs the processor.
    fn yielded(&mut self, took: Duration) {
        if took <= CROWDED {
            return;
        }
        let (least, part) = TOLERATED;
        self.crowded = match &mut self.lost {
            None => true,
            Some(lost) => {
                *lost += took;
                *lost > least.max(self.budget / part)
            }
        };
    }
}

/// Number of processors that the process could use when this was first called; at least 1.
/// That call reads files of the process's control group, in which a thread can be cancelled.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

fn several_processors() -> bool {
    processors() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_budget_means_no_polling() {
        assert!(!Spin::new(Duration::ZERO, None).again());
    }

    #[test]
    fn a_spin_ends() {
        let mut spin = Spin::new(Duration::from_micros(10), None);
        while spin.again() {}
        let mut spin = Spin::new(Duration::from_secs(3600), Some(Instant::now()));
        while spin.again() {}
    }

    #[test]
    fn waits_are_predicted_from_recent_ones() {
        let (mut forecast, began) = (Forecast::default(), Instant::now());
        let at = |micros| began + Duration::from_micros(micros);
        assert_eq!(forecast.window(began, began), None);
        forecast.record(Duration::from_micros(16_000));
        assert_eq!(
            forecast.window(began, began),
            Some(at(15_000)..at(17_000)),
            "a sixteenth around it"
        );
        forecast.record(Duration::from_micros(200));
        assert_eq!(forecast.window(began, began), Some(at(50)..at(350)));
        assert_eq!(
            forecast.window(began, at(350)),
            Some(at(15_000)..at(17_000)),
            "the next one"
        );
        assert_eq!(forecast.window(began, at(17_000)), None);
        // Polling covers short waits, and long ones need no prediction.
        forecast.record(Duration::from_micros(100));
        forecast.record(Duration::from_secs(1));
        assert_eq!(forecast.window(began, at(17_000)), None);
        for _ in 0..RECENT {
            forecast.record(Duration::from_micros(160_000));
        }
        assert_eq!(
            forecast.window(began, began),
            Some(at(156_000)..at(164_000)),
            "earlier waits are forgotten"
        );
    }

    #[test]
    fn who_does_not_poll_sleeps_to_the_end() {
        let (spin, began) = (Spin::new(Duration::ZERO, None), Instant::now());
        for (polling, polls) in [(Polling::NONE, false), (Polling::default(), true)] {
            let mut adaptive = Adaptive::new(polling);
            adaptive.slept(&spin, Duration::from_millis(16));
            assert_eq!(adaptive.window(began, began, None).is_some(), polls);
            let early = Some(began + Duration::from_millis(10));
            assert_eq!(adaptive.window(began, began, early), None);
        }
    }

    /// What it waits for arrives while it sleeps for the second time.
    struct Counting {
        adaptive: Adaptive,
        polls: u32,
        sleeps: u32,
    }

    impl Waiter for Counting {
        type Found = ();

        fn adaptive(&mut self) -> &mut Adaptive {
            &mut self.adaptive
        }

        fn poll(&mut self, spin: &mut Spin) -> Result<Waited<()>, Error> {
            while spin.again() {
                self.polls += 1;
            }
            Ok(Waited::Late)
        }

        fn sleep(&mut self, deadline: Option<Instant>) -> Result<Waited<()>, Error> {
            self.sleeps += 1;
            Ok(deadline.map_or(Waited::Found(()), |_| Waited::Late))
        }
    }

    #[test]
    fn a_wait_that_must_not_poll_only_sleeps() {
        let mut waiter = Counting {
            adaptive: Adaptive::new(Polling::default()),
            polls: 0,
            sleeps: 0,
        };
        let forecast = Duration::from_millis(1);
        waiter.adaptive.forecast.record(forecast);
        waiter.adaptive.set_polls(false);
        for wait in 1..=3 {
            assert_eq!(waiter.wait(None).unwrap(), Waited::Found(()));
            assert_eq!((waiter.polls, waiter.sleeps), (0, wait));
        }
        // Those waits were recorded too, and on a busy machine they took long.
        waiter.adaptive.forecast = Forecast::default();
        waiter.adaptive.forecast.record(forecast);
        waiter.adaptive.set_polls(true);
        waiter.wait(None).unwrap();
        assert_ne!(waiter.polls, 0);
        assert_eq!(waiter.sleeps, 5, "before and after the predicted end");
    }

    #[test]
    fn an_interruption_does_not_end_a_long_phase() {
        let interruption = Duration::from_micros(20);
        let mut spin = Spin::new(Duration::from_millis(8), None);
        spin.yielded(interruption);
        assert!(spin.is_crowded());
        let mut spin = Spin {
            lost: Some(Duration::ZERO),
            ..Spin::new(Duration::from_millis(8), None)
        };
        for _ in 0..40 {
            spin.yielded(interruption);
            spin.yielded(CROWDED);
        }
        assert!(!spin.is_crowded());
        spin.yielded(Duration::from_millis(1));
        assert!(spin.is_crowded(), "another thread ran");
    }

    #[test]
    fn fruitless_polling_shrinks_and_comes_back() {
        let limit = Duration::from_micros(160);
        let spin = Spin::new(limit, None);
        let mut adaptive = Adaptive::new(Polling { spin: limit });
        for _ in 0..10 {
            adaptive.slept(&spin, limit * 2);
        }
        assert_eq!(adaptive.budget(), limit / 16);
        adaptive.slept(&spin, limit);
        assert_eq!(adaptive.budget(), limit);
        adaptive.slept(&spin, limit * 2);
        assert_eq!(adaptive.budget(), limit / 2);
        adaptive.found(&spin);
        assert_eq!(adaptive.budget(), limit);
    }

    #[test]
    fn a_wanted_processor_ends_polling() {
        let limit = Duration::from_micros(160);
        let mut adaptive = Adaptive::new(Polling { spin: limit });
        let spin = Spin {
            crowded: true,
            ..Spin::new(limit, None)
        };
        adaptive.found(&spin);
        assert_eq!(adaptive.budget(), limit / 16);
    }

    #[test]
    fn polling_that_only_hinders_becomes_rare() {
        let limit = Duration::from_micros(160);
        let spin = Spin::new(limit, None);
        let mut adaptive = Adaptive::new(Polling { spin: limit });
        let mut full = 0;
        for _ in 0..1000 {
            full += u32::from(adaptive.budget() == limit);
            adaptive.slept(&spin, limit / 8);
        }
        assert!(full < 15, "{full} of 1000");
        while adaptive.budget() != limit {
            adaptive.slept(&spin, limit / 8);
        }
        adaptive.found(&spin);
        adaptive.slept(&spin, limit / 8);
        adaptive.slept(&spin, limit / 8);
        assert_eq!(adaptive.budget(), limit / 16);
        adaptive.slept(&spin, limit / 8);
        assert_eq!(adaptive.budget(), limit);
    }

    #[test]
    fn hindered_phases_are_left_out() {
        let mut spin = Spin::new(Duration::from_micros(160), None);
        let mut backoff = Backoff::default();
        spin.crowded = true;
        for left_out in [1, 3, 7] {
            assert!(backoff.allows());
            backoff.note(&spin);
            assert_eq!((0..100).position(|_| backoff.allows()), Some(left_out));
        }
        spin.crowded = false;
        backoff.note(&spin);
        spin.crowded = true;
        backoff.note(&spin);
        assert_eq!((0..100).position(|_| backoff.allows()), Some(1));
    }
}
