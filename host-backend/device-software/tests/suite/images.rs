//! Fat binaries: all compressions, and all kinds of corruption.

use crate::common::{Gpu, module};
use paragpu_device_software::{decode, ptx::parser};
use paragpu_fatbin::{self as fatbin, ImageError};
use paragpu_protocol::status::Status;
use proptest::prelude::*;
use std::collections::HashMap;

const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;

fn entry(kind: u16, sm: u32, flags: u64, payload: &[u8], uncompressed: usize) -> Vec<u8> {
    let padded = payload.len().next_multiple_of(8);
    let mut out = Vec::new();
    out.extend(kind.to_le_bytes());
    out.extend(0x101u16.to_le_bytes());
    out.extend(64u32.to_le_bytes());
    out.extend((padded as u64).to_le_bytes());
    out.extend((payload.len() as u32).to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend([0, 0, 9, 0]);
    out.extend(sm.to_le_bytes());
    out.extend([0; 8]);
    out.extend(flags.to_le_bytes());
    out.extend([0; 8]);
    out.extend((uncompressed as u64).to_le_bytes());
    assert_eq!(out.len(), 64);
    out.extend(payload);
    out.resize(64 + padded, 0);
    out
}

fn container(entries: &[Vec<u8>]) -> Vec<u8> {
    let body = entries.concat();
    let mut out = Vec::new();
    out.extend(0xBA55_ED50u32.to_le_bytes());
    out.extend(1u16.to_le_bytes());
    out.extend(16u16.to_le_bytes());
    out.extend((body.len() as u64).to_le_bytes());
    out.extend(body);
    out
}

fn text() -> String {
    module(".visible .entry k() { ret; }")
}

fn packed(sm: u32, flags: u64) -> Vec<u8> {
    let text = text();
    let payload = match flags {
        LZ4 => lz4_flex::block::compress(text.as_bytes()),
        ZSTD => ruzstd::encoding::compress_to_vec(
            text.as_bytes(),
            ruzstd::encoding::CompressionLevel::Fastest,
        ),
        _ => text.as_bytes().to_vec(),
    };
    entry(1, sm, flags, &payload, text.len())
}

#[test]
fn code_that_may_print_is_told_from_code_that_cannot() {
    let may = |image: &[u8], symbol, arch, most| {
        fatbin::callers(image, symbol, arch, most).may_include("k")
    };
    for flags in [0, LZ4, ZSTD] {
        let image = container(&[packed(75, flags)]);
        assert!(may(&image, ".entry", None, 1 << 20));
        assert!(!may(&image, "vprintf", None, 1 << 20));
        assert!(may(&image, "vprintf", None, 8), "too large to tell");
        assert!(may(&image[..40], "vprintf", None, 1 << 20));
        // A second entry is checked, too.
        let elf = entry(2, 90, 0, b"\x7fELF vprintf", 0);
        let both = container(&[packed(75, flags), elf]);
        assert!(may(&both, "vprintf", None, 1 << 20));
    }
    assert!(may(b"\x7fELF...vprintf", "vprintf", None, 1 << 20));
    assert!(!may(text().as_bytes(), "vprintf", None, 1 << 20));
    // Code that the device cannot run is skipped.
    let both = container(&[packed(75, LZ4), entry(2, 90, 0, b"\x7fELF vprintf", 0)]);
    for (arch, prints) in [(75, false), (86, false), (90, true), (100, false)] {
        assert_eq!(may(&both, "vprintf", Some(arch), 1 << 20), prints, "{arch}");
    }
}

#[test]
fn only_code_that_the_device_may_run_is_searched() {
    let code = module(".global .u32 counter;\n.visible .entry k() { call malloc; }");
    let unreadable = entry(2, 100, ZSTD, b"unreadable", 1 << 29);
    let image = container(&[entry(1, 75, 0, code.as_bytes(), 0), unreadable]);
    let most = code.len().next_multiple_of(8) as u64;
    let search = |arch| fatbin::search(&image, &["malloc"], arch, most);
    for arch in [75, 90, 120] {
        let found = search(Some(arch)).unwrap();
        assert!(found.symbols, "{arch}");
        assert!(found.variables.contains("counter"), "{arch}");
    }
    assert_eq!(search(Some(70)), Err(ImageError::NoBinary));
    for arch in [Some(100), Some(103), None] {
        assert!(search(arch).is_err(), "{arch:?}");
    }
    assert_eq!(
        fatbin::search(&image, &[], Some(90), most - 1),
        Err(ImageError::TooLarge)
    );
}

#[test]
fn code_is_counted_as_it_is_unpacked() {
    let text = text().len() as u64;
    for flags in [LZ4, ZSTD] {
        let image = container(&[
            packed(75, flags),
            packed(60, flags),
            entry(2, 90, 0, b"\x7fELF", 0),
        ]);
        let of = |arch| fatbin::unpacked(&image, arch).unwrap();
        assert_eq!((of(Some(90)).text, of(Some(90)).binary), (text, 8));
        assert_eq!((of(Some(121)).text, of(Some(121)).binary), (text, 0));
        assert_eq!(of(Some(50)), fatbin::Unpacked::default());
        assert!(fatbin::unpacked(&image[..40], None).is_err());
    }
    assert_eq!(fatbin::unpacked(b"\x7fELF", None).unwrap().binary, 4);
    assert_eq!(fatbin::unpacked(b".version", None).unwrap().text, 8);
}

#[test]
fn code_that_holds_more_than_it_says_is_refused() {
    let bytes = ruzstd::encoding::compress_to_vec(
        text().as_bytes(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    for said in [0, 1, text().len() - 1] {
        let image = container(&[entry(1, 75, ZSTD, &bytes, said)]);
        let refused = fatbin::ptx_of(&image, 90);
        assert!(
            matches!(refused, Err(ImageError::TooLarge)),
            "{said}: {refused:?}"
        );
    }
}

#[test]
fn plain_lz4_zstd_and_wrapped() {
    for flags in [0, LZ4, ZSTD] {
        let image = container(&[entry(2, 90, 0, b"\x7fELF", 0), packed(75, flags)]);
        assert_eq!(
            fatbin::ptx_of(&image, 90).unwrap(),
            text(),
            "flags {flags:#x}"
        );
        let mut wrapped = 0x4662_43B1u32.to_le_bytes().to_vec();
        wrapped.resize(24, 0);
        wrapped.extend(&image);
        assert_eq!(fatbin::ptx_of(&wrapped, 90).unwrap(), text());
    }
    let mut raw = text().into_bytes();
    raw.push(0);
    raw.extend(b"what follows the end");
    assert_eq!(fatbin::ptx_of(&raw, 90).unwrap(), text());
}

#[test]
fn the_newest_that_the_device_can_run() {
    let newer = module("// newer\n.visible .entry k() { ret; }");
    let image = container(&[
        packed(75, 0),
        entry(1, 86, 0, newer.as_bytes(), 0),
        entry(1, 100, 0, b"not for us", 0),
    ]);
    assert_eq!(fatbin::ptx_of(&image, 90).unwrap(), newer);
    assert_eq!(fatbin::ptx_of(&image, 80).unwrap(), text());
    assert_eq!(fatbin::ptx_of(&image, 70), Err(ImageError::NoBinary));
}

#[test]
fn a_refusal_says_what_the_image_holds() {
    let mut gpu = Gpu::new();
    let image = container(&[entry(2, 75, 0, b"", 0), entry(2, 90, 0, b"", 0)]);
    let error = gpu
        .device
        .module_load(&image[..].into(), &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("no PTX"), "{error}");
    let names = "machine code for sm_75, machine code for sm_90";
    assert!(error.contains(names), "{error}");
}

#[test]
fn what_cannot_be_loaded_is_called_as_cuda_calls_it() {
    let mut gpu = Gpu::new();
    let mut status = |image: &[u8]| {
        let loaded = gpu.device.module_load(&image.into(), &[]);
        loaded.unwrap_err().status
    };
    assert_eq!(
        status(b"\x7fELF rest of a cubin"),
        Status::NO_BINARY_FOR_GPU
    );
    assert_eq!(
        status(&container(&[entry(2, 90, 0, b"\x7fELF", 0)])),
        Status::NO_BINARY_FOR_GPU
    );
    assert_eq!(
        status(&container(&[packed(75, ZSTD)])[..100]),
        Status::INVALID_IMAGE
    );
    assert_eq!(status(b"garbage that is no image"), Status::INVALID_IMAGE);
    assert_eq!(status(b""), Status::INVALID_IMAGE);
    assert_eq!(
        status(&container(&[entry(1, 75, LZ4, b"\xff\xff\xff\xff", 100)])),
        Status::INVALID_IMAGE
    );
    assert_eq!(
        status(&container(&[entry(1, 75, ZSTD, b"nothing", 100)])),
        Status::INVALID_IMAGE
    );
    assert_eq!(
        status(&container(&[entry(1, 75, LZ4, b"1", 1 << 40)])),
        Status::INVALID_IMAGE
    );
    assert_eq!(
        status(b".version 9.0 .target sm_75 .address_size 64 .entry {"),
        Status::INVALID_PTX
    );
}

/// Decodes the text if it parses. It must only return.
fn swallow(text: &str) {
    let Ok(module) = parser::parse(text) else {
        return;
    };
    let addresses: HashMap<&str, u64> = module.variables.iter().map(|v| (v.name, 0x1000)).collect();
    for var in &module.variables {
        let _ = decode::image(var, &addresses, &HashMap::new());
    }
    let _ = decode::decode(&module, &addresses);
}

/// Text that uses most of the grammar.
fn rich() -> String {
    module(
        ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.global .align 4 .f32 v[2][2] = {{1.0, 0f3F800000}, {2, -3}}; .const .u64 p[2] = {generic(v)+4, v};
.extern .shared .align 16 .b8 dyn[];
.func (.param .b32 r) f(.param .align 8 .b8 s[16]) { .reg .b32 %r<2>; ld.param.u32 %r1, [s+4]; st.param.b32 [r], %r1; ret; }
.visible .entry k(.param .u64 a) .maxntid 32, 1, 1 {
.reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<4>; .local .align 8 .b8 depot[32];
.loc 1 2 3, function_name $L_info, inlined_at 1 4 5
ld.param.u64 %rd1, [a]; mov.u64 %rd2, depot; mov.u32 %r1, %tid.x; mov.u32 %r3, dyn;
@!%p1 bra $L1; setp.lt.and.s32 %p1|%p2, %r1, -5, !%p3; fma.rz.ftz.f32 %f1, %f2, %f3, 0f3F800000;
{.reg.b16 h, g; mov.b16 g, 0x3c00; set.eq.f16.f16 h, g, g;}
{ .param .align 8 .b8 q[16]; .param .b32 z; st.param.v2.b64 [q], {%rd1, %rd2}; call.uni (z), f, (q); }
tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%rd1, {%f0, %f1}]; shfl.sync.idx.b32 %r1|%p1, %r2, %r3, 31, -1;
T: .branchtargets $L1, $L1; brx.idx %r1, T;
$L1: ret; }",
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn containers_are_total(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = fatbin::entries(&bytes);
        let _ = fatbin::ptx_of(&bytes, 90);
        let mut image = container(&[packed(75, ZSTD)]);
        for (n, b) in bytes.iter().enumerate() {
            if let Some(slot) = image.get_mut(n * 3 % 90) {
                *slot ^= b & 0x11;
            }
        }
        let _ = fatbin::ptx_of(&image, 90);
    }

    #[test]
    fn flipped_bytes_of_each_packing(at in 0usize..400, value in any::<u8>(), which in 0usize..3) {
        let mut image = container(&[packed(75, [0, LZ4, ZSTD][which])]);
        let n = image.len();
        image[at % n] = value;
        let _ = fatbin::ptx_of(&image, 90);
        let _ = fatbin::ptx_of(&image[..at % n], 90);
    }

    #[test]
    fn ptx_is_total(cut in 0usize..2000, insert in "[ -~]{0,6}", drop in 0usize..12) {
        let text = rich();
        let cut = cut % text.len();
        let mut damaged = text[..cut].to_owned();
        damaged.push_str(&insert);
        damaged.push_str(&text[(cut + drop).min(text.len())..]);
        swallow(&damaged);
    }

    #[test]
    fn tokens_in_any_order(words in prop::collection::vec(prop::sample::select(vec![
        ".version 9.0", ".target sm_75", ".entry", ".func", "k", "(", ")", "{", "}", ";", ",", ".param", ".b32", ".b64", "[", "]", "+",
        "-", "0x10", "4294967296", "%r1", "@", "!", ".reg", "<", ">", "add.u32", "ld.global.v4.f32", "bra", "mov.b64", "call", ":",
        ".global", "=", ".align", "18446744073709551615", "\"", "/*", "0f3F800000", "|", ".shared", ".local", "setp.lt.s32",
    ]), 0..60)) {
        swallow(&words.join(" "));
        swallow(&format!(".version 9.0 .entry k() {{ .reg .b32 %r<4>; {} }}", words.join(" ")));
    }
}

#[test]
fn the_rich_text_itself_decodes() {
    let text = rich();
    let module = parser::parse(&text).unwrap();
    let addresses: HashMap<&str, u64> = module.variables.iter().map(|v| (v.name, 0x1000)).collect();
    decode::decode(&module, &addresses).unwrap();
}

#[test]
fn declared_sizes_are_bounded() {
    for text in [
        module(".global .b8 huge[18446744073709551615];"),
        module(".visible .entry k() { .local .b8 huge[4294967295]; ret; }"),
        module(".visible .entry k(.param .b8 huge[4294967295]) { ret; }"),
        module(&format!(
            ".visible .entry k() {} ret; {}",
            "{".repeat(100_000),
            "}".repeat(100_000)
        )),
        module(&format!(".global .u32 x = {};", "{".repeat(100_000))),
    ] {
        let mut gpu = Gpu::new();
        gpu.load(&text).unwrap_err();
    }
}
