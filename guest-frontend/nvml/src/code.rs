//! NVML's result codes.

use std::ffi::CStr;

use paragpu_client::Error;

/// What a function ends with: an nvmlReturn_t other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

/// What a function ends with.
pub(crate) type Result<T = (), E = Code> = std::result::Result<T, E>;

macro_rules! codes {
    ($( $name:ident = $number:literal $text:literal; )*) => {
        #[allow(missing_docs)]
        impl Code {
            $( pub const $name: Self = Self($number); )*

            /// In words.
            #[must_use]
            pub fn text(self) -> &'static CStr {
                match self.0 {
                    $( $number => $text, )*
                    _ => c"a code that this library does not know",
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0 c"success";
    UNINITIALIZED = 1 c"NVML is not initialized";
    INVALID_ARGUMENT = 2 c"an argument is invalid";
    NOT_SUPPORTED = 3 c"not supported";
    NO_PERMISSION = 4 c"no permission";
    ALREADY_INITIALIZED = 5 c"NVML is already initialized";
    NOT_FOUND = 6 c"not found";
    INSUFFICIENT_SIZE = 7 c"the buffer is too small";
    INSUFFICIENT_POWER = 8 c"the device lacks external power";
    DRIVER_NOT_LOADED = 9 c"no driver is loaded: no host of GPUs is reached";
    TIMEOUT = 10 c"timed out";
    IRQ_ISSUE = 11 c"the device has a problem with interrupts";
    LIBRARY_NOT_FOUND = 12 c"the NVML library is not found";
    FUNCTION_NOT_FOUND = 13 c"this version of NVML lacks the function";
    CORRUPTED_INFOROM = 14 c"the board's information is corrupted";
    GPU_IS_LOST = 15 c"the GPU is lost";
    RESET_REQUIRED = 16 c"the GPU needs a reset";
    OPERATING_SYSTEM = 17 c"the operating system refuses";
    LIB_RM_VERSION_MISMATCH = 18 c"driver and library have different versions";
    IN_USE = 19 c"in use";
    MEMORY = 20 c"out of memory";
    NO_DATA = 21 c"no data";
    VGPU_ECC_NOT_SUPPORTED = 22 c"not available with ECC on a virtual GPU";
    INSUFFICIENT_RESOURCES = 23 c"out of a resource";
    FREQ_NOT_SUPPORTED = 24 c"the frequency is not supported";
    ARGUMENT_VERSION_MISMATCH = 25 c"the argument has an unknown version";
    DEPRECATED = 26 c"deprecated";
    NOT_READY = 27 c"not ready";
    GPU_NOT_FOUND = 28 c"no GPU is found";
    INVALID_STATE = 29 c"not in a state for this";
    RESET_TYPE_NOT_SUPPORTED = 30 c"this kind of reset is not supported";
    UNKNOWN = 999 c"unknown error";
}

impl From<&Error> for Code {
    fn from(error: &Error) -> Self {
        match error {
            Error::NoAnswer { .. } | Error::NothingFound(_) | Error::Configuration(_) => {
                Self::DRIVER_NOT_LOADED
            }
            Error::NoDevice(_) => Self::INVALID_ARGUMENT,
            Error::Handshake(_) => Self::LIB_RM_VERSION_MISMATCH,
            Error::ChannelsTaken(_) => Self::INSUFFICIENT_RESOURCES,
            _ => Self::UNKNOWN,
        }
    }
}
