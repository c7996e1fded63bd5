//! Error handling (CUDA Runtime API, chapter "Error Handling").

use super::carrier;
use crate::records_unsafe;
use paragpu_abi as abi;
use paragpu_abi::cudaError_t;
use std::ffi::c_char;

// These four report errors and must not change the last error.
macro_rules! plain {
    ($( fn $name:ident ( $( $parameter:ident : $kind:ty ),* ) -> $result:ty $body:block )*) => {
        $(
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name( $( $parameter: $kind ),* ) -> $result $body
        )*
    };
}

plain! {
    fn cudaGetLastError() -> cudaError_t {
        let carrier = carrier::take();
        records_unsafe::take(carrier)
    }

    fn cudaPeekAtLastError() -> cudaError_t {
        let carrier = carrier::take();
        records_unsafe::peek(carrier)
    }

    fn cudaGetErrorName(error: cudaError_t) -> *const c_char {
        abi::runtime_error_name(error).unwrap_or(abi::UNRECOGNIZED).as_ptr()
    }

    fn cudaGetErrorString(error: cudaError_t) -> *const c_char {
        abi::runtime_error_string(error).unwrap_or(abi::UNRECOGNIZED).as_ptr()
    }
}
