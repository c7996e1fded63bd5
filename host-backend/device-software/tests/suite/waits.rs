//! Loops that wait for a time leave it to other warps and blocks.

use crate::common::{Arg, Gpu, module};
use paragpu_device_software::Options;

/// A kernel whose first warp of all runs `wait` 100 times; then each warp writes its turn to
/// `[at + 4 * number]`.
fn kernel(wait: &str) -> String {
    module(&format!(
        ".visible .entry k(.param .u64 turns) {{ .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
ld.param.u64 %rd1, [turns]; mov.u32 %r1, %tid.x; shr.u32 %r1, %r1, 5;
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; shr.u32 %r3, %r3, 5; mad.lo.u32 %r1, %r2, %r3, %r1;
setp.ne.u32 %p1, %r1, 0; @%p1 bra take; mov.u32 %r4, 100;
again: {wait} sub.u32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, 0; @%p1 bra again;
take: mov.u32 %r5, %laneid; setp.ne.u32 %p1, %r5, 0; @%p1 ret;
atom.global.add.u32 %r6, [%rd1], 1; mad.wide.u32 %rd2, %r1, 4, %rd1; st.global.u32 [%rd2+4], %r6; ret; }}"
    ))
}

fn one_core() -> Gpu {
    Gpu::with(Options {
        memory: 512 << 20,
        cores: 1,
        ..Options::default()
    })
}

#[test]
fn the_time_of_a_wait_passes_for_others() {
    for clock in ["clock64", "globaltimer"] {
        let wait = format!("mov.u64 %rd3, %{clock};");
        for (blocks, threads) in [(1, 64), (2, 32)] {
            let mut gpu = one_core();
            let f = gpu.kernel(&kernel(&wait), "k");
            gpu.put32(0, &[0; 3]);
            let args = [Arg::P(gpu.arena)];
            gpu.launch(&f, [blocks, 1, 1], [threads, 1, 1], &args)
                .unwrap();
            assert_eq!(gpu.get32(0, 3), [2, 1, 0], "{clock}, {blocks} blocks");
        }
    }
}

#[test]
fn a_timed_section_is_not_interrupted() {
    let mut gpu = one_core();
    let f = gpu.kernel(
        &kernel("mov.u64 %rd3, %clock64; mov.u64 %rd4, %clock64;"),
        "k",
    );
    gpu.put32(0, &[0; 3]);
    let args = [Arg::P(gpu.arena)];
    gpu.launch(&f, [1; 3], [64, 1, 1], &args).unwrap();
    assert_eq!(gpu.get32(0, 3), [2, 0, 1]);
}
