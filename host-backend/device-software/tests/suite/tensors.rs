//! Tensor maps, and copies of boxes of tensors.

use crate::common::{Arg, Gpu, STREAM, module, pack};
use paragpu_device::conformance::settle;
use paragpu_device::{Error, Launch};
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{Tensor, TensorBox, TensorMap};

const U32: u32 = 2;
const S32: u32 = 3;
const F16: u32 = 6;
const F32: u32 = 7;
const TF32_FTZ: u32 = 12;
/// Offsets in the arena: the map, results.
const MAP: u64 = 0x10_0000;
const OUT: u64 = 0x20_0000;

/// A tensor at the start of the arena; its rows are adjacent.
fn parameters(gpu: &Gpu, data_type: u32, dimensions: &[u64], extent: &[u64]) -> TensorMap {
    let size = match data_type {
        F16 => 2,
        _ => 4,
    };
    let mut tensor = Tensor {
        data_type,
        rank: dimensions.len() as u32,
        address: gpu.arena,
        dimensions: [0; 5],
        strides: [0; 4],
        element_strides: [1; 5],
    };
    let mut part = TensorBox::EMPTY;
    let mut stride = size;
    for (n, (dimension, extent)) in dimensions.iter().zip(extent).enumerate() {
        tensor.dimensions[n] = *dimension;
        part.extent[n] = *extent;
        stride *= dimension;
        if n + 1 < dimensions.len() {
            tensor.strides[n] = stride;
        }
    }
    TensorMap {
        tensor,
        part,
        interleave: 0,
        swizzle: 0,
        promotion: 0,
        fill: 0,
    }
}

/// Runs `body` in one thread of each of two blocks of a cluster: `%rd0` is the result,
/// `%rd1` the map, `%r1` 4 KiB of shared memory, `%r2` a barrier object that waits for one
/// arrival, `%r0` the block's rank. `WAIT` waits for it.
fn run(gpu: &mut Gpu, map: &TensorMap, body: &str) -> Result<(), Error> {
    let mut packed = gpu.device.tensor_map(map)?;
    gpu.transfer(MAP, &mut packed, true);
    let body = body.replace(
        "WAIT",
        "again: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r2], 0; @!%p0 bra again;",
    );
    let text = module(&format!(
        ".visible .entry k(.param .u64 out, .param .u64 map) {{
.reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<16>; .reg .b64 %rd<8>;
.shared .align 1024 .b8 s[4096]; .shared .align 8 .b64 b;
ld.param.u64 %rd0, [out]; ld.param.u64 %rd1, [map]; mov.u32 %r0, %cluster_ctarank; mov.u32 %r1, s; mov.u32 %r2, b;
mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;
{body} barrier.cluster.arrive; barrier.cluster.wait; ret; }}"
    ));
    let f = gpu.kernel(&text, "k");
    let launch = Launch {
        function: f.id,
        grid: [2, 1, 1],
        block: [1, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
        programmatic: false,
        cluster: [2, 1, 1],
        preferences: Vec::new(),
        parameters: pack(&f, &[Arg::P(gpu.arena + OUT), Arg::P(gpu.arena + MAP)]).into(),
    };
    gpu.device.launch(launch, STREAM)?;
    settle(gpu.device.as_mut(), STREAM)
}

/// Stores `bytes` of shared memory, 16 at a time, to the block's kilobyte of the result.
const DUMP: &str = "mad.wide.u32 %rd2, %r0, 1024, %rd0; mov.u32 %r9, 0;
dump: add.u32 %r8, %r1, %r9; ld.shared.v4.u32 {%r4,%r5,%r6,%r7}, [%r8]; cvt.u64.u32 %rd3, %r9; add.u64 %rd3, %rd3, %rd2;
st.global.v4.u32 [%rd3], {%r4,%r5,%r6,%r7}; add.u32 %r9, %r9, 16; setp.lt.u32 %p1, %r9, 1024; @%p1 bra dump;";

#[test]
fn boxes_of_five_dimensions_with_steps_and_outside_elements() {
    let mut gpu = Gpu::new();
    let dimensions = [8, 3, 4, 2, 3];
    let input: Vec<u32> = (1..=dimensions.iter().product::<u64>() as u32).collect();
    gpu.put32(0, &input);
    let mut map = parameters(&gpu, U32, &dimensions, &[4, 2, 3, 2, 2]);
    map.tensor.element_strides = [7, 1, 2, 1, 1];
    let body = "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; mov.u32 %r3, -1;
cp.async.bulk.tensor.5d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {6, 2, %r3, 1, 1}], [%r2]; WAIT";
    run(&mut gpu, &map, &format!("{body} {DUMP}")).unwrap();
    let got = gpu.get32(OUT, 64);
    let mut want = Vec::new();
    for e in 1..3 {
        for d in 1..3 {
            for c in [-1, 1] {
                for b in 2..4 {
                    for a in 6..10 {
                        let at = [a, b, c, d, e];
                        let sizes = dimensions.map(|n| n as i64);
                        let inside = at
                            .iter()
                            .zip(&sizes)
                            .all(|(at, size)| (0..*size).contains(at));
                        let place = (((e * 2 + d) * 4 + c) * 3 + b) * 8 + a;
                        want.push(if inside { input[place as usize] } else { 0 });
                    }
                }
            }
        }
    }
    assert_eq!(got, want);
}

#[test]
fn a_multicast_reaches_each_block_that_it_names() {
    let mut gpu = Gpu::new();
    gpu.put32(0, &(0..256).collect::<Vec<u32>>());
    let map = parameters(&gpu, U32, &[16, 16], &[16, 4]);
    let body = "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 512; mov.u16 %rs0, 3; mul.lo.u32 %r3, %r0, 256; add.u32 %r4, %r1, %r3; mul.lo.u32 %r5, %r0, 8;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%r4], [%rd1, {0, %r5}], [%r2], %rs0, %rd1; WAIT";
    run(&mut gpu, &map, &format!("{body} {DUMP}")).unwrap();
    let want: Vec<u32> = (0..64).chain(128..192).collect();
    for block in 0..2 {
        assert_eq!(gpu.get32(OUT + block * 1024, 128), want, "block {block}");
    }
    // The same without a map.
    let body = "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 512; mov.u16 %rs0, 3; mul.lo.u32 %r3, %r0, 256; add.u32 %r4, %r1, %r3;
mad.wide.u32 %rd4, %r0, 512, %rd1; sub.u64 %rd4, %rd4, 1048576;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r4], [%rd4], 256, [%r2], %rs0; WAIT";
    run(&mut gpu, &map, &format!("{body} {DUMP}")).unwrap();
    for block in 0..2 {
        assert_eq!(gpu.get32(OUT + block * 1024, 128), want, "block {block}");
    }
}

#[test]
fn boxes_are_stored_combined_gathered_and_scattered() {
    let mut gpu = Gpu::new();
    let input: Vec<u32> = (0..256).map(|n: u32| n.wrapping_sub(128)).collect();
    gpu.put32(0, &input);
    let map = parameters(&gpu, S32, &[16, 16], &[4, 1]);
    let body = "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 64; setp.ne.u32 %p2, %r0, 0; mov.u32 %r3, -1;
cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r1], [%rd1, {4, 9, %r3, 2, 15}], [%r2]; WAIT
@%p2 bra end;
cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd1, {0, 0, 1, 2, 99}], [%r1];
cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd1, {8, 3}], [%r1];
cp.reduce.async.bulk.tensor.2d.global.shared::cta.min.bulk_group [%rd1, {14, 3}], [%r1];
cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; end:";
    run(&mut gpu, &map, &format!("{body} {DUMP}")).unwrap();
    let mut want = input.clone();
    let mut gathered = Vec::new();
    for row in [9, 99, 2, 15] {
        let line = input.get(row * 16 + 4..row * 16 + 8);
        gathered.extend_from_slice(line.unwrap_or(&[0; 4]));
    }
    assert_eq!(gpu.get32(OUT, 16), gathered);
    for row in 0..3 {
        want[row * 16..][..4].copy_from_slice(&gathered[row * 4..][..4]);
    }
    for n in 0..4 {
        let sum = &mut want[3 * 16 + 8 + n];
        *sum = sum.wrapping_add(gathered[n]);
    }
    for n in 0..2 {
        let least = &mut want[3 * 16 + 14 + n];
        *least = (*least as i32).min(gathered[n] as i32) as u32;
    }
    assert_eq!(gpu.get32(0, 256), want);
}

#[test]
fn singles_are_rounded_and_filled_as_the_map_says() {
    let mut gpu = Gpu::new();
    gpu.put32(
        0,
        &[
            1,
            0x3f80_1000,
            0x3f80_3000,
            0x3f80_1001,
            0x7f80_0000,
            0,
            0,
            0,
        ],
    );
    let mut map = parameters(&gpu, TF32_FTZ, &[8], &[4]);
    let body = "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 32; add.u32 %r3, %r1, 128;
cp.async.bulk.tensor.1d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {0}], [%r2];
cp.async.bulk.tensor.1d.shared::cta.global.mbarrier::complete_tx::bytes [%r3], [%rd1, {6}], [%r2]; WAIT";
    map.fill = 1;
    run(&mut gpu, &map, &format!("{body} {DUMP}")).unwrap();
    assert_eq!(
        gpu.get32(OUT, 4),
        [0, 0x3f80_0000, 0x3f80_4000, 0x3f80_2000]
    );
    assert_eq!(gpu.get32(OUT + 128, 4), [0, 0, 0x7fff_ffff, 0x7fff_ffff]);
}

#[test]
fn kernels_change_maps() {
    let mut gpu = Gpu::new();
    gpu.put32(0, &(0..1024).collect::<Vec<u32>>());
    let map = parameters(&gpu, F16, &[8, 2], &[8, 2]);
    let body = "setp.ne.u32 %p2, %r0, 0; @%p2 bra end; add.u32 %r3, %r1, 2048; mov.u32 %r9, 0;
copy: cvt.u64.u32 %rd2, %r9; add.u64 %rd2, %rd2, %rd1; ld.global.u64 %rd3, [%rd2]; add.u32 %r8, %r3, %r9; st.shared.u64 [%r8], %rd3;
add.u32 %r9, %r9, 8; setp.lt.u32 %p1, %r9, 128; @%p1 bra copy;
sub.u64 %rd4, %rd1, 1048576; add.u64 %rd4, %rd4, 256; cvta.shared.u64 %rd5, s; add.u64 %rd5, %rd5, 2048;
tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r3], %rd4;
tensormap.replace.tile.rank.b1024.b32 [%rd5], 2;
tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r3], 3;
tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r3], 2, 3;
tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r3], 1, 512;
tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r3], 2, 2;
tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r3], 2, 1;
tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r3], 1;
tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%r3], 0;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%r3], 128;
fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128; prefetch.tensormap [%rd1];
mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;
cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%rd1, {0, 0, 1}];
cp.async.bulk.tensor.3d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {0, 0, 1}], [%r2]; WAIT end:";
    run(&mut gpu, &map, &format!("{body} {DUMP}")).unwrap();
    // Rows of 32 bytes, 16 bytes apart; a slice is 512 bytes from the next.
    let row = |slice: u32, row: u32| 64 + slice * 128 + row * 4;
    let want: Vec<u32> = [row(1, 0), row(1, 1), row(2, 0), row(2, 1)]
        .into_iter()
        .flat_map(|first| first..first + 8)
        .collect();
    assert_eq!(gpu.get32(OUT, 32), want);
}

#[test]
fn maps_that_are_no_maps_end_the_kernel() {
    let load = "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 64;
cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {0, 0}], [%r2]; WAIT";
    let cases = [
        // Another GPU's map; zeros; another rank; a box that is too large; memory that is not mapped.
        (
            "mov.u32 %r3, 16; st.global.u32 [%rd1], %r3;",
            Status::ILLEGAL_INSTRUCTION,
        ),
        ("add.u64 %rd1, %rd1, 4096;", Status::ILLEGAL_INSTRUCTION),
        (
            "tensormap.replace.tile.rank.global.b1024.b32 [%rd1], 0;",
            Status::ILLEGAL_INSTRUCTION,
        ),
        (
            "tensormap.replace.tile.rank.global.b1024.b32 [%rd1], 7;",
            Status::ILLEGAL_INSTRUCTION,
        ),
        (
            "tensormap.replace.tile.box_dim.global.b1024.b32 [%rd1], 1, -1;",
            Status::ILLEGAL_INSTRUCTION,
        ),
        (
            "tensormap.replace.tile.element_stride.global.b1024.b32 [%rd1], 1, 0;",
            Status::ILLEGAL_INSTRUCTION,
        ),
        (
            "tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%rd1], 3;",
            Status::ILLEGAL_INSTRUCTION,
        ),
        (
            "tensormap.replace.tile.global_stride.global.b1024.b64 [%rd1], 0, -16;",
            Status::ILLEGAL_ADDRESS,
        ),
        ("mov.b64 %rd1, -8;", Status::ILLEGAL_ADDRESS),
        (
            "mov.b64 %rd1, 0x1000000000000;",
            Status::ILLEGAL_INSTRUCTION,
        ),
        ("add.u32 %r1, %r1, 64;", Status::MISALIGNED_ADDRESS),
        ("mov.u32 %r1, -128;", Status::ILLEGAL_ADDRESS),
        ("mov.u32 %r2, -8;", Status::ILLEGAL_ADDRESS),
        ("add.u32 %r1, %r1, 1048576;", Status::ILLEGAL_ADDRESS),
    ];
    for (change, status) in cases {
        let mut gpu = Gpu::new();
        let map = parameters(&gpu, U32, &[16, 16], &[8, 2]);
        let error = run(&mut gpu, &map, &format!("{change} {load}")).unwrap_err();
        assert_eq!(error.status, status, "{change}: {error}");
    }
}

#[test]
fn a_store_that_begins_before_the_tensor_is_an_illegal_instruction() {
    for operation in [
        "cp.async.bulk.tensor.2d.global.shared::cta.tile",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile",
    ] {
        for place in ["%r3, 0", "0, %r3"] {
            let mut gpu = Gpu::new();
            let map = parameters(&gpu, U32, &[16, 16], &[8, 2]);
            let store =
                format!("mov.s32 %r3, -4; {operation}.bulk_group [%rd1, {{{place}}}], [%r1];");
            let error = run(&mut gpu, &map, &store).unwrap_err();
            assert_eq!(
                error.status,
                Status::ILLEGAL_INSTRUCTION,
                "{store}: {error}"
            );
        }
    }
}

#[test]
fn parameters_that_no_map_can_have_are_refused() {
    let mut gpu = Gpu::new();
    let good = parameters(&gpu, F32, &[64, 64], &[32, 8]);
    gpu.device.tensor_map(&good).unwrap();
    type Change = fn(&mut TensorMap);
    let invalid: [Change; 12] = [
        |m| m.tensor.rank = 0,
        |m| m.tensor.rank = 6,
        |m| m.tensor.address += 8,
        |m| m.tensor.dimensions[1] = 0,
        |m| m.tensor.dimensions[0] = (1 << 32) + 1,
        |m| m.tensor.strides[0] = 8,
        |m| m.tensor.strides[0] = 1 << 40,
        |m| m.part.extent[0] = 257,
        |m| m.part.extent[0] = 3,
        |m| m.tensor.element_strides[1] = 9,
        |m| m.swizzle = 2,
        |m| (m.tensor.data_type, m.fill) = (U32, 1),
    ];
    let unserved: [Change; 5] = [
        |m| m.interleave = 1,
        |m| m.part.kind = 1,
        |m| m.tensor.data_type = 13,
        |m| m.swizzle = 5,
        |m| (m.part.extent[0], m.swizzle) = (16, 3),
    ];
    let changes = invalid.map(|c| (c, Status::INVALID_VALUE));
    let changes = changes
        .into_iter()
        .chain(unserved.map(|c| (c, Status::NOT_SUPPORTED)));
    for (n, (change, status)) in changes.enumerate() {
        let mut map = good;
        change(&mut map);
        assert_eq!(
            gpu.device.tensor_map(&map).unwrap_err().status,
            status,
            "change {n}"
        );
    }
    let packed = gpu.device.tensor_map(&good).unwrap();
    let moved = gpu
        .device
        .tensor_map_replace(packed, gpu.arena + 64)
        .unwrap();
    assert_ne!(packed, moved);
    let error = gpu
        .device
        .tensor_map_replace([0; 128], gpu.arena)
        .unwrap_err();
    assert_eq!(error.status, Status::INVALID_VALUE);
}
