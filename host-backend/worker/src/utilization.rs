//! Processor utilization of each worker, if kernels run on processors.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::sys::process::processor_time;

/// Minimum interval of a measurement: shorter ones are inaccurate.
const INTERVAL: Duration = Duration::from_millis(50);
/// Maximum interval; a longer one is restarted.
const LONGEST: Duration = Duration::from_secs(10);

/// A session's state for NVML.
#[derive(Debug)]
pub(crate) struct Manager {
    uuid: [u8; 16],
    /// The last sample: time, and processor time by worker.
    last: Option<(Instant, BTreeMap<u32, Duration>)>,
    /// The last result: percent by worker.
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

    /// The GPU's UUID.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The last measured percentage of a worker.
    pub(crate) fn percent(&self, worker: u32) -> u32 {
        self.percent.get(&worker).copied().unwrap_or(0)
    }

    /// Measures the share of `processors` that each worker used since the last
    /// measurement.
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
