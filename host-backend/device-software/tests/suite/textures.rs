//! Cube maps, gradients, levels, and surfaces of every shape, in PTX as nvcc writes it.

use crate::common::{Arg, Gpu, STREAM, module};
use paragpu_device::conformance::settle;
use paragpu_device::{ArrayId, CopyEnd, TextureId, TextureResource};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{ArrayShape, LevelsLayers, LinearResource, ResourceView, Sampling};

const LAYERED: u32 = 1;
const SURFACE: u32 = 2;
const CUBEMAP: u32 = 4;
const NORMALIZED: u32 = 2;

fn shape(extent: [u64; 3], flags: u32, levels: u32) -> ArrayShape {
    ArrayShape {
        width: extent[0],
        height: extent[1],
        depth: extent[2],
        format: 0x20,
        channels: 1,
        flags,
        levels,
    }
}

fn sampling(filter: u32, levels: f32) -> Sampling {
    Sampling {
        // Wrapping, which must not apply to the faces of a cube.
        address_modes: [0; 3],
        filter,
        flags: NORMALIZED,
        mipmap_max: levels,
        ..Sampling::NEAREST
    }
}

/// Copies words from the start of device memory into a level of an array.
fn fill(gpu: &mut Gpu, array: ArrayId, level: u32, extent: [u64; 3], texels: &[f32]) {
    let words: Vec<u32> = texels.iter().map(|v| v.to_bits()).collect();
    gpu.put32(0, &words);
    let to = CopyEnd::Array {
        array,
        level,
        origin: [0; 3],
    };
    let from = CopyEnd::Linear {
        address: gpu.arena,
        pitch: extent[0] * 4,
        rows: extent[1],
    };
    let bytes = [extent[0] * 4, extent[1], extent[2]];
    gpu.device.copy_rect(to, from, bytes, STREAM).unwrap();
    settle(gpu.device.as_mut(), STREAM).unwrap();
}

/// Runs `read`, which computes `%f0` from `%f1` to `%f8` and the texture `%rd1`, for each
/// row of `points`.
fn read(gpu: &mut Gpu, texture: u64, read: &str, points: &[[f32; 8]]) -> Vec<f32> {
    let text = module(&format!(
        ".visible .entry k(.param .u64 tex, .param .u64 in, .param .u64 out) {{ .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<16>;
ld.param.u64 %rd1, [tex]; ld.param.u64 %rd2, [in]; ld.param.u64 %rd3, [out]; mov.u32 %r1, %tid.x;
mad.wide.u32 %rd4, %r1, 32, %rd2; ld.global.v4.f32 {{%f1, %f2, %f3, %f4}}, [%rd4]; ld.global.v4.f32 {{%f5, %f6, %f7, %f8}}, [%rd4+16];
cvt.rzi.u32.f32 %r2, %f4;
{read}
mad.wide.u32 %rd4, %r1, 4, %rd3; st.global.f32 [%rd4], %f0; ret; }}"
    ));
    let f = gpu.kernel(&text, "k");
    let words: Vec<u32> = points.iter().flatten().map(|v| v.to_bits()).collect();
    gpu.put32(0x10000, &words);
    let base = gpu.arena;
    let arguments = [
        Arg::P(texture),
        Arg::P(base + 0x10000),
        Arg::P(base + 0x20000),
    ];
    let threads = points.len() as u32;
    gpu.launch(&f, [1, 1, 1], [threads, 1, 1], &arguments)
        .unwrap();
    let words = gpu.get32(0x20000, points.len());
    words.into_iter().map(f32::from_bits).collect()
}

fn point(x: f32, y: f32, z: f32, w: f32) -> [f32; 8] {
    [x, y, z, w, 0.0, 0.0, 0.0, 0.0]
}

#[test]
fn cube_maps_are_read_by_direction() {
    let mut gpu = Gpu::new();
    // Two cubes; a texel is 100 * cube + 10 * face + 2 * row + column.
    let extent = [2, 2, 12];
    let array = gpu
        .device
        .array_create(&shape(extent, CUBEMAP | LAYERED, 0))
        .unwrap();
    let texels: Vec<f32> = (0..48)
        .map(|n| (n / 24 * 100 + n / 4 % 6 * 10 + n % 4) as f32)
        .collect();
    fill(&mut gpu, array, 0, extent, &texels);
    let resource = TextureResource::Array(array);
    let texture = gpu
        .device
        .texture_create(resource, &sampling(0, 0.0), None)
        .unwrap();
    let acube = "tex.acube.v4.f32.f32 {%f0, %f9, %f10, %f11}, [%rd1, {%r2, %f1, %f2, %f3}];";
    let h = 0.5;
    let directions = [
        // The axis of each face, with both other coordinates positive, as in the
        // programming guide's table.
        (point(1.0, h, h, 0.0), 0.0),
        (point(-1.0, h, h, 0.0), 11.0),
        (point(h, 1.0, h, 0.0), 23.0),
        (point(h, -1.0, h, 0.0), 31.0),
        (point(h, h, 1.0, 0.0), 41.0),
        (point(h, h, -1.0, 0.0), 50.0),
        (point(8.0, -4.0, -4.0, 1.0), 103.0),
        (point(-h, -h, -4.0, 1.0), 153.0),
    ];
    let points: Vec<[f32; 8]> = directions.iter().map(|d| d.0).collect();
    let want: Vec<f32> = directions.iter().map(|d| d.1).collect();
    assert_eq!(read(&mut gpu, texture.0, acube, &points), want);
    // A single cube, with filtering: the middle of a face is the mean of its texels, an
    // edge stays within it.
    let extent = [2, 2, 6];
    let array = gpu.device.array_create(&shape(extent, CUBEMAP, 0)).unwrap();
    fill(&mut gpu, array, 0, extent, &texels[..24]);
    let texture = gpu
        .device
        .texture_create(TextureResource::Array(array), &sampling(1, 0.0), None)
        .unwrap();
    let cube =
        "tex.level.cube.v4.f32.f32 {%f0, %f9, %f10, %f11}, [%rd1, {%f1, %f2, %f3, %f3}], %f4;";
    let points = [
        point(1.0, 0.0, 0.0, 0.0),
        point(0.0, 0.0, -3.0, 0.0),
        point(1.0, 0.0, 1.0, 0.0),
    ];
    assert_eq!(read(&mut gpu, texture.0, cube, &points), [1.5, 51.5, 1.0]);
    // Faces that are not square, or not six faces.
    for extent in [[2, 4, 6], [2, 2, 5], [2, 2, 12]] {
        let error = gpu.device.array_create(&shape(extent, CUBEMAP, 0));
        assert_eq!(error.unwrap_err().status, Status::INVALID_VALUE);
    }
}

/// A texture of square levels, the smallest of one texel; `texel` has a level's nth.
fn mipmapped(gpu: &mut Gpu, levels: u32, texel: impl Fn(u32, u64) -> f32) -> TextureId {
    let edge = 1u64 << (levels - 1);
    let array = gpu
        .device
        .array_create(&shape([edge, edge, 0], 0, levels))
        .unwrap();
    for level in 0..levels {
        let size = edge >> level;
        let texels: Vec<f32> = (0..size * size).map(|n| texel(level, n)).collect();
        fill(gpu, array, level, [size, size, 1], &texels);
    }
    gpu.device
        .texture_create(TextureResource::Array(array), &sampling(0, 8.0), None)
        .unwrap()
}

#[test]
fn gradients_choose_the_level() {
    let mut gpu = Gpu::new();
    let texture = mipmapped(&mut gpu, 4, |level, _| level as f32);
    let grad = "tex.grad.2d.v4.f32.f32 {%f0, %f9, %f10, %f11}, [%rd1, {%f1, %f2}], {%f5, %f6}, {%f7, %f8};";
    // A step of 1/8 is one texel of level 0; the longer direction counts.
    let with = |a: f32, b: f32, c: f32, d: f32| [h(), h(), 0.0, 0.0, a, b, c, d];
    let points = [
        with(0.125, 0.0, 0.0, 0.125),
        with(0.25, 0.0, 0.0, 0.0),
        with(0.0, 0.0, 0.3, 0.4),
        with(2.0, 0.0, 0.0, 0.0),
        with(0.0, 0.0, 0.0, 0.0),
    ];
    assert_eq!(
        read(&mut gpu, texture.0, grad, &points),
        [0.0, 1.0, 2.0, 3.0, 0.0]
    );
    // All of a texture is resident, also beside its edges; the guard may be the result.
    for read_resident in [
        "tex.2d.v4.f32.f32 {%f9, %f10, %f11, %f12}|%p, [%rd1, {%f1, %f2}];",
        "tex.level.2d.v4.f32.f32 {%f9, %f10, %f11, %f12}|%p, [%rd1, {%f1, %f2}], %f3;",
        "tex.grad.2d.v4.f32.f32 {%f9, %f10, %f11, %f12}|%p, [%rd1, {%f1, %f2}], {%f5, %f6}, {%f7, %f8};",
        "tld4.r.2d.v4.f32.f32 {%f9, %f10, %f11, %f12}|%p, [%rd1, {%f1, %f2}];",
        "setp.eq.f32 %p, %f3, 0f00000000; @%p tex.2d.v4.f32.f32 {%f9, %f10, %f11, %f12}|%p, [%rd1, {%f1, %f2}];",
    ] {
        let text = format!(
            ".reg .pred %p; {read_resident} selp.f32 %f0, 0f41200000, 0f00000000, %p; add.f32 %f0, %f0, %f9;"
        );
        let points = [point(h(), h(), 0.0, 0.0), point(-7.0, 9.0, 0.0, 0.0)];
        assert_eq!(
            read(&mut gpu, texture.0, &text, &points),
            [10.0; 2],
            "{text}"
        );
    }
}

#[test]
fn gradients_of_a_direction_choose_the_level_of_a_cube() {
    let mut gpu = Gpu::new();
    for (flags, cubes) in [(CUBEMAP, 1), (CUBEMAP | LAYERED, 2)] {
        let array = gpu
            .device
            .array_create(&shape([8, 8, 6 * cubes], flags, 4))
            .unwrap();
        // A texel has the number of its level, and 10 in the second cube.
        for level in 0..4 {
            let edge = 8u64 >> level;
            let cube = |n: u64| (n / (edge * edge * 6) * 10) as f32;
            let texels = (0..edge * edge * 6 * cubes).map(|n| level as f32 + cube(n));
            fill(
                &mut gpu,
                array,
                level,
                [edge, edge, 6 * cubes],
                &texels.collect::<Vec<_>>(),
            );
        }
        let resource = TextureResource::Array(array);
        let texture = gpu
            .device
            .texture_create(resource, &sampling(0, 8.0), None)
            .unwrap();
        let at = match cubes {
            1 => "cube.v4.f32.f32 {%f0, %f9, %f10, %f11}, [%rd1, {%f1, %f2, %f3, %f3}]",
            _ => "acube.v4.f32.f32 {%f0, %f9, %f10, %f11}, [%rd1, {%r2, %f1, %f2, %f3}]",
        };
        let grad = format!("tex.grad.{at}, {{%f8, %f8, %f8, %f8}}, {{%f5, %f6, %f7, %f7}};");
        let layer = (cubes - 1) as f32;
        let with = |direction: [f32; 3], change: [f32; 3]| {
            let ([x, y, z], [dx, dy, dz]) = (direction, change);
            [x, y, z, layer, dx, dy, dz, 0.0]
        };
        // The face of (1, 0, 0) is 2 long and has 8 texels; seen from (0, 0, -2), 4 long.
        let cases = [
            (with([1.0, 0.0, 0.0], [0.0, 0.0, 0.25]), 0.0),
            (with([1.0, 0.0, 0.0], [0.0, -0.5, 0.0]), 1.0),
            (with([1.0, 0.0, 0.0], [0.0, 0.6, 0.8]), 2.0),
            (with([0.0, 0.0, -2.0], [2.0, 0.0, 0.0]), 2.0),
            (with([0.0, -1.0, 0.0], [2.0, 0.0, 0.0]), 3.0),
            // Along the direction itself nothing changes; towards an edge it does.
            (with([1.0, 0.0, 0.0], [5.0, 0.0, 0.0]), 0.0),
            (with([1.0, 0.5, 0.0], [1.0, 0.5, 0.0]), 0.0),
            (with([1.0, 0.5, 0.0], [2.0, 0.0, 0.0]), 2.0),
        ];
        let points: Vec<[f32; 8]> = cases.iter().map(|case| case.0).collect();
        let want: Vec<f32> = cases.iter().map(|case| case.1 + 10.0 * layer).collect();
        assert_eq!(read(&mut gpu, texture.0, &grad, &points), want);
    }
}

#[test]
fn four_texels_of_layers_and_faces_are_gathered() {
    let mut gpu = Gpu::new();
    let digits = "mad.f32 %f0, %f0, 0f41200000, %f9; mad.f32 %f0, %f0, 0f41200000, %f10; mad.f32 %f0, %f0, 0f41200000, %f11;"
        .replace("mad.f32", "fma.rn.f32");
    let mut gathered = |flags: u32, layers: u64, geometry: &str, points: &[[f32; 8]]| {
        let extent = [2, 2, layers];
        let array = gpu.device.array_create(&shape(extent, flags, 0)).unwrap();
        let texels: Vec<f32> = (0..4 * layers).map(|n| (n % 8) as f32).collect();
        fill(&mut gpu, array, 0, extent, &texels);
        let resource = TextureResource::Array(array);
        let texture = gpu
            .device
            .texture_create(resource, &sampling(1, 0.0), None)
            .unwrap();
        let text = format!("tld4.r.{geometry}; {digits}");
        read(&mut gpu, texture.0, &text, points)
    };
    let layers = "a2d.v4.f32.f32 {%f0, %f9, %f10, %f11}, [%rd1, {%r2, %f1, %f2, %f2}]";
    let points = [point(h(), h(), 0.0, 0.0), point(h(), h(), 0.0, 1.0)];
    let found = gathered(LAYERED, 2, layers, &points);
    assert_eq!(found, [2310.0, 6754.0]);
    let faces = "cube.v4.f32.f32 {%f0, %f9, %f10, %f11}, [%rd1, {%f1, %f2, %f3, %f3}]";
    let points = [point(0.0, 0.0, 3.0, 0.0), point(-1.0, 0.0, 0.0, 0.0)];
    let found = gathered(CUBEMAP, 6, faces, &points);
    assert_eq!(found, [2310.0, 6754.0]);
}

#[test]
fn textures_and_surfaces_tell_their_sizes() {
    let mut gpu = Gpu::new();
    let texture = mipmapped(&mut gpu, 4, |_, _| 0.0);
    for (query, want) in [
        ("txq.width.b32 %r3, [%rd1]", 8.0),
        ("txq.height.b32 %r3, [%rd1]", 8.0),
        ("txq.num_mipmap_levels.b32 %r3, [%rd1]", 4.0),
        ("txq.normalized_coords.b32 %r3, [%rd1]", 1.0),
        ("txq.array_size.b32 %r3, [%rd1]", 1.0),
        ("txq.level.width.b32 %r3, [%rd1], %r2", 2.0),
    ] {
        let text = format!("{query}; cvt.rn.f32.u32 %f0, %r3;");
        let level = [point(0.0, 0.0, 0.0, 2.0)];
        assert_eq!(read(&mut gpu, texture.0, &text, &level), [want], "{query}");
    }
    let of_words = linear(&mut gpu, 0, 100).unwrap();
    let text = "txq.width.b32 %r3, [%rd1]; cvt.rn.f32.u32 %f0, %r3;";
    let any = [point(0.0, 0.0, 0.0, 0.0)];
    assert_eq!(read(&mut gpu, of_words.0, text, &any), [100.0]);
    let all = "suq.width.b32 %r0, [%rd1]; suq.height.b32 %r1, [%rd1]; suq.depth.b32 %r2, [%rd1]; suq.array_size.b32 %r3, [%rd1];";
    let volume = surface(&mut gpu, [4, 5, 6], 0, all);
    assert_eq!(volume.unwrap(), [4, 5, 6, 1]);
    let layers = surface(&mut gpu, [4, 5, 3], LAYERED, all).unwrap();
    assert_eq!([layers[0], layers[1], layers[3]], [4, 5, 3]);
}

#[test]
fn integer_coordinates_have_integer_levels() {
    let mut gpu = Gpu::new();
    let texture = mipmapped(&mut gpu, 3, |level, n| (100 * u64::from(level) + n) as f32);
    let texel = "cvt.rzi.s32.f32 %r3, %f1; cvt.rzi.s32.f32 %r4, %f2; cvt.rzi.s32.f32 %r5, %f3;
tex.level.2d.v4.f32.s32 {%f0, %f9, %f10, %f11}, [%rd1, {%r3, %r4}], %r5;";
    let points = [
        point(3.0, 2.0, 0.0, 0.0),
        point(1.0, 1.0, 1.0, 0.0),
        point(0.0, 0.0, 2.0, 0.0),
        // Outside the level.
        point(2.0, 0.0, 1.0, 0.0),
        // The nearest level that exists.
        point(0.0, 0.0, 7.0, 0.0),
        point(1.0, 0.0, -1.0, 0.0),
    ];
    let want = [11.0, 103.0, 200.0, 0.0, 200.0, 1.0];
    assert_eq!(read(&mut gpu, texture.0, texel, &points), want);
    let constant =
        "mov.u32 %r3, 1; tex.level.2d.v4.f32.s32 {%f0, %f9, %f10, %f11}, [%rd1, {%r3, %r3}], 1;";
    assert_eq!(read(&mut gpu, texture.0, constant, &points[..1]), [103.0]);
}

#[test]
fn views_of_all_of_an_array_are_served() {
    let view = |format: u32, extent: [u64; 3], last_level: u32, last_layer: u32| ResourceView {
        format,
        extent,
        levels_layers: LevelsLayers {
            first_level: 0,
            last_level,
            first_layer: 0,
            last_layer,
        },
    };
    // CU_RES_VIEW_FORMAT_FLOAT_1X32, _UINT_1X32.
    let (float, word) = (0x16, 0x0d);
    let plain = shape([8, 4, 0], 0, 0);
    let levels = shape([8, 4, 0], 0, 4);
    let layers = shape([8, 4, 3], LAYERED, 0);
    let bytes = ArrayShape {
        format: 1,
        channels: 4,
        ..plain
    };
    let part = ResourceView {
        levels_layers: LevelsLayers {
            first_level: 1,
            last_level: 3,
            first_layer: 0,
            last_layer: 0,
        },
        ..view(float, [8, 4, 0], 3, 0)
    };
    let mut gpu = Gpu::new();
    for (shape, view, allowed) in [
        (plain, view(float, [8, 4, 0], 0, 0), true),
        (plain, view(0, [8, 4, 0], 0, 0), true),
        (plain, view(word, [8, 4, 0], 0, 0), false),
        (plain, view(float, [4, 4, 0], 0, 0), false),
        (plain, view(float, [8, 4, 0], 1, 0), false),
        (levels, view(float, [8, 4, 0], 3, 0), true),
        (levels, view(float, [8, 4, 0], 2, 0), false),
        (levels, part, false),
        (layers, view(float, [8, 4, 3], 0, 2), true),
        (layers, view(float, [8, 4, 3], 0, 1), false),
        // CU_RES_VIEW_FORMAT_UINT_4X8, _UINT_2X8.
        (bytes, view(0x03, [8, 4, 0], 0, 0), true),
        (bytes, view(0x02, [8, 4, 0], 0, 0), false),
    ] {
        let array = gpu.device.array_create(&shape).unwrap();
        let resource = TextureResource::Array(array);
        let made = gpu
            .device
            .texture_create(resource, &sampling(0, 0.0), Some(&view));
        let want = match allowed {
            true => None,
            false => Some(Status::NOT_SUPPORTED),
        };
        assert_eq!(made.err().map(|e| e.status), want, "{shape:?} {view:?}");
    }
}

#[test]
fn normalized_elements_are_read_as_floats() {
    // Formats, channels and the bits of each, from the lowest; whether they are signed.
    let formats: [(u32, &[u32], bool); 13] = [
        (0x50, &[10, 10, 10, 2], false),
        (0xc0, &[8], false),
        (0xc1, &[8; 2], false),
        (0xc2, &[8; 4], false),
        (0xc3, &[16], false),
        (0xc4, &[16; 2], false),
        (0xc5, &[16; 4], false),
        (0xc6, &[8], true),
        (0xc7, &[8; 2], true),
        (0xc8, &[8; 4], true),
        (0xc9, &[16], true),
        (0xca, &[16; 2], true),
        (0xcb, &[16; 4], true),
    ];
    const WIDTH: u64 = 16;
    let mut gpu = Gpu::new();
    let text = module(
        ".visible .entry k(.param .u64 t, .param .u64 out) { .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<8>;
ld.param.u64 %rd1,[t]; ld.param.u64 %rd2,[out]; mov.u32 %r1,%tid.x; mad.wide.u32 %rd2,%r1,16,%rd2;
tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4},[%rd1,{%r1}]; st.global.v4.f32 [%rd2],{%f1,%f2,%f3,%f4}; ret; }",
    );
    let kernel = gpu.kernel(&text, "k");
    let mut words = vec![
        0,
        u32::MAX,
        0x8000_8000,
        0x7f7f_7fff,
        0x8080_8080,
        0x4001_7f81,
    ];
    words.extend((6..32_u32).map(|n| n.wrapping_mul(0x9e37_79b9)));
    for (format, widths, signed) in formats {
        let bits = widths.iter().sum::<u32>();
        let element = u64::from(bits / 8);
        let row = ArrayShape {
            format,
            channels: widths.len() as u32,
            ..shape([WIDTH, 0, 0], 0, 0)
        };
        let wrong = ArrayShape { channels: 3, ..row };
        let refused = gpu.device.array_create(&wrong).unwrap_err();
        assert_eq!(refused.status, Status::INVALID_VALUE);
        let array = gpu.device.array_create(&row).unwrap();
        gpu.put32(0, &words);
        let to = CopyEnd::Array {
            array,
            level: 0,
            origin: [0; 3],
        };
        let from = CopyEnd::Linear {
            address: gpu.arena,
            pitch: WIDTH * element,
            rows: 1,
        };
        let bytes = [WIDTH * element, 1, 1];
        gpu.device.copy_rect(to, from, bytes, STREAM).unwrap();
        // The read mode makes no difference: 1 is CU_TRSF_READ_AS_INTEGER.
        let mut how = sampling(0, 0.0);
        how.flags = 1;
        let resource = TextureResource::Array(array);
        let texture = gpu.device.texture_create(resource, &how, None).unwrap();
        let out = 0x1000;
        let args = [Arg::P(texture.0), Arg::P(gpu.arena + out)];
        gpu.launch(&kernel, [1; 3], [WIDTH as u32, 1, 1], &args)
            .unwrap();
        let found = gpu.get32(out, 4 * WIDTH as usize);
        let bit = |at: u64| u64::from(words[(at / 32) as usize] >> (at % 32) & 1);
        for x in 0..WIDTH {
            let mut at = x * element * 8;
            for n in 0..4 {
                let want = widths.get(n).map_or(0.0, |&width| {
                    let width = u64::from(width);
                    let value = (0..width).map(|k| bit(at + k) << k).sum::<u64>() as f32;
                    at += width;
                    let greatest = ((1_u64 << (width - u64::from(signed))) - 1) as f32;
                    match signed && value > greatest {
                        true => ((value - 2.0 * (greatest + 1.0)) / greatest).max(-1.0),
                        false => value / greatest,
                    }
                });
                let got = f32::from_bits(found[4 * x as usize + n]);
                assert_eq!(got, want, "format {format:#x}, element {x}, channel {n}");
            }
        }
    }
}

/// A texture of so many words from `offset` on.
fn linear(gpu: &mut Gpu, offset: u64, words: u64) -> Result<TextureId, Status> {
    let of = LinearResource {
        address: gpu.arena + offset,
        format: 0x20,
        channels: 1,
        width: 4 * words,
        height: 0,
        pitch: 0,
    };
    let resource = TextureResource::Linear(of);
    let made = gpu.device.texture_create(resource, &sampling(0, 0.0), None);
    made.map_err(|error| error.status)
}

#[test]
fn linear_memory_may_be_declared_longer_than_it_is() {
    let mut gpu = Gpu::new();
    let mapped = 16 * CHUNK;
    let last = mapped - 4;
    gpu.put32(last, &[7]);
    let texture = linear(&mut gpu, last, 1 << 28).unwrap();
    let text = module(
        ".visible .entry k(.param .u64 t, .param .u64 out, .param .u32 at) { .reg .b32 %r<8>; .reg .b64 %rd<4>;
ld.param.u64 %rd1,[t]; ld.param.u64 %rd2,[out]; ld.param.u32 %r1,[at];
tex.1d.v4.u32.s32 {%r2,%r3,%r4,%r5},[%rd1,{%r1}]; st.global.u32 [%rd2],%r2; ret; }",
    );
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    let read = |gpu: &mut Gpu, at: u32| {
        let args = [Arg::P(texture.0), Arg::P(base), Arg::W(at)];
        gpu.launch(&f, [1; 3], [1; 3], &args).map_err(|e| e.status)
    };
    read(&mut gpu, 0).unwrap();
    assert_eq!(gpu.get32(0, 1), [7]);
    for (offset, words) in [(mapped, 1), (last, (1 << 28) + 1), (last, 0), (last - 1, 1)] {
        let refused = linear(&mut gpu, offset, words).unwrap_err();
        assert_eq!(refused, Status::INVALID_VALUE, "{words} at {offset:#x}");
    }
    assert_eq!(read(&mut gpu, 1).unwrap_err(), Status::LAUNCH_FAILED);
}

fn h() -> f32 {
    0.5
}

/// A kernel of one thread that stores and loads on surface `%rd1` and writes `%r0`… to `[%rd2]`.
fn surface(gpu: &mut Gpu, extent: [u64; 3], flags: u32, body: &str) -> Result<Vec<u32>, Status> {
    let array = gpu
        .device
        .array_create(&shape(extent, flags | SURFACE, 0))
        .unwrap();
    let surface = gpu.device.surface_create(array, 0).unwrap();
    let text = module(&format!(
        ".visible .entry k(.param .u64 s, .param .u64 out) {{ .reg .b16 %rs<8>; .reg .b32 %r<16>; .reg .b64 %rd<8>;
ld.param.u64 %rd1, [s]; ld.param.u64 %rd2, [out]; mov.u32 %r8, 8; mov.u32 %r9, 1; mov.u32 %r10, -4; mov.u32 %r11, 0x11223344; mov.u32 %r12, 0x55667788;
mov.u16 %rs1, 0xabcd; mov.u32 %r13, 2; mov.u32 %r14, 0; mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;
{body}
st.global.v4.u32 [%rd2], {{%r0, %r1, %r2, %r3}}; ret; }}"
    ));
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.launch(&f, [1, 1, 1], [1, 1, 1], &[Arg::P(surface.0), Arg::P(base)])
        .map_err(|e| e.status)?;
    Ok(gpu.get32(0, 4))
}

#[test]
fn surfaces_of_every_shape() {
    let mut gpu = Gpu::new();
    let (a, b) = (0x1122_3344, 0x5566_7788);
    let one = surface(
        &mut gpu,
        [8, 0, 0],
        0,
        "sust.b.1d.b32.trap [%rd1, {%r8}], {%r11}; suld.b.1d.b32.trap {%r0}, [%rd1, {%r8}];
sust.b.1d.b16.trap [%rd1, {%r8}], {%rs1}; suld.b.1d.b32.trap {%r1}, [%rd1, {%r8}]; suld.b.1d.b8.trap {%rs2}, [%rd1, {%r8}]; cvt.u32.u16 %r2, %rs2;",
    );
    assert_eq!(one.unwrap(), [a, 0x1122_abcd, 0xcd, 0]);
    let two = surface(
        &mut gpu,
        [8, 4, 0],
        0,
        "sust.b.2d.v2.b32.clamp [%rd1, {%r8, %r9}], {%r11, %r12}; suld.b.2d.v2.b32.trap {%r0, %r1}, [%rd1, {%r8, %r9}];
sust.b.2d.b32.clamp [%rd1, {%r10, %r10}], {%r12}; suld.b.2d.b32.zero {%r2}, [%rd1, {%r14, %r14}]; suld.b.2d.b32.zero {%r3}, [%rd1, {%r10, %r9}];",
    );
    assert_eq!(two.unwrap(), [a, b, b, 0]);
    let three = surface(
        &mut gpu,
        [4, 4, 4],
        0,
        "sust.b.3d.b32.zero [%rd1, {%r8, %r9, %r13, %r13}], {%r11}; suld.b.3d.b32.trap {%r0}, [%rd1, {%r8, %r9, %r13, %r13}];
sust.b.3d.b32.zero [%rd1, {%r8, %r9, %r8, %r8}], {%r12}; suld.b.3d.b32.clamp {%r1}, [%rd1, {%r8, %r9, %r8, %r8}];",
    );
    assert_eq!(three.unwrap(), [a, 0, 0, 0]);
    let layers = surface(
        &mut gpu,
        [4, 4, 4],
        LAYERED,
        "sust.b.a2d.b32.trap [%rd1, {%r13, %r8, %r9, %r9}], {%r11}; suld.b.a2d.b32.trap {%r0}, [%rd1, {%r13, %r8, %r9, %r9}];
suld.b.a2d.b32.trap {%r1}, [%rd1, {%r9, %r8, %r9, %r9}];",
    );
    assert_eq!(layers.unwrap(), [a, 0, 0, 0]);
    let cube = surface(
        &mut gpu,
        [4, 4, 6],
        CUBEMAP,
        "mov.u32 %r15, 5; sust.b.a2d.b32.trap [%rd1, {%r15, %r8, %r9, %r9}], {%r11}; suld.b.a2d.b32.trap {%r0}, [%rd1, {%r15, %r8, %r9, %r9}];",
    );
    assert_eq!(cube.unwrap(), [a, 0, 0, 0]);
    let outside = surface(
        &mut gpu,
        [4, 4, 0],
        0,
        "sust.b.2d.b32.trap [%rd1, {%r10, %r9}], {%r11};",
    );
    assert_eq!(outside.unwrap_err(), Status::LAUNCH_FAILED);
}
