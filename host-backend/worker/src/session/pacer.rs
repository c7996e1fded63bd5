//! Decides how long to wait for the guest, and how long for the device.

use std::time::{Duration, Instant};

use paragpu_communicator::{Spin, Wait};

/// How to wait for the device and the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// For the guest, up to this time.
    Guest(Wait),
    /// For the device, up to this time, because it needs this processor.
    Device(Duration),
}

/// Polls at first, then sleeps for a fraction of the time already waited. So a long
/// kernel costs little processor time, and a short one little delay. If other threads
/// need the processor, it yields: to a device that computes on this host, or otherwise to
/// the guest or to a thread that waits for it.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    began: Option<Instant>,
    spin: Option<Spin>,
    /// Polling has ended.
    polled: bool,
    /// It ended because other threads need the processor.
    crowded: bool,
}

/// Maximum time of polling. Short kernels and graphs complete within it, and a sleep
/// would cost them more than it saves.
const POLLING: Duration = Duration::from_micros(200);
/// Minimum and maximum sleep.
const SLEEP: (Duration, Duration) = (Duration::from_micros(10), Duration::from_millis(1));
/// A sleep is this fraction of the time waited, so it adds less than 1 % to a wait.
/// A wait of a second has some 2500 sleeps.
const SLEEP_FRACTION: u32 = 256;
/// Maximum wait for the device alone.
const MAX_DEVICE_WAIT: Duration = Duration::from_micros(200);

impl Pacer {
    /// Something completed: poll again.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// How to wait before the next poll of the device, which may compute on this
    /// host.
    pub(crate) fn pace(&mut self, computes_on_host: bool) -> Pace {
        let began = *self.began.get_or_insert_with(Instant::now);
        if !self.polled {
            let spin = self.spin.get_or_insert_with(|| Spin::new(POLLING, None));
            if spin.again() {
                return Pace::Guest(Wait::Poll);
            }
            self.polled = true;
            // Polling ends early if other threads need the processor.
            self.crowded = began.elapsed() < POLLING;
        }
        if self.crowded && computes_on_host {
            return Pace::Device(MAX_DEVICE_WAIT);
        }
        let now = Instant::now();
        let waited = now - began;
        Pace::Guest(Wait::Until(
            now + (waited / SLEEP_FRACTION).clamp(SLEEP.0, SLEEP.1),
        ))
    }

    /// Whether it is worth checking for output of running kernels.
    pub(crate) fn is_slow(&self) -> bool {
        self.began.is_some_and(|began| began.elapsed() > SLEEP.1)
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
            (25, 90, 110),
            (256, 900, 1100),
            (10_000, 900, 1100),
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
}
