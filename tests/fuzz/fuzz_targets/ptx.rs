//! PTX text, down to decoded instructions.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    paragpu_device_software::fuzz_ptx(data);
});
