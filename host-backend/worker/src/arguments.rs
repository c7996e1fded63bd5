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

impl std::fmt::Display for DeviceKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Cuda => "cuda",
            Self::Software => "software",
        })
    }
}

/// The seccomp filter of a worker with NVIDIA's driver, whose system calls differ
/// between versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Calls {
    /// No filter.
    Any,
    /// System calls that neither a session nor the driver makes end the worker.
    Allow,
    /// System calls that could escape confinement end the worker.
    Deny,
    /// In addition, calls that `allow` refuses are logged.
    Learn,
}

/// Executes the calls of one guest session on one GPU. Started by paragpud, which
/// holds the other end of its standard input.
#[derive(Debug, Clone, Parser)]
#[command(name = "paragpu-worker", version)]
pub struct Arguments {
    /// Kind of the GPU.
    #[arg(long)]
    pub device: DeviceKind,
    /// Number of the GPU of that kind. NVIDIA's driver sees it first.
    #[arg(long, default_value_t = 0)]
    pub index: u32,
    /// The guest's most likely ordinal of the GPU.
    #[arg(long, default_value_t = 0)]
    pub ordinal: u32,
    /// Directory that caches module images between sessions.
    #[arg(long)]
    pub image_cache: Option<PathBuf>,
    /// Maximum size of that directory, in bytes.
    #[arg(long, default_value_t = 4 << 30)]
    pub image_cache_bytes: u64,
    /// Seccomp filter with NVIDIA's driver.
    #[arg(long, value_enum, default_value = "allow")]
    pub calls: Calls,
    /// The worker was started in its own namespaces and becomes its VM's user.
    #[arg(long)]
    pub apart: bool,
    /// Measure the latency of synchronous calls.
    #[arg(long)]
    pub latency: bool,
    /// Log level: off, error, warn, info, debug or trace.
    #[arg(long, default_value_t = LevelFilter::INFO)]
    pub log: LevelFilter,
    /// Number of software GPUs.
    #[arg(long)]
    pub software_devices: Option<u32>,
    /// Memory of a software GPU, in bytes.
    #[arg(long)]
    pub software_memory: Option<u64>,
    /// Compute capability of a software GPU, "major.minor".
    #[arg(long, value_parser = compute_capability)]
    pub software_compute_capability: Option<(u32, u32)>,
    /// Threads that run a software GPU's kernels.
    #[arg(long)]
    pub software_cores: Option<u32>,
    /// Make a software GPU's memory shareable, so that a move can hand it over.
    #[arg(long)]
    pub software_shareable: bool,
}

fn compute_capability(text: &str) -> Result<(u32, u32), String> {
    text.split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| format!("{text:?} is not MAJOR.MINOR"))
}

impl Arguments {
    /// The index of the worker's GPU among those that this process can see.
    pub(crate) fn place(&self) -> u32 {
        match self.device {
            DeviceKind::Cuda => 0,
            DeviceKind::Software => self.index,
        }
    }
}
