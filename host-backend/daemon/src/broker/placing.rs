//! The GPUs that a VM may use, and the placement of its sessions on them.

use paragpu_config::host::{Host, Placement};

use super::Broker;
use super::arrivals::{Arrivals, Waiting};
use super::workers::Workers;
use crate::device::Devices;
use crate::handshake::SessionRequest;
use crate::leases::Leases;
use crate::placement::{Assigned, Gpu, choose};

/// What decides on the GPU of a session.
pub(super) struct Placing<'a> {
    host: &'a Host,
    devices: &'a Devices,
    leases: &'a Leases,
    workers: &'a Workers,
    arrivals: &'a Arrivals,
}

impl Placing<'_> {
    /// The indices of the GPUs that a VM may use, in the order in which it sees
    /// them.
    fn gpus_of(&self, vm: &str) -> Vec<u32> {
        if let Some(leased) = self.leases.get(vm) {
            let position = self.devices.position_of(leased.grant.gpu);
            return position.into_iter().collect();
        }
        let given = self.host.vm.get(vm).map(|vm| vm.devices.0.as_slice());
        match given.filter(|given| !given.is_empty()) {
            None => (0..self.devices.count()).collect(),
            Some(given) => {
                let places = given.iter().map(|index| self.devices.position_of(*index));
                places.flatten().collect()
            }
        }
    }

    /// Number of a VM's devices, not counting those still being searched for.
    pub(super) fn devices_of(&self, vm: &str) -> u32 {
        u32::try_from(self.gpus_of(vm).len()).unwrap_or(u32::MAX)
    }

    /// The index of the GPU for a guest: the one that it requests, or that of the
    /// configured placement.
    fn place(&self, waiting: &Waiting) -> Result<u32, String> {
        let request = &waiting.request;
        let gpus = self.gpus_of(&request.vm);
        if let Some(index) = request.gpu {
            return self.named(&request.vm, &gpus, index);
        }
        let ordinal = request.hello.device;
        let all: Vec<Gpu> = gpus.iter().map(|position| self.gpu(*position)).collect();
        let policy = self.host.device.placement;
        // An arriving session may come from a host with more devices.
        let beyond = request.arrives.is_some() && ordinal as usize >= all.len();
        let chosen = if beyond {
            choose(Placement::LeastLoaded, 0, &all, &[], None)
        } else {
            choose(
                policy,
                ordinal,
                &all,
                &self.held_by(waiting),
                self.arrivals.last_position,
            )
        };
        chosen.ok_or_else(|| {
            let (count, whose) = match (gpus.len(), self.devices.count()) {
                (0, _) => {
                    return format!("none of the devices of {} exists", request.vm);
                }
                (own, all) if own < all as usize => (own, " to this guest"),
                (all, _) => (all, ""),
            };
            let devices = if count == 1 { "device" } else { "devices" };
            format!(
                "the host gives {count} {devices}{whose}, and the guest asks for number {ordinal}, \
                 counted from 0 (CUDA_VISIBLE_DEVICES?)"
            )
        })
    }

    /// The index of the GPU for a session that is restored from a file: that of its device, by the
    /// VM's order. A lease has one GPU.
    pub(super) fn restored(&self, vm: &str, ordinal: u32) -> Option<u32> {
        let gpus = self.gpus_of(vm);
        let place = match self.leases.get(vm) {
            Some(_) => 0,
            None => usize::try_from(ordinal).ok()?,
        };
        let position = *gpus.get(place)?;
        self.devices.get(position).is_some().then_some(position)
    }

    /// The index of a GPU that is requested by its number on the host.
    fn named(&self, vm: &str, gpus: &[u32], index: u32) -> Result<u32, String> {
        let kind = self.devices.kind();
        let position = self
            .devices
            .position_of(index)
            .ok_or_else(|| format!("this host does not offer {kind}:{index} to guests"))?;
        if gpus.contains(&position) {
            Ok(position)
        } else {
            Err(format!(
                "`devices` under [vm.{vm:?}] in host.toml does not include {kind}:{index}"
            ))
        }
    }

    /// The load of a GPU.
    fn gpu(&self, position: u32) -> Gpu {
        let label = self.devices.label(position);
        let on_it = self
            .workers
            .sessions()
            .filter(|session| session.facts.device == label);
        let (mut sessions, mut memory) = (0, 0);
        for session in on_it {
            sessions += 1;
            let held = session
                .counters
                .map_or(0, |counters| counters.device_memory);
            // The number is the worker's, which may be compromised.
            memory = u64::saturating_add(memory, held);
        }
        sessions += self.arrivals.waiting_on(position) as u64;
        let device = self.devices.get(position);
        Gpu {
            position,
            sessions,
            memory,
            works: device.is_some_and(|device| device.problem.is_none()),
        }
    }

    /// The devices that the guest's process already has. A moving session does not
    /// count. Processes in different containers may have the same number in theirs.
    fn held_by(&self, arriving: &Waiting) -> Vec<Assigned> {
        let request = &arriving.request;
        let process = arriving.process();
        let own = |vm: &str, pid: u32, other: Option<i32>, ordinal: u32| {
            vm == request.vm
                && pid == request.hello.pid
                && process.zip(other).is_none_or(|(own, other)| own == other)
                && !(request.arrives.is_some() && ordinal == request.hello.device)
        };
        let running = self.workers.sessions().filter_map(|session| {
            let facts = &session.facts;
            let position = self.devices.labelled(&facts.device)?;
            let own = own(&facts.vm, facts.guest_pid, session.process, facts.ordinal);
            own.then_some(Assigned {
                ordinal: facts.ordinal,
                position,
            })
        });
        let waiting = self.arrivals.waiting.iter().filter_map(|waiting| {
            let hello = &waiting.request.hello;
            let position = *waiting.placed.as_ref()?.as_ref().ok()?;
            let vm = &waiting.request.vm;
            let own = own(vm, hello.pid, waiting.process(), hello.device);
            own.then_some(Assigned {
                ordinal: hello.device,
                position,
            })
        });
        running.chain(waiting).collect()
    }

    /// Whether the guest can get a GPU other than one that does not work.
    pub(super) fn works_elsewhere(&self, request: &SessionRequest) -> bool {
        let fixed = self.host.device.placement == Placement::Fixed;
        let gpus = self.gpus_of(&request.vm);
        !fixed && request.gpu.is_none() && gpus.iter().any(|position| self.gpu(*position).works)
    }

    /// The guest's most likely ordinal of this GPU.
    pub(super) fn likely_ordinal(&self, position: u32) -> u32 {
        let waiting = self.arrivals.waiting.iter();
        let mut matching = waiting.filter(|waiting| waiting.placed == Some(Ok(position)));
        match (matching.next(), self.host.device.placement) {
            (Some(waiting), _) => waiting.request.hello.device,
            (None, Placement::Fixed) => position,
            (None, _) => 0,
        }
    }
}

impl Broker {
    /// What decides on the GPUs of sessions now.
    pub(super) fn placing(&self) -> Placing<'_> {
        Placing {
            host: &self.host,
            devices: &self.devices,
            leases: &self.leases,
            workers: &self.workers,
            arrivals: &self.arrivals,
        }
    }

    /// Places the waiting guests that have no GPU yet.
    pub(super) fn place_waiting(&mut self) {
        if !self.devices.ready() {
            return;
        }
        for at in 0..self.arrivals.waiting.len() {
            let Some(waiting) = self.arrivals.waiting.get(at) else {
                return;
            };
            if waiting.placed.is_some() {
                continue;
            }
            let placed = self.placing().place(waiting);
            if let Ok(position) = placed {
                self.arrivals.last_position = Some(position);
            }
            if let Some(waiting) = self.arrivals.waiting.get_mut(at) {
                waiting.placed = Some(placed);
            }
        }
    }
}
