//! `mma` of floats of 4, 6 and 8 bits with and without factors of blocks; `ldmatrix` of packed
//! elements.

use crate::common::{Arg, Gpu, module};

/// Elements: how many bits, where they are in their container and its bits, fraction bits,
/// exponent bias.
type Format = (u32, u32, u32, i32);

const E2M1: Format = (4, 0, 1, 1);
const E2M1_PADDED: Format = (8, 2, 1, 1);
const E2M3: Format = (8, 0, 3, 1);
const E3M2: Format = (8, 0, 2, 3);
const E4M3: Format = (8, 0, 3, 7);

fn bits_of(format: Format) -> u32 {
    match format {
        E4M3 => 8,
        E2M3 | E3M2 => 6,
        _ => 4,
    }
}

/// The value of a container.
fn value((_, shift, fraction, bias): Format, bits: u32, container: u32) -> f64 {
    let element = container >> shift & ((1 << bits) - 1);
    let exponent = (element >> fraction & ((1 << (bits - 1 - fraction)) - 1)) as i32;
    let low = f64::from(element & ((1 << fraction) - 1)) / f64::from(1 << fraction);
    let magnitude = match exponent {
        0 => low * 2f64.powi(1 - bias),
        exponent => (1.0 + low) * 2f64.powi(exponent - bias),
    };
    match element >> (bits - 1) {
        0 => magnitude,
        _ => -magnitude,
    }
}

fn random(seed: &mut u32) -> u32 {
    *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *seed >> 7
}

/// Words of four a lane: A, B in the first two, C; the factors of A and B.
struct Input {
    a: Vec<u32>,
    b: Vec<u32>,
    c: Vec<u32>,
    factors: [Vec<u32>; 2],
}

fn run(gpu: &mut Gpu, opcode: &str, tail: &str, input: &Input) -> Vec<f32> {
    for (n, words) in [
        &input.a,
        &input.b,
        &input.c,
        &input.factors[0],
        &input.factors[1],
    ]
    .into_iter()
    .enumerate()
    {
        gpu.put32(0x1000 * n as u64, words);
    }
    let text = module(&format!(
        ".visible .entry k(.param .u64 p) {{ .reg .b32 %r<32>; .reg .b64 %rd<4>; .reg .f32 %f<8>; .reg .b16 %rs<4>;
ld.param.u64 %rd0, [p]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 16, %rd0; mad.wide.u32 %rd2, %r0, 4, %rd0;
ld.global.v4.b32 {{%r1,%r2,%r3,%r4}}, [%rd1]; ld.global.v2.b32 {{%r5,%r6}}, [%rd1+0x1000];
ld.global.v4.f32 {{%f0,%f1,%f2,%f3}}, [%rd1+0x2000]; ld.global.b32 %r7, [%rd2+0x3000]; ld.global.b32 %r8, [%rd2+0x4000];
mov.b16 %rs0, 1; mov.b16 %rs1, 2;
mma.sync.aligned.{opcode} {{%f0,%f1,%f2,%f3}}, {{%r1,%r2,%r3,%r4}}, {{%r5,%r6}}, {{%f0,%f1,%f2,%f3}}{tail};
st.global.v4.f32 [%rd1+0x5000], {{%f0,%f1,%f2,%f3}}; ret; }}"
    ));
    let f = gpu.kernel(&text, "k");
    gpu.launch(&f, [1, 1, 1], [32, 1, 1], &[Arg::P(gpu.arena)])
        .unwrap();
    gpu.get32(0x5000, 128)
        .into_iter()
        .map(f32::from_bits)
        .collect()
}

/// Multiplies the same in double precision; `factor` is that of a row of A (0) or a column
/// of B (1), and of a place in K.
fn expected(
    input: &Input,
    [a, b]: [Format; 2],
    factor: impl Fn(usize, usize, usize) -> f64,
) -> Vec<f64> {
    let each = (32 / a.0) as usize;
    let depth = 16 * 8 / a.0 as usize * 2;
    let element = |words: &[u32], format: Format, word: usize, part: usize| {
        let container = words[word] >> (part as u32 * format.0) & (u32::MAX >> (32 - format.0));
        value(format, bits_of(format), container)
    };
    let mut out = Vec::new();
    for lane in 0..32 {
        for i in 0..4 {
            let (row, column) = (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2);
            let mut sum = f64::from(f32::from_bits(input.c[lane * 4 + i]));
            for k in 0..depth {
                let (half, thread, part) = (k / (depth / 2), k % (depth / 2) / each, k % each);
                let of_a = (row % 8 * 4 + thread) * 4 + row / 8 + 2 * half;
                let of_b = (column * 4 + thread) * 4 + half;
                let product = element(&input.a, a, of_a, part) * element(&input.b, b, of_b, part);
                sum += product * factor(0, row, k) * factor(1, column, k);
            }
            out.push(sum);
        }
    }
    out
}

fn input(formats: [Format; 2], factor: impl Fn(u32) -> u32) -> Input {
    let mut seed = 5;
    let mut words = |format: Format| {
        let container = |seed: &mut u32| match format {
            // No NaN.
            E4M3 => random(seed) & 0xf7,
            format => (random(seed) & ((1 << bits_of(format)) - 1)) << format.1,
        };
        let mut word =
            || (0..32 / format.0).fold(0, |w, n| w | container(&mut seed) << (n * format.0));
        (0..128).map(|_| word()).collect::<Vec<u32>>()
    };
    let (a, b) = (words(formats[0]), words(formats[1]));
    let c = (0..128).map(|n| (n as f32 - 60.0).to_bits()).collect();
    let mut seed = 9;
    let mut word = || (0..4).fold(0, |w, n| w | factor(random(&mut seed)) << (8 * n));
    let factors = [0, 1].map(|_| (0..32).map(|_| word()).collect());
    Input { a, b, c, factors }
}

fn close(got: &[f32], want: &[f64], what: &str) {
    for (n, (got, want)) in got.iter().zip(want).enumerate() {
        let room = want.abs().max(1.0) * 1e-5;
        assert!(
            (f64::from(*got) - want).abs() <= room,
            "{what}, element {n}: {got} is not {want}"
        );
    }
}

#[test]
fn narrow_floats_of_all_formats_multiply() {
    let mut gpu = Gpu::new();
    let named = [
        ("e4m3", E4M3),
        ("e2m1", E2M1_PADDED),
        ("e2m3", E2M3),
        ("e3m2", E3M2),
    ];
    for (a_name, a) in named {
        for (b_name, b) in named {
            let input = input([a, b], |n| n);
            let opcode = format!("m16n8k32.row.col.kind::f8f6f4.f32.{a_name}.{b_name}.f32");
            let got = run(&mut gpu, &opcode, "", &input);
            let want = expected(&input, [a, b], |_, _, _| 1.0);
            for (got, want) in got.iter().zip(&want) {
                // As for e4m3 on an H100, sums have fewer bits than single precision.
                assert!(
                    (f64::from(*got) - want).abs() <= 0.05 + want.abs() * 1e-3,
                    "{opcode}"
                );
            }
        }
    }
}

#[test]
fn blocks_have_factors() {
    let mut gpu = Gpu::new();
    let power = |byte: u32| 2f64.powi(byte as i32 - 127);
    let (lane_a, lane_b) = (
        |row: usize, pair: usize| row % 8 * 4 + 2 * pair + row / 8,
        |column: usize, thread: usize| column * 4 + thread,
    );
    let of = |input: &Input, which: usize, lane: usize, byte: usize| {
        input.factors[which][lane] >> (8 * byte) & 255
    };
    // One factor for all 32 elements: bytes and lanes by constants and by registers.
    let given = input([E4M3, E3M2], |n| 120 + n % 12);
    let opcode =
        "kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e3m2.f32.ue8m0";
    for (tail, a, b) in [
        (", %r7, {3, 1}, %r8, {2, 3}", (3, 1), (2, 3)),
        (", {%r7}, {%rs1, %rs0}, {%r8}, {%rs0, %rs1}", (2, 1), (1, 2)),
    ] {
        let got = run(&mut gpu, opcode, tail, &given);
        let want = expected(&given, [E4M3, E3M2], |which, at, _| {
            power(match which {
                0 => of(&given, 0, lane_a(at, a.1), a.0),
                _ => of(&given, 1, lane_b(at, b.1), b.0),
            })
        });
        close(&got, &want, tail);
    }
    // Two.
    let given = input([E2M1, E2M1], |n| 120 + n % 12);
    let opcode = "m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0";
    let got = run(&mut gpu, opcode, ", %r7, {2, 0}, %r8, {0, 1}", &given);
    let want = expected(&given, [E2M1, E2M1], |which, at, k| {
        power(match which {
            0 => of(&given, 0, lane_a(at, 0), 2 + k / 32),
            _ => of(&given, 1, lane_b(at, 1), k / 32),
        })
    });
    close(&got, &want, opcode);
    // Four, with fractions.
    let given = input([E2M1, E2M1], |n| 0x20 + n % 0x30);
    let opcode =
        "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3";
    let got = run(&mut gpu, opcode, ", %r7, {0, 1}, %r8, {0, 0}", &given);
    let want = expected(&given, [E2M1, E2M1], |which, at, k| {
        value(
            E4M3,
            8,
            match which {
                0 => of(&given, 0, lane_a(at, 1), k / 16),
                _ => of(&given, 1, lane_b(at, 0), k / 16),
            },
        )
    });
    close(&got, &want, opcode);
}

#[test]
fn matrices_of_packed_elements_get_a_byte_for_each() {
    let mut gpu = Gpu::new();
    let mut seed = 3;
    let rows: Vec<u32> = (0..16 * 4).map(|_| random(&mut seed)).collect();
    gpu.put32(0, &rows);
    for (bits, format) in [(4u32, "b4x16_p64"), (6, "b6x16_p32")] {
        let text = module(&format!(
            ".visible .entry k(.param .u64 p) {{ .reg .b32 %r<8>; .reg .b64 %rd<4>; .shared .align 16 .b8 s[512];
ld.param.u64 %rd0, [p]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 8, %rd0; ld.global.v2.b32 {{%r1,%r2}}, [%rd1]; mov.u32 %r3, s;
mad.lo.u32 %r4, %r0, 8, %r3; st.shared.v2.b32 [%r4], {{%r1,%r2}}; bar.sync 0; and.b32 %r5, %r0, 15; mad.lo.u32 %r5, %r5, 16, %r3;
ldmatrix.sync.aligned.m8n16.x2.shared.b8x16.{format} {{%r1,%r2}}, [%r5]; st.global.v2.b32 [%rd1+0x1000], {{%r1,%r2}}; ret; }}"
        ));
        let f = gpu.kernel(&text, "k");
        gpu.launch(&f, [1, 1, 1], [32, 1, 1], &[Arg::P(gpu.arena)])
            .unwrap();
        for (n, word) in gpu.get32(0x1000, 64).into_iter().enumerate() {
            let (lane, matrix) = (n / 2, n % 2);
            let row = &rows[(matrix * 8 + lane / 4) * 4..][..4];
            let element = |at: u32| {
                (0..bits).fold(0, |e, bit| {
                    let place = at * bits + bit;
                    e | (row[place as usize / 32] >> (place % 32) & 1) << bit
                })
            };
            let want = (0..4).fold(0, |w, n| w | element(lane as u32 % 4 * 4 + n) << (8 * n));
            assert_eq!(word, want, "{format}, lane {lane}, matrix {matrix}");
        }
    }
}
