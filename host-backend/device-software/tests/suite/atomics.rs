//! Atomic operations on floats.

use crate::common::{Arg, Gpu, module};

const TINY: u32 = 0x0001_0000;
const MINUS: u32 = 1 << 31;
/// The least normal number.
const NORMAL: u32 = 0x0080_0000;

/// A kernel of one thread, whose data are at `%rd0`.
fn run(gpu: &mut Gpu, body: &str) {
    let text = module(&format!(
        ".visible .entry k(.param .u64 data) {{
.reg .b32 %r<16>; .reg .b16 %rs<16>; .reg .b64 %rd<4>; ld.param.u64 %rd0, [data];
{body} ret; }}"
    ));
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.launch(&f, [1, 1, 1], [1, 1, 1], &[Arg::P(base)])
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
}

#[test]
fn sums_of_singles_flush_subnormals_in_global_memory_only() {
    let mut gpu = Gpu::new();
    gpu.put32(0, &[TINY, MINUS | TINY, NORMAL + 7, TINY, TINY, 1, 9, 9]);
    run(
        &mut gpu,
        &format!(
            ".shared .align 16 .b32 s[4]; mov.u32 %r1, s; mov.u32 %r2, {TINY}; mov.u32 %r3, {};
st.shared.v4.b32 [%r1], {{%r2,%r2,%r2,%r2}}; cvta.shared.u64 %rd1, s;
atom.global.add.f32 %r4, [%rd0], %r2; red.global.add.f32 [%rd0+4], %r3; red.add.f32 [%rd0+8], {};
atom.add.f32 %r5, [%rd0+12], 0f3F800000; red.global.add.v2.f32 [%rd0+16], {{%r2,%r2}};
atom.shared.add.f32 %r6, [%r1], %r2; red.add.f32 [%rd1+4], %r2;
ld.shared.v2.b32 {{%r7,%r8}}, [%r1];
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd0+32], [%r1], 16;
st.global.v2.b32 [%rd0+24], {{%r4,%r5}}; st.global.v2.b32 [%rd0+48], {{%r7,%r8}};",
            MINUS | TINY,
            format_args!("0f{:08X}", MINUS | NORMAL),
        ),
    );
    let out = gpu.get32(0, 14);
    assert_eq!(out[..4], [0, MINUS, 0, 1f32.to_bits()]);
    assert_eq!(out[4..6], [0, 0]);
    // The old values are as they were.
    assert_eq!(out[6..8], [TINY, TINY]);
    assert_eq!(out[8..12], [0; 4]);
    assert_eq!(out[12..], [2 * TINY, 2 * TINY]);
}

/// The lesser or greater of two halves, none of which is zero or NaN, of either format.
fn extreme(a: u32, b: u32, greatest: bool) -> u32 {
    let order = |v: u32| {
        let size = (v & 0x7fff) as i32;
        if v & 0x8000 == 0 { size } else { -size }
    };
    if (order(a) > order(b)) == greatest {
        a
    } else {
        b
    }
}

#[test]
fn extremes_of_halves() {
    // Subnormal, normal and negative.
    let (old, new) = ([0x0001_3c00, 0xbc00_8003], [0x0002_b800, 0xc000_0001]);
    let mut gpu = Gpu::new();
    for (ty, greatest) in [
        ("f16", false),
        ("f16", true),
        ("bf16", false),
        ("bf16", true),
    ] {
        let what = if greatest { "max" } else { "min" };
        let want: Vec<u32> = old
            .iter()
            .zip(new)
            .map(|(&a, b)| {
                extreme(a & 0xffff, b & 0xffff, greatest)
                    | extreme(a >> 16, b >> 16, greatest) << 16
            })
            .collect();
        let load = format!("mov.u32 %r1, {}; mov.u32 %r2, {};", new[0], new[1]);
        let halves = "mov.b32 {%rs0,%rs1}, %r1; mov.b32 {%rs2,%rs3}, %r2;";
        for body in [
            format!("red.global.{what}.noftz.v2.{ty}x2 [%rd0], {{%r1,%r2}};"),
            format!(
                "atom.global.v2.{ty}x2.{what}.noftz {{%r3,%r4}}, [%rd0], {{%r1,%r2}}; st.global.v2.b32 [%rd0+8], {{%r3,%r4}};"
            ),
            format!("{halves} red.global.v4.{ty}.{what}.noftz [%rd0], {{%rs0,%rs1,%rs2,%rs3}};"),
            format!(
                ".shared .align 16 .b32 s[4]; mov.u32 %r5, s; mov.u32 %r6, 0; st.shared.v4.b32 [%r5], {{%r1,%r2,%r6,%r6}};
cp.reduce.async.bulk.global.shared::cta.bulk_group.{what}.{ty} [%rd0], [%r5], 16;"
            ),
        ] {
            gpu.put32(0, &[old[0], old[1], 0, 0]);
            run(&mut gpu, &format!("{load}{body}"));
            let out = gpu.get32(0, 4);
            assert_eq!(out[..2], want, "{body}");
            if body.starts_with("atom") {
                assert_eq!(out[2..], old, "{body}");
            }
        }
    }
    // One NaN gives way to the number; a positive zero is greater than a negative one.
    gpu.put32(0, &[0x7e00_0000, 0x8000_3c00]);
    run(
        &mut gpu,
        "mov.u32 %r1, 0x3c008000; mov.u32 %r2, 0x00007e00; red.global.max.noftz.v2.f16x2 [%rd0], {%r1,%r2};",
    );
    assert_eq!(gpu.get32(0, 2), [0x3c00_0000, 0x0000_3c00]);
}
