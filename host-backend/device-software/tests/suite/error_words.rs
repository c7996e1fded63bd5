//! Kernels that ask the device runtime for the text of an error.

use crate::common::{Arg, Gpu, module};
use paragpu_device::LinkInput;

/// Copies 64 bytes of the name and of the description of the error `code`.
const TEXT: &str = "
.extern .func (.param .b64 word) __cudaCDP2GetErrorName(.param .b32 code);
.extern .func (.param .b64 word) __cudaCDP2GetErrorString(.param .b32 code);
.visible .entry k(.param .u64 data, .param .u32 code) {
    .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    .param .b32 code_in; .param .b64 name; .param .b64 sentence;
    ld.param.u64 %rd0, [data]; ld.param.u32 %r0, [code];
    st.param.b32 [code_in], %r0;
    call (name), __cudaCDP2GetErrorName, (code_in);
    ld.param.b64 %rd1, [name];
    call (sentence), __cudaCDP2GetErrorString, (code_in);
    ld.param.b64 %rd2, [sentence];
    mov.u32 %r1, 0;
NEXT:
    ld.u8 %r2, [%rd1]; st.global.u8 [%rd0], %r2;
    ld.u8 %r2, [%rd2]; st.global.u8 [%rd0+64], %r2;
    add.u64 %rd0, %rd0, 1; add.u64 %rd1, %rd1, 1; add.u64 %rd2, %rd2, 1; add.u32 %r1, %r1, 1;
    setp.lt.u32 %p, %r1, 20; @%p bra NEXT;
    ret; }";

fn words(gpu: &mut Gpu, code: u32) -> [String; 2] {
    let text = module(TEXT);
    let input = |kind, name, image| LinkInput {
        kind,
        name,
        options: &[],
        image,
    };
    // The kinds of CUjitInputType: PTX, and a library of objects.
    let inputs = [
        input(1, "program", text.as_bytes()),
        input(4, "libcudadevrt.a", &[]),
    ];
    let (linked, _) = gpu.device.image_link(&inputs, &[]).unwrap();
    let linked = String::from_utf8(linked).unwrap();
    let f = gpu.kernel(&linked, "k");
    let base = gpu.arena;
    gpu.launch(&f, [1, 1, 1], [1, 1, 1], &[Arg::P(base), Arg::W(code)])
        .unwrap();
    let bytes: Vec<u8> = gpu
        .get32(0, 32)
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    [&bytes[..64], &bytes[64..]].map(|text| {
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    })
}

#[test]
fn a_code_has_a_name_and_a_sentence() {
    // As far as 20 bytes go.
    let cases = [
        (0, ["cudaSuccess", "no error"]),
        (1, ["cudaErrorInvalidValu", "invalid argument"]),
        (2, ["cudaErrorMemoryAlloc", "out of memory"]),
        (123_456, ["unrecognized error c", "unrecognized error c"]),
    ];
    for (code, expected) in cases {
        let mut gpu = Gpu::new();
        assert_eq!(words(&mut gpu, code), expected, "{code}");
    }
}
