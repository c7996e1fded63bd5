//! Starts a worker.
#![forbid(unsafe_code)]

use std::os::fd::RawFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::socket::{Control, ControlError};

/// Descriptor of a worker's that is the directory where NVIDIA's driver keeps
/// what it compiled from PTX.
pub const CODE_CACHE: RawFd = 1000;
/// Maximum number of bytes of that directory; the least recently used goes.
const CODE_CACHE_BYTES: u64 = 256 << 20;

/// The GPUs that NVIDIA's driver shows a process, in their order.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Most GPUs of a host.
const MAX_GPUS: u32 = 32;

/// Settings of the software GPU; zero selects its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// How many devices there are.
    pub devices: u32,
    /// Bytes of device memory of each.
    pub memory: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Threads that run kernels.
    pub cores: u32,
    /// Mapped memory can be handed over.
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
    /// Which device of that kind on this host.
    pub index: u32,
    /// The guest's ordinal of the device that is most likely: the worker
    /// opens the device for it beforehand. Another one may be assigned, which
    /// takes as long as opening the device.
    pub ordinal: u32,
    /// Where module images are kept between sessions; `None`: in memory only.
    pub image_cache: Option<PathBuf>,
    /// Maximum number of bytes of that directory.
    pub image_cache_bytes: u64,
    /// Which system calls a worker with NVIDIA's driver is refused: `any`,
    /// `deny` or `learn`.
    pub calls: String,
    /// Whether the worker measures how long calls take that somebody waits
    /// for.
    pub latency: bool,
    /// How much the worker logs: `off`, `error`, `warn`, `info`, `debug` or
    /// `trace`.
    pub log: String,
    /// With the device `software`: its settings.
    pub software: Software,
    /// It starts in namespaces of its own, and becomes its VM's user
    /// ([`ToWorker::Own`](crate::worker::ToWorker::Own)).
    pub apart: bool,
}

impl Spawn {
    /// Starts the worker. Its standard error is the daemon's; its standard
    /// input is the control socket. [`crate::worker`] says what follows.
    ///
    /// # Errors
    /// [`ControlError::Io`].
    pub fn start(&self) -> Result<(Child, Control), ControlError> {
        let (ours, theirs) = Control::pair()?;
        let child = self
            .command()
            .stdin(Stdio::from(theirs.into_fd()))
            .stdout(Stdio::null())
            // A signal to the daemon's terminal is not for its sessions.
            .process_group(0)
            .spawn()?;
        Ok((child, ours))
    }

    /// Its program, arguments and what is added to the environment.
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

/// The GPUs of `configured`, or all, with number `index` before the others; none
/// if there are not so many. The driver gives its first GPU other addresses
/// than the rest, and a session's must be the same on each.
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
