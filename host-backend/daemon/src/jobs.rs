//! The engine's jobs of leases, and which of them are over.
//!
//! A lease's agent is a process of its job and ends with it, but any process of the job's
//! user may claim the lease. So the engine is asked, too.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Minimum and maximum interval of queries which jobs run on this host. Slurm's controller
/// sends all of the site's jobs for each.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(200));
/// The interval is this multiple of the time that the last answer took.
const BACKOFF_FACTOR: u32 = 100;

/// The engine's answer which jobs run on this host.
#[derive(Debug)]
pub struct Running {
    /// The jobs; `None` if the engine does not report them.
    pub jobs: Option<BTreeSet<u64>>,
    /// How long its answer took.
    pub took: Duration,
}

/// What the engine's answers say of the jobs of leases.
#[derive(Debug)]
pub struct Jobs {
    next: Instant,
    /// The jobs that the last answer lacked.
    missing: BTreeSet<u64>,
}

impl Jobs {
    /// No answer yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            next: Instant::now(),
            missing: BTreeSet::new(),
        }
    }

    /// Whether to query the engine.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// Handles an answer. Returns those of the jobs `leased` that are over: two answers in a
    /// row lack them. One answer may be older than a lease.
    pub fn over(
        &mut self,
        leased: impl Iterator<Item = u64>,
        running: &Running,
        now: Instant,
    ) -> BTreeSet<u64> {
        let pause = running.took.saturating_mul(BACKOFF_FACTOR);
        self.next = now + pause.clamp(INTERVAL.0, INTERVAL.1);
        let Some(jobs) = &running.jobs else {
            return BTreeSet::new();
        };
        let missing: BTreeSet<u64> = leased.filter(|job| !jobs.contains(job)).collect();
        let over = missing.intersection(&self.missing).copied().collect();
        self.missing = missing;
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(jobs: &[u64]) -> Running {
        Running {
            jobs: Some(jobs.iter().copied().collect()),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn a_job_is_over_once_two_answers_in_a_row_lack_it() {
        let (mut jobs, now) = (Jobs::new(), Instant::now());
        let silence = Running {
            jobs: None,
            took: Duration::ZERO,
        };
        for (running, expected) in [
            (answer(&[8, 9]), [].as_slice()),
            (answer(&[7, 9]), &[]),
            (silence, &[]),
            (answer(&[7, 9]), &[8]),
            (answer(&[9]), &[8]),
            (answer(&[8, 9]), &[7]),
        ] {
            let over = jobs.over([7, 8, 9].into_iter(), &running, now);
            let over: Vec<u64> = over.into_iter().collect();
            assert_eq!(over, expected, "{running:?}");
        }
    }

    #[test]
    fn an_engine_with_many_jobs_is_asked_less_often() {
        let (mut jobs, now) = (Jobs::new(), Instant::now());
        assert!(jobs.is_due(Instant::now()));
        for (took, pause) in [(0, 20), (500, 50), (9000, 200)] {
            let took = Duration::from_millis(took);
            let running = Running { jobs: None, took };
            jobs.over([].into_iter(), &running, now);
            let due = now + Duration::from_secs(pause);
            assert!(jobs.is_due(due) && !jobs.is_due(due - Duration::from_nanos(1)));
        }
    }
}
