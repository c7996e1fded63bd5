//! NVML queries. The host's management library answers those about the GPU. The
//! account that a VM's sessions share answers those about the VM.

use std::time::SystemTime;

use paragpu_device::management::{Answer, UTILIZATION};
use paragpu_protocol::codec::{Bytes, Field, Text};
use paragpu_protocol::table::{DeviceAsk, DeviceUse};
use paragpu_protocol::types::{DeviceAnswer, DeviceUsage, ProcessUsage};

use crate::error::Fault;
use crate::session::Session;
use crate::session::gpu::Gpu;
use crate::session::link::At;
use crate::utilization::Manager;
use paragpu_control::account::Occupant;

impl Manager {
    /// Utilization of the device by each worker, in percent.
    fn utilization(&mut self, gpu: &mut Gpu, workers: &[u32]) -> Vec<u32> {
        let processors = gpu.processors();
        if processors > 0 && !workers.is_empty() {
            self.measure(workers, processors);
            let of = |worker: &u32| self.percent(*worker);
            return workers.iter().map(of).collect();
        }
        let uuid = self.uuid();
        let measured = gpu.measure().and_then(|measure| measure(&uuid, workers));
        let mut measured = measured.unwrap_or_default();
        measured.resize(workers.len(), ProcessUsage::UNKNOWN);
        measured
    }
}

impl Session {
    /// Announces the guest's process to the VM's other sessions. A session that
    /// serves only NVML queries has no process.
    pub(crate) fn introduce(&self) {
        let identity = self.transfer.identity();
        if identity.guest_pid != 0 {
            let share = self.memory.arena().share();
            share.introduce(identity.ordinal, identity.guest_pid);
        }
    }

    pub(crate) fn device_ask(&mut self, at: At, call: &DeviceAsk) -> Result<bool, Fault> {
        let uuid = self.management.uuid();
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
        match self.memory.arena().share().occupants() {
            Some(mut occupants) => {
                occupants.retain(here);
                occupants
            }
            // Without an account, this session is the only one.
            None => vec![Occupant {
                device: self.gpu.ordinal(),
                pid: self.transfer.identity().guest_pid,
                worker: std::process::id(),
                memory: self.memory.arena().live(),
            }],
        }
    }

    /// nvmlDeviceGetUtilizationRates of a software GPU. The utilization of its memory is
    /// unknown.
    fn own_utilization(&mut self) -> Answer {
        let occupants = self.occupants();
        let workers: Vec<u32> = occupants.iter().map(|occupant| occupant.worker).collect();
        let percent: u32 = self
            .management
            .utilization(&mut self.gpu, &workers)
            .iter()
            .sum();
        let mut answer = Answer::refused(0);
        answer.values = [u64::from(percent.min(100)), 0, 0, 0, 0];
        answer
    }

    pub(crate) fn device_use(&mut self, at: At, _: &DeviceUse) -> Result<bool, Fault> {
        let occupants = self.occupants();
        let workers: Vec<u32> = occupants.iter().map(|occupant| occupant.worker).collect();
        let utilization = self.management.utilization(&mut self.gpu, &workers);
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
            limit: self.memory.arena().limit(),
            used,
            time,
            processes: Bytes(&processes),
        };
        self.answer(at, Ok(usage))
    }
}
