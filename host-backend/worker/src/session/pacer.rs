//! Decides how long to wait for the guest, and how long for the device.

use std::time::{Duration, Instant};

use paragpu_communicator::{Spin, Wait};

/// How to wait for the device and the guest at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// For the guest, so long at most.
    Guest(Wait),
    /// For the device, so long at most: it needs this processor.
    Device(Duration),
}

/// Polls at first, then sleeps a part of the time already waited: a long
/// kernel costs little processor time, a short one little delay. Where others
/// want the processor it gives way: to a device that computes on this host,
/// most likely, and else to the guest, or to a thread that waits for it.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    began: Option<Instant>,
    spin: Option<Spin>,
    /// The polling is over.
    polled: bool,
    /// It was ended by others who want the processor.
    crowded: bool,
}

/// Longest polling: short kernels and graphs end within it, and a nap costs
/// them more than it saves.
const POLLING: Duration = Duration::from_micros(200);
/// Shortest and longest sleep.
const NAP: (Duration, Duration) = (Duration::from_micros(10), Duration::from_millis(1));
/// A sleep is this part of the time waited, so that what it adds to a wait
/// stays under 1 %. A wait of a second then makes some 2500 sleeps.
const NAP_PART: u32 = 256;
/// Longest wait for the device alone.
const DOZE: Duration = Duration::from_micros(200);

impl Pacer {
    /// Something moved: poll again.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// How to wait before looking at the device again, which may compute on
    /// this host.
    pub(crate) fn pace(&mut self, computes_on_host: bool) -> Pace {
        let began = *self.began.get_or_insert_with(Instant::now);
        if !self.polled {
            let spin = self.spin.get_or_insert_with(|| Spin::new(POLLING, None));
            if spin.again() {
                return Pace::Guest(Wait::Poll);
            }
            self.polled = true;
            // It ends early where the processor is wanted.
            self.crowded = began.elapsed() < POLLING;
        }
        if self.crowded && computes_on_host {
            return Pace::Device(DOZE);
        }
        let now = Instant::now();
        let waited = now - began;
        Pace::Guest(Wait::Until(now + (waited / NAP_PART).clamp(NAP.0, NAP.1)))
    }

    /// Is it worth looking for output of a kernel that still runs?
    pub(crate) fn is_slow(&self) -> bool {
        self.began.is_some_and(|began| began.elapsed() > NAP.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_with_the_wait() {
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
            let nap = end - now;
            // The clock went on a little since `now`.
            let slack = now.elapsed();
            assert!(nap >= Duration::from_micros(least));
            assert!(nap <= Duration::from_micros(most) + slack * 2, "{nap:?}");
        }
        pacer.crowded = true;
        assert_eq!(pacer.pace(true), Pace::Device(DOZE));
        assert!(matches!(pacer.pace(false), Pace::Guest(Wait::Until(_))));
        pacer.reset();
        assert_eq!(pacer.pace(true), Pace::Guest(Wait::Poll));
    }
}
