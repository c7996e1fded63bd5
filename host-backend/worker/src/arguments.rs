//! The command line of `paragpu-worker`; [`crate::spawn`] writes it.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use tracing_subscriber::filter::LevelFilter;

/// A kind of GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// NVIDIA's, through the driver.
    Cuda,
    /// In software.
    Software,
}

/// What stands before the kernel of a worker with NVIDIA's driver, whose calls
/// differ from version to version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Calls {
    /// Any system call is made.
    Any,
    /// Calls that lead out of a worker end it.
    Deny,
    /// And the kernel's log names those that a session on the software GPU does
    /// not make.
    Learn,
}

/// Executes the calls of one guest session on one GPU. Started by paragpud,
/// which is at the other end of its standard input.
#[derive(Debug, Clone, Parser)]
#[command(name = "paragpu-worker", version)]
pub struct Arguments {
    /// Kind of the GPU.
    #[arg(long)]
    pub device: DeviceKind,
    /// Which GPU of that kind. NVIDIA's driver is shown it before the others.
    #[arg(long, default_value_t = 0)]
    pub index: u32,
    /// The guest's ordinal of the GPU that is most likely.
    #[arg(long, default_value_t = 0)]
    pub ordinal: u32,
    /// Directory where module images are kept between sessions.
    #[arg(long)]
    pub image_cache: Option<PathBuf>,
    /// Most bytes of that directory.
    #[arg(long, default_value_t = 4 << 30)]
    pub image_cache_bytes: u64,
    /// Which system calls are refused, with NVIDIA's driver.
    #[arg(long, value_enum, default_value = "deny")]
    pub calls: Calls,
    /// It was started in namespaces of its own, and becomes its VM's user.
    #[arg(long)]
    pub apart: bool,
    /// Measure how long calls take that somebody waits for.
    #[arg(long)]
    pub latency: bool,
    /// How much to log: off, error, warn, info, debug or trace.
    #[arg(long, default_value_t = LevelFilter::INFO)]
    pub log: LevelFilter,
    /// How many software GPUs there are.
    #[arg(long)]
    pub software_devices: Option<u32>,
    /// Bytes of a software GPU's memory.
    #[arg(long)]
    pub software_memory: Option<u64>,
    /// Compute capability of a software GPU, "major.minor".
    #[arg(long, value_parser = compute_capability)]
    pub software_compute_capability: Option<(u32, u32)>,
    /// Threads that run a software GPU's kernels.
    #[arg(long)]
    pub software_cores: Option<u32>,
    /// A software GPU's memory can be handed over to another worker.
    #[arg(long)]
    pub software_shareable: bool,
}

fn compute_capability(text: &str) -> Result<(u32, u32), String> {
    text.split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| format!("{text:?} is not MAJOR.MINOR"))
}

impl Arguments {
    /// Which of the GPUs that are shown to this process is the worker's.
    pub(crate) fn place(&self) -> u32 {
        match self.device {
            DeviceKind::Cuda => 0,
            DeviceKind::Software => self.index,
        }
    }
}
