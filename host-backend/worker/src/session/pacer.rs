//! Decides how long to wait for the guest, and how long for the device.

use std::time::{Duration, Instant};

use paragpu_communicator::{Backoff, Forecast, Spin, Wait};

/// How to wait for the device and the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// For the guest, up to this time.
    Guest(Wait),
    /// For the device, up to this time, because it needs this processor.
    Device(Duration),
}

/// Polls at first, then sleeps for a fraction of the time already waited, and polls again when
/// the work is likely to complete. So a long kernel costs little processor time, and a short
/// one, or one like the last ones, little delay. If other threads need the processor, it
/// yields: to a device that computes on this host, or otherwise to the guest or to a thread
/// that waits for it.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    began: Option<Instant>,
    /// The current phase of polling.
    spin: Option<Spin>,
    /// Up to this time, it has polled around the predicted ends.
    polled: Option<Instant>,
    /// The first phase ended because other threads need the processor.
    crowded: bool,
    /// When output of running kernels was last looked for.
    looked: Option<Instant>,
    forecast: Forecast,
    /// Of polling for a GPU.
    backoff: Backoff,
}

/// Maximum time of polling. Short kernels and graphs complete within it, and a sleep
/// would cost them more than it saves.
const POLLING: Duration = Duration::from_micros(200);
/// Minimum and maximum sleep.
const SLEEP: (Duration, Duration) = (Duration::from_micros(10), Duration::from_micros(500));
/// Time between two looks for what kernels print while they run.
const OUTPUT: Duration = Duration::from_millis(1);
/// A sleep is this fraction of the time waited, so it adds less than 0.5 % to a wait.
/// A wait of a second has some 3600 sleeps.
const SLEEP_FRACTION: u32 = 512;
/// Maximum wait for the device alone.
const MAX_DEVICE_WAIT: Duration = Duration::from_micros(200);

impl Pacer {
    /// Work completed: its wait is recorded, and the next one begins.
    pub(crate) fn completed(&mut self) {
        if let Some(began) = self.began {
            self.forecast.record(began.elapsed());
        }
        self.reset();
    }

    /// The guest sent something, so a new wait begins: poll again.
    pub(crate) fn reset(&mut self) {
        let forecast = std::mem::take(&mut self.forecast);
        let mut backoff = std::mem::take(&mut self.backoff);
        if let Some(spin) = &self.spin {
            backoff.note(spin);
        }
        *self = Self {
            forecast,
            backoff,
            ..Self::default()
        };
    }

    /// How to wait before the next poll of the device, which may compute on this
    /// host.
    pub(crate) fn pace(&mut self, computes_on_host: bool) -> Pace {
        let is_first = self.polled.is_none();
        let began = match self.began {
            Some(began) => began,
            None => {
                if computes_on_host || self.backoff.allows() {
                    self.spin = Some(Spin::new(POLLING, None));
                }
                *self.began.insert(Instant::now())
            }
        };
        if let Some(spin) = &mut self.spin {
            if spin.again() {
                return Pace::Guest(Wait::Poll);
            }
            // Polling ends early if other threads need the processor.
            self.backoff.note(spin);
            self.crowded |= is_first && spin.is_crowded();
            self.spin = None;
        }
        if self.crowded && computes_on_host {
            return Pace::Device(MAX_DEVICE_WAIT);
        }
        let now = Instant::now();
        let polled = *self.polled.get_or_insert(now);
        let mut end = now + ((now - began) / SLEEP_FRACTION).clamp(SLEEP.0, SLEEP.1);
        // Polling takes time from a device that computes here.
        if !computes_on_host && let Some(window) = self.forecast.window(began, polled) {
            if window.start <= now {
                self.polled = Some(window.end);
                self.spin = Some(Spin::until(window.end, None));
                return Pace::Guest(Wait::Poll);
            }
            end = end.min(window.start);
        }
        Pace::Guest(Wait::Until(end))
    }

    /// Whether to look for output of running kernels: once in each [`OUTPUT`] of a wait.
    pub(crate) fn looks_for_output(&mut self) -> bool {
        let is_due = |since: Instant| since.elapsed() > OUTPUT;
        let due = self.looked.or(self.began).is_some_and(is_due);
        if due {
            self.looked = Some(Instant::now());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_with_the_wait() {
        let mut pacer = Pacer::default();
        assert_eq!(pacer.pace(true), Pace::Guest(Wait::Poll));
        while pacer.pace(true) == Pace::Guest(Wait::Poll) {}
        pacer.crowded = false;
        let now = Instant::now();
        for (waited, least, most) in [
            (1_u64, 10, 20),
            (25, 45, 55),
            (256, 450, 550),
            (10_000, 450, 550),
        ] {
            pacer.began = now.checked_sub(Duration::from_millis(waited));
            let Pace::Guest(Wait::Until(end)) = pacer.pace(true) else {
                panic!("still polling after {waited} ms");
            };
            let sleep = end - now;
            // The clock advanced a little since `now`.
            let slack = now.elapsed();
            assert!(sleep >= Duration::from_micros(least));
            assert!(
                sleep <= Duration::from_micros(most) + slack * 2,
                "{sleep:?}"
            );
        }
        pacer.crowded = true;
        assert_eq!(pacer.pace(true), Pace::Device(MAX_DEVICE_WAIT));
        assert!(matches!(pacer.pace(false), Pace::Guest(Wait::Until(_))));
        pacer.reset();
        assert_eq!(pacer.pace(true), Pace::Guest(Wait::Poll));
    }

    #[test]
    fn polls_when_the_last_wait_would_end() {
        let mut pacer = Pacer::default();
        let wait_for = |pacer: &mut Pacer, waited| {
            while pacer.pace(false) == Pace::Guest(Wait::Poll) {}
            let now = Instant::now();
            pacer.began = now.checked_sub(Duration::from_millis(waited));
            pacer.crowded = false;
            now
        };
        wait_for(&mut pacer, 32);
        pacer.completed();
        let now = wait_for(&mut pacer, 29);
        let Pace::Guest(Wait::Until(end)) = pacer.pace(false) else {
            panic!("polling too early");
        };
        assert!(end >= now + Duration::from_micros(50), "a sleep as ever");
        wait_for(&mut pacer, 31);
        assert!(matches!(pacer.pace(true), Pace::Guest(Wait::Until(_))));
        assert_eq!(pacer.pace(false), Pace::Guest(Wait::Poll));
        while pacer.pace(false) == Pace::Guest(Wait::Poll) {}
        assert!(matches!(pacer.pace(false), Pace::Guest(Wait::Until(_))));
        pacer.reset();
        wait_for(&mut pacer, 31);
        assert_eq!(pacer.pace(false), Pace::Guest(Wait::Poll), "remembered");
    }
}
