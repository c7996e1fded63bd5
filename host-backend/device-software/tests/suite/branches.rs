//! Returns and indexed branches.

use crate::common::{Arg, Gpu, module};

#[test]
fn early_returns_and_branches_that_share_a_table() {
    // The blocks are not in the order in which they run, and both functions have lists
    // and labels of the same names.
    let before =
        ".func (.reg .u32 d, .reg .u32 e) pick (.reg .u32 a) { .reg .pred p, q; .reg .u32 r;
mov.u32 d, 7; setp.eq.u32 p, a, 3; mov.u32 e, 70; @p ret;
TABLE: .branchtargets T0, T1, T2;
and.b32 r, a, 1; brx.idx r, TABLE;
T1: mov.u32 d, 11; setp.gt.u32 q, a, 6; @!q ret; add.u32 r, a, 0; sub.u32 r, r, 6; min.u32 r, r, 2;
@q bra AGAIN;
T0: mov.u32 e, 20; ret;
AGAIN: mov.u32 e, 30; setp.eq.u32 p, a, 7; @p mov.u32 r, 0; brx.idx r, TABLE;
T2: mov.u32 d, 12; }";
    let body = ".reg .u32 d, e; call.uni (d, e), pick, (%tid); mov.u32 %r1, 0;
TABLE: .branchtargets T0, T1;
and.b32 %r2, %tid, 1;
LOOP: brx.idx %r2, TABLE;
T1: add.u32 %r1, %r1, 100; mov.u32 %r2, 0; bra LOOP;
T0: add.u32 %r1, %r1, d; mad.lo.u32 %r1, e, 1000, %r1; st.global.u32 [%rd1], %r1; ret;";
    let text = module(&format!(
        "{before}
.visible .entry k(.param .u64 data) {{
.reg .b32 %r<4>, %tid; .reg .b64 %rd<2>;
ld.param.u64 %rd0, [data]; mov.u32 %tid, %tid.x; mad.wide.u32 %rd1, %tid, 4, %rd0;
{body}
}}"
    ));
    let mut gpu = Gpu::new();
    let kernel = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.launch(&kernel, [1; 3], [16, 1, 1], &[Arg::P(base)])
        .unwrap();
    for (lane, got) in gpu.get32(0, 16).into_iter().enumerate() {
        let a = lane as u32;
        let (d, e) = match a {
            3 => (7, 70),
            7 => (11, 20),
            _ if a.is_multiple_of(2) => (7, 20),
            _ if a <= 6 => (11, 70),
            _ => (12, 30),
        };
        assert_eq!(got, 1000 * e + d + 100 * (a % 2), "lane {lane}");
    }
}
