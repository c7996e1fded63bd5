//! `wmma` of single bits, whose opcode begins with the combining operation.

use crate::common::{Arg, Gpu, module};

fn words(count: u32, seed: u32) -> Vec<u32> {
    (0..count)
        .map(|n| (n ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(n % 31))
        .collect()
}

#[test]
fn products_of_single_bits() {
    let mut gpu = Gpu::new();
    let base = gpu.arena;
    for (what, combine) in [
        ("xor", (|x, y| x ^ y) as fn(u32, u32) -> u32),
        ("and", |x, y| x & y),
    ] {
        let text = module(&format!(
            ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {{
.reg .b64 %rd<4>; .reg .b32 %a<1>; .reg .b32 %b<1>; .reg .b32 %c<2>;
ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2]; ld.param.u64 %rd3, [p3];
wmma.load.a.sync.aligned.row.m8n8k128.global.b1 {{%a0}}, [%rd0], 128;
wmma.load.b.sync.aligned.col.m8n8k128.global.b1 {{%b0}}, [%rd1], 128;
wmma.load.c.sync.aligned.row.m8n8k128.global.s32 {{%c0,%c1}}, [%rd2], 8;
wmma.mma.{what}.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {{%c0,%c1}}, {{%a0}}, {{%b0}}, {{%c0,%c1}};
wmma.store.d.sync.aligned.row.m8n8k128.global.s32 [%rd3], {{%c0,%c1}}, 8;
ret; }}"
        ));
        let f = gpu.kernel(&text, "k");
        let (a, b, c) = (words(32, 1), words(32, 2), words(64, 3));
        gpu.put32(0, &a);
        gpu.put32(0x10000, &b);
        gpu.put32(0x20000, &c);
        let places = [0, 0x10000, 0x20000, 0x30000].map(|at| Arg::P(base + at));
        gpu.launch(&f, [1, 1, 1], [32, 1, 1], &places).unwrap();
        for (n, got) in gpu.get32(0x30000, 64).into_iter().enumerate() {
            let ones: u32 = (0..4)
                .map(|t| combine(a[n / 8 * 4 + t], b[n % 8 * 4 + t]).count_ones())
                .sum();
            assert_eq!(got, c[n].wrapping_add(ones), "{what} {n}");
        }
    }
}
