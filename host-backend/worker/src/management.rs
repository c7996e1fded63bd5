//! NVML queries. The host's management library answers those about the GPU. The
//! account that a VM's sessions share answers those about the VM.

use std::time::SystemTime;

use paragpu_device::management::{Answer, UTILIZATION};
use paragpu_protocol::codec::{Bytes, Field, Text};
use paragpu_protocol::table::{DeviceAsk, DeviceUse};
use paragpu_protocol::types::{DeviceAnswer, DeviceUsage, ProcessUsage};

use crate::error::Fault;
use crate::session::gpu::Gpu;
use crate::session::link::At;
use crate::session::memory::DeviceMemory;
use crate::session::replies::Replies;
use crate::session::transfer::Transfer;
use crate::transfer::identity::Identity;
use crate::utilization::Manager;
use paragpu_control::account::Occupant;

impl Manager {
    /// Utilization of the device by the worker of each occupant, in percent.
    fn utilization(&mut self, gpu: &mut Gpu, occupants: &[Occupant]) -> Vec<u32> {
        let workers: Vec<u32> = occupants.iter().map(|occupant| occupant.worker).collect();
        let processors = gpu.processors();
        if processors > 0 && !workers.is_empty() {
            self.measure(&workers, processors);
            let of = |worker: &u32| self.percent(*worker);
            return workers.iter().map(of).collect();
        }
        let uuid = self.uuid();
        let measured = gpu.measure().and_then(|measure| measure(&uuid, &workers));
        let mut measured = measured.unwrap_or_default();
        measured.resize(workers.len(), ProcessUsage::UNKNOWN);
        measured
    }

    pub(crate) fn device_ask<T>(
        &mut self,
        gpu: &mut Gpu,
        memory: &DeviceMemory,
        transfer: &Transfer<T>,
        replies: &mut Replies,
        at: At,
        call: &DeviceAsk,
    ) -> Result<bool, Fault> {
        let answer = if call.figure == UTILIZATION && gpu.processors() > 0 {
            self.own_utilization(gpu, &occupants(gpu, memory, transfer.identity()))
        } else {
            gpu.ask(&self.uuid(), call.figure, call.arguments)
        };
        replies.answer(
            gpu,
            at,
            Ok(DeviceAnswer {
                code: answer.code,
                values: answer.values,
                text: Text(&answer.text),
            }),
        )
    }

    /// nvmlDeviceGetUtilizationRates of a software GPU. The utilization of its memory is
    /// unknown.
    fn own_utilization(&mut self, gpu: &mut Gpu, occupants: &[Occupant]) -> Answer {
        let percent: u32 = self.utilization(gpu, occupants).iter().sum();
        let mut answer = Answer::refused(0);
        answer.values = [u64::from(percent.min(100)), 0, 0, 0, 0];
        answer
    }

    pub(crate) fn device_use<T>(
        &mut self,
        gpu: &mut Gpu,
        memory: &DeviceMemory,
        transfer: &Transfer<T>,
        replies: &mut Replies,
        at: At,
        _: &DeviceUse,
    ) -> Result<bool, Fault> {
        let occupants = occupants(gpu, memory, transfer.identity());
        let utilization = self.utilization(gpu, &occupants);
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
            limit: memory.arena().limit(),
            used,
            time,
            processes: Bytes(&processes),
        };
        replies.answer(gpu, at, Ok(usage))
    }
}

/// The sessions of the VM that are on this device.
fn occupants(gpu: &Gpu, memory: &DeviceMemory, identity: &Identity) -> Vec<Occupant> {
    let here = |occupant: &Occupant| occupant.device == gpu.ordinal();
    match memory.arena().share().occupants() {
        Some(mut occupants) => {
            occupants.retain(here);
            occupants
        }
        // Without an account, this session is the only one.
        None => vec![Occupant {
            device: gpu.ordinal(),
            pid: identity.guest_pid,
            worker: std::process::id(),
            memory: memory.arena().live(),
        }],
    }
}

/// Announces the guest's process to the VM's other sessions. A session that serves only
/// NVML queries has no process.
pub(crate) fn introduce(identity: &Identity, memory: &DeviceMemory) {
    if identity.guest_pid != 0 {
        let share = memory.arena().share();
        share.introduce(identity.ordinal, identity.guest_pid);
    }
}
