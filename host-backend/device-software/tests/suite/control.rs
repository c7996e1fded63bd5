//! Divergence, calls, exchanges between lanes, barriers, atomics, grids that synchronize.

use crate::common::{Arg, Gpu, STREAM, module};
use paragpu_device::conformance::settle;
use paragpu_device_software::Options;
use paragpu_protocol::status::Status;

/// A kernel `k(data)` with this body; `%tid` holds the thread's number, `%rd1` its word's
/// address, `%rd0` the base.
fn kernel(body: &str) -> String {
    around("", body)
}

fn around(before: &str, body: &str) -> String {
    module(&format!(
        "{before}
.visible .entry k(.param .u64 data) {{
.reg .pred %p<16>; .reg .b32 %r<64>; .reg .b64 %rd<32>; .reg .f32 %f<8>; .reg .b32 %tid;
ld.param.u64 %rd0, [data];
mov.u32 %tid, %tid.x; mov.u32 %r60, %ntid.x; mov.u32 %r61, %ctaid.x; mad.lo.u32 %tid, %r60, %r61, %tid;
mad.wide.u32 %rd1, %tid, 4, %rd0;
{body}
}}"
    ))
}

fn run(text: &str, grid: u32, block: u32, words: usize) -> Vec<u32> {
    let mut gpu = Gpu::new();
    let f = gpu.kernel(text, "k");
    let base = gpu.arena;
    gpu.launch(&f, [grid, 1, 1], [block, 1, 1], &[Arg::P(base)])
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    gpu.get32(0, words)
}

#[test]
fn loops_of_different_length_per_lane() {
    // Collatz steps: every lane leaves the loop at a different time; odd and even lanes
    // take different branches.
    let text = kernel(
        "add.u32 %r1, %tid, 1; mov.u32 %r2, 0;
LOOP: setp.eq.u32 %p1, %r1, 1; @%p1 bra OUT;
add.u32 %r2, %r2, 1; and.b32 %r3, %r1, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra EVEN;
mad.lo.u32 %r1, %r1, 3, 1; bra LOOP;
EVEN: shr.u32 %r1, %r1, 1; bra LOOP;
OUT: st.global.u32 [%rd1], %r2; ret;",
    );
    for (n, got) in run(&text, 3, 100, 300).into_iter().enumerate() {
        let (mut v, mut steps) = (n as u64 + 1, 0);
        while v != 1 {
            v = if v % 2 == 0 { v / 2 } else { 3 * v + 1 };
            steps += 1;
        }
        assert_eq!(got, steps, "lane {n}");
    }
}

#[test]
fn lanes_meet_behind_a_loop_whose_end_lies_before_it() {
    // An odd-even sort of 32 words by one warp without `.sync`: each step reads what other
    // lanes wrote in the previous step. The end of a step is placed before its middle, as
    // compilers do, and lanes run the step's loop three times or not at all. There are
    // enough steps for many leases.
    let text = kernel(
        "sub.u32 %r1, 31, %tid; st.global.u32 [%rd1], %r1; mov.u32 %r2, 0; bra STEP;
END: add.u32 %r2, %r2, 1; setp.ge.u32 %p1, %r2, 640; @%p1 bra OUT;
STEP: add.u32 %r3, %r2, %tid; and.b32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0;
setp.eq.u32 %p3, %tid, 31; or.pred %p2, %p2, %p3; @%p2 bra END; mov.u32 %r4, 0;
AGAIN: ld.global.u32 %r5, [%rd1]; ld.global.u32 %r6, [%rd1+4]; setp.le.u32 %p4, %r5, %r6; @!%p4 bra SWAP;
NEXT: add.u32 %r4, %r4, 1; setp.ge.u32 %p5, %r4, 3; @%p5 bra END; bra AGAIN;
SWAP: st.global.u32 [%rd1], %r6; st.global.u32 [%rd1+4], %r5; bra NEXT;
OUT: ret;",
    );
    let sorted: Vec<u32> = (0..32).collect();
    assert_eq!(run(&text, 1, 32, 32), sorted);

    // Fewer steps: the words are then not completely sorted, whether lanes run ahead or
    // not.
    let few = text.replace("640", "31");
    let mut expected: Vec<u32> = (0..32).rev().collect();
    for step in 0..31 {
        for at in (step % 2..31).step_by(2) {
            if expected[at] > expected[at + 1] {
                expected.swap(at, at + 1);
            }
        }
    }
    assert_eq!(run(&few, 1, 32, 32), expected);
}

#[test]
fn nested_breaks_early_exits_and_a_jump_table() {
    let text = kernel(
        "and.b32 %r1, %tid, 7; mov.u32 %r9, 0;
setp.eq.u32 %p1, %r1, 5; @%p1 exit;
mov.u32 %r2, 0;
OUTER: mov.u32 %r3, 0;
INNER: add.u32 %r9, %r9, 1; setp.gt.u32 %p2, %r9, 50; @%p2 bra BREAK_BOTH;
add.u32 %r3, %r3, 1; setp.le.u32 %p3, %r3, %r1; @%p3 bra INNER;
add.u32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, %r1; @%p4 bra OUTER;
TABLE: .branchtargets T0, T1, T2;
rem.u32 %r4, %tid, 3; brx.idx %r4, TABLE;
T0: add.u32 %r9, %r9, 1000; bra END;
T1: add.u32 %r9, %r9, 2000; bra END;
T2: add.u32 %r9, %r9, 3000; bra END;
BREAK_BOTH: mov.u32 %r9, 777;
END: st.global.u32 [%rd1], %r9; ret;",
    );
    for (n, got) in run(&text, 1, 64, 64).into_iter().enumerate() {
        let n = n as u32;
        let k = n & 7;
        let mut want = 0;
        if k != 5 {
            let total = (k + 1) * k.max(1);
            want = if total > 50 {
                777
            } else {
                total + 1000 * (1 + n % 3)
            };
        }
        assert_eq!(got, want, "lane {n}");
    }
}

#[test]
fn every_lane_of_a_warp_takes_the_same_lock() {
    // Lanes spin for each other inside one warp: requires independent progress of each
    // lane.
    let text = around(
        ".global .align 4 .u32 lock;",
        "mov.u64 %rd2, lock;
SPIN: atom.global.cas.b32 %r1, [%rd2], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra SPIN;
ld.volatile.global.u32 %r2, [%rd0]; add.u32 %r2, %r2, 1; st.volatile.global.u32 [%rd0], %r2; membar.gl;
atom.global.exch.b32 %r3, [%rd2], 0; ret;",
    );
    assert_eq!(run(&text, 4, 96, 1)[0], 4 * 96);
}

#[test]
fn lanes_that_wait_for_a_later_branch_of_the_same_warp() {
    // Lane 0 waits in a loop placed before the code in which lane 1 sets the flag.
    let text = kernel(
        "setp.ne.u32 %p1, %tid, 0; @%p1 bra OTHER;
WAIT: ld.volatile.global.u32 %r1, [%rd0+4]; setp.eq.u32 %p2, %r1, 0; @%p2 bra WAIT;
st.global.u32 [%rd0], %r1; ret;
OTHER: setp.ne.u32 %p3, %tid, 1; @%p3 exit; mov.u32 %r2, 42; st.volatile.global.u32 [%rd0+4], %r2; ret;",
    );
    assert_eq!(run(&text, 1, 32, 2), [42, 42]);
}

#[test]
fn functions_recursion_and_pointers_to_functions() {
    let text = around(
        ".func (.param .b32 r) fib(.param .b32 n) {
.reg .pred %p<2>; .reg .b32 %r<8>;
ld.param.u32 %r1, [n]; setp.gt.u32 %p1, %r1, 1; @%p1 bra MORE;
st.param.b32 [r+0], %r1; ret;
MORE: sub.u32 %r2, %r1, 1; sub.u32 %r3, %r1, 2;
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call.uni (b), fib, (a); ld.param.b32 %r4, [b]; }
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r3; call.uni (b), fib, (a); ld.param.b32 %r5, [b]; }
add.u32 %r6, %r4, %r5; st.param.b32 [r], %r6; ret; }
.func (.param .b32 r) twice(.param .b32 n) {
.reg .b32 %r<3>; ld.param.u32 %r1, [n]; shl.b32 %r2, %r1, 1; st.param.b32 [r], %r2; ret; }
.global .align 8 .u64 table[2] = {fib, twice};",
        "and.b32 %r1, %tid, 7; and.b32 %r2, %tid, 1;
mov.u64 %rd2, table; mad.wide.u32 %rd2, %r2, 8, %rd2; ld.global.u64 %rd3, [%rd2];
P: .callprototype (.param .b32 _) _ (.param .b32 _);
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), %rd3, (a), P; ld.param.b32 %r4, [b]; }
st.global.u32 [%rd1], %r4; ret;",
    );
    let fib = [0, 1, 1, 2, 3, 5, 8, 13];
    for (n, got) in run(&text, 1, 40, 40).into_iter().enumerate() {
        let k = n % 8;
        assert_eq!(
            got,
            if n % 2 == 0 { fib[k] } else { 2 * k as u32 },
            "lane {n}"
        );
    }
}

#[test]
fn structures_by_value_and_local_arrays() {
    let text = around(
        ".func (.param .align 8 .b8 r[16]) swap(.param .align 8 .b8 s[16]) {
.reg .b64 %rd<3>; ld.param.u64 %rd1, [s]; ld.param.u64 %rd2, [s+8];
st.param.b64 [r], %rd2; st.param.b64 [r+8], %rd1; ret; }",
        ".local .align 4 .b8 depot[64]; .reg .b64 %SP, %SPL;
mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL;
and.b32 %r1, %tid, 15; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %SP, %rd2; st.u32 [%rd3], %tid;
add.u64 %rd4, %SPL, %rd2; ld.local.u32 %r2, [%rd4];
cvt.u64.u32 %rd5, %r2; mov.u64 %rd6, 7;
{ .param .align 8 .b8 a[16]; .param .align 8 .b8 b[16];
st.param.b64 [a], %rd5; st.param.b64 [a+8], %rd6; call.uni (b), swap, (a);
ld.param.v2.b64 {%rd7, %rd8}, [b]; }
add.u64 %rd9, %rd8, %rd7; st.global.u32 [%rd1], %rd9; ret;",
    );
    for (n, got) in run(&text, 1, 64, 64).into_iter().enumerate() {
        assert_eq!(got, n as u32 + 7);
    }
}

#[test]
fn shuffles_votes_matches_and_reductions() {
    let text = kernel(
        "mov.u32 %r1, %laneid; mad.lo.u32 %r2, %r1, 10, 3;
shfl.sync.up.b32 %r3|%p1, %r2, 1, 0, -1; shfl.sync.down.b32 %r4, %r2, 2, 31, -1;
shfl.sync.bfly.b32 %r5, %r2, 16, 31, -1; shfl.sync.idx.b32 %r6, %r2, 5, 6175, -1;
setp.lt.u32 %p2, %r1, 10; vote.sync.ballot.b32 %r7, %p2, -1; vote.sync.any.pred %p3, %p2, -1;
vote.sync.all.pred %p4, %p2, -1; and.b32 %r8, %r1, 3; match.any.sync.b32 %r9, %r8, -1;
redux.sync.add.s32 %r10, %r1, -1; redux.sync.max.u32 %r11, %r1, -1;
match.all.sync.b32 %r12|%p5, %r7, -1; activemask.b32 %r13; mov.u32 %r14, %lanemask_lt;
selp.u32 %r20, 1, 0, %p1; selp.u32 %r21, 1, 0, %p3; selp.u32 %r22, 1, 0, %p4; selp.u32 %r23, 1, 0, %p5;
mul.wide.u32 %rd2, %r1, 64; add.u64 %rd2, %rd0, %rd2;
st.global.v4.u32 [%rd2], {%r3, %r4, %r5, %r6}; st.global.v4.u32 [%rd2+16], {%r7, %r9, %r10, %r11};
st.global.v4.u32 [%rd2+32], {%r12, %r13, %r14, %r20}; st.global.v4.u32 [%rd2+48], {%r21, %r22, %r23, %r1}; ret;",
    );
    let out = run(&text, 1, 32, 512);
    let v = |l: u32| l * 10 + 3;
    for l in 0..32u32 {
        let want = [
            v(l.saturating_sub(1)),
            v(if l < 30 { l + 2 } else { l }),
            v(l ^ 16),
            v(l & 24 | 5),
            0x3ff,
            0x1111_1111 << (l & 3),
            496,
            31,
            u32::MAX,
            u32::MAX,
            (1 << l) - 1,
            u32::from(l > 0),
            1,
            0,
            1,
            l,
        ];
        assert_eq!(out[l as usize * 16..][..16], want, "lane {l}");
    }
}

#[test]
fn a_shuffle_waits_for_all_lanes_it_names() {
    // Odd lanes come late; the tiles of even width shuffle among themselves in different
    // branches as well.
    let text = kernel(
        "mov.u32 %r1, %laneid; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; mov.u32 %r3, 100; @%p1 bra JOIN;
mov.u32 %r4, 0; DELAY: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 3000; @%p2 bra DELAY; mov.u32 %r3, 200;
JOIN: add.u32 %r3, %r3, %r1; shfl.sync.bfly.b32 %r5, %r3, 1, 31, -1;
setp.lt.u32 %p3, %r1, 16; @%p3 bra LOW;
shfl.sync.bfly.b32 %r6, %r5, 2, 31, 0xffff0000; bra END;
LOW: shfl.sync.bfly.b32 %r6, %r5, 4, 31, 0x0000ffff;
END: bar.warp.sync -1; st.global.u32 [%rd1], %r6; ret;",
    );
    let value = |l: u32| l + if l & 1 == 0 { 100 } else { 200 };
    for (l, got) in run(&text, 1, 32, 32).into_iter().enumerate() {
        let l = l as u32;
        assert_eq!(got, value((l ^ if l < 16 { 4 } else { 2 }) ^ 1), "lane {l}");
    }
}

#[test]
fn warp_barriers_meet_across_different_instructions() {
    let text = kernel(
        "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW;
bar.warp.sync -1; ld.volatile.global.u32 %r2, [%rd0+512]; st.global.u32 [%rd1], %r2; ret;
LOW: mov.u32 %r3, 9; st.volatile.global.u32 [%rd0+512], %r3; bar.warp.sync -1; st.global.u32 [%rd1], %r1; ret;",
    );
    for (l, got) in run(&text, 1, 32, 32).into_iter().enumerate() {
        assert_eq!(got, if l < 16 { l as u32 } else { 9 });
    }
}

#[test]
fn shared_memory_reduction_with_barriers() {
    let text = kernel(
        ".shared .align 4 .b8 s[4096]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, s; add.u32 %r4, %r3, %r2;
st.shared.u32 [%r4], %tid; bar.sync 0; mov.u32 %r5, %ntid.x;
LOOP: shr.u32 %r5, %r5, 1; setp.eq.u32 %p1, %r5, 0; @%p1 bra DONE;
setp.ge.u32 %p2, %r1, %r5; @%p2 bra SKIP; shl.b32 %r6, %r5, 2; add.u32 %r7, %r4, %r6;
ld.shared.u32 %r8, [%r7]; ld.shared.u32 %r9, [%r4]; add.u32 %r9, %r9, %r8; st.shared.u32 [%r4], %r9;
SKIP: barrier.sync 0; bra LOOP;
DONE: setp.ne.u32 %p3, %r1, 0; @%p3 exit; mov.u32 %r10, %ctaid.x; mad.wide.u32 %rd2, %r10, 4, %rd0;
ld.shared.u32 %r11, [s]; st.global.u32 [%rd2], %r11; ret;",
    );
    for (n, got) in run(&text, 10, 512, 10).into_iter().enumerate() {
        let first = 512 * n as u32;
        assert_eq!(got, (first..first + 512).sum());
    }
}

#[test]
fn barriers_reduce_count_and_name_producers() {
    let text = kernel(
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 40; bar.red.popc.u32 %r2, 0, %p1; bar.red.and.pred %p2, 0, %p1;
bar.red.or.pred %p3, 0, !%p1; selp.u32 %r3, 1, 0, %p2; selp.u32 %r4, 2, 0, %p3; or.b32 %r5, %r3, %r4;
mad.lo.u32 %r6, %r2, 16, %r5;
setp.ge.u32 %p4, %r1, 64; @%p4 bra CONSUMER;
st.volatile.global.u32 [%rd0+4096], %r1; bar.arrive 1, 128; bra END;
CONSUMER: bar.sync 1, 128;
END: st.global.u32 [%rd1], %r6; ret;",
    );
    for got in run(&text, 1, 128, 128) {
        assert_eq!(got, 40 * 16 + 2);
    }
}

#[test]
fn an_incomplete_last_warp_and_exited_threads_do_not_hold_a_barrier() {
    let text = kernel(
        "mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 60; @%p1 exit; bar.sync 0; st.global.u32 [%rd1], %r1; ret;",
    );
    let out = run(&text, 1, 75, 75);
    assert!((0..75).all(|n| out[n] == if n <= 60 { n as u32 } else { 0 }));
}

#[test]
fn atomics_from_all_blocks() {
    let text = kernel(
        "mov.f32 %f1, 0f3F800000; atom.global.add.u32 %r1, [%rd0], 1; red.global.add.f32 [%rd0+4], %f1;
atom.global.max.s32 %r2, [%rd0+8], %tid; red.global.or.b32 [%rd0+12], %tid; atom.global.inc.u32 %r3, [%rd0+16], 9;
atom.add.u64 %rd5, [%rd0+24], 3; red.global.min.u32 [%rd0+32], %tid; atom.global.xor.b32 %r4, [%rd0+36], %tid;
atom.global.dec.u32 %r6, [%rd0+40], 6; ret;",
    );
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.put32(32, &[u32::MAX]);
    gpu.launch(&f, [100, 1, 1], [64, 1, 1], &[Arg::P(base)])
        .unwrap();
    let out = gpu.get32(0, 11);
    assert_eq!(out[0], 6400);
    assert_eq!(f32::from_bits(out[1]), 6400.0);
    assert_eq!((out[2], out[3], out[4]), (6399, 8191, 6400 % 10));
    assert_eq!((out[6], out[8]), (3 * 6400, 0));
    assert_eq!(out[9], (0..6400).fold(0, |a, b| a ^ b));
    // From 0 to 6, then down to 0 and again.
    let after = (1..6400).fold(6, |v: u32, _| v.checked_sub(1).unwrap_or(6));
    assert_eq!(out[10], after);
}

#[test]
fn the_grid_barrier_of_a_cooperative_launch() {
    // As cooperative groups' grid.sync() is compiled: a counter in the workspace, whose top
    // bit flips.
    let text = kernel(
        "mov.u32 %r1, %envreg2; mov.u32 %r2, %envreg1; mov.b64 %rd2, {%r1, %r2}; mov.u32 %r3, %tid.x;
st.global.u32 [%rd1], %tid; mov.u32 %r20, 0;
AGAIN: bar.sync 0; setp.ne.u32 %p1, %r3, 0; @%p1 bra MET;
mov.u32 %r4, %ctaid.x; mov.u32 %r5, %nctaid.x; sub.u32 %r6, 0x80000001, %r5; setp.eq.u32 %p2, %r4, 0;
selp.b32 %r7, %r6, 1, %p2; atom.add.release.gpu.u32 %r8, [%rd2+4], %r7;
WAIT: ld.acquire.gpu.u32 %r9, [%rd2+4]; xor.b32 %r10, %r9, %r8; setp.gt.s32 %p3, %r10, -1; @%p3 bra WAIT;
MET: bar.sync 0; add.u32 %r20, %r20, 1; setp.lt.u32 %p4, %r20, 20; @%p4 bra AGAIN;
mov.u32 %r11, %nctaid.x; mul.lo.u32 %r12, %r11, %r60; sub.u32 %r13, %r12, %tid; sub.u32 %r13, %r13, 1;
mad.wide.u32 %rd3, %r13, 4, %rd0; ld.global.u32 %r14, [%rd3]; st.global.u32 [%rd1+65536], %r14; ret;",
    );
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.start(&f, [12, 1, 1], [64, 1, 1], 0, true, &[Arg::P(base)])
        .unwrap();
    settle(gpu.device.as_mut(), STREAM).unwrap();
    for (n, got) in gpu.get32(65536, 768).into_iter().enumerate() {
        assert_eq!(got, 767 - n as u32);
    }
}

#[test]
fn blocks_that_wait_for_earlier_blocks_of_a_plain_launch() {
    // A chain through all blocks, as in single-pass scans, with far more blocks than cores.
    let text = kernel(
        "mov.u32 %r1, %ctaid.x; mov.u32 %r9, 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra GO;
mad.wide.u32 %rd2, %r1, 4, %rd0;
WAIT: ld.volatile.global.u32 %r9, [%rd2+-4]; setp.eq.u32 %p2, %r9, 0; @%p2 bra WAIT;
GO: mad.wide.u32 %rd3, %r1, 4, %rd0; add.u32 %r9, %r9, 1; st.volatile.global.u32 [%rd3], %r9; ret;",
    );
    let out = run(&text, 300, 1, 300);
    assert!(out.iter().enumerate().all(|(n, &v)| v == n as u32 + 1));
}

#[test]
fn kernels_of_two_streams_that_need_each_other() {
    let text = kernel(
        "st.volatile.global.u32 [%rd0+128], 1;
WAIT: ld.volatile.global.u32 %r1, [%rd0+256]; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT; st.global.u32 [%rd0], 5; ret;",
    )
    .replace("[%rd0+128], 1", "[%rd0+128], %r60")
    .replace("[%rd0], 5", "[%rd0], %r60");
    let mut gpu = Gpu::with(Options {
        memory: 64 << 20,
        cores: 1,
        ..Options::default()
    });
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    let (a, b) = (
        gpu.device.stream_create(1, 0).unwrap(),
        gpu.device.stream_create(1, 0).unwrap(),
    );
    // The second launch sees the first one's flags exchanged.
    gpu.start_on(a, &f, [1, 1, 1], [1, 1, 1], 0, false, &[Arg::P(base)])
        .unwrap();
    gpu.start_on(b, &f, [1, 1, 1], [1, 1, 1], 0, false, &[Arg::P(base + 128)])
        .unwrap();
    // b waits at base + 384, which this fills when b has written base + 256, for which a waits.
    settle(gpu.device.as_mut(), a).unwrap();
    gpu.device.memset(base + 384, 0, 1, 4, 1, 1, a).unwrap();
    settle(gpu.device.as_mut(), b).unwrap();
    assert_eq!(gpu.get32(0, 1), [1]);
}

#[test]
fn shared_memory_of_functions_is_theirs() {
    // Two functions and the kernel have a word each; the kernel calls before either is defined.
    let function = |name: &str, by: u32| {
        format!(
            ".func (.param .b32 out) {name}(.param .b32 in) {{ .reg .b32 %r<4>; .shared .align 4 .b8 s[4];
ld.param.u32 %r1, [in]; add.u32 %r1, %r1, {by}; st.shared.u32 [s], %r1; bar.sync 0;
ld.shared.u32 %r2, [s]; st.param.u32 [out], %r2; ret; }}\n"
        )
    };
    let before = ".func (.param .b32 out) one(.param .b32 in);
.func (.param .b32 out) two(.param .b32 in);";
    let text = around(
        before,
        ".shared .align 4 .b8 own[4]; .param .b32 in; .param .b32 out; mov.u32 %r1, 5; st.shared.u32 [own], %r1;
st.param.u32 [in], %r1; call (out), one, (in); ld.param.u32 %r2, [out];
st.param.u32 [in], %r1; call (out), two, (in); ld.param.u32 %r3, [out];
ld.shared.u32 %r4, [own]; mad.lo.u32 %r2, %r2, 100, %r3; mad.lo.u32 %r2, %r2, 100, %r4;
st.global.u32 [%rd1], %r2; ret;",
    );
    let text = format!("{text}\n{}{}", function("one", 10), function("two", 20));
    assert_eq!(run(&text, 2, 32, 64), vec![(15 * 100 + 25) * 100 + 5; 64]);
}

#[test]
fn kernels_have_the_shared_memory_that_they_mention() {
    let kernel = |name: &str, body: &str| {
        format!(
            ".visible .entry {name}(.param .u64 out) {{ .reg .b32 %r<8>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r7, 0; {body}
cvt.u64.u32 %rd2, %r2; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r7; ret; }}\n"
        )
    };
    // Stores a number for each thread, and adds its neighbour's after a barrier.
    let uses = |name: &str, by: u32| {
        format!(
            "mov.u32 %r3, {name}; add.u32 %r3, %r3, %r2; add.u32 %r4, %r1, {by}; st.shared.u32 [%r3], %r4;
bar.sync 0; xor.b32 %r5, %r2, 4; mov.u32 %r3, {name}; add.u32 %r3, %r3, %r5; ld.shared.u32 %r6, [%r3]; add.u32 %r7, %r7, %r6;"
        )
    };
    let function =
        ".func g() { .reg .b32 %r<4>; mov.u32 %r1, theirs; st.shared.u32 [%r1], 9; ret; }\n";
    let call = "mov.u64 %rd3, g; call %rd3, (), proto;";
    let kernels = [
        kernel("none", ""),
        kernel("small", &uses("few", 10)),
        kernel("large", &uses("many", 20)),
        kernel("both", &format!("{}{}", uses("few", 10), uses("many", 20))),
        kernel("calls", &format!("call g; {} call g;", uses("few", 10))),
        kernel("indirect", &format!("proto: .callprototype _(); {call}")),
    ];
    let text = module(&format!(
        ".shared .align 4 .b8 few[400];\n.shared .align 16 .b8 many[40000];\n.shared .align 4 .b8 theirs[256];\n{function}{}",
        kernels.concat()
    ));
    let mut gpu = Gpu::new();
    let base = gpu.arena;
    type Want = (&'static str, i32, fn(u32) -> u32);
    let want: [Want; 6] = [
        ("none", 0, |_| 0),
        ("small", 400, |n| (n ^ 1) + 10),
        ("large", 40000, |n| (n ^ 1) + 20),
        ("both", 40400, |n| 2 * (n ^ 1) + 30),
        ("calls", 656, |n| (n ^ 1) + 10),
        ("indirect", 256, |_| 0),
    ];
    for (name, bytes, result) in want {
        let f = gpu.kernel(&text, name);
        // CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES.
        assert!(
            f.attributes.contains(&(1, bytes)),
            "{name}: {:?}",
            f.attributes
        );
        gpu.start(&f, [1, 1, 1], [64, 1, 1], 8000, false, &[Arg::P(base)])
            .unwrap();
        settle(gpu.device.as_mut(), STREAM).unwrap();
        assert_eq!(
            gpu.get32(0, 64),
            (0..64).map(result).collect::<Vec<u32>>(),
            "{name}"
        );
    }
}

#[test]
fn dynamic_and_static_shared_memory_do_not_overlap() {
    let text = around(
        ".extern .shared .align 16 .b8 dyn[];",
        ".shared .align 4 .b8 fixed[128]; mov.u32 %r1, %tid.x; mov.u32 %r2, fixed; shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3;
st.shared.u32 [%r4], %r1; mov.u32 %r5, dyn; add.u32 %r6, %r5, %r3; mul.lo.u32 %r7, %r1, 1000; st.shared.u32 [%r6], %r7;
bar.sync 0; ld.shared.u32 %r8, [%r4]; cvt.u64.u32 %rd2, %r6; cvta.shared.u64 %rd3, %rd2; ld.u32 %r9, [%rd3];
mov.u32 %r10, %dynamic_smem_size; add.u32 %r11, %r8, %r9; add.u32 %r11, %r11, %r10; st.global.u32 [%rd1], %r11; ret;",
    );
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.start(&f, [2, 1, 1], [32, 1, 1], 128, false, &[Arg::P(base)])
        .unwrap();
    settle(gpu.device.as_mut(), STREAM).unwrap();
    for (n, got) in gpu.get32(0, 64).into_iter().enumerate() {
        assert_eq!(got, (n as u32 % 32) * 1001 + 128);
    }
}

#[test]
fn shared_arrays_with_a_size_are_static_also_if_external() {
    let exchange = "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, sa; add.u32 %r4, %r3, %r2; st.shared.u32 [%r4], %r1;
bar.sync 0; xor.b32 %r5, %r2, 252; add.u32 %r5, %r3, %r5; ld.shared.u32 %r6, [%r5]; st.global.u32 [%rd1], %r6; ret;";
    let declared = ".extern .shared .align 8 .b8 sa[256];";
    let defined = ".visible .shared .align 8 .b8 sa[256];";
    let unsized_one = ".extern .shared .align 8 .b8 sa[];";
    for before in [
        declared.to_owned(),
        // Several texts that were linked into one.
        format!("{declared}\n{declared}"),
        format!("{declared}\n{defined}"),
        format!("{unsized_one}\n{defined}"),
        format!("{defined}\n{unsized_one}"),
        // A place for the whole module.
        format!(
            "{unsized_one}\n{declared}\n{unsized_one}
.func f() {{ .reg .b32 %r; ld.shared.u32 %r, [sa]; ret; }}"
        ),
    ] {
        let text = around(&before, exchange);
        let mut gpu = Gpu::new();
        let f = gpu.kernel(&text, "k");
        // CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES.
        assert!(f.attributes.contains(&(1, 256)), "{before}");
        let reversed: Vec<u32> = (0..64).rev().collect();
        assert_eq!(run(&text, 1, 64, 64), reversed, "{before}");
    }
}

#[test]
fn shared_memory_has_whole_units() {
    let load = |at: u32| {
        around(
            ".extern .shared .align 16 .b8 dyn[];",
            &format!("ld.shared.u32 %r1, [dyn+{at}]; st.global.u32 [%rd1], %r1; ret;"),
        )
    };
    // Of 8 bytes the unit is 128, of 132 bytes two units, of none nothing.
    for (bytes, at, allowed) in [
        (8, 8, true),
        (8, 124, true),
        (8, 128, false),
        (128, 128, false),
        (132, 252, true),
        (132, 256, false),
        (0, 0, false),
    ] {
        let mut gpu = Gpu::new();
        let f = gpu.kernel(&load(at), "k");
        let base = gpu.arena;
        gpu.start(&f, [1, 1, 1], [1, 1, 1], bytes, false, &[Arg::P(base)])
            .unwrap();
        let result = settle(gpu.device.as_mut(), STREAM).map_err(|e| e.status);
        let want = match allowed {
            true => Ok(()),
            false => Err(Status::ILLEGAL_ADDRESS),
        };
        assert_eq!(result, want, "{bytes} bytes, read at {at}");
    }
}

#[test]
fn reserved_shared_memory_lies_behind_the_programs() {
    let text = around(
        ".extern .shared .align 16 .b8 dyn[];",
        "mov.u32 %r1, %reserved_smem_offset_1; mov.u32 %r2, %reserved_smem_offset_end; sub.u32 %r3, %r2, %r1;
mov.u32 %r4, %reserved_smem_offset_begin; mov.u32 %r5, %total_smem_size; setp.lt.u32 %p1, %r4, %r5; @%p1 trap;
mov.u32 %r6, %tid.x; shl.b32 %r7, %r6, 2; add.u32 %r8, %r1, %r7; st.shared.u32 [%r8], %r6;
bar.sync 0; cvt.u64.u32 %rd2, %r8; cvta.shared.u64 %rd3, %rd2; ld.u32 %r9, [%rd3]; add.u32 %r9, %r9, %r3;
mov.u32 %r10, %reserved_smem_offset_cap; add.u32 %r9, %r9, %r10; st.global.u32 [%rd1], %r9; ret;",
    );
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.start(&f, [2, 1, 1], [32, 1, 1], 100, false, &[Arg::P(base)])
        .unwrap();
    settle(gpu.device.as_mut(), STREAM).unwrap();
    for (n, got) in gpu.get32(0, 64).into_iter().enumerate() {
        assert_eq!(got, n as u32 % 32 + 512 + 1024);
    }
}

#[test]
fn calls_pass_registers_and_constants() {
    // Under a guard; recursive; through an address; between functions with `.param` and with
    // `.reg` parameters.
    let text = around(
        ".func (.reg .u32 d) sum (.reg .u32 a, .reg .s16 b) { .reg .s32 w; .reg .pred p; .reg .u32 one;
setp.eq.u32 p, a, 0; cvt.s32.s16 w, b; @p mov.u32 d, w; @p ret; sub.u32 one, a, 1; call (d), sum, (one, b); add.u32 d, d, a; ret; }
.func (.param .b64 r) wide (.param .b64 a) { .reg .b64 x; ld.param.b64 x, [a]; add.u64 x, x, 1; st.param.b64 [r], x; ret; }",
        ".reg .s16 %h; mov.s16 %h, -3; mov.u32 %r2, 1000; and.b32 %r1, %tid, 1; setp.eq.u32 %p1, %r1, 1;
@%p1 call (%r2), sum, (%tid, %h);
call (%r3), sum, (4, 5); mul.wide.u32 %rd2, %tid, 2; call (%rd3), wide, (%rd2); cvt.u32.u64 %r4, %rd3;
mov.u64 %rd4, sum; PROTO: .callprototype (.reg .u32 _) _ (.reg .u32 _, .reg .s16 _);
{ .param .b32 r; call (r), %rd4, (%r1, %h), PROTO; ld.param.b32 %r5, [r]; }
mad.lo.u32 %r2, %r3, 100000, %r2; mad.lo.u32 %r2, %r4, 10000000, %r2; add.u32 %r2, %r2, %r5; st.global.u32 [%rd1], %r2; ret;",
    );
    for (n, got) in run(&text, 1, 32, 32).into_iter().enumerate() {
        let (n, odd) = (n as i32, n as i32 % 2);
        let first = if odd == 1 { n * (n + 1) / 2 - 3 } else { 1000 };
        let want = first + 15 * 100_000 + (2 * n + 1) * 10_000_000 + odd - 3;
        assert_eq!(got, want as u32, "{n}");
    }
}

#[test]
fn functions_with_variable_arguments() {
    // `sum` adds `n` words and a local variable, which lies behind the arguments.
    let text = around(
        ".func (.param .b32 r) sum (.param .b32 n, .param .align 8 .b8 %VAParam[]) {
.local .align 4 .b8 kept[4]; .reg .pred p; .reg .b32 left, s, word; .reg .b64 at, own;
mov.u64 own, kept; st.local.u32 [own], 1000; mov.u64 at, %VAParam; mov.u32 s, 0; ld.param.u32 left, [n];
NEXT: setp.eq.u32 p, left, 0; @p bra DONE; ld.local.u32 word, [at]; add.u32 s, s, word;
add.u64 at, at, 4; sub.u32 left, left, 1; bra NEXT;
DONE: ld.local.u32 word, [own]; add.u32 s, s, word; st.param.b32 [r], s; ret; }",
        "mov.u64 %rd2, sum; PROTO: .callprototype (.param .b32 _) _ (.param .b32 _, .param .align 8 .b8 _[]);
{ .param .b32 n; .param .align 8 .b8 more[20]; .param .b32 r; st.param.b32 [n], 5; st.param.b32 [more], %tid;
st.param.b32 [more+4], 1; st.param.b32 [more+8], 2; st.param.b32 [more+12], 3; st.param.b32 [more+16], 4;
call (r), sum, (n, more); ld.param.b32 %r1, [r]; }
{ .param .b32 n; .param .b32 r; st.param.b32 [n], 0; call (r), sum, (n); ld.param.b32 %r2, [r]; }
{ .param .b32 n; .param .align 8 .b8 more[8]; .param .b32 r; st.param.b32 [n], 2; st.param.b32 [more], 70;
st.param.b32 [more+4], %tid; call (r), %rd2, (n, more), PROTO; ld.param.b32 %r3, [r]; }
{ .param .b32 n; .param .b32 r; st.param.b32 [n], 0; call (r), %rd2, (n), PROTO; ld.param.b32 %r4, [r]; }
mul.lo.u32 %r2, %r2, 3; add.u32 %r1, %r1, %r2; add.u32 %r3, %r3, %r4; mul.lo.u32 %r3, %r3, 5;
add.u32 %r1, %r1, %r3; st.global.u32 [%rd1], %r1; ret;",
    );
    for (n, got) in run(&text, 1, 32, 32).into_iter().enumerate() {
        let n = n as u32;
        let want = (1010 + n) + 1000 * 3 + (1070 + n + 1000) * 5;
        assert_eq!(got, want, "{n}");
    }
}

#[test]
fn shared_memory_is_counted_in_whole_units() {
    let text = around(
        "",
        ".shared .align 4 .b8 fixed[100]; mov.u32 %r1, fixed; st.shared.u32 [%r1], 0;
mov.u32 %r1, %total_smem_size; mov.u32 %r2, %aggr_smem_size; mov.u32 %r3, %dynamic_smem_size;
st.global.u32 [%rd0], %r1; st.global.u32 [%rd0+4], %r2; st.global.u32 [%rd0+8], %r3; ret;",
    );
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    for (dynamic, total) in [(0, 128), (16, 128), (17, 256), (2000, 2176)] {
        gpu.start(&f, [1, 1, 1], [1, 1, 1], dynamic, false, &[Arg::P(base)])
            .unwrap();
        settle(gpu.device.as_mut(), STREAM).unwrap();
        assert_eq!(gpu.get32(0, 3), [total, total + 1024, dynamic]);
    }
}
