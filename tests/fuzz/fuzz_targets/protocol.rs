//! Every call, reply and handshake of the wire.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    paragpu_protocol::fuzz_protocol(data);
});
