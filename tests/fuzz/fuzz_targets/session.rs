//! A whole session whose guest sends anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    paragpu_worker::fuzz_session(data);
});
