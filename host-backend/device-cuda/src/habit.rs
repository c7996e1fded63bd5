//! Threads that sleep until an event is reached, where possible without an interrupt of the GPU.
//!
//! An interrupt of a GPU wakes a thread of NVIDIA's driver in each process that uses the GPU. If
//! sixteen processes wait for kernels, that takes most of the processor time which their waits
//! need. A program waits for the same work again and again, so this sleeps by the clock for as
//! long as such waits took at least, and then looks from time to time.

use std::ops::Range;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::sys::Event;

/// Waits after which the shortest of them is trusted, at first.
const TRUSTED_AFTER: u32 = 8;
/// Shorter waits sleep in the driver: many interrupts of the GPU are as expensive as many looks.
const LEAST: Duration = Duration::from_millis(2);
/// A wait is expected to end from this part of the trusted time before its end …
const BEFORE: u32 = 16;
/// … until this part after it. Longer waits sleep on in the driver.
const AFTER: u32 = 4;
/// Between two looks at the event lies at most this part of the trusted time, and at most so much.
const STEP: (u32, Duration) = (64, Duration::from_millis(1));
/// So often the sleep before is interrupted by a look, for waits that are over too early.
const EARLY_LOOKS: u32 = 2;

/// An event of the device.
pub(crate) struct TimedEvent {
    pub(crate) event: Arc<Event>,
    pub(crate) habit: Arc<Mutex<Habit>>,
}

impl TimedEvent {
    pub(crate) fn new(event: Arc<Event>) -> Self {
        let habit = Arc::default();
        Self { event, habit }
    }
}

/// How long waits for an event take.
#[derive(Debug)]
pub(crate) struct Habit {
    /// The shortest wait of the last block of waits, in which none was too short.
    trusted: Duration,
    /// The shortest one of this block.
    shortest: Duration,
    /// Waits of this block.
    waits: u32,
    /// Waits of a block. Each wait that is over before the trusted time doubles them, so that
    /// few of a program's waits end late, however regularly it makes short ones.
    block: u32,
}

impl Default for Habit {
    fn default() -> Self {
        Self {
            trusted: Duration::ZERO,
            shortest: Duration::MAX,
            waits: 0,
            block: TRUSTED_AFTER,
        }
    }
}

impl Habit {
    /// Sleeps until `is_over`; if that is not soon after the trusted time, until `sleep_on`
    /// returns.
    pub(crate) fn wait(habit: &Mutex<Self>, is_over: impl Fn() -> bool, sleep_on: impl FnOnce()) {
        let began = Instant::now();
        let comes_by = |time: Duration| {
            sleep(time.saturating_sub(began.elapsed()));
            is_over()
        };
        let expected = habit.lock().expected();
        let was_short = expected.as_ref().is_some_and(|expected| {
            (1..=EARLY_LOOKS).any(|look| comes_by(expected.start * look / EARLY_LOOKS))
        });
        let is_over = was_short
            || expected.is_some_and(|Range { start, end }| {
                let step = (start / STEP.0).min(STEP.1);
                let looks = std::iter::successors(Some(start + step), |time| Some(*time + step));
                looks.take_while(|time| *time < end).any(comes_by)
            });
        if !is_over {
            sleep_on();
        }
        habit.lock().note(began.elapsed(), was_short);
    }

    /// When the next wait is expected to end, from its begin; `None` if that is unknown.
    fn expected(&self) -> Option<Range<Duration>> {
        let trusted = self.trusted;
        (trusted >= LEAST).then(|| trusted - trusted / BEFORE..trusted + trusted / AFTER)
    }

    /// Notes how long a wait took, and whether it was over before the trusted time.
    fn note(&mut self, took: Duration, was_short: bool) {
        if was_short {
            *self = Self {
                block: self.block.saturating_mul(2),
                ..Self::default()
            };
            return;
        }
        self.shortest = self.shortest.min(took);
        self.waits += 1;
        if self.waits == self.block {
            self.trusted = self.shortest;
            (self.shortest, self.waits) = (Duration::MAX, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LONG: Duration = Duration::from_millis(40);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Notes a wait as [`Habit::wait`] does; whether it was over too early.
    fn meet(habit: &mut Habit, took: Duration) -> bool {
        let was_short = habit.expected().is_some_and(|range| took < range.start);
        habit.note(took, was_short);
        was_short
    }

    #[test]
    fn the_shortest_wait_of_a_block_is_trusted() {
        let mut habit = Habit::default();
        for more in 0..TRUSTED_AFTER {
            assert_eq!(habit.expected(), None);
            meet(&mut habit, LONG + ms(u64::from(more)));
        }
        assert_eq!(habit.expected(), Some(LONG - LONG / 16..LONG + LONG / 4));
        // Longer waits are learnt by the next block.
        for _ in 0..TRUSTED_AFTER {
            assert!(!meet(&mut habit, LONG * 2));
        }
        assert!(habit.expected().unwrap().contains(&(LONG * 2)));
    }

    #[test]
    fn short_waits_are_left_to_the_driver() {
        let mut habit = Habit::default();
        for _ in 0..100 {
            meet(&mut habit, LEAST / 2);
        }
        assert_eq!(habit.expected(), None);
    }

    /// However a program mixes long and short waits, few of its short ones end late.
    #[test]
    fn few_short_waits_meet_a_trusted_time() {
        for period in 1..100 {
            let mut habit = Habit::default();
            let late = (1..100_000_u32).filter(|at| match at.is_multiple_of(period) {
                true => meet(&mut habit, ms(1)),
                false => {
                    meet(&mut habit, LONG);
                    false
                }
            });
            assert!(late.count() <= 8, "a short one every {period}");
        }
    }

    fn trusting(trusted: Duration) -> Mutex<Habit> {
        Mutex::new(Habit {
            trusted,
            ..Habit::default()
        })
    }

    /// Waits until look number `ends`; whether the driver slept.
    fn slept(habit: &Mutex<Habit>, ends: Option<u32>) -> bool {
        let (looks, slept) = (Cell::new(0), Cell::new(false));
        let is_over = || {
            looks.set(looks.get() + 1);
            Some(looks.get()) == ends
        };
        Habit::wait(habit, is_over, || slept.set(true));
        assert!(ends.is_none_or(|ends| looks.get() == ends));
        slept.get()
    }

    #[test]
    fn a_look_ends_a_wait_that_is_over_early() {
        let habit = trusting(LEAST);
        assert!(!slept(&habit, Some(1)));
        let habit = habit.into_inner();
        assert_eq!(habit.expected(), None, "no longer trusted");
        assert_eq!(habit.block, 2 * TRUSTED_AFTER);
    }

    #[test]
    fn a_wait_that_ends_as_expected_does_not_sleep_in_the_driver() {
        let habit = trusting(LEAST);
        assert!(!slept(&habit, Some(EARLY_LOOKS + 3)));
        assert!(habit.lock().expected().is_some());
        assert_eq!(habit.lock().waits, 1);
    }

    #[test]
    fn a_wait_that_goes_on_sleeps_in_the_driver() {
        let habit = trusting(LEAST);
        assert!(slept(&habit, None));
        assert!(habit.lock().expected().is_some());
    }
}
