//! A stream whose other side sends anything, cut anywhere.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    paragpu_communicator_stream::fuzzing::fuzz_stream(data);
});
