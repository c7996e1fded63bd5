//! The status of a call: the numbers of CUDA's `CUresult`
//! (CUDA Driver API, Data types used by CUDA driver).

use crate::codec::{DecodeError, Field, Reader};

/// A `CUresult`; 0 is success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($( $name:ident = $value:literal ),* $(,)?) => {
        impl Status {
            $(
                #[doc = concat!("`CUDA_ERROR_", stringify!($name), "` of `CUresult`.")]
                pub const $name: Self = Self($value);
            )*

            #[cfg(test)]
            const NAMED: &[(&str, Self)] = &[ $( (stringify!($name), Self($value)) ),* ];
        }
    };
}

statuses! {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    MAP_FAILED = 205,
    NO_BINARY_FOR_GPU = 209,
    ECC_UNCORRECTABLE = 214,
    UNSUPPORTED_LIMIT = 215,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    JIT_COMPILATION_DISABLED = 223,
    UNSUPPORTED_EXEC_AFFINITY = 224,
    INVALID_SOURCE = 300,
    FILE_NOT_FOUND = 301,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    LOSSY_QUERY = 402,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    PRIMARY_CONTEXT_ACTIVE = 708,
    CONTEXT_IS_DESTROYED = 709,
    ASSERT = 710,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    HARDWARE_STACK_ERROR = 714,
    ILLEGAL_INSTRUCTION = 715,
    MISALIGNED_ADDRESS = 716,
    INVALID_ADDRESS_SPACE = 717,
    INVALID_PC = 718,
    LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    SYSTEM_NOT_READY = 802,
    SYSTEM_DRIVER_MISMATCH = 803,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_MERGE = 902,
    STREAM_CAPTURE_UNMATCHED = 903,
    STREAM_CAPTURE_UNJOINED = 904,
    STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    STREAM_CAPTURE_WRONG_THREAD = 908,
    GRAPH_EXEC_UPDATE_FAILURE = 910,
    INVALID_CLUSTER_SIZE = 912,
    INVALID_RESOURCE_TYPE = 914,
    INVALID_RESOURCE_CONFIGURATION = 915,
    UNKNOWN = 999,
}

impl Status {
    /// Success?
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }

    /// An error after which, as CUDA documents it, the context is unusable and every further
    /// call returns the same error.
    #[must_use]
    pub fn is_sticky(self) -> bool {
        paragpu_abi::is_sticky(self.0.cast_signed())
    }

    /// `Ok` on success, the status itself otherwise.
    ///
    /// # Errors
    /// The status, where it is not success.
    pub fn ok(self) -> Result<(), Self> {
        if self.is_success() { Ok(()) } else { Err(self) }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match paragpu_abi::driver_error_name(self.0.cast_signed()) {
            Some(name) => write!(formatter, "{} ({})", name.to_string_lossy(), self.0),
            None => write!(formatter, "CUresult {}", self.0),
        }
    }
}

impl std::error::Error for Status {}

impl Field<'_> for Status {
    fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
        out.extend_from_slice(&self.0.to_le_bytes());
        &[]
    }
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.field().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_have_the_codes_of_their_names() {
        for (name, status) in Status::NAMED {
            let prefix = if status.is_success() { "" } else { "ERROR_" };
            let text = format!("CUDA_{prefix}{name} ({})", status.0);
            assert_eq!(status.to_string(), text);
        }
        assert_eq!(
            Status(u32::MAX).to_string(),
            format!("CUresult {}", u32::MAX)
        );
    }
}
