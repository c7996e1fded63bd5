//! Processor utilization of each worker, if kernels run on processors.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::sys::process::processor_time;

/// Least interval in which utilization is measured: shorter ones say little.
const INTERVAL: Duration = Duration::from_millis(50);
/// Longest; a longer one is restarted.
const LONGEST: Duration = Duration::from_secs(10);

/// A session's state for NVML.
#[derive(Debug)]
pub(crate) struct Manager {
    uuid: [u8; 16],
    /// Processor time of workers at one moment.
    last: Option<(Instant, BTreeMap<u32, Duration>)>,
    /// Percent by worker, as measured last.
    percent: BTreeMap<u32, u32>,
}

impl Manager {
    /// For the GPU with this UUID.
    pub(crate) fn new(uuid: [u8; 16]) -> Self {
        Self {
            uuid,
            last: None,
            percent: BTreeMap::new(),
        }
    }

    /// The GPU's.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Percent that a worker had, as measured last.
    pub(crate) fn percent(&self, worker: u32) -> u32 {
        self.percent.get(&worker).copied().unwrap_or(0)
    }

    /// Percent of `processors` that each worker had since the last measurement.
    pub(crate) fn measure(&mut self, workers: &[u32], processors: u32) {
        let sample = || -> (Instant, BTreeMap<u32, Duration>) {
            let times = workers.iter();
            let times = times.filter_map(|worker| Some((*worker, processor_time(*worker)?)));
            (Instant::now(), times.collect())
        };
        let known = |last: &(Instant, BTreeMap<u32, Duration>)| {
            last.0.elapsed() < LONGEST && workers.iter().all(|worker| last.1.contains_key(worker))
        };
        let last = match self.last.take().filter(known) {
            Some(last) => last,
            None => {
                let first = sample();
                std::thread::sleep(INTERVAL);
                first
            }
        };
        if last.0.elapsed() < INTERVAL {
            self.last = Some(last);
            return;
        }
        let now = sample();
        let whole = (now.0 - last.0).as_secs_f64() * f64::from(processors.max(1));
        let percent = |(worker, time): (&u32, &Duration)| {
            let before = last.1.get(worker)?;
            let share = time.saturating_sub(*before).as_secs_f64() / whole;
            Some((*worker, (share * 100.0).round().clamp(0.0, 100.0) as u32))
        };
        self.percent = now.1.iter().filter_map(percent).collect();
        self.last = Some(now);
    }
}
