//! NVML's result codes. Messages that NVIDIA's library is known to return are identical
//! here: programs print them, and people search for them.

use std::ffi::CStr;

use paragpu_client::Error;

/// An nvmlReturn_t other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

/// The result of a function.
pub(crate) type Result<T = (), E = Code> = std::result::Result<T, E>;

macro_rules! codes {
    ($( $name:ident = $number:literal $text:literal; )*) => {
        #[allow(missing_docs)]
        impl Code {
            $( pub const $name: Self = Self($number); )*

            /// The code's message.
            #[must_use]
            pub fn text(self) -> &'static CStr {
                match self.0 {
                    $( $number => $text, )*
                    _ => c"Unknown Error",
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0 c"Success";
    UNINITIALIZED = 1 c"Uninitialized";
    INVALID_ARGUMENT = 2 c"Invalid Argument";
    NOT_SUPPORTED = 3 c"Not Supported";
    NO_PERMISSION = 4 c"Insufficient Permissions";
    ALREADY_INITIALIZED = 5 c"Already Initialized";
    NOT_FOUND = 6 c"Not Found";
    INSUFFICIENT_SIZE = 7 c"Insufficient Size";
    INSUFFICIENT_POWER = 8 c"Insufficient External Power";
    DRIVER_NOT_LOADED = 9 c"Driver Not Loaded";
    TIMEOUT = 10 c"Timeout";
    IRQ_ISSUE = 11 c"Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12 c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13 c"Function Not Found";
    CORRUPTED_INFOROM = 14 c"Corrupted infoROM";
    GPU_IS_LOST = 15 c"GPU is lost";
    RESET_REQUIRED = 16 c"GPU requires reset";
    OPERATING_SYSTEM = 17 c"The operating system has blocked the request.";
    LIB_RM_VERSION_MISMATCH = 18 c"Driver/library version mismatch";
    IN_USE = 19 c"in use";
    MEMORY = 20 c"Insufficient Memory";
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
    UNKNOWN = 999 c"Unknown Error";
}

impl From<&Error> for Code {
    fn from(error: &Error) -> Self {
        match error {
            Error::NoAnswer { .. }
            | Error::DeviceGone { .. }
            | Error::NothingFound(_)
            | Error::Configuration(_) => Self::DRIVER_NOT_LOADED,
            Error::NoDevice(_) => Self::INVALID_ARGUMENT,
            Error::Handshake(_) => Self::LIB_RM_VERSION_MISMATCH,
            Error::ChannelsTaken(_) => Self::INSUFFICIENT_RESOURCES,
            _ => Self::UNKNOWN,
        }
    }
}
