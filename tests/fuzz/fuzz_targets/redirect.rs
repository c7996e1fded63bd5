//! Objects and facts about runtimes: any bytes end, without a panic.
#![no_main]

#[path = "../../../guest-frontend/redirect/tests/any/mod.rs"]
mod any;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    any::any_bytes(data);
});
