//! Asynchronous copies, barrier objects, the heap of kernels, votes without `.sync`,
//! atomics on vectors.

use crate::common::{Arg, Gpu, STREAM, module};
use paragpu_device::conformance::settle;
use paragpu_device::{Error, HEAP};
use paragpu_device_software::heap;
use paragpu_protocol::status::Status;

/// A kernel `k(out, in)` in which `%r0` is the thread index, and `%rd0` and `%rd1` are the
/// parameters.
fn kernel(body: &str) -> String {
    module(&format!(
        ".extern .func (.param .b64 r) malloc (.param .b64 size);
.extern .func (.param .b64 r) __cuda_syscall_aligned_malloc (.param .b64 size, .param .b64 to);
.extern .func free (.param .b64 address);
.visible .entry k(.param .u64 out, .param .u64 in) {{
.reg .pred %p<8>; .reg .b16 %rs<8>; .reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .f32 %f<8>;
ld.param.u64 %rd0, [out]; ld.param.u64 %rd1, [in]; mov.u32 %r0, %tid.x;
{body} ret; }}"
    ))
}

fn run(gpu: &mut Gpu, body: &str, threads: u32) -> Result<(), Error> {
    let f = gpu.kernel(&kernel(body), "k");
    let base = gpu.arena;
    gpu.launch(
        &f,
        [1, 1, 1],
        [threads, 1, 1],
        &[Arg::P(base + 0x100000), Arg::P(base)],
    )
}

#[test]
fn shared_memory_is_filled_with_zeros_in_bulk() {
    let mut gpu = Gpu::new();
    let fill = |size: &str, to: u32, space: &str| {
        format!(
            ".shared .align 16 .b8 s[64]; mov.u64 %rd2, s; cvt.u32.u64 %r1, %rd2; mov.u32 %r2, -1;
st.shared.v4.u32 [%r1], {{%r2,%r2,%r2,%r2}}; st.shared.v4.u32 [%r1+16], {{%r2,%r2,%r2,%r2}};
cvta.shared.u64 %rd3, %rd2; mov.u64 %rd4, {size}; st.bulk.weak{space}+{to}], %rd4, 0;
ld.shared.v4.u32 {{%r4,%r5,%r6,%r7}}, [%r1]; st.global.v4.u32 [%rd0], {{%r4,%r5,%r6,%r7}};
ld.shared.v4.u32 {{%r4,%r5,%r6,%r7}}, [%r1+16]; st.global.v4.u32 [%rd0+16], {{%r4,%r5,%r6,%r7}};"
        )
    };
    let ones = u32::MAX;
    for (to, space) in [("%rd2", ".shared::cta"), ("%rd3", "")] {
        let space = format!("{space} [{to}");
        run(&mut gpu, &fill("24", 4 * 2, &space), 1).unwrap();
        let want = [ones, ones, 0, 0, 0, 0, 0, 0];
        assert_eq!(gpu.get32(0x100000, 8), want, "{space}");
    }
    run(&mut gpu, &fill("0", 8, ".shared::cta [%rd2"), 1).unwrap();
    assert_eq!(gpu.get32(0x100000, 8), [ones; 8]);
    let beyond = run(&mut gpu, &fill("4096", 0, ".shared::cta [%rd2"), 1);
    assert_eq!(beyond.unwrap_err().status, Status::ILLEGAL_ADDRESS);
    let mut other = Gpu::new();
    let odd = run(&mut other, &fill("12", 0, ".shared::cta [%rd2"), 1);
    assert_eq!(odd.unwrap_err().status, Status::MISALIGNED_ADDRESS);
}

#[test]
fn copies_fill_with_zeros_what_they_do_not_read() {
    let mut gpu = Gpu::new();
    let input: Vec<u32> = (0..32 * 4).map(|n| 0x0101_0101 * (n + 1)).collect();
    gpu.put32(0, &input);
    run(
        &mut gpu,
        ".shared .align 16 .b8 s[512]; mov.u32 %r1, s; mad.lo.u32 %r1, %r0, 16, %r1; mad.wide.u32 %rd2, %r0, 16, %rd1;
st.shared.v4.u32 [%r1], {%r0,%r0,%r0,%r0};
and.b32 %r2, %r0, 15; setp.ge.u32 %p1, %r0, 24; setp.eq.u32 %p2, %r0, 3; createpolicy.fractional.L2::evict_first.b64 %rd5, 1.0;
cp.async.cg.shared.global.L2::128B [%r1], [%rd2], 16, %r2;
@%p1 cp.async.ca.shared.global [%r1], [%rd2], 4;
@%p2 cp.async.cg.shared::cta.global.L2::cache_hint [%r1], [%rd2], 16, %rd5;
cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all;
ld.shared.v4.u32 {%r4,%r5,%r6,%r7}, [%r1]; mad.wide.u32 %rd3, %r0, 16, %rd0; st.global.v4.u32 [%rd3], {%r4,%r5,%r6,%r7};",
        32,
    )
    .unwrap();
    let got = gpu.get32(0x100000, 128);
    for lane in 0..32usize {
        let bytes =
            |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
        let (mut want, own) = (vec![0; 16], bytes(&input[lane * 4..][..4]));
        let read = if lane == 3 { 16 } else { lane & 15 };
        want[..read].copy_from_slice(&own[..read]);
        if lane >= 24 {
            want[..4].copy_from_slice(&own[..4]);
        }
        assert_eq!(bytes(&got[lane * 4..][..4]), want, "lane {lane}");
    }
    let error = run(
        &mut gpu,
        ".shared .align 16 .b8 s[64]; mov.u32 %r1, s; add.u64 %rd2, %rd1, 8; cp.async.cg.shared.global [%r1], [%rd2], 16;",
        1,
    );
    assert_eq!(error.unwrap_err().status, Status::MISALIGNED_ADDRESS);
}

/// Two warps pass a buffer to each other through barrier objects, as pipelines of CUTLASS
/// do.
#[test]
fn barrier_objects_hand_over_phase_by_phase() {
    let mut gpu = Gpu::new();
    let input: Vec<u32> = (0..16 * 8).map(|n| n * n + 1).collect();
    gpu.put32(0, &input);
    run(
        &mut gpu,
        ".shared .align 16 .b8 s[128]; .shared .align 8 .b64 full; .shared .align 8 .b64 empty;
mov.u32 %r1, s; mov.u32 %r2, full; mov.u32 %r3, empty; setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r2], 1; mbarrier.init.shared.b64 [%r3], 32; fence.mbarrier_init.release.cluster;
READY: bar.sync 0; mov.u32 %r4, 0; setp.lt.u32 %p2, %r0, 32; @%p2 bra PRODUCE;
sub.u32 %r5, %r0, 32; mad.lo.u32 %r6, %r5, 4, %r1;
CONSUME: and.b32 %r7, %r4, 1;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], %r7; @!%p3 bra WAIT;
ld.shared.u32 %r8, [%r6]; mad.lo.u32 %r9, %r4, 32, %r5; mad.wide.u32 %rd2, %r9, 4, %rd0; st.global.u32 [%rd2], %r8;
mbarrier.arrive.shared::cta.b64 _, [%r3]; add.u32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 4; @%p4 bra CONSUME; ret;
PRODUCE: @%p1 ret;
FILL: and.b32 %r7, %r4, 1; xor.b32 %r7, %r7, 1;
FREE: mbarrier.test_wait.parity.shared.b64 %p3, [%r3], %r7; @!%p3 bra FREE;
mbarrier.arrive.expect_tx.shared::cta.b64 %rd3, [%r2], 128; mad.wide.u32 %rd2, %r4, 128, %rd1; mov.u32 %r8, 128;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd2], %r8, [%r2];
add.u32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 4; @%p4 bra FILL;",
        64,
    )
    .unwrap();
    assert_eq!(gpu.get32(0x100000, 128), input);
}

#[test]
fn a_barrier_object_counts_arrivals_drops_and_bytes() {
    let mut gpu = Gpu::new();
    run(
        &mut gpu,
        ".shared .align 8 .b64 b; mov.u32 %r1, b; mbarrier.init.shared.b64 [%r1], 3;
mbarrier.arrive.shared.b64 %rd2, [%r1]; mbarrier.test_wait.shared.b64 %p0, [%r1], %rd2;
mbarrier.pending_count.b64 %r2, %rd2;
mbarrier.arrive.shared.b64 %rd3, [%r1], 2; mbarrier.test_wait.shared.b64 %p1, [%r1], %rd3;
mbarrier.arrive_drop.shared.b64 %rd4, [%r1]; mbarrier.arrive.shared.b64 %rd4, [%r1], 2; mbarrier.test_wait.shared.b64 %p2, [%r1], %rd4;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 64; mbarrier.arrive.shared.b64 %rd5, [%r1], 2; mbarrier.test_wait.shared.b64 %p3, [%r1], %rd5;
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 64; mbarrier.try_wait.shared.b64 %p4, [%r1], %rd5; mbarrier.inval.shared.b64 [%r1];
selp.u32 %r3, 1, 0, %p0; selp.u32 %r4, 1, 0, %p1; selp.u32 %r5, 1, 0, %p2; selp.u32 %r6, 1, 0, %p3; selp.u32 %r7, 1, 0, %p4;
st.global.v4.u32 [%rd0], {%r2,%r3,%r4,%r5}; st.global.v2.u32 [%rd0+16], {%r6,%r7};",
        1,
    )
    .unwrap();
    // Three are pending before the first arrival; one is not enough; three are; after a
    // drop two are enough; bytes that completed early keep the phase open until they are
    // expected.
    assert_eq!(gpu.get32(0x100000, 6), [3, 0, 1, 1, 0, 1]);
}

#[test]
fn bulk_copies_combine_with_what_is_there() {
    let mut gpu = Gpu::new();
    let ours = |n: u32| n.wrapping_mul(0x9e37_79b9) >> 3;
    let theirs: Vec<u32> = (0..32).map(|n: u32| n.wrapping_mul(0x85eb_ca6b)).collect();
    type Reference = fn(u32, u32) -> u32;
    let table: [(&str, Reference); 6] = [
        ("add.u32", |a, b| a.wrapping_add(b)),
        ("min.s32", |a, b| (a as i32).min(b as i32) as u32),
        ("max.u32", u32::max),
        ("inc.u32", |a, b| if a >= b { 0 } else { a + 1 }),
        ("xor.b32", |a, b| a ^ b),
        ("L2::cache_hint.and.b32", |a, b| a & b),
    ];
    for (op, reference) in table {
        gpu.put32(0x100000, &theirs);
        let policy = if op.starts_with("L2") { ", %rd5" } else { "" };
        let body = format!(
            ".shared .align 16 .b8 s[128]; mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 4, %r1; mul.lo.u32 %r3, %r0, 0x9e3779b9; shr.u32 %r3, %r3, 3;
st.shared.u32 [%r2], %r3; bar.sync 0; setp.eq.u32 %p0, %r0, 0; mov.u64 %rd5, 0;
@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.{op} [%rd0], [%r1], 128{policy};
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
        );
        run(&mut gpu, &body, 32).unwrap();
        let want: Vec<u32> = (0..32)
            .map(|n| reference(theirs[n as usize], ours(n)))
            .collect();
        assert_eq!(gpu.get32(0x100000, 32), want, "{op}");
    }
    // In shared memory, counted at a barrier object; and singles.
    gpu.put32(0x100000, &[1f32.to_bits(), 2.5f32.to_bits(), 0, 0]);
    run(
        &mut gpu,
        ".shared .align 16 .b8 s[32]; .shared .align 8 .b64 b; mov.u32 %r1, s; add.u32 %r2, %r1, 16; mov.u32 %r3, b; mbarrier.init.shared.b64 [%r3], 1;
mov.b32 %r4, 0f3F000000; mov.u32 %r5, 7; st.shared.v4.u32 [%r1], {%r4,%r4,%r5,%r5}; st.shared.v4.u32 [%r2], {%r5,%r5,%r5,%r5};
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd0], [%r1], 16;
mbarrier.arrive.expect_tx.shared.b64 %rd2, [%r3], 16;
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r1], [%r2], 16, [%r3];
mbarrier.test_wait.shared.b64 %p1, [%r3], %rd2; selp.u32 %r6, 1, 0, %p1; ld.shared.v2.u32 {%r7,%r8}, [%r1+8];
st.global.v4.u32 [%rd0+16], {%r6,%r7,%r8,%r6};",
        1,
    )
    .unwrap();
    let got = gpu.get32(0x100000, 8);
    assert_eq!(got[..2], [1.5f32.to_bits(), 3f32.to_bits()]);
    assert_eq!(got[4..7], [1, 14, 14]);
}

#[test]
fn a_last_arrival_that_also_expects_bytes() {
    let mut gpu = Gpu::new();
    run(
        &mut gpu,
        ".shared .align 8 .b64 b; mov.u32 %r1, b; mbarrier.init.shared.b64 [%r1], 2;
mbarrier.arrive_drop.expect_tx.shared::cta.b64 %rd2, [%r1], 64; mbarrier.arrive.shared.b64 %rd3, [%r1]; mbarrier.test_wait.shared.b64 %p0, [%r1], %rd2;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 64; mbarrier.test_wait.shared.b64 %p1, [%r1], %rd2;
mbarrier.arrive.shared.b64 %rd4, [%r1]; mbarrier.test_wait.shared.b64 %p2, [%r1], %rd4;
selp.u32 %r2, 1, 0, %p0; selp.u32 %r3, 1, 0, %p1; selp.u32 %r4, 1, 0, %p2; mov.u32 %r5, 0;
st.global.v4.u32 [%rd0], {%r2,%r3,%r4,%r5};",
        1,
    )
    .unwrap();
    // The bytes are missing; both are there; one arrival is left of each further phase.
    assert_eq!(gpu.get32(0x100000, 3), [0, 1, 1]);
}

#[test]
fn all_warps_see_a_phase_complete_before_one_runs_on() {
    // Each of eight warps arrives and waits, after which thread 0 at once initializes the
    // object again. A program must not; on GPUs it works, because all warps are woken
    // together.
    for (wait, state) in [
        ("test_wait", "%rd2"),
        ("try_wait", "%rd2"),
        ("try_wait.parity", "0"),
    ] {
        let mut gpu = Gpu::new();
        let body = format!(
            ".shared .align 8 .b8 B[8]; mov.u32 %r1, B; setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared.b64 [%r1], 256; bar.sync 0; mbarrier.arrive.shared.b64 %rd2, [%r1];
WAIT: mbarrier.{wait}.shared.b64 %p1, [%r1], {state}; @!%p1 bra WAIT;
@%p0 mbarrier.init.shared.b64 [%r1], 512; bar.sync 0;
mad.wide.u32 %rd3, %r0, 4, %rd0; st.global.u32 [%rd3], %r0;"
        );
        run(&mut gpu, &body, 256).unwrap();
        assert_eq!(gpu.get32(0x100000, 256), (0..256).collect::<Vec<u32>>());
    }
}

const ALLOCATE: &str = "{ .param .b64 a; .param .b64 b; st.param.b64 [a], %rd2; call.uni (b), malloc, (a); ld.param.b64 %rd3, [b]; }";
const RELEASE: &str = "{ .param .b64 a; st.param.b64 [a], %rd3; call.uni free, (a); }";

#[test]
fn kernels_allocate_and_free() {
    let mut gpu = Gpu::new();
    gpu.device.ctx_set_limit(heap::LIMIT, 1 << 16).unwrap();
    // Each thread allocates 4 * (thread + 1) bytes, fills them, and writes the address.
    let fill = format!(
        "add.u32 %r1, %r0, 1; mul.wide.u32 %rd2, %r1, 4; {ALLOCATE} mad.wide.u32 %rd4, %r0, 8, %rd0; st.global.u64 [%rd4], %rd3;
setp.eq.u64 %p1, %rd3, 0; @%p1 ret; mov.u64 %rd5, %rd3;
LOOP: st.u32 [%rd5], %r0; add.u64 %rd5, %rd5, 4; sub.u32 %r1, %r1, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra LOOP;"
    );
    let text = kernel(&fill);
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    let arguments = [Arg::P(base + 0x100000), Arg::P(base)];
    gpu.launch(&f, [1, 1, 1], [64, 1, 1], &arguments).unwrap();
    let mut blocks: Vec<(u64, u64)> = gpu
        .get64(0x100000, 64)
        .into_iter()
        .enumerate()
        .map(|(n, at)| (at, 4 * (n as u64 + 1)))
        .collect();
    for (n, &(at, size)) in blocks.clone().iter().enumerate() {
        assert!(at != 0 && at.is_multiple_of(16));
        let words = gpu.get32(at - base, size as usize / 4);
        assert!(words.iter().all(|&w| w == n as u32));
    }
    blocks.sort_unstable();
    assert!(blocks.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
    // The heap is a variable of its module, so it migrates with a session.
    let module = gpu.load(&text).unwrap();
    let (_, size) = gpu.device.module_global(module, HEAP).unwrap();
    assert_eq!(size, 1 << 16);
    // Another module's kernel frees what this one allocated; freeing twice is an error.
    let free = format!("mad.wide.u32 %rd4, %r0, 8, %rd0; ld.global.u64 %rd3, [%rd4]; {RELEASE}");
    run(&mut gpu, &free, 64).unwrap();
    let error = run(&mut gpu, &free, 1).unwrap_err();
    assert_eq!(error.status, Status::LAUNCH_FAILED);
    assert!(error.detail.contains("free of"), "{error}");
}

#[test]
fn an_exhausted_heap_gives_null_and_serves_again_after_a_free() {
    let mut gpu = Gpu::new();
    gpu.device.ctx_set_limit(heap::LIMIT, 1 << 16).unwrap();
    // Blocks of 1024 bytes until there are no more; then every other one is freed, then
    // all; then one of 60000.
    let body = format!(
        "mov.u64 %rd2, 1024; mov.u32 %r1, 0; mov.u64 %rd6, %rd0;
FILL: {ALLOCATE} st.global.u64 [%rd6], %rd3; add.u64 %rd6, %rd6, 8; add.u32 %r1, %r1, 1; setp.ne.u64 %p1, %rd3, 0; @%p1 bra FILL;
st.global.u32 [%rd1], %r1; mov.u32 %r2, 0;
mov.u64 %rd2, 60000; {ALLOCATE} st.global.u64 [%rd1+8], %rd3;
AGAIN: mov.u32 %r3, %r2; 
DROP: mad.wide.u32 %rd6, %r3, 8, %rd0; ld.global.u64 %rd3, [%rd6]; {RELEASE} add.u32 %r3, %r3, 2; setp.lt.u32 %p1, %r3, %r1; @%p1 bra DROP;
mov.u64 %rd2, 60000; {ALLOCATE} mad.wide.u32 %rd6, %r2, 8, %rd1; st.global.u64 [%rd6+16], %rd3;
add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 2; @%p1 bra AGAIN;
mov.u64 %rd2, 0xffffffffffffffff; {ALLOCATE} st.global.u64 [%rd1+32], %rd3;"
    );
    run(&mut gpu, &body, 1).unwrap();
    let got = gpu.get64(0, 5);
    // 64 KiB hold 63 blocks of 1024 bytes with their headers; the 64th call returns null.
    assert_eq!(got[0] as u32, 64);
    assert_eq!(got[1], 0, "a full heap");
    assert_eq!(got[2], 0, "free blocks of 1024 bytes apart from each other");
    assert_ne!(got[3], 0, "neighbours that were freed are one block");
    assert_eq!(got[4], 0, "a size past the address space");
}

#[test]
fn votes_shuffles_and_atomics_in_older_and_newer_forms() {
    let mut gpu = Gpu::new();
    gpu.put32(0, &[0; 64]);
    run(
        &mut gpu,
        "setp.lt.u32 %p1, %r0, 7; vote.ballot.sync.b32 %r1, %p1, 0xffffffff; vote.ballot.b32 %r2, !%p1; vote.any.pred %p2, %p1;
shfl.bfly.b32 %r3|%p3, %r0, 1, 31; selp.u32 %r4, 1, 0, %p2;
mad.wide.u32 %rd2, %r0, 16, %rd0; st.global.v4.u32 [%rd2], {%r1,%r2,%r3,%r4};
mov.f32 %f0, 0f3F800000; cvt.rn.f32.u32 %f1, %r0; atom.global.add.v2.f32 {%f2,%f3}, [%rd1], {%f0,%f1};
red.relaxed.gpu.global.v2.f16x2.add.noftz [%rd1+8], {%r5,%r5};
red.global.add.L2::cache_hint.u32 [%rd1+16], 3, %rd3;",
        32,
    )
    .unwrap();
    for (lane, words) in gpu.get32(0x100000, 128).chunks_exact(4).enumerate() {
        assert_eq!(words, [0x7f, !0x7f, lane as u32 ^ 1, 1]);
    }
    let sums = gpu.get32(0, 5);
    assert_eq!(f32::from_bits(sums[0]), 32.0);
    assert_eq!(f32::from_bits(sums[1]), 496.0);
    assert_eq!(sums[4], 96);
    settle(gpu.device.as_mut(), STREAM).unwrap();
}

#[test]
fn kernels_allocate_aligned_memory() {
    let mut gpu = Gpu::new();
    gpu.device.ctx_set_limit(heap::LIMIT, 1 << 16).unwrap();
    // Thread t asks for 100 bytes at a multiple of 16 << t, and again after it freed them;
    // then for an alignment that is none.
    let aligned = "{ .param .b64 a; .param .b64 t; .param .b64 b; st.param.b64 [a], %rd2; st.param.b64 [t], %rd4; call.uni (b), __cuda_syscall_aligned_malloc, (a, t); ld.param.b64 %rd3, [b]; }";
    let body = format!(
        "mov.u64 %rd2, 100; mov.u64 %rd4, 16; shl.b64 %rd4, %rd4, %r0; mad.wide.u32 %rd5, %r0, 16, %rd0;
{aligned} st.global.u64 [%rd5], %rd3; {RELEASE} {aligned} st.global.u64 [%rd5+8], %rd3;
mov.u64 %rd4, 24; {aligned} st.global.u64 [%rd1], %rd3;"
    );
    run(&mut gpu, &body, 8).unwrap();
    let mut blocks = Vec::new();
    for (thread, pair) in gpu.get64(0x100000, 16).chunks_exact(2).enumerate() {
        for at in pair {
            assert!(
                *at != 0 && at.is_multiple_of(16 << thread),
                "{thread}: {at:#x}"
            );
        }
        blocks.push(pair[1]);
    }
    blocks.sort_unstable();
    assert!(blocks.windows(2).all(|w| w[0] + 100 <= w[1]));
    assert_eq!(gpu.get64(0, 1), [0]);
}

#[test]
fn accesses_of_128_bits() {
    let mut gpu = Gpu::new();
    // Each thread of two blocks adds 2^64 + 1 to a counter in global memory, and to one in
    // shared memory, by compare-and-swap from an ordered load on. Then every thread stores
    // the block's counter, and one exchanges it.
    let add = |space: &str, address: &str, label: &str| {
        format!(
            "ld.relaxed.gpu.{space}.b128 %q0, [{address}]; mov.b128 {{%rd2, %rd3}}, %q0;
{label}: add.u64 %rd4, %rd2, 1; add.u64 %rd5, %rd3, 1; mov.b128 %q0, {{%rd2, %rd3}}; mov.b128 %q1, {{%rd4, %rd5}};
atom.relaxed.gpu.{space}.cas.b128 %q2, [{address}], %q0, %q1; mov.b128 {{%rd6, %rd7}}, %q2;
setp.ne.u64 %p0, %rd6, %rd2; setp.ne.or.u64 %p0, %rd7, %rd3, %p0; mov.u64 %rd2, %rd6; mov.u64 %rd3, %rd7; @%p0 bra {label};"
        )
    };
    let global = add("global", "%rd0", "GLOBAL");
    let shared = add("shared::cta", "S", "SHARED");
    let text = kernel(&format!(
        ".shared .align 16 .b8 S[16]; .reg .b128 %q<4>; .reg .b128 whole;
{global}
mov.u64 %rd2, 0; mov.b128 whole, {{%rd2, %rd2}}; st.shared.b128 [S], whole; bar.sync 0;
{shared} bar.sync 0; mov.u32 %r1, %ctaid.x; mad.wide.u32 %rd8, %r1, 32, %rd1;
ld.shared.b128 %q3, [S]; mov.b128 whole, %q3; st.release.gpu.global.b128 [%rd8], whole; bar.sync 0;
setp.ne.u32 %p1, %r0, 0; @%p1 ret; mov.u64 %rd9, 7; mov.b128 %q0, {{%rd9, %rd9}};
atom.exch.b128 %q1, [%rd8], %q0; st.global.b128 [%rd8+16], %q1;"
    ));
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    let arguments = [Arg::P(base + 0x100000), Arg::P(base)];
    gpu.launch(&f, [2, 1, 1], [64, 1, 1], &arguments).unwrap();
    assert_eq!(gpu.get64(0x100000, 2), [128, 128]);
    assert_eq!(gpu.get64(0, 8), [7, 7, 64, 64, 7, 7, 64, 64]);
    let error = run(
        &mut gpu,
        ".reg .b128 %q; ld.acquire.gpu.b128 %q, [%rd0+8];",
        1,
    )
    .unwrap_err();
    assert_eq!(error.status, Status::MISALIGNED_ADDRESS);
}

#[test]
fn no_block_is_left_to_cancel() {
    let mut gpu = Gpu::new();
    // As CUB's scan does with CUDA 13.3: a block handles its own index, then those of
    // blocks that it cancels. Here each of four is launched, and adds one to its word.
    let text = kernel(
        ".shared .align 16 .b8 A[16]; .shared .align 8 .b8 B[8]; .reg .b128 %q; mov.u32 %r1, B; mov.u32 %r2, A;
mbarrier.init.shared.b64 [%r1], 1; mov.u32 %r3, %ctaid.x; mov.u32 %r4, 0;
TILE: mad.wide.u32 %rd2, %r3, 4, %rd1; atom.global.add.u32 %r5, [%rd2], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 %rd3, [%r1], 16;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r2], [%r1];
WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r4; @!%p1 bra WAIT; xor.b32 %r4, %r4, 1;
ld.shared.b128 %q, [A]; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r3, %r6, %r7, _}, %q;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r3, %q; @%p2 bra TILE;",
    );
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.put32(0, &[0; 4]);
    let arguments = [Arg::P(base + 0x100000), Arg::P(base)];
    gpu.launch(&f, [4, 1, 1], [1, 1, 1], &arguments).unwrap();
    assert_eq!(gpu.get32(0, 4), [1; 4]);
}

#[test]
fn bulk_copies_leave_out_bytes() {
    let mut gpu = Gpu::new();
    gpu.put32(0, &[0x1111_1111; 8]);
    let body = ".shared .align 16 .b8 S[32]; mov.u32 %r1, S; mov.u32 %r2, 0x44332211; mov.u16 %rs1, 0x8005;
st.shared.v4.u32 [%r1], {%r2, %r2, %r2, %r2}; st.shared.v4.u32 [%r1+16], {%r2, %r2, %r2, %r2};
cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r1], 32, %rs1;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;";
    run(&mut gpu, body, 1).unwrap();
    let want = [0x1133_1111, 0x1111_1111, 0x1111_1111, 0x4411_1111];
    assert_eq!(gpu.get32(0, 8), [want, want].concat());
    // Three bytes at the start and five at the end of 32 are not read; all count as copied.
    gpu.put32(0, &[0x2222_2222; 8]);
    let body = ".shared .align 16 .b8 S[32]; .shared .align 8 .b8 B[8]; mov.u32 %r1, S; mov.u32 %r2, B; mov.u32 %r3, 3; mov.u32 %r4, 5; mov.u32 %r5, 0;
st.shared.v4.u32 [%r1], {%r5, %r5, %r5, %r5}; st.shared.v4.u32 [%r1+16], {%r5, %r5, %r5, %r5};
mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive.expect_tx.shared::cta.b64 %rd2, [%r2], 32;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.ignore_oob [%r1], [%rd1], 32, %r3, %r4, [%r2];
WAIT: mbarrier.try_wait.shared.b64 %p1, [%r2], %rd2; @!%p1 bra WAIT;
ld.shared.v2.u32 {%r3, %r4}, [%r1]; ld.shared.v2.u32 {%r5, %r6}, [%r1+24]; st.global.v4.u32 [%rd0], {%r3, %r4, %r5, %r6};";
    run(&mut gpu, body, 1).unwrap();
    let want = [0x2200_0000, 0x2222_2222, 0x0022_2222, 0];
    assert_eq!(gpu.get32(0x100000, 4), want);
}
