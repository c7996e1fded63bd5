//! NVML queries about a GPU.

/// Number of values in an [`Answer`].
pub const VALUES: usize = 5;
/// NVML_ERROR_INVALID_ARGUMENT.
pub const INVALID_ARGUMENT: u32 = 2;
/// NVML_ERROR_NOT_SUPPORTED.
pub const NOT_SUPPORTED: u32 = 3;

/// Number of nvmlDeviceGetBrand as a figure.
pub const BRAND: u32 = 1;
/// Number of nvmlDeviceGetArchitecture.
pub const ARCHITECTURE: u32 = 2;
/// Number of nvmlDeviceGetMemoryBusWidth.
pub const MEMORY_BUS_WIDTH: u32 = 4;
/// Number of nvmlDeviceGetMultiGpuBoard.
pub const MULTI_GPU_BOARD: u32 = 6;
/// Number of nvmlDeviceGetDisplayMode.
pub const DISPLAY_MODE: u32 = 7;
/// Number of nvmlDeviceGetDisplayActive.
pub const DISPLAY_ACTIVE: u32 = 8;
/// Number of nvmlDeviceGetPersistenceMode.
pub const PERSISTENCE_MODE: u32 = 9;
/// Number of nvmlDeviceGetComputeMode.
pub const COMPUTE_MODE: u32 = 10;
/// Number of nvmlDeviceGetUtilizationRates.
pub const UTILIZATION: u32 = 80;
/// Number of nvmlSystemGetDriverVersion.
pub const DRIVER_VERSION: u32 = 75;
/// Number of nvmlSystemGetNVMLVersion.
pub const NVML_VERSION: u32 = 76;

/// An answer to one figure of the description of NVML (`protocol/interface/nvml`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// An nvmlReturn_t; 0 is success.
    pub code: u32,
    /// The output values, in order; negative ones are sign-extended.
    pub values: [u64; VALUES],
    /// The output text.
    pub text: String,
}

impl Answer {
    /// An answer with only a code.
    #[must_use]
    pub fn refused(code: u32) -> Self {
        Self {
            code,
            values: [0; VALUES],
            text: String::new(),
        }
    }

    /// An answer with one number.
    #[must_use]
    pub fn number(value: u64) -> Self {
        Self {
            values: [value, 0, 0, 0, 0],
            ..Self::refused(0)
        }
    }

    /// An answer with a text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self {
            code: 0,
            values: [0; VALUES],
            text: text.to_owned(),
        }
    }
}

/// Measures recent use of a GPU's time by processes of the host, in percent: see
/// [`Management::measure`].
pub type Measure = fn(uuid: &[u8; 16], processes: &[u32]) -> Option<Vec<u32>>;

/// Queries to the host's management library. By default there is none.
pub trait Management {
    /// Answers one figure about the GPU with this UUID.
    fn ask(&mut self, uuid: &[u8; 16], figure: u32, arguments: [u8; 4]) -> Answer {
        let _ = (uuid, figure, arguments);
        Answer::refused(NOT_SUPPORTED)
    }

    /// The function that measures the utilization of a GPU, callable on any thread; `None`
    /// if it cannot be measured.
    fn measure(&self) -> Option<Measure> {
        None
    }

    /// The number of this host's CPUs that run kernels; 0 if a GPU runs them.
    fn processors(&self) -> u32 {
        0
    }
}
