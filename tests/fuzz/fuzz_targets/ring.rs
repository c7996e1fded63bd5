//! A ring whose other side writes anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    paragpu_communicator_ring::fuzzing::fuzz_ring(data);
});
