//! Threads without work sleep.

#[path = "suite/common/mod.rs"]
mod common;

use common::{Arg, Gpu, STREAM, module};
use paragpu_device::conformance::settle;
use paragpu_device_software::Options;
use std::sync::Mutex;

/// One device at a time, because [`wakes`] counts the threads of all.
static DEVICE: Mutex<()> = Mutex::new(());

/// How often the threads whose names begin like this were woken.
fn wakes(name: &str) -> u64 {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let comm = std::fs::read_to_string(path.join("comm")).unwrap();
        if comm.starts_with(name) {
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
    let _alone = DEVICE.lock().unwrap_or_else(|e| e.into_inner());
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

#[test]
fn a_launch_wakes_no_more_threads_than_it_has_blocks() {
    const LAUNCHES: u32 = 300;
    let _alone = DEVICE.lock().unwrap_or_else(|e| e.into_inner());
    let mut gpu = Gpu::with(Options {
        memory: 512 << 20,
        cores: 16,
        ..Options::default()
    });
    let kernel = module(
        ".visible .entry adds(.param .u64 data) { .reg .b64 %rd;
ld.param.u64 %rd, [data]; red.global.add.u32 [%rd], 1; ret; }",
    );
    let kernel = gpu.kernel(&kernel, "adds");
    let args = [Arg::P(gpu.arena)];
    gpu.put32(0, &[0]);
    // The threads have started and sleep.
    gpu.launch(&kernel, [64, 1, 1], [1; 3], &args).unwrap();
    // Each launch is complete before the next.
    let before = wakes("software-sm");
    for _ in 0..LAUNCHES {
        gpu.launch(&kernel, [1; 3], [1; 3], &args).unwrap();
    }
    let apart = wakes("software-sm") - before;
    // Each waits for the one before it, in the same stream.
    let before = wakes("software-sm");
    for _ in 0..LAUNCHES {
        gpu.start(&kernel, [1; 3], [1; 3], 0, false, &args).unwrap();
    }
    settle(gpu.device.as_mut(), STREAM).unwrap();
    let queued = wakes("software-sm") - before;
    assert_eq!(gpu.get32(0, 1), [64 + 2 * LAUNCHES]);
    // A thread may also sleep while another one has the lock.
    for (how, woken) in [("one by one", apart), ("queued", queued)] {
        assert!(
            woken < u64::from(LAUNCHES) * 3,
            "{how}: woken {woken} times"
        );
    }
}
