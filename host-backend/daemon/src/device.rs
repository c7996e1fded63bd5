//! Finds the devices and monitors them.
//!
//! The daemon never calls CUDA. A device exists if a worker can open it. If the
//! configuration names none, the daemon tries 0, 1, 2, … until one fails; for kind "auto"
//! it tries CUDA, then the software GPU.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use paragpu_config::host::{DeviceKind, Host};
use paragpu_control::worker::Gpu;
use paragpu_protocol::layout::MAX_DEVICES;

/// First pause after a worker failed to open its device; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Exists while NVIDIA's kernel driver is loaded. The device files are no indication: the
/// guest package creates them, too.
const NVIDIAS_DRIVER: &str = "/proc/driver/nvidia/version";

/// A device that guests can use.
#[derive(Debug, Clone, Default)]
pub struct Device {
    /// Its index among the devices of its kind on this host.
    pub index: u32,
    /// As a worker reported it; `None` until one did.
    pub gpu: Gpu,
    /// Why the last worker could not open it.
    pub problem: Option<String>,
    /// When to try it again.
    pub retry: Option<Instant>,
    failures: u32,
}

/// The devices, in the default order in which guests see them. Throughout the daemon, a
/// device's index in this list is called its position.
#[derive(Debug)]
pub struct Devices {
    kind: &'static str,
    list: Vec<Device>,
    search: Search,
    auto: bool,
    configured: Vec<u32>,
    /// Configured number of software GPUs.
    software: u32,
}

/// The state of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Search {
    /// The last device of the list is being tried.
    Trying,
    /// No device was found, for this reason; retried after the pause.
    Nothing(String),
    /// The list is complete.
    Over,
}

impl Devices {
    /// The devices that `host` configures.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        let mut devices = Self {
            kind: "",
            list: Vec::new(),
            search: Search::Trying,
            auto: host.device.kind == DeviceKind::Auto,
            configured: host.device.indices.0.clone(),
            software: host.software.devices,
        };
        devices.configured.truncate(MAX_DEVICES as usize);
        devices.begin(match host.device.kind {
            DeviceKind::Software => "software",
            DeviceKind::Auto | DeviceKind::Cuda => "cuda",
        });
        devices
    }

    fn begin(&mut self, kind: &'static str) {
        self.kind = kind;
        self.search = Search::Trying;
        self.list = vec![Device {
            index: self.configured.first().copied().unwrap_or(0),
            ..Device::default()
        }];
    }

    /// `cuda` or `software`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Whether they are software GPUs, which have their memory in the host's. Final once
    /// they are [`ready`](Self::ready).
    #[must_use]
    pub fn software(&self) -> bool {
        self.kind == "software"
    }

    /// Whether devices are available to guests.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.search == Search::Over
    }

    /// Whether they are still being opened, since the daemon began or found none.
    #[must_use]
    pub fn are_sought(&self) -> bool {
        self.search == Search::Trying
    }

    /// Why there are none.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        match &self.search {
            Search::Nothing(reason) => Some(reason),
            _ => None,
        }
    }

    /// Why there are none yet; unlike [`problem`](Self::problem), also while the first device is
    /// tried again.
    #[must_use]
    pub fn standing_problem(&self) -> Option<&str> {
        let first = self.list.first().and_then(|it| it.problem.as_deref());
        self.problem().or(first.filter(|_| !self.ready()))
    }

    /// Number of devices, not counting the one being tried.
    #[must_use]
    pub fn count(&self) -> u32 {
        if self.ready() {
            u32::try_from(self.list.len()).unwrap_or(MAX_DEVICES)
        } else {
            0
        }
    }

    /// Ordinals and devices, including the one being tried.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Device)> {
        (0..).zip(&self.list)
    }

    /// The device with this ordinal.
    #[must_use]
    pub fn get(&self, ordinal: u32) -> Option<&Device> {
        self.list.get(usize::try_from(ordinal).ok()?)
    }

    /// The position of the device with this index on the host, if guests can use it.
    #[must_use]
    pub fn position_of(&self, index: u32) -> Option<u32> {
        let found = self.iter().take(self.count() as usize);
        let mut found = found.filter(|(_, device)| device.index == index);
        found.next().map(|(position, _)| position)
    }

    /// The position of the device with this label.
    #[must_use]
    pub fn labelled(&self, label: &str) -> Option<u32> {
        let (kind, index) = label.split_once(':')?;
        self.position_of(index.parse().ok().filter(|_| kind == self.kind)?)
    }

    /// The position that the device with this label will have: a session of an earlier daemon
    /// is there before the devices are found.
    #[must_use]
    pub fn expected(&self, label: &str) -> Option<u32> {
        let index = label.split_once(':')?.1.parse().ok()?;
        if self.configured.is_empty() {
            return Some(index);
        }
        let mut configured = (0..).zip(&self.configured);
        configured.find_map(|(position, other)| (*other == index).then_some(position))
    }

    /// `cuda:0`.
    #[must_use]
    pub fn label(&self, ordinal: u32) -> String {
        let index = self.get(ordinal).map_or(0, |device| device.index);
        format!("{}:{index}", self.kind)
    }

    /// Records that a worker opened device `ordinal`.
    pub fn opened(&mut self, ordinal: u32, gpu: Gpu) {
        let last = self.list.len().saturating_sub(1);
        let Some(position) = usize::try_from(ordinal)
            .ok()
            .filter(|position| *position <= last)
        else {
            return;
        };
        if let Some(device) = self.list.get_mut(position) {
            *device = Device {
                index: device.index,
                gpu,
                ..Device::default()
            };
        }
        if self.search != Search::Over && position == last {
            self.proceed();
        }
    }

    /// Continues the search after the last device of the list was opened.
    fn proceed(&mut self) {
        self.search = Search::Over;
        let found = self.list.len();
        let rest: Vec<u32> = if !self.configured.is_empty() {
            self.configured.iter().skip(found).copied().collect()
        } else if self.software() {
            (1..self.software).collect()
        } else if found < MAX_DEVICES as usize {
            self.search = Search::Trying;
            vec![u32::try_from(found).unwrap_or(MAX_DEVICES)]
        } else {
            Vec::new()
        };
        self.list.extend(rest.into_iter().map(|index| Device {
            index,
            ..Device::default()
        }));
    }

    /// Adds to the reason why device `ordinal` could not be opened that `device.indices` names
    /// it, if so.
    #[must_use]
    pub fn explained(&self, ordinal: u32, reason: String) -> String {
        let index = self.get(ordinal).map_or(ordinal, |device| device.index);
        if !self.configured.contains(&index) {
            return reason;
        }
        let count = match self.software() {
            true => Some(self.software),
            false => nvidias_gpus(),
        };
        match count {
            Some(count) if index >= count => format!(
                "device.indices in host.toml has device {index}, but this host has {count} {} \
                 GPU{}, numbered from 0: {reason}",
                self.kind,
                if count == 1 { "" } else { "s" },
            ),
            _ => format!("device.indices in host.toml has device {index}: {reason}"),
        }
    }

    /// Records that no worker could be started that would have opened device `ordinal`. This
    /// says nothing about the device: another kind of device is not tried.
    pub fn not_tried(&mut self, ordinal: u32, reason: String, now: Instant) {
        if self.search != Search::Over && self.list.len() == 1 {
            self.search = Search::Nothing(reason.clone());
            self.postpone(0, reason, now);
        } else {
            self.failed(ordinal, reason, now);
        }
    }

    /// Records that a worker could not open device `ordinal`. Returns whether that is a
    /// fault, rather than the end of the search.
    pub fn failed(&mut self, ordinal: u32, reason: String, now: Instant) -> bool {
        let last = self.list.len().saturating_sub(1);
        let Some(position) = usize::try_from(ordinal)
            .ok()
            .filter(|position| *position <= last)
        else {
            return false;
        };
        if self.search != Search::Over && position == last {
            if position > 0 {
                self.list.pop();
                self.search = Search::Over;
                return false;
            }
            if self.auto && self.kind == "cuda" {
                if std::path::Path::new(NVIDIAS_DRIVER).exists() {
                    tracing::warn!(
                        %reason,
                        "the GPUs of this host cannot be used: using the software GPU"
                    );
                } else {
                    tracing::info!(%reason, "no CUDA device: using the software GPU");
                }
                self.begin("software");
                return false;
            }
            self.search = Search::Nothing(reason.clone());
        }
        self.postpone(position, reason, now)
    }

    /// Records a fault of a device, which is tried again after a pause. Returns true if there
    /// is the device.
    fn postpone(&mut self, position: usize, reason: String, now: Instant) -> bool {
        let Some(device) = self.list.get_mut(position) else {
            return false;
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << device.failures.min(6));
        device.failures = device.failures.saturating_add(1);
        device.retry = Some(now + pause.min(LONGEST_PAUSE));
        device.problem = Some(reason);
        true
    }

    /// Ends expired pauses. Returns the end of the next one.
    pub fn retry(&mut self, now: Instant) -> Option<Instant> {
        for device in &mut self.list {
            if device.retry.is_some_and(|retry| retry <= now) {
                device.retry = None;
                if matches!(self.search, Search::Nothing(_)) {
                    self.search = Search::Trying;
                }
            }
        }
        self.list.iter().filter_map(|device| device.retry).min()
    }
}

/// Number of GPUs that NVIDIA's kernel driver found; `None` without it.
fn nvidias_gpus() -> Option<u32> {
    let gpus = std::fs::read_dir("/proc/driver/nvidia/gpus").ok()?;
    u32::try_from(gpus.count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_config::Indices;

    fn gpu(name: &str) -> Gpu {
        Gpu {
            name: name.into(),
            memory: 1,
            ..Gpu::default()
        }
    }

    fn host(kind: DeviceKind, indices: &[u32]) -> Host {
        let mut host = Host::default();
        host.device.kind = kind;
        host.device.indices = Indices(indices.to_vec());
        host
    }

    #[test]
    fn the_first_that_fails_ends_the_search() {
        let mut devices = Devices::new(&host(DeviceKind::Cuda, &[]));
        let now = Instant::now();
        devices.opened(0, gpu("A"));
        assert!(!devices.ready());
        devices.opened(1, gpu("B"));
        assert!(!devices.failed(2, "no such device".into(), now));
        assert!(devices.ready());
        assert_eq!(devices.count(), 2);
        assert_eq!(devices.label(1), "cuda:1");
    }

    #[test]
    fn auto_falls_back_once() {
        let mut devices = Devices::new(&host(DeviceKind::Auto, &[]));
        let now = Instant::now();
        assert!(!devices.failed(0, "no driver".into(), now));
        assert!(devices.software());
        assert_eq!(devices.problem(), None);
        assert!(devices.failed(0, "no memory".into(), now));
        assert_eq!(devices.problem(), Some("no memory"));
        let retry = devices.retry(now).unwrap();
        assert_eq!(devices.retry(retry), None);
        devices.opened(0, gpu("CPU"));
        assert_eq!(devices.count(), 1);
    }

    #[test]
    fn a_missing_worker_says_nothing_about_devices() {
        let mut devices = Devices::new(&host(DeviceKind::Auto, &[]));
        let now = Instant::now();
        devices.not_tried(0, "no worker".into(), now);
        assert_eq!(devices.kind(), "cuda");
        assert_eq!(devices.problem(), Some("no worker"));
        // While it is tried again, the problem stands.
        let retry = devices.get(0).unwrap().retry.unwrap();
        devices.retry(retry);
        assert_eq!(devices.problem(), None);
        assert_eq!(devices.standing_problem(), Some("no worker"));
        assert!(!devices.failed(0, "no driver".into(), now));
        assert!(devices.software());
        devices.opened(0, gpu("CPU"));
        assert_eq!(devices.standing_problem(), None);
    }

    #[test]
    fn a_device_that_the_host_lacks_is_named_with_its_key() {
        let mut software = host(DeviceKind::Software, &[7, 0]);
        software.software.devices = 1;
        let devices = Devices::new(&software);
        assert_eq!(
            devices.explained(0, "no such device".into()),
            "device.indices in host.toml has device 7, but this host has 1 software GPU, numbered \
             from 0: no such device"
        );
        let all = Devices::new(&host(DeviceKind::Software, &[]));
        assert_eq!(all.explained(0, "no memory".into()), "no memory");
    }

    #[test]
    fn software_devices_are_as_many_as_configured() {
        let mut software = host(DeviceKind::Software, &[]);
        software.software.devices = 3;
        let mut devices = Devices::new(&software);
        devices.opened(0, gpu("CPU"));
        assert_eq!(devices.count(), 3);
        assert_eq!(devices.label(2), "software:2");
    }

    #[test]
    fn named_devices_are_taken_in_their_order() {
        let mut devices = Devices::new(&host(DeviceKind::Cuda, &[3, 1]));
        devices.opened(0, gpu("D"));
        assert_eq!(devices.count(), 2);
        assert_eq!(devices.label(0), "cuda:3");
        assert_eq!(devices.label(1), "cuda:1");
        let now = Instant::now();
        devices.failed(1, "busy".into(), now);
        let first = devices.get(1).unwrap().retry.unwrap();
        devices.retry(first);
        devices.failed(1, "busy".into(), now);
        assert!(devices.get(1).unwrap().retry.unwrap() > first);
        assert_eq!(devices.count(), 2);
    }
}
