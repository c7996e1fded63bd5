//! Fat binaries.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    paragpu_device_software::fuzz_fatbin(data);
});
