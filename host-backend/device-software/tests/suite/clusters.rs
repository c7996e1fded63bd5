//! Clusters of blocks: ranks, shared memory of other blocks, the barrier, and refused
//! launches.

use crate::common::{Arg, Gpu, STREAM, module, pack};
use paragpu_device::conformance::settle;
use paragpu_device::{Error, Function, Launch};
use paragpu_protocol::status::Status;

fn kernel(directives: &str, body: &str) -> String {
    module(&format!(
        ".visible .entry k(.param .u64 out) {directives} {{
.reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<16>; .shared .align 16 .b32 s[64]; .shared .align 8 .b64 b;
ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_ctarank; {body} ret; }}"
    ))
}

fn launch(gpu: &mut Gpu, f: &Function, grid: [u32; 3], cluster: [u32; 3]) -> Result<(), Error> {
    let launch = Launch {
        function: f.id,
        grid,
        block: [32, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
        programmatic: false,
        cluster,
        preferences: Vec::new(),
        parameters: pack(f, &[Arg::P(gpu.arena)]).into(),
    };
    gpu.device.launch(launch, STREAM)?;
    settle(gpu.device.as_mut(), STREAM)
}

fn run(body: &str, grid: [u32; 3], cluster: [u32; 3]) -> Result<Gpu, Error> {
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&kernel("", body), "k");
    launch(&mut gpu, &f, grid, cluster)?;
    Ok(gpu)
}

#[test]
fn special_registers_tell_the_place_in_the_cluster() {
    let body = "mov.u32 %r3, %clusterid.x; mov.u32 %r4, %clusterid.y; mov.u32 %r5, %nclusterid.x; mov.u32 %r6, %nclusterid.y;
mov.u32 %r7, %cluster_ctaid.x; mov.u32 %r8, %cluster_ctaid.y; mov.u32 %r9, %cluster_nctaid.x; mov.u32 %r10, %cluster_nctaid.y;
mov.u32 %r11, %cluster_nctarank; mov.pred %p0, %is_explicit_cluster; selp.u32 %r12, 1, 0, %p0;
mov.u32 %r13, %ctaid.y; mad.lo.u32 %r14, %r13, 6, %r1; mad.wide.u32 %rd1, %r14, 64, %rd0;
st.global.v4.u32 [%rd1], {%r3,%r4,%r5,%r6}; st.global.v4.u32 [%rd1+16], {%r7,%r8,%r9,%r10}; st.global.v4.u32 [%rd1+32], {%r11,%r12,%r2,%r0};";
    let mut gpu = run(body, [6, 4, 1], [3, 2, 1]).unwrap();
    let got = gpu.get32(0, 24 * 16);
    for (n, found) in got.chunks_exact(16).enumerate() {
        let (x, y) = (n as u32 % 6, n as u32 / 6);
        let rank = x % 3 + y % 2 * 3;
        let want = [x / 3, y / 2, 2, 2, x % 3, y % 2, 3, 2, 6, 1, rank];
        assert_eq!(found[..11], want, "block {x} {y}");
    }
    let mut gpu = run(body, [6, 1, 1], [0; 3]).unwrap();
    let got = gpu.get32(64, 16);
    assert_eq!(got[..11], [1, 0, 6, 1, 0, 0, 1, 1, 1, 0, 0][..11]);
}

const NEXT: &str =
    "mov.u32 %r3, %cluster_nctarank; add.u32 %r4, %r2, 1; rem.u32 %r4, %r4, %r3; mov.u32 %r5, s;";
const SYNC: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";

#[test]
fn blocks_reach_each_other_by_both_kinds_of_address() {
    // Each block writes its index; reads its neighbour's by a shared and by a generic
    // address; adds to it.
    let body = format!(
        "{NEXT} mad.lo.u32 %r6, %r1, 100, %r0; mad.lo.u32 %r7, %r0, 4, %r5; st.shared.u32 [%r7], %r6; {SYNC}
mapa.shared::cluster.u32 %r8, %r7, %r4; ld.shared::cluster.u32 %r9, [%r8];
cvt.u64.u32 %rd1, %r7; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd2, %rd1, %r4; ld.u32 %r10, [%rd2];
getctarank.u64 %r11, %rd2; getctarank.shared::cluster.u32 %r12, %r7; isspacep.shared::cta %p0, %rd2; isspacep.shared::cluster %p1, %rd2;
selp.u32 %r13, 2, 0, %p0; selp.u32 %r14, 1, 0, %p1; add.u32 %r13, %r13, %r14; {SYNC}
atom.shared::cluster.add.u32 %r15, [%r8], 7; red.relaxed.cluster.shared::cluster.add.u32 [%r8], 1; st.u32 [%rd2+128], %r1; {SYNC}
ld.shared.u32 %r16, [%r7]; ld.shared.u32 %r17, [%r7+128];
mad.lo.u32 %r18, %r1, 32, %r0; mad.wide.u32 %rd3, %r18, 32, %rd0;
st.global.v4.u32 [%rd3], {{%r9,%r10,%r11,%r12}}; st.global.v4.u32 [%rd3+16], {{%r13,%r15,%r16,%r17}};"
    );
    for size in [1, 2, 4, 8] {
        let mut gpu = run(&body, [16, 1, 1], [size, 1, 1]).unwrap();
        let got = gpu.get32(0, 16 * 32 * 8);
        for (n, found) in got.chunks_exact(8).enumerate() {
            let (block, thread) = (n as u32 / 32, n as u32 % 32);
            let (rank, first) = (block % size, block / size * size);
            let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
            let (own, there) = (block * 100 + thread, (first + next) * 100 + thread);
            let spaces = if size == 1 { 3 } else { 1 };
            let want = [
                there,
                there,
                next,
                rank,
                spaces,
                there,
                own + 8,
                first + last,
            ];
            assert_eq!(
                found, want,
                "block {block} of clusters of {size}, thread {thread}"
            );
        }
    }
}

#[test]
fn barrier_objects_of_another_block_count_arrivals_and_bytes() {
    // Every block tells block 0 that it has written there: by st.async, a bulk copy,
    // red.async and a plain arrival.
    let body = format!(
        "mov.u32 %r5, s; mov.u32 %r6, b; setp.ne.u32 %p0, %r0, 0; setp.ne.u32 %p1, %r2, 0;
@!%p0 mbarrier.init.shared.b64 [%r6], 4; @!%p0 st.shared.u32 [%r5+128], %r1; @!%p0 st.shared.u32 [%r5+132], 0; @!%p0 st.shared.v2.u32 [%r5+136], {{%r1,%r1}};
fence.mbarrier_init.release.cluster; {SYNC} @%p0 bra WAIT;
mapa.shared::cluster.u32 %r7, %r5, 0; mapa.shared::cluster.u32 %r8, %r6, 0; mad.lo.u32 %r9, %r2, 16, %r7; add.u32 %r10, %r1, 50;
mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r8], 28;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r9], {{%r10,%r1}}, [%r8];
add.u32 %r11, %r5, 128; add.u32 %r12, %r9, 64; mov.u32 %r13, 16;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r12], [%r11], %r13, [%r8];
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r7+132], %r10, [%r8];
WAIT: @%p1 bra END; LOOP: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r6], 0; @!%p2 bra LOOP;
mad.lo.u32 %r14, %r0, 4, %r5; ld.shared.u32 %r15, [%r14]; mad.lo.u32 %r16, %r1, 8, %r0; mad.wide.u32 %rd1, %r16, 4, %rd0; st.global.u32 [%rd1], %r15;
ld.shared.u32 %r15, [%r5+132]; st.global.u32 [%rd0+1024], %r15; END: {SYNC}"
    );
    let mut gpu = run(&body, [4, 1, 1], [4, 1, 1]).unwrap();
    let got = gpu.get32(0, 257);
    for rank in 0..4u32 {
        let at = rank as usize * 4;
        assert_eq!(got[at..at + 2], [50 + rank, rank], "st.async of {rank}");
        let copied = &got[16 + at..16 + at + 4];
        assert_eq!((copied[0], copied[2], copied[3]), (rank, rank, rank));
    }
    assert_eq!(got[256], 50 + 51 + 52 + 53);
}

#[test]
fn threads_that_exit_count_as_arrived() {
    let body = "setp.eq.u32 %p0, %r2, 1; @%p0 ret; setp.gt.u32 %p1, %r0, 7; @%p1 ret;
barrier.cluster.arrive.relaxed; barrier.cluster.wait; barrier.cluster.arrive; barrier.cluster.wait.acquire;
mad.wide.u32 %rd1, %r1, 4, %rd0; st.global.u32 [%rd1], 9;";
    let mut gpu = run(body, [4, 1, 1], [4, 1, 1]).unwrap();
    assert_eq!(gpu.get32(0, 4), [9, 0, 9, 9]);
}

#[test]
fn threads_that_never_arrive_are_a_fault() {
    let wait = "setp.eq.u32 %p0, %r2, 0; @%p0 barrier.cluster.arrive; barrier.cluster.wait;";
    let error = run(wait, [2, 1, 1], [2, 1, 1]).map(|_| ()).unwrap_err();
    assert_eq!(error.status, Status::LAUNCH_FAILED);
    assert!(error.detail.contains("cluster"), "{}", error.detail);
}

#[test]
fn nothing_outside_the_cluster_is_reached() {
    let access = [
        "ld.shared::cluster.u32 %r9, [%r8];",
        "st.shared::cluster.u32 [%r8], 1;",
        "ld.shared.v2.u32 {%r9,%r10}, [%r8];",
        "atom.shared::cluster.add.u32 %r9, [%r8], 1;",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r8], %r9, [%r5];",
        "cvt.u64.u32 %rd1, %r8; cvta.shared::cluster.u64 %rd1, %rd1; ld.u8 %r9, [%rd1];",
        "cvt.u64.u32 %rd1, %r8; cvta.shared::cluster.u64 %rd1, %rd1; atom.exch.b64 %rd2, [%rd1], %rd1;",
    ];
    let places = [
        "mapa.shared::cluster.u32 %r8, %r5, 2;",
        "mapa.shared::cluster.u32 %r8, %r5, 254;",
        "mapa.shared::cluster.u32 %r8, %r5, 0xffffffff;",
        "mapa.shared::cluster.u32 %r8, %r5, 1; add.u32 %r8, %r8, 0x1000;",
        "mapa.shared::cluster.u32 %r8, %r5, 1; sub.u32 %r8, %r8, 8;",
        "mov.u32 %r8, 0xfffffff8;",
    ];
    for access in access {
        for place in places {
            let body = format!("mov.u32 %r5, s; {place} {access} {SYNC}");
            let error = run(&body, [4, 1, 1], [2, 1, 1]).map(|_| ()).unwrap_err();
            assert_eq!(error.status, Status::ILLEGAL_ADDRESS, "{place} {access}");
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&kernel("", ""), "k");
    for (grid, cluster, allowed) in [
        ([16, 1, 1], [8, 1, 1], true),
        ([18, 1, 1], [9, 1, 1], false),
        ([8, 2, 1], [4, 2, 1], true),
        ([6, 2, 1], [4, 2, 1], false),
        ([8, 8, 1], [2, 0, 1], false),
        ([4, 1, 1], [u32::MAX, u32::MAX, 2], false),
    ] {
        let result = launch(&mut gpu, &f, grid, cluster).map_err(|e| e.status);
        let want = if allowed {
            Ok(())
        } else {
            Err(Status::INVALID_CLUSTER_SIZE)
        };
        assert_eq!(result, want, "{grid:?} {cluster:?}");
    }
    // 16 blocks where the kernel allows them.
    let refused = launch(&mut gpu, &f, [16, 1, 1], [16, 1, 1]);
    assert_eq!(refused.unwrap_err().status, Status::INVALID_CLUSTER_SIZE);
    gpu.device.func_set_attribute(f.id, 14, 1).unwrap();
    launch(&mut gpu, &f, [16, 1, 1], [16, 1, 1]).unwrap();
    // A required size applies to a launch without one, and excludes others.
    for (attribute, value) in [(11, 4), (12, 1), (13, 1)] {
        gpu.device
            .func_set_attribute(f.id, attribute, value)
            .unwrap();
    }
    launch(&mut gpu, &f, [8, 1, 1], [0; 3]).unwrap();
    for (grid, cluster) in [([6, 1, 1], [0; 3]), ([8, 1, 1], [2, 1, 1])] {
        let refused = launch(&mut gpu, &f, grid, cluster);
        assert_eq!(refused.unwrap_err().status, Status::INVALID_CLUSTER_SIZE);
    }
}

#[test]
fn directives_of_a_kernel_hold() {
    let mut gpu = Gpu::new();
    let rank = "mad.wide.u32 %rd1, %r1, 4, %rd0; st.global.u32 [%rd1], %r2;";
    let f = gpu.kernel(
        &kernel(".explicitcluster .reqnctapercluster 2, 1, 1", rank),
        "k",
    );
    launch(&mut gpu, &f, [4, 1, 1], [0; 3]).unwrap();
    assert_eq!(gpu.get32(0, 4), [0, 1, 0, 1]);
    let set = gpu.device.func_set_attribute(f.id, 11, 4);
    assert_eq!(set.unwrap_err().status, Status::NOT_PERMITTED);
    let refused = launch(&mut gpu, &f, [4, 1, 1], [4, 1, 1]);
    assert_eq!(refused.unwrap_err().status, Status::INVALID_CLUSTER_SIZE);
    for (directive, cluster) in [
        (".explicitcluster", [0; 3]),
        (".maxclusterrank 2", [4, 1, 1]),
    ] {
        let f = gpu.kernel(&kernel(directive, rank), "k");
        let refused = launch(&mut gpu, &f, [4, 1, 1], cluster);
        assert_eq!(
            refused.unwrap_err().status,
            Status::INVALID_CLUSTER_SIZE,
            "{directive}"
        );
        launch(&mut gpu, &f, [4, 1, 1], [2, 1, 1]).unwrap();
    }
}
