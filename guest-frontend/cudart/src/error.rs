//! Errors of the runtime: a code that is not success.

use paragpu_abi as abi;
use paragpu_abi::{CUresult, cudaError_t};
use std::fmt;

/// A runtime error code other than `cudaSuccess`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error(cudaError_t);

/// The result of a runtime function.
pub type Result<T = ()> = std::result::Result<T, Error>;

impl Error {
    /// The error with this runtime code; `cudaErrorUnknown` for success.
    pub const fn new(code: cudaError_t) -> Self {
        if code == abi::cudaSuccess {
            Self(abi::cudaErrorUnknown)
        } else {
            Self(code)
        }
    }

    /// The code.
    pub const fn code(self) -> cudaError_t {
        self.0
    }

    /// Converts a driver function's result. Both interfaces share one numbering; codes
    /// that only the driver has become `cudaErrorUnknown`.
    pub fn check(result: CUresult) -> Result {
        match result {
            abi::CUDA_SUCCESS => Ok(()),
            code if abi::runtime_error_name(code).is_some() => Err(Self(code)),
            _ => Err(Self(abi::cudaErrorUnknown)),
        }
    }

    /// Maps the error `from` to `to`, and leaves others unchanged.
    #[must_use]
    pub fn replace(self, from: cudaError_t, to: cudaError_t) -> Self {
        if self.0 == from { Self::new(to) } else { self }
    }

    /// Whether the error is sticky: every later call in the context reports it again,
    /// until the device is reset or the process ends.
    pub fn is_sticky(self) -> bool {
        abi::is_sticky(self.0)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match abi::runtime_error_name(self.0).and_then(|name| name.to_str().ok()) {
            Some(name) => write!(formatter, "{name} ({})", self.0),
            None => write!(formatter, "error {}", self.0),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_codes_become_runtime_codes() {
        assert_eq!(Error::check(0), Ok(()));
        assert_eq!(
            Error::check(abi::CUDA_ERROR_OUT_OF_MEMORY)
                .unwrap_err()
                .code(),
            abi::cudaErrorMemoryAllocation
        );
        // Only the driver has 202; nothing has 12345.
        for code in [abi::CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 12345] {
            assert_eq!(
                Error::check(code).unwrap_err().code(),
                abi::cudaErrorUnknown
            );
        }
    }
}
