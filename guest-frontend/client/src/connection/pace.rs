//! How far a thread launches ahead of the host, and how evenly.
//!
//! The host submits the launches of [threads that say who they are](super::signal) one after the
//! other for each thread. A thread that runs as far ahead as it may waits in each call until the
//! host has submitted one more. It then feels every delay of the driver, however many launches lie
//! between. So a thread slows down before: each of its calls takes about as long as the host took
//! for a launch lately, and up to half as long again the more launches are waiting. A delay of the
//! driver lengthens the queue, and the calls a little. It says little about the launches that
//! follow, so it counts for little in that time; a host that stays slower is soon known to be.

use std::time::{Duration, Instant};

/// Launches that a thread may always be ahead.
const FREE: u64 = 8;
/// Launches ahead at which a thread is as fast as the host.
const USUAL: u32 = 24;
/// Launches ahead from which on a thread is no slower: it takes half as long again as the host.
const SLOWEST: u32 = USUAL * 3 / 2;
/// Launches that a thread may at most be ahead.
const MOST: u64 = 256;
/// Submissions whose time is taken together: the host tells of some at once.
const SAMPLE: u32 = 16;
/// A sample's weight in the mean: one in so many.
const SAMPLES: u32 = 8;
/// How many halves of the mean a sample counts at most.
const OUTLIER: u32 = 3;

/// The launches of a thread that the host has perhaps not submitted.
#[derive(Debug)]
pub(super) struct Pace {
    /// Lower halves of the positions of the last ones.
    positions: [u32; MOST as usize],
    /// How many launches the thread made, and how many of these are submitted.
    made: u64,
    submitted: u64,
    /// Mean time between two submissions.
    interval: Duration,
    /// Submissions since the beginning of a sample.
    sampled: u32,
    sampling: Option<Instant>,
    /// When the last launch returned.
    returned: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            positions: [0; MOST as usize],
            made: 0,
            submitted: 0,
            interval: Duration::ZERO,
            sampled: 0,
            sampling: None,
            returned: None,
        }
    }
}

impl Pace {
    /// Notes a launch. The lower half of its position is `position`.
    pub(super) fn note(&mut self, position: u32) {
        match self.ahead() {
            // The host was idle.
            0 => self.sampling = None,
            // The thread did not wait for the first.
            MOST.. => self.submitted += 1,
            _ => {}
        }
        let at = self.made % MOST;
        if let Some(place) = self.positions.get_mut(at as usize) {
            *place = position;
        }
        self.made += 1;
    }

    /// Whether the thread is to wait `now`, where the last launch submitted has `submitted` as the
    /// lower half of its position.
    pub(super) fn holds(&mut self, submitted: u32, now: Instant) -> bool {
        self.learn(submitted, now);
        let ahead = self.ahead();
        if ahead >= MOST {
            return true;
        }
        let slowness = u32::try_from(ahead).map_or(SLOWEST, |ahead| ahead.min(SLOWEST));
        let rest = self.interval * slowness / USUAL;
        ahead > FREE
            && self
                .returned
                .is_some_and(|returned| now.saturating_duration_since(returned) < rest)
    }

    /// Ends a launch's call.
    pub(super) fn returns(&mut self, now: Instant) {
        self.returned = Some(now);
    }

    fn ahead(&self) -> u64 {
        self.made - self.submitted
    }

    fn learn(&mut self, submitted: u32, now: Instant) {
        let before = self.submitted;
        while self.submitted < self.made {
            let at = self.submitted % MOST;
            let place = self.positions.get(at as usize).copied();
            if place.is_some_and(|place| submitted.wrapping_sub(place) > u32::MAX / 2) {
                break;
            }
            self.submitted += 1;
        }
        self.sampled += (self.submitted - before) as u32;
        match self.sampling {
            None => {
                self.sampling = Some(now);
                self.sampled = 0;
            }
            Some(began) if self.sampled >= SAMPLE => {
                let mean = now.saturating_duration_since(began) / self.sampled;
                self.interval = match self.interval.is_zero() {
                    true => mean,
                    false => {
                        let counted = mean.min(self.interval * OUTLIER / 2);
                        (self.interval * (SAMPLES - 1) + counted) / SAMPLES
                    }
                };
                self.sampling = Some(now);
                self.sampled = 0;
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    /// A host that submits one launch after the other, and can be delayed.
    struct Host {
        takes: Duration,
        /// When it has submitted the last launch given.
        free: Instant,
        /// When each launch is submitted.
        ends: Vec<Instant>,
    }

    impl Host {
        fn new(takes: Duration) -> Self {
            Self {
                takes,
                free: Instant::now(),
                ends: Vec::new(),
            }
        }

        fn give(&mut self, now: Instant) {
            self.free = self.free.max(now) + self.takes;
            self.ends.push(self.free);
        }

        /// Delays the launches that are not submitted.
        fn delay(&mut self, now: Instant, time: Duration) {
            self.free += time;
            for end in self.ends.iter_mut().filter(|end| **end > now) {
                *end += time;
            }
        }

        /// Positions count from 1.
        fn submitted(&self, now: Instant) -> u32 {
            self.ends.iter().filter(|end| **end <= now).count() as u32
        }
    }

    /// How long each of `count` calls takes of a thread that does nothing else, at intervals of a
    /// microsecond. `between` runs before each.
    fn calls(
        host: &mut Host,
        count: u32,
        mut between: impl FnMut(u32, Instant, &mut Host),
    ) -> Vec<Duration> {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        let mut taken = Vec::new();
        for position in 1..=count {
            between(position, now, host);
            let began = now;
            host.give(now);
            pace.note(position);
            now += MICROSECOND;
            while pace.holds(host.submitted(now), now) {
                now += MICROSECOND;
            }
            pace.returns(now);
            taken.push(now - began);
            let ahead = position - host.submitted(now);
            assert!(u64::from(ahead) < MOST, "{ahead} at {position}");
        }
        taken
    }

    fn settled(mut taken: Vec<Duration>) -> (Duration, Duration) {
        let mut taken = taken.split_off(1000);
        taken.sort();
        (taken[taken.len() / 2], taken[taken.len() - 1])
    }

    #[test]
    fn calls_take_as_long_as_the_host_takes() {
        let mut host = Host::new(10 * MICROSECOND);
        let (median, slowest) = settled(calls(&mut host, 3000, |_, _, _| {}));
        assert!(
            median >= 9 * MICROSECOND && slowest <= 12 * MICROSECOND,
            "{median:?} {slowest:?}"
        );
        // It never waited for the thread.
        assert!(host.free - host.ends[0] <= 10 * MICROSECOND * 3000);
    }

    #[test]
    fn delays_of_the_host_lengthen_calls_by_about_half() {
        let mut host = Host::new(10 * MICROSECOND);
        let taken = calls(&mut host, 10_000, |position, now, host| {
            let delay = match position {
                _ if position.is_multiple_of(4000) => 1500,
                _ if position.is_multiple_of(500) => 200,
                _ => 0,
            };
            host.delay(now, delay * MICROSECOND);
        });
        let (median, slowest) = settled(taken);
        assert!(slowest <= 2 * median, "{median:?} {slowest:?}");
        // It never waited for the thread.
        let work = (10_000 * 10 + 2 * 1500 + 18 * 200) * MICROSECOND;
        assert!(host.free - host.ends[0] <= work);
    }

    #[test]
    fn a_host_that_stops_stops_the_thread() {
        let mut pace = Pace::default();
        let now = Instant::now();
        for position in 1..MOST {
            pace.note(position as u32);
            assert!(!pace.holds(0, now), "{position}");
            pace.returns(now);
        }
        pace.note(MOST as u32);
        let later = now + Duration::from_secs(1);
        assert!(pace.holds(0, later));
        // The thread gave up: its next launch waits for the same ones.
        pace.returns(later);
        pace.note(MOST as u32 + 1);
        assert!(pace.holds(1, later) && !pace.holds(2, later));
    }

    #[test]
    fn positions_wrap() {
        let mut pace = Pace::default();
        let now = Instant::now();
        for at in 0..MOST {
            pace.note((u32::MAX - 10).wrapping_add(at as u32));
        }
        assert!(pace.holds(u32::MAX - 11, now));
        assert!(!pace.holds(5, now));
        assert_eq!(pace.ahead(), MOST - 17);
    }

    #[test]
    fn a_slower_host_slows_the_thread_and_a_faster_one_does_not_wait() {
        let mut host = Host::new(5 * MICROSECOND);
        let taken = calls(&mut host, 6000, |position, _, host| {
            host.takes = if (2000..4000).contains(&position) {
                50
            } else {
                5
            } * MICROSECOND;
        });
        let mean = |part: &[Duration]| part.iter().sum::<Duration>() / part.len() as u32;
        assert!(mean(&taken[2500..4000]) >= 45 * MICROSECOND);
        assert!(mean(&taken[4500..]) <= 6 * MICROSECOND);
        let work = (2000 * 50 + 4000 * 5) * MICROSECOND;
        assert!(host.free - host.ends[0] <= work + work / 100);
    }
}
