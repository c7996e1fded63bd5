//! NVML's questions: about the GPU to its host's management library, about the
//! VM's sessions from the account that they share.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use paragpu_device::management::{Answer, UTILIZATION};
use paragpu_protocol::codec::{Bytes, Field, Text};
use paragpu_protocol::table::{DeviceAsk, DeviceUse};
use paragpu_protocol::types::{DeviceAnswer, DeviceUsage, ProcessUsage};

use crate::error::Fault;
use crate::session::Session;
use crate::session::link::At;
use crate::sys::process::processor_time;
use paragpu_control::account::Occupant;

/// Least interval in which utilization is measured: shorter ones say little.
const INTERVAL: Duration = Duration::from_millis(50);
/// Longest; a longer one is begun anew.
const LONGEST: Duration = Duration::from_secs(10);

/// What a session keeps for NVML.
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

    /// Percent of `processors` that each worker had since the last measurement.
    fn measure(&mut self, workers: &[u32], processors: u32) {
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

impl Session {
    /// Tells the others of the VM whose session this is. One that only asks
    /// NVML's questions has no process.
    pub(crate) fn introduce(&self) {
        let identity = self.transfer.identity();
        if identity.guest_pid != 0 {
            let share = self.memory.share();
            share.introduce(identity.ordinal, identity.guest_pid);
        }
    }

    pub(crate) fn device_ask(&mut self, at: At, call: &DeviceAsk) -> Result<bool, Fault> {
        let uuid = self.management.uuid;
        let answer = if call.figure == UTILIZATION && self.gpu.processors() > 0 {
            self.own_utilization()
        } else {
            self.gpu.ask(&uuid, call.figure, call.arguments)
        };
        self.answer(
            at,
            Ok(DeviceAnswer {
                code: answer.code,
                values: answer.values,
                text: Text(&answer.text),
            }),
        )
    }

    /// The sessions of the VM that are on this device.
    fn occupants(&self) -> Vec<Occupant> {
        let here = |occupant: &Occupant| occupant.device == self.gpu.ordinal();
        match self.memory.share().occupants() {
            Some(mut occupants) => {
                occupants.retain(here);
                occupants
            }
            // The session is alone.
            None => vec![Occupant {
                device: self.gpu.ordinal(),
                pid: self.transfer.identity().guest_pid,
                worker: std::process::id(),
                memory: self.memory.live(),
            }],
        }
    }

    /// nvmlDeviceGetUtilizationRates of a GPU whose kernels run on processors.
    /// What share of the time memory is read is not known.
    fn own_utilization(&mut self) -> Answer {
        let occupants = self.occupants();
        let workers: Vec<u32> = occupants.iter().map(|occupant| occupant.worker).collect();
        let percent: u32 = self.utilization(&workers).iter().sum();
        let mut answer = Answer::refused(0);
        answer.values = [u64::from(percent.min(100)), 0, 0, 0, 0];
        answer
    }

    pub(crate) fn device_use(&mut self, at: At, _: &DeviceUse) -> Result<bool, Fault> {
        let occupants = self.occupants();
        let workers: Vec<u32> = occupants.iter().map(|occupant| occupant.worker).collect();
        let utilization = self.utilization(&workers);
        let mut processes = Vec::new();
        let mut used = 0_u64;
        for (occupant, utilization) in occupants.iter().zip(utilization) {
            used = used.saturating_add(occupant.memory);
            let usage = ProcessUsage {
                pid: occupant.pid,
                utilization,
                memory: occupant.memory,
            };
            usage.encode(&mut processes);
        }
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time = time.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(0));
        let usage = DeviceUsage {
            limit: self.memory.limit(),
            used,
            time,
            processes: Bytes(&processes),
        };
        self.answer(at, Ok(usage))
    }

    /// Percent of the device's time by worker.
    fn utilization(&mut self, workers: &[u32]) -> Vec<u32> {
        let processors = self.gpu.processors();
        if processors > 0 && !workers.is_empty() {
            self.management.measure(workers, processors);
            let percent = &self.management.percent;
            let of = |worker| percent.get(worker).copied().unwrap_or(0);
            return workers.iter().map(of).collect();
        }
        let uuid = self.management.uuid;
        let measured = self.gpu.utilization(&uuid, workers);
        let mut measured = measured.unwrap_or_default();
        measured.resize(workers.len(), ProcessUsage::UNKNOWN);
        measured
    }
}
