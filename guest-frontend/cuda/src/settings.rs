//! Settings of the process from the environment (CUDA C++ Programming Guide, CUDA
//! Environment Variables).

use std::sync::OnceLock;

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// `CUDA_LAUNCH_BLOCKING=1`: a launch returns when the kernel is complete.
    pub launch_blocking: bool,
    /// `CUDA_MODULE_LOADING=EAGER`: the runtime loads registered code as soon as it has a context.
    pub eager_loading: bool,
}

/// The settings of the process.
#[inline]
pub fn settings() -> Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    *SETTINGS.get_or_init(|| {
        let value = |name| std::env::var(name).unwrap_or_default();
        Settings {
            launch_blocking: value("CUDA_LAUNCH_BLOCKING") == "1",
            eager_loading: value("CUDA_MODULE_LOADING") == "EAGER",
        }
    })
}
