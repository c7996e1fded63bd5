//! The parts of CUDA's device runtime that are implemented in PTX.

use std::ffi::CStr;
use std::fmt::Write as _;

use paragpu_abi::error::{ERRORS, ErrorEntry};

/// PTX with which programs that use the device runtime are linked.
pub const DEVICE_RUNTIME_TEXT: &str = include_str!("devrt.ptx");
/// The name and the text of an unknown code.
const UNKNOWN: &CStr = c"unrecognized error code";

/// `cudaGetErrorName` and `cudaGetErrorString`, as far as `texts` call them.
pub fn errors(texts: &[String]) -> String {
    let name = |entry: &ErrorEntry| entry.runtime;
    let sentence = |entry: &ErrorEntry| entry.runtime.map(|_| entry.text);
    let mut out = String::new();
    for (function, words) in [
        ("__cudaCDP2GetErrorName", table(name)),
        ("__cudaCDP2GetErrorString", table(sentence)),
    ] {
        if texts.iter().any(|text| text.contains(function)) {
            write_function(&mut out, function, &words);
        }
    }
    out
}

fn table(of: impl Fn(&ErrorEntry) -> Option<&'static CStr>) -> Vec<(i32, &'static CStr)> {
    ERRORS
        .iter()
        .filter_map(|entry| Some((entry.code, of(entry)?)))
        .collect()
}

fn list(numbers: impl Iterator<Item = u32>) -> String {
    numbers.map(|n| n.to_string()).collect::<Vec<_>>().join(",")
}

/// Writes a function that looks up its argument among the codes. The texts are stored one
/// after another, [`UNKNOWN`] first.
fn write_function(out: &mut String, function: &str, words: &[(i32, &CStr)]) {
    let mut bytes = UNKNOWN.to_bytes_with_nul().to_vec();
    let mut codes = Vec::new();
    for (code, word) in words {
        codes.extend([code.cast_unsigned(), bytes.len() as u32]);
        bytes.extend(word.to_bytes_with_nul());
    }
    let _ = write!(
        out,
        "
.global .align 4 .u32 {function}_codes[{}] = {{{}}};
.global .align 1 .b8 {function}_words[{}] = {{{}}};
.visible .func (.param .b64 word) {function}(.param .b32 code)
{{
    .reg .pred %over, %found;
    .reg .b32 %code, %one, %at, %left;
    .reg .b64 %row, %words, %offset;
    ld.param.b32 %code, [code];
    mov.u64 %row, {function}_codes;
    mov.u64 %words, {function}_words;
    cvta.global.u64 %words, %words;
    mov.u32 %left, {};
next:
    mov.u32 %at, 0;
    setp.eq.u32 %over, %left, 0;
    @%over bra found;
    ld.global.u32 %one, [%row];
    ld.global.u32 %at, [%row+4];
    add.u64 %row, %row, 8;
    sub.u32 %left, %left, 1;
    setp.eq.u32 %found, %one, %code;
    @!%found bra next;
found:
    cvt.u64.u32 %offset, %at;
    add.u64 %words, %words, %offset;
    st.param.b64 [word], %words;
    ret;
}}
",
        codes.len(),
        list(codes.iter().copied()),
        bytes.len(),
        list(bytes.iter().map(|&byte| byte.into())),
        words.len(),
    );
}
