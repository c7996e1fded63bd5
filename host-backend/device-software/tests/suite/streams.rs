//! Order and overlap of streams, events and memory; textures; output of printf.

use crate::common::{Arg, Gpu, STREAM, module};
use paragpu_device::conformance::settle;
use paragpu_device::{
    Access, Conditional, ConditionalKind, CopyEnd, Device, GraphNode, Launch, Platform, StreamId,
    TextureResource, Work,
};
use paragpu_device_software::{Options, SoftwarePlatform};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{ArrayShape, LinearResource, Sampling};
use std::sync::mpsc;

/// Holds a stream until the sender is dropped or sends.
fn hold(device: &mut dyn Device, stream: StreamId) -> mpsc::Sender<()> {
    let (send, receive) = mpsc::channel::<()>();
    let wait = move || {
        let _ = receive.recv();
    };
    device.host_function(stream, Box::new(wait)).unwrap();
    send
}

#[test]
fn blocking_streams_and_the_legacy_stream_wait_for_each_other() {
    let mut gpu = Gpu::new();
    let base = gpu.arena;
    let blocking = gpu.device.stream_create(0, 0).unwrap();
    let free = gpu.device.stream_create(1, 0).unwrap();
    let gate = hold(gpu.device.as_mut(), blocking);
    gpu.device.memset(base, 0, 7, 4, 1, 1, STREAM).unwrap();
    gpu.device.memset(base + 4, 0, 8, 4, 1, 1, free).unwrap();
    // The non-blocking stream overtakes; the legacy one does not.
    settle(gpu.device.as_mut(), free).unwrap();
    assert!(!gpu.device.stream_query(STREAM).unwrap());
    assert!(!gpu.device.context_query().unwrap());
    drop(gate);
    settle(gpu.device.as_mut(), STREAM).unwrap();
    assert_eq!(gpu.get32(0, 2), [7, 8]);
    // And vice versa.
    let gate = hold(gpu.device.as_mut(), STREAM);
    gpu.device.memset(base, 0, 9, 4, 1, 1, blocking).unwrap();
    assert!(!gpu.device.stream_query(blocking).unwrap());
    drop(gate);
    settle(gpu.device.as_mut(), blocking).unwrap();
    assert_eq!(gpu.get32(0, 1), [9]);
}

#[test]
fn memory_is_shared_while_work_that_uses_it_is_queued() {
    let mut gpu = Gpu::new();
    let text = module(
        ".visible .entry k(.param .u64 data) { .reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p;
ld.param.u64 %rd1, [data]; AGAIN: atom.global.add.u32 %r1, [%rd1], 1; ld.volatile.global.u32 %r2, [%rd1+4];
setp.eq.u32 %p, %r2, 0; @%p bra AGAIN; ret; }",
    );
    let f = gpu.kernel(&text, "k");
    let (base, alias) = (gpu.arena, gpu.arena + 32 * CHUNK);
    let [running, held, free] = [(); 3].map(|()| gpu.device.stream_create(1, 0).unwrap());
    gpu.put32(0, &[1000, 0, 3, 4]);
    let one = [1, 1, 1];
    gpu.start_on(running, &f, one, one, 0, false, &[Arg::P(base)])
        .unwrap();
    let gate = hold(gpu.device.as_mut(), held);
    gpu.device.memset(base + 8, 0, 7, 4, 1, 1, held).unwrap();
    let write = Access::ReadWrite;
    gpu.device
        .memory_alias(alias, 16 * CHUNK, base, write)
        .unwrap();
    gpu.device.memory_share(base).unwrap();
    assert!(!gpu.device.stream_query(running).unwrap());
    // The kernel goes on in the memory, which has another address, too.
    gpu.device.memset(alias + 4, 0, 1, 4, 1, 1, free).unwrap();
    settle(gpu.device.as_mut(), running).unwrap();
    drop(gate);
    settle(gpu.device.as_mut(), held).unwrap();
    let found = gpu.get32(0, 4);
    assert!(found[0] > 1000);
    assert_eq!(found[1..], [1, 7, 4]);
}

#[test]
fn work_of_one_stream_runs_in_order() {
    let mut gpu = Gpu::new();
    let text = module(
        ".visible .entry k(.param .u64 data, .param .u32 v) { .reg .b32 %r<4>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [v]; ld.global.u32 %r2, [%rd1]; mad.lo.u32 %r2, %r2, 3, %r1;
st.global.u32 [%rd1], %r2; ret; }",
    );
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    let streams: Vec<StreamId> = (0..4)
        .map(|_| gpu.device.stream_create(1, 0).unwrap())
        .collect();
    let mut want = [0u32; 4];
    for step in 0..200u32 {
        for (n, &stream) in streams.iter().enumerate() {
            let at = base + 4096 * n as u64;
            gpu.start_on(
                stream,
                &f,
                [1, 1, 1],
                [1, 1, 1],
                0,
                false,
                &[Arg::P(at), Arg::W(step)],
            )
            .unwrap();
            gpu.device.copy(at + 8, at, 4, stream).unwrap();
            gpu.device.copy(at, at + 8, 4, stream).unwrap();
            want[n] = want[n].wrapping_mul(3).wrapping_add(step);
        }
    }
    for (n, &stream) in streams.iter().enumerate() {
        settle(gpu.device.as_mut(), stream).unwrap();
        assert_eq!(gpu.get32(4096 * n as u64, 1), [want[n]]);
    }
}

#[test]
fn events_order_streams_and_tell_time() {
    let mut gpu = Gpu::new();
    let base = gpu.arena;
    let (a, b) = (
        gpu.device.stream_create(1, 0).unwrap(),
        gpu.device.stream_create(1, 0).unwrap(),
    );
    let (start, end, untimed) = (
        gpu.device.event_create(0).unwrap(),
        gpu.device.event_create(1).unwrap(),
        gpu.device.event_create(2).unwrap(),
    );
    gpu.device.event_record(start, a).unwrap();
    let gate = hold(gpu.device.as_mut(), a);
    gpu.device.memset(base, 0, 5, 4, 1, 1, a).unwrap();
    gpu.device.event_record(end, a).unwrap();
    gpu.device.event_record(untimed, a).unwrap();
    gpu.device.stream_wait_event(b, end).unwrap();
    gpu.device.copy(base + 64, base, 4, b).unwrap();
    assert_eq!(
        gpu.device
            .event_elapsed_time(start, end)
            .unwrap_err()
            .status,
        Status::NOT_READY
    );
    assert!(!gpu.device.event_query(end).unwrap());
    drop(gate);
    settle(gpu.device.as_mut(), b).unwrap();
    assert_eq!(gpu.get32(64, 1), [5]);
    assert!(gpu.device.event_elapsed_time(start, end).unwrap() > 0.0);
    assert!(gpu.device.event_elapsed_time(end, start).unwrap() < 0.0);
    assert_eq!(
        gpu.device
            .event_elapsed_time(start, untimed)
            .unwrap_err()
            .status,
        Status::INVALID_HANDLE
    );
}

#[test]
fn memory_is_limited_zeroed_and_taken_away_after_its_work() {
    let mut gpu = Gpu::with(Options {
        memory: 64 << 20,
        cores: 1,
        ..Options::default()
    });
    let base = gpu.arena;
    let free = gpu.device.memory_info().unwrap().free;
    let too_much = gpu
        .device
        .memory_map(base + 64 * CHUNK, free + CHUNK)
        .unwrap_err();
    assert_eq!(too_much.status, Status::OUT_OF_MEMORY);
    let at = base + 100 * CHUNK;
    gpu.device.memory_map(at, CHUNK).unwrap();
    gpu.device.memset(at, 0, 0xff, 1, 4096, 1, STREAM).unwrap();
    let gate = hold(gpu.device.as_mut(), STREAM);
    gpu.device.copy(base, at, 16, STREAM).unwrap();
    gpu.device.memory_unmap(at).unwrap();
    // New work cannot use it; the earlier copy still can.
    assert_eq!(
        gpu.device.copy(base, at, 16, STREAM).unwrap_err().status,
        Status::INVALID_VALUE
    );
    drop(gate);
    settle(gpu.device.as_mut(), STREAM).unwrap();
    assert_eq!(gpu.get32(0, 1), [u32::MAX]);
    while !gpu.device.context_query().unwrap() {
        gpu.device
            .stream_doze(STREAM, std::time::Duration::from_millis(1))
            .unwrap();
    }
    assert_eq!(gpu.device.memory_info().unwrap().free, free);
    gpu.device.memory_map(at, CHUNK).unwrap();
    gpu.device.copy(base, at, 16, STREAM).unwrap();
    assert_eq!(gpu.get32(0, 4), [0; 4]);
}

#[test]
fn rectangles_and_pitched_fills() {
    let mut gpu = Gpu::new();
    let base = gpu.arena;
    gpu.put32(0, &(0..64).collect::<Vec<u32>>());
    let linear = |address, pitch, rows| CopyEnd::Linear {
        address,
        pitch,
        rows,
    };
    // 8 by 8 words: the inner 3 by 2 of two "slices" of 4 rows.
    gpu.device
        .copy_rect(
            linear(base + 4096, 12, 2),
            linear(base + 4 * 9, 32, 4),
            [12, 2, 2],
            STREAM,
        )
        .unwrap();
    assert_eq!(
        gpu.get32(4096, 12),
        [9, 10, 11, 17, 18, 19, 41, 42, 43, 49, 50, 51]
    );
    gpu.device
        .memset(base, 32, 0xabcd, 2, 3, 4, STREAM)
        .unwrap();
    let rows = gpu.get32(0, 32);
    assert_eq!((rows[0], rows[1], rows[2]), (0xabcd_abcd, 0xabcd, 2));
    assert_eq!((rows[24], rows[25] & 0xffff), (0xabcd_abcd, 0xabcd));
    let outside = gpu.device.copy_rect(
        linear(base, 12, 2),
        linear(base + 16 * CHUNK - 8, 32, 4),
        [12, 1, 1],
        STREAM,
    );
    assert_eq!(outside.unwrap_err().status, Status::INVALID_VALUE);
}

fn sampling(modes: u32, filter: u32, flags: u32) -> Sampling {
    Sampling {
        address_modes: [modes; 3],
        filter,
        flags,
        ..Sampling::NEAREST
    }
}

#[test]
fn textures_of_arrays_and_linear_memory() {
    let mut gpu = Gpu::new();
    let base = gpu.arena;
    let text = module(
        ".visible .entry k(.param .u64 tex, .param .u64 out, .param .u64 at) { .reg .b32 %r<4>; .reg .b64 %rd<8>; .reg .f32 %f<8>;
ld.param.u64 %rd1, [tex]; ld.param.u64 %rd2, [out]; ld.param.u64 %rd3, [at]; mov.u32 %r1, %tid.x;
mad.wide.u32 %rd4, %r1, 8, %rd3; ld.global.v2.f32 {%f1, %f2}, [%rd4];
tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd1, {%f1, %f2}]; mad.wide.u32 %rd5, %r1, 4, %rd2; st.global.f32 [%rd5], %f3; ret; }
.visible .entry fetch(.param .u64 tex, .param .u64 out) { .reg .b32 %r<8>; .reg .b64 %rd<8>;
ld.param.u64 %rd1, [tex]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %tid.x;
tex.1d.v4.u32.s32 {%r2, %r3, %r4, %r5}, [%rd1, {%r1}]; mad.wide.u32 %rd5, %r1, 4, %rd2; st.global.u32 [%rd5], %r2; ret; }",
    );
    let f = gpu.kernel(&text, "k");
    let fetch = gpu.kernel(&text, "fetch");
    let shape = ArrayShape {
        width: 4,
        height: 2,
        depth: 0,
        format: 0x20,
        channels: 1,
        flags: 0,
        levels: 0,
    };
    let array = gpu.device.array_create(&shape).unwrap();
    let texels: Vec<u32> = (0..8).map(|n| (n as f32 * 10.0).to_bits()).collect();
    gpu.put32(0, &texels);
    let end = CopyEnd::Array {
        array,
        level: 0,
        origin: [0; 3],
    };
    gpu.device
        .copy_rect(
            end,
            CopyEnd::Linear {
                address: base,
                pitch: 16,
                rows: 2,
            },
            [16, 2, 1],
            STREAM,
        )
        .unwrap();
    let coordinates = [
        0.5f32, 0.5, 1.0, 0.5, 1.0, 1.0, 9.0, 0.5, -3.0, 1.5, 2.25, 0.5,
    ];
    gpu.put32(512, &coordinates.map(f32::to_bits));
    let resource = TextureResource::Array(array);
    let sample = |gpu: &mut Gpu, s: &Sampling| {
        let texture = gpu.device.texture_create(resource, s, None).unwrap();
        gpu.launch(
            &f,
            [1, 1, 1],
            [6, 1, 1],
            &[Arg::P(texture.0), Arg::P(base + 1024), Arg::P(base + 512)],
        )
        .unwrap();
        gpu.device.texture_destroy(texture).unwrap();
        gpu.get32(1024, 6)
            .into_iter()
            .map(f32::from_bits)
            .collect::<Vec<f32>>()
    };
    assert_eq!(
        sample(&mut gpu, &sampling(1, 0, 0)),
        [0.0, 10.0, 50.0, 30.0, 40.0, 20.0]
    );
    assert_eq!(
        sample(&mut gpu, &sampling(1, 1, 0)),
        [0.0, 5.0, 25.0, 30.0, 40.0, 17.5]
    );
    assert_eq!(sample(&mut gpu, &sampling(3, 0, 0))[3..5], [0.0, 0.0]);
    // Normalized and wrapped: 0.5 is the third column, second row.
    assert_eq!(sample(&mut gpu, &sampling(0, 0, 2))[0], 60.0);

    // 8-bit texels become fractions; integer coordinates address linear memory.
    let linear = LinearResource {
        address: base + 2048,
        format: 1,
        channels: 1,
        width: 16,
        height: 0,
        pitch: 0,
    };
    gpu.put32(2048, &[0x0403_0201]);
    let texture = gpu
        .device
        .texture_create(TextureResource::Linear(linear), &sampling(1, 0, 1), None)
        .unwrap();
    gpu.launch(
        &fetch,
        [1, 1, 1],
        [32, 1, 1],
        &[Arg::P(texture.0), Arg::P(base + 1024)],
    )
    .unwrap();
    let out = gpu.get32(1024, 32);
    assert_eq!(out[..5], [1, 2, 3, 4, 0]);
    assert_eq!(out[16..], [0; 16]);
    let gone = gpu
        .launch(&fetch, [1, 1, 1], [1, 1, 1], &[Arg::P(99), Arg::P(base)])
        .unwrap_err();
    assert_eq!(gone.status, Status::LAUNCH_FAILED);
}

#[test]
fn printf_formats_as_the_c_library() {
    use paragpu_device_software::exec::printf;
    // Format at 0, arguments at 0x1000, a string at 0x2000.
    let show = |format: &str, arguments: &[(u8, u64)]| {
        let mut bytes = vec![0u8; 0x3000];
        bytes[..format.len()].copy_from_slice(format.as_bytes());
        let mut at = 0x1000usize;
        for &(width, value) in arguments {
            let width = usize::from(width);
            at = at.next_multiple_of(width);
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            at += width;
        }
        bytes[0x2000..0x2005].copy_from_slice(b"hello");
        let mut read = |a: u64, w: u8| {
            let mut v = [0; 8];
            v[..usize::from(w)].copy_from_slice(&bytes[a as usize..a as usize + usize::from(w)]);
            Ok(u64::from_le_bytes(v))
        };
        let (text, count) = printf::format(0, 0x1000, &mut read).unwrap();
        assert_eq!(count as usize, arguments.len());
        String::from_utf8(text).unwrap()
    };
    let real = |v: f64| (8, v.to_bits());
    assert_eq!(
        show(
            "%d|%5d|%-5d|%05d|%+d|%u",
            &[
                (4, 7),
                (4, 42),
                (4, 42),
                (4, u64::from(-42i32 as u32)),
                (4, 3),
                (4, 0xffff_ffff)
            ]
        ),
        "7|   42|42   |-0042|+3|4294967295"
    );
    assert_eq!(
        show(
            "%x %#X %o %lld %hhd %c%%",
            &[(4, 255), (4, 255), (4, 8), (8, u64::MAX), (4, 200), (4, 65)]
        ),
        "ff 0XFF 10 -1 -56 A%"
    );
    assert_eq!(
        show(
            "%f %.2f %8.3f %e %g %g %g",
            &[
                real(1.5),
                real(2.345),
                real(-1.0),
                real(12345.678),
                real(0.0001),
                real(1e10),
                real(100000.0)
            ]
        ),
        "1.500000 2.35   -1.000 1.234568e+04 0.0001 1e+10 100000"
    );
    assert_eq!(
        show(
            "%s|%8s|%.3s|%p",
            &[(8, 0x2000), (8, 0x2000), (8, 0x2000), (8, 0xabc)]
        ),
        "hello|   hello|hel|0xabc"
    );
    assert_eq!(
        show(
            "%*d %a %f",
            &[(4, 4), (4, 9), real(1.0), real(f64::INFINITY)]
        ),
        "   9 0x1p+0 inf"
    );
    assert_eq!(
        show(
            "%012a|%+012.0A|%#.0a|% -9.1a|",
            &[real(1.0), real(-1.0), real(1.0), real(0.5)]
        ),
        "0x0000001p+0|-0X000001P+0|0x1.p+0| 0x1.0p-1|"
    );
    assert_eq!(
        show(
            "%#o|%#.5o|%#.1o|%#06o|%#.0o|%#o|%.0o|",
            &[(4, 8), (4, 8), (4, 8), (4, 8), (4, 0), (4, 0), (4, 0)]
        ),
        "010|00010|010|000010|0|0||"
    );
}

#[test]
fn a_few_bytes_of_variables_take_little_of_the_hosts_memory() {
    let mut gpu = Gpu::new();
    let module = gpu
        .load(&module(".visible .global .u32 word = 7;"))
        .unwrap();
    let (at, _) = gpu.device.module_global(module, "word").unwrap();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).ok();
        let bounds = range.and_then(|(from, to)| Some((number(from)?, number(to)?)));
        bounds.is_none_or(|(from, to)| !(from..to).contains(&at))
    });
    let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let kilobytes = resident.trim().trim_end_matches(" kB").parse::<u64>();
    assert!(kilobytes.unwrap() <= 64, "{resident}");
}

#[test]
fn modules_place_their_variables_alike_each_time() {
    let text = module(
        ".global .align 4 .u32 first = 17; .const .align 4 .b8 table[8] = {1, 2, 3, 4};
.global .align 8 .u64 where = first; .visible .entry k() { ret; }",
    );
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let mut gpu = Gpu::new();
        let module = gpu.load(&text).unwrap();
        let (at, size) = gpu.device.module_global(module, "first").unwrap();
        assert_eq!(size, 4);
        let offset = at - gpu.arena;
        assert_eq!(gpu.get32(offset, 1), [17]);
        let (pointer, _) = gpu.device.module_global(module, "where").unwrap();
        assert_eq!(gpu.get64(pointer - gpu.arena, 1), [at]);
        assert_eq!(
            gpu.device
                .module_global(module, "nothing")
                .unwrap_err()
                .status,
            Status::NOT_FOUND
        );
        assert_eq!(
            gpu.device
                .module_function(module, "first")
                .unwrap_err()
                .status,
            Status::NOT_FOUND
        );
        addresses.push(offset);
        gpu.device.module_unload(module).unwrap();
        assert_eq!(
            gpu.device.module_function(module, "k").unwrap_err().status,
            Status::INVALID_HANDLE
        );
    }
    assert_eq!(addresses[0], addresses[1]);
}

#[test]
fn the_device_describes_itself() {
    let options = Options {
        devices: 2,
        memory: 1 << 30,
        compute_capability: (8, 6),
        cores: 3,
        shareable: false,
    };
    let platform = SoftwarePlatform::with_options(options);
    assert_eq!(platform.device_count(), 2);
    let snapshot = platform.snapshot(1).unwrap();
    let attribute = |n: u32| snapshot.attributes.iter().find(|a| a.0 == n).map(|a| a.1);
    assert_eq!(
        (attribute(75), attribute(76), attribute(16), attribute(10)),
        (Some(8), Some(6), Some(3), Some(32))
    );
    assert_eq!(
        (attribute(41), attribute(83), attribute(19), attribute(95)),
        (Some(1), Some(0), Some(1), Some(1))
    );
    assert_eq!(snapshot.attributes.len(), 147);
    assert_ne!(snapshot.uuid, platform.snapshot(0).unwrap().uuid);
    assert_eq!(
        platform.snapshot(2).unwrap_err().status,
        Status::INVALID_DEVICE
    );
}

/// A graph with a loop of this many empty nodes.
fn endless(gpu: &mut Gpu, nodes: u32) -> paragpu_device::GraphId {
    let repeat = Conditional {
        condition: 7,
        kind: ConditionalKind::While,
        value: 1,
        assigns: true,
        bodies: vec![nodes],
    };
    let mut all = vec![GraphNode {
        work: Work::Conditional(repeat),
        after: Vec::new(),
    }];
    all.resize_with(1 + nodes as usize, || GraphNode {
        work: Work::Empty,
        after: Vec::new(),
    });
    gpu.device.graph_create(all).unwrap()
}

#[test]
fn a_loop_without_an_end_keeps_nobody_else_waiting() {
    for nodes in [0, 3] {
        let mut gpu = Gpu::new();
        let base = gpu.arena;
        let graph = endless(&mut gpu, nodes);
        let (looping, other) = (
            gpu.device.stream_create(1, 0).unwrap(),
            gpu.device.stream_create(1, 0).unwrap(),
        );
        gpu.device.graph_launch(graph, looping).unwrap();
        gpu.device.memset(base, 0, 5, 4, 1, 1, other).unwrap();
        settle(gpu.device.as_mut(), other).unwrap();
        assert!(!gpu.device.stream_query(looping).unwrap());
        // Ends with the device.
    }
}

#[test]
fn kernels_end_loops() {
    let mut gpu = Gpu::new();
    let text = module(
        ".extern .func cudaGraphSetConditional(.param .b64 h, .param .b32 v);
.visible .entry k(.param .u64 data, .param .u64 condition) {
.reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<2>;
ld.param.u64 %rd1, [data]; ld.param.u64 %rd2, [condition]; ld.global.u32 %r1, [%rd1];
add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1; setp.lt.u32 %p1, %r1, 1000; selp.u32 %r2, 1, 0, %p1;
{ .param .b64 a; st.param.b64 [a], %rd2; .param .b32 b; st.param.b32 [b], %r2;
call.uni cudaGraphSetConditional, (a, b); }
ret; }",
    );
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    let launch = |condition| {
        let parameters = crate::common::pack(&f, &[Arg::P(base), Arg::P(condition)]);
        Work::Launch(Launch::of_one_thread(f.id, parameters))
    };
    let repeat = Conditional {
        condition: 0x1234,
        kind: ConditionalKind::While,
        value: 1,
        assigns: true,
        bodies: vec![1],
    };
    let node = |work, after: &[u32]| GraphNode {
        work,
        after: after.iter().copied().map(Into::into).collect(),
    };
    // Setting a value that no graph has, has no effect.
    let nodes = vec![
        node(launch(0x99), &[]),
        node(Work::Conditional(repeat), &[0]),
        node(launch(0x1234), &[]),
    ];
    gpu.put32(0, &[0]);
    let graph = gpu.device.graph_create(nodes).unwrap();
    gpu.device.graph_launch(graph, STREAM).unwrap();
    settle(gpu.device.as_mut(), STREAM).unwrap();
    assert_eq!(gpu.get32(0, 1), [1000]);
    gpu.device.graph_launch(graph, STREAM).unwrap();
    settle(gpu.device.as_mut(), STREAM).unwrap();
    assert_eq!(gpu.get32(0, 1), [1002], "it begins with its value again");
    gpu.device.graph_destroy(graph).unwrap();
}
