//! Utilization of the GPU: by each worker of a VM for NVML, and by this one for the daemon.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paragpu_device::Device;
use paragpu_device::management::Measure;

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

    /// If kernels run on processors, measures the share of these that each worker has
    /// used since the last measurement.
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

/// Measures this worker's use of its GPU, on any thread and without blocking.
#[derive(Debug)]
pub(crate) struct Meter {
    uuid: [u8; 16],
    /// The number of processors that run kernels; 0 if they run on a GPU.
    processors: u32,
    measure: Option<Measure>,
    /// The last sample: time, and processor time of this process.
    last: (Instant, Duration),
    percent: u32,
}

fn own_time() -> Duration {
    processor_time(std::process::id()).unwrap_or_default()
}

impl Meter {
    /// For a device with this UUID.
    pub(crate) fn new(device: &dyn Device, uuid: [u8; 16]) -> Self {
        Self {
            uuid,
            processors: device.processors(),
            measure: device.measure(),
            last: (Instant::now(), own_time()),
            percent: 0,
        }
    }

    /// Percent of the GPU's time since the last call, or the last sample of the host's
    /// management library. `None` if nothing measures it.
    pub(crate) fn read(&mut self) -> Option<u32> {
        if self.processors == 0 {
            let measured = self.measure?(&self.uuid, &[std::process::id()])?;
            return measured.first().copied();
        }
        let (since, before) = self.last;
        if since.elapsed() >= INTERVAL {
            self.last = (Instant::now(), own_time());
            let whole = (self.last.0 - since).as_secs_f64() * f64::from(self.processors);
            let part = self.last.1.saturating_sub(before).as_secs_f64() / whole;
            self.percent = (part * 100.0).round().clamp(0.0, 100.0) as u32;
        }
        Some(self.percent)
    }
}
