//! Threads without work sleep.

#[path = "suite/common/mod.rs"]
mod common;

use common::{Arg, Gpu, module};

/// How often the threads of this name were woken.
fn wakes(name: &str) -> u64 {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        if std::fs::read_to_string(path.join("comm")).unwrap().trim() == name {
            let status = std::fs::read_to_string(path.join("status")).unwrap();
            let mut lines = status.lines();
            let wakes = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            sum += wakes.unwrap().trim().parse::<u64>().unwrap();
        }
    }
    sum
}

/// A block that reads the same word again and again gives way to others each time.
#[test]
fn a_block_that_waits_wakes_no_thread_that_has_nothing_to_do() {
    /// Enough for some 10,000 turns.
    const READS: u32 = 640_000;
    let mut gpu = Gpu::new();
    let kernel = module(
        ".visible .entry waits(.param .u64 data, .param .u32 reads) {
.reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd;
ld.param.u64 %rd, [data]; ld.param.u32 %r1, [reads]; mov.u32 %r2, 0;
again: ld.volatile.global.u32 %r3, [%rd]; add.u32 %r2, %r2, 1;
setp.lt.u32 %p, %r2, %r1; @%p bra again;
st.global.u32 [%rd], %r2; ret; }",
    );
    let kernel = gpu.kernel(&kernel, "waits");
    let args = [Arg::P(gpu.arena), Arg::W(READS)];
    gpu.launch(&kernel, [1; 3], [1; 3], &args).unwrap();
    assert_eq!(gpu.get32(0, 1), [READS]);
    let wakes = wakes("software-copy");
    assert!(wakes < u64::from(READS) / 640, "woken {wakes} times");
}
