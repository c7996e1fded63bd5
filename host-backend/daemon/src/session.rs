//! The daemon's view of a session.
#![forbid(unsafe_code)]

use std::time::{Duration, SystemTime};

use paragpu_control::admin::{Activity, SessionInfo};
use paragpu_control::counters::Counters;
use serde::{Deserialize, Serialize};

/// The constant facts about a session; also its record on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Its number on this host.
    pub session: u64,
    /// The tenant: a VM, `uid N`, `cid N` or an address.
    pub vm: String,
    /// The guest's process ID, in the guest's numbering.
    pub guest_pid: u32,
    /// The device's number in the guest.
    pub ordinal: u32,
    /// The label of the GPU, such as `cuda:0`.
    pub device: String,
    /// `unix`, `tcp`, `vsock`, `shm` or `pci`; [`UNCLAIMED`] until its program returns to a
    /// restored session.
    pub communicator: String,
    /// When it began on this host, in seconds since the boot: records are of one boot, and
    /// this clock is never set.
    pub begun: u64,
    /// When the guest's certificate expires, in seconds since 1970; `None` if it showed
    /// none.
    #[serde(default)]
    pub expires: Option<u64>,
    /// For a copy that no program has claimed: the secret with which one does, which is the
    /// token of the session in the file. Otherwise zeros.
    #[serde(default)]
    pub claim: [u8; 16],
}

/// The communicator of a restored session that no program has claimed.
pub const UNCLAIMED: &str = "none";

impl Facts {
    /// Whether it was restored, and its program has not returned to it.
    #[must_use]
    pub fn is_unclaimed(&self) -> bool {
        self.communicator == UNCLAIMED
    }
}

/// One session.
#[derive(Debug)]
pub struct Session {
    /// The constant facts.
    pub facts: Facts,
    /// The guest's process in this host's numbering, if the kernel reported it.
    pub process: Option<i32>,
    /// The secret with which its guest resumes it; zeros if it cannot be resumed.
    pub token: [u8; 16],
    /// For a session without a token that moves between GPUs of this host: what identifies it at
    /// both. No guest knows it. Otherwise zeros.
    pub mark: [u8; 16],
    /// Key of its worker.
    pub worker: u64,
    /// It is arriving from another worker, and not complete.
    pub arrives: bool,
    /// Its last reported counters.
    pub counters: Option<Counters>,
}

/// Seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    since_1970().as_secs()
}

fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Time since the boot, including that in which the host was suspended.
#[must_use]
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}

impl Session {
    /// What identifies it in a move: its token, or its mark if it has none.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        if self.token == [0; 16] {
            self.mark
        } else {
            self.token
        }
    }

    /// The session as listings show it.
    #[must_use]
    pub fn info(
        &self,
        worker_pid: u32,
        counted: bool,
        ending: bool,
        activity: Activity,
    ) -> SessionInfo {
        let facts = &self.facts;
        let begun = Duration::from_secs(facts.begun);
        let counters = self.counters.unwrap_or(Counters::NONE);
        SessionInfo {
            id: facts.session,
            vm: facts.vm.clone(),
            guest_pid: facts.guest_pid,
            worker_pid,
            device: facts.device.clone(),
            ordinal: facts.ordinal,
            communicator: facts.communicator.clone(),
            age: since_boot().saturating_sub(begun).as_secs_f64(),
            calls: counters.calls,
            posted: counters.posted,
            synchronous: counters.synchronous,
            launches: counters.launches,
            bytes_to_device: counters.bytes_to_device,
            bytes_from_device: counters.bytes_from_device,
            device_memory: counters.device_memory,
            host_memory: counters.host_memory,
            shadow_memory: counters.shadow_memory,
            counted,
            ending,
            activity,
            checkpoint: None,
            turns: None,
            job: None,
        }
    }
}
