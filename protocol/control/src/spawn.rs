//! Starts a worker.
#![forbid(unsafe_code)]

use std::os::fd::RawFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::socket::{Control, ControlError};

/// File descriptor in a worker of the directory in which NVIDIA's driver caches code
/// compiled from PTX.
pub const CODE_CACHE: RawFd = 1000;
/// Maximum size of that directory in bytes; the least recently used entries are evicted.
const CODE_CACHE_BYTES: u64 = 256 << 20;

/// The environment variable that lists the GPUs that NVIDIA's driver shows a process.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Maximum number of GPUs of a host.
const MAX_GPUS: u32 = 32;

/// Settings of the software GPU; zero selects its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// Number of devices.
    pub devices: u32,
    /// Bytes of device memory per device.
    pub memory: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Number of threads that run kernels.
    pub cores: u32,
    /// Whether mapped memory can be handed over.
    pub shareable: bool,
}

/// The command line of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spawn {
    /// The program `paragpu-worker`.
    pub program: PathBuf,
    /// `cuda` or `software`.
    pub device: String,
    /// The number of the device among those of its kind on this host.
    pub index: u32,
    /// The most likely guest ordinal of the device, for which the worker opens the device
    /// in advance. If another one is assigned, the device must be opened again.
    pub ordinal: u32,
    /// Directory for module images that outlive a session; `None` to keep them in memory.
    pub image_cache: Option<PathBuf>,
    /// Maximum size of that directory in bytes.
    pub image_cache_bytes: u64,
    /// The seccomp policy of a worker with NVIDIA's driver: `any`, `deny` or `learn`.
    pub calls: String,
    /// Whether the worker measures the latency of synchronous calls.
    pub latency: bool,
    /// The worker's log level: `off`, `error`, `warn`, `info`, `debug` or `trace`.
    pub log: String,
    /// Settings of the device `software`.
    pub software: Software,
    /// Whether it starts in its own namespaces and becomes its VM's user
    /// ([`ToWorker::Own`](crate::worker::ToWorker::Own)).
    pub apart: bool,
}

impl Spawn {
    /// Starts the worker. It inherits standard error; its standard input is the control
    /// socket. [`crate::worker`] describes the messages that follow.
    ///
    /// # Errors
    /// [`ControlError::Io`].
    pub fn start(&self) -> Result<(Child, Control), ControlError> {
        let (ours, theirs) = Control::pair()?;
        let child = self
            .command()
            .stdin(Stdio::from(theirs.into_fd()))
            .stdout(Stdio::null())
            // A signal to the daemon's terminal must not end its sessions.
            .process_group(0)
            .spawn()?;
        Ok((child, ours))
    }

    /// The command, with arguments and additions to the environment.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--device")
            .arg(&self.device)
            .arg("--index")
            .arg(self.index.to_string())
            .arg("--ordinal")
            .arg(self.ordinal.to_string())
            .arg("--image-cache-bytes")
            .arg(self.image_cache_bytes.to_string())
            .arg("--log")
            .arg(&self.log)
            .arg("--calls")
            .arg(&self.calls);
        if self.device == "software" {
            self.software.describe(&mut command);
        }
        if self.latency {
            command.arg("--latency");
        }
        if let Some(directory) = &self.image_cache {
            command.arg("--image-cache").arg(directory);
        }
        if self.apart {
            command.arg("--apart");
        }
        if self.device == "cuda" && self.index > 0 {
            let configured = std::env::var(VISIBLE).ok();
            command.env(VISIBLE, with_first(self.index, configured.as_deref()));
        }
        command
            .env("CUDA_CACHE_PATH", format!("/proc/self/fd/{CODE_CACHE}"))
            .env("CUDA_CACHE_MAXSIZE", CODE_CACHE_BYTES.to_string());
        command
    }
}

/// The GPUs of `configured`, or all, with number `index` first; empty if there are
/// fewer. NVIDIA's driver uses different addresses on its first GPU than on others,
/// and a session's addresses must be the same on each.
fn with_first(index: u32, configured: Option<&str>) -> String {
    let all = || (0..MAX_GPUS).map(|number| number.to_string()).collect();
    let mut list: Vec<String> = configured.map_or_else(all, |list| {
        list.split(',')
            .map(|entry| entry.trim().to_owned())
            .collect()
    });
    let at = index as usize;
    if at >= list.len() {
        return String::new();
    }
    let own = list.remove(at);
    list.insert(0, own);
    list.join(",")
}

impl Software {
    fn describe(&self, command: &mut Command) {
        let (major, minor) = self.compute_capability;
        if major != 0 {
            command.arg(format!("--software-compute-capability={major}.{minor}"));
        }
        if self.shareable {
            command.arg("--software-shareable");
        }
        for (option, value) in [
            ("devices", u64::from(self.devices)),
            ("memory", self.memory),
            ("cores", u64::from(self.cores)),
        ] {
            if value != 0 {
                command.arg(format!("--software-{option}={value}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::with_first;

    #[test]
    fn a_gpu_comes_first() {
        assert!(with_first(2, None).starts_with("2,0,1,3,"));
        assert_eq!(with_first(1, Some("4, GPU-a,0")), "GPU-a,4,0");
        assert_eq!(with_first(1, Some("4")), "");
    }
}
