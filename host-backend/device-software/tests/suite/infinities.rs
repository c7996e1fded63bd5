//! Products of matrices of which one element is infinite.

use crate::common::{Arg, Gpu, module};
use std::fmt::Write;

#[test]
fn an_infinity_changes_no_bit_of_other_rows() {
    let mut operands = String::new();
    for register in 1..=6 {
        // Finite halves of many exponents.
        let _ = write!(
            operands,
            "mad.lo.u32 %r{register},%r0,0x9e3779b9,{}; shr.u32 %r7,%r{register},13; xor.b32 %r{register},%r{register},%r7;
mul.lo.u32 %r{register},%r{register},0x85ebca6b; and.b32 %r{register},%r{register},0xbbffbbff; ",
            register * 7919
        );
    }
    let multiply = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f4,%f4,%f4,%f4};";
    let text = module(&format!(
        ".visible .entry k(.param .u64 data) {{
.reg .pred %p1; .reg .b32 %r<8>; .reg .f32 %f<5>; .reg .b64 %rd<2>;
ld.param.u64 %rd0, [data]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 32, %rd0; mov.f32 %f4, 0f00000000;
{operands}
{multiply} st.global.v4.f32 [%rd1], {{%f0,%f1,%f2,%f3}};
setp.eq.u32 %p1, %r0, 28; @%p1 mov.u32 %r2, 0x7c00;
{multiply} st.global.v4.f32 [%rd1+16], {{%f0,%f1,%f2,%f3}};
ret; }}"
    ));
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.launch(&f, [1, 1, 1], [32, 1, 1], &[Arg::P(base)])
        .unwrap();
    for (lane, words) in gpu.get32(0, 256).chunks_exact(8).enumerate() {
        for (n, (before, after)) in words[..4].iter().zip(&words[4..]).enumerate() {
            // The last row of A has the infinity.
            if lane >= 28 && n >= 2 {
                assert!(!f32::from_bits(*after).is_finite(), "lane {lane}, {n}");
            } else {
                assert_eq!(before, after, "lane {lane}, {n}");
            }
        }
    }
}
