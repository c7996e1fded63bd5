//! Matrix operations of a warp against plain multiplication; fragments laid out as the PTX
//! manual's tables say.

use crate::common::{Arg, Gpu, module};
use paragpu_device::Function;

/// Where a kernel's further words are.
pub const BEHIND_A: u64 = 0x8000;

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }
}

/// A kernel of one warp: `a`, `b`, `c` registers of each lane from three arrays, `d` registers out.
pub fn kernel(opcode: &str, counts: [usize; 4], ty: &str) -> String {
    kernel_with(opcode, counts, ty, "")
}

/// The same with further operands. `%r2` is a word of each lane, behind those of `a`.
pub fn kernel_with(opcode: &str, counts: [usize; 4], ty: &str, operands: &str) -> String {
    let width = if ty == "f64" { 8 } else { 4 };
    let mut body = String::new();
    for (n, (name, count)) in ["a", "b", "c"].iter().zip(counts).enumerate() {
        body += &format!(
            ".reg .{ty} %{name}<{count}>;\nld.param.u64 %rd1, [p{n}]; mad.wide.u32 %rd1, %r1, {}, %rd1;\n",
            width * count
        );
        for r in 0..count {
            body += &format!("ld.global.{ty} %{name}{r}, [%rd1+{}];\n", width * r);
        }
    }
    let list = |name: &str, count: usize| {
        let names: Vec<String> = (0..count).map(|n| format!("%{name}{n}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let d = counts[3];
    body += &format!(
        ".reg .{ty} %d<{d}>;\n{opcode} {}, {}, {}, {}{operands};\n",
        list("d", d),
        list("a", counts[0]),
        list("b", counts[1]),
        list("c", counts[2])
    );
    body += &format!(
        "ld.param.u64 %rd1, [p3]; mad.wide.u32 %rd1, %r1, {}, %rd1;\n",
        width * d
    );
    for r in 0..d {
        body += &format!("st.global.{ty} [%rd1+{}], %d{r};\n", width * r);
    }
    module(&format!(
        ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {{
.reg .b32 %r<4>; .reg .b64 %rd<4>; mov.u32 %r1, %tid.x;
ld.param.u64 %rd1, [p0]; mad.wide.u32 %rd1, %r1, 4, %rd1; ld.global.u32 %r2, [%rd1+{BEHIND_A}];
{body} ret; }}"
    ))
}

pub fn launch(gpu: &mut Gpu, f: &Function) {
    let at = |n: u64| Arg::P(gpu.arena + n * 0x10000);
    let arguments = [at(0), at(1), at(2), at(3)];
    gpu.launch(f, [1, 1, 1], [32, 1, 1], &arguments).unwrap();
}

/// Row and column of element `i` of A, B or C in a lane, from the manual's figures of each shape.
type ElementAt = fn(lane: usize, i: usize) -> (usize, usize);

fn group(lane: usize) -> usize {
    lane >> 2
}

fn thread(lane: usize) -> usize {
    lane % 4
}

// m16n8k16 with 16-bit elements.
fn a_k16(lane: usize, i: usize) -> (usize, usize) {
    let row = if i < 2 || (4..6).contains(&i) {
        group(lane)
    } else {
        group(lane) + 8
    };
    let column = thread(lane) * 2 + (i & 1) + if i >= 4 { 8 } else { 0 };
    (row, column)
}
fn b_k16(lane: usize, i: usize) -> (usize, usize) {
    (
        thread(lane) * 2 + (i & 1) + if i >= 2 { 8 } else { 0 },
        group(lane),
    )
}
// m16n8k8 with 16-bit elements.
fn a_k8(lane: usize, i: usize) -> (usize, usize) {
    (
        group(lane) + if i >= 2 { 8 } else { 0 },
        thread(lane) * 2 + (i & 1),
    )
}
fn b_k8(lane: usize, i: usize) -> (usize, usize) {
    (thread(lane) * 2 + i, group(lane))
}
// tf32: k4 and k8.
fn a_tf32(lane: usize, i: usize) -> (usize, usize) {
    let row = if i == 0 || i == 2 {
        group(lane)
    } else {
        group(lane) + 8
    };
    (row, thread(lane) + if i >= 2 { 4 } else { 0 })
}
fn b_tf32(lane: usize, i: usize) -> (usize, usize) {
    (thread(lane) + 4 * i, group(lane))
}
// Bytes: k16 and k32.
fn a_bytes16(lane: usize, i: usize) -> (usize, usize) {
    (
        group(lane) + if i < 4 { 0 } else { 8 },
        thread(lane) * 4 + (i & 3),
    )
}
fn b_bytes16(lane: usize, i: usize) -> (usize, usize) {
    (thread(lane) * 4 + i, group(lane))
}
fn a_bytes32(lane: usize, i: usize) -> (usize, usize) {
    let row = if i < 4 || (8..12).contains(&i) {
        group(lane)
    } else {
        group(lane) + 8
    };
    (
        row,
        thread(lane) * 4 + (i & 3) + if i >= 8 { 16 } else { 0 },
    )
}
fn b_bytes32(lane: usize, i: usize) -> (usize, usize) {
    (
        thread(lane) * 4 + (i & 3) + if i >= 4 { 16 } else { 0 },
        group(lane),
    )
}
// m8n8k16 with bytes.
fn a_small(lane: usize, i: usize) -> (usize, usize) {
    (group(lane), thread(lane) * 4 + i)
}
// Nibbles: m16n8k64.
fn a_nibbles64(lane: usize, i: usize) -> (usize, usize) {
    let row = if i < 8 || (16..24).contains(&i) {
        group(lane)
    } else {
        group(lane) + 8
    };
    (
        row,
        thread(lane) * 8 + (i & 7) + if i >= 16 { 32 } else { 0 },
    )
}
fn b_nibbles64(lane: usize, i: usize) -> (usize, usize) {
    (
        thread(lane) * 8 + (i & 7) + if i >= 8 { 32 } else { 0 },
        group(lane),
    )
}
// m8n8k4 with doubles.
fn a_double(lane: usize, _: usize) -> (usize, usize) {
    (group(lane), thread(lane))
}
fn b_double(lane: usize, _: usize) -> (usize, usize) {
    (thread(lane), group(lane))
}
// Accumulators of 16 and of 8 rows.
fn c_16(lane: usize, i: usize) -> (usize, usize) {
    (
        group(lane) + if i < 2 { 0 } else { 8 },
        thread(lane) * 2 + (i & 1),
    )
}
fn c_8(lane: usize, i: usize) -> (usize, usize) {
    (group(lane), thread(lane) * 2 + i)
}

/// The value of a code of a type.
fn value(ty: &str, code: u32) -> f64 {
    match ty {
        "f16" => {
            let (e, m) = (code >> 10 & 31, f64::from(code & 0x3ff));
            let size = match e {
                0 => m * 2f64.powi(-24),
                e => (1.0 + m / 1024.0) * 2f64.powi(e as i32 - 15),
            };
            if code >> 15 & 1 != 0 { -size } else { size }
        }
        "bf16" => f32::from_bits(code << 16).into(),
        "tf32" => f32::from_bits(code & !0x1fff).into(),
        "f32" => f32::from_bits(code).into(),
        "s8" => f64::from(code as i8),
        "u8" => f64::from(code as u8),
        "s4" => f64::from((code << 28) as i32 >> 28),
        "u4" => f64::from(code & 15),
        "e4m3" => {
            let (e, m) = (code >> 3 & 15, f64::from(code & 7));
            let size = match e {
                0 => m * 2f64.powi(-9),
                e => (1.0 + m / 8.0) * 2f64.powi(e as i32 - 7),
            };
            if code >> 7 & 1 != 0 { -size } else { size }
        }
        "e5m2" => value("f16", code << 8),
        _ => f64::from(code as i32),
    }
}

/// A random code whose value is moderate.
fn code(ty: &str, random: &mut Random) -> u32 {
    let v = random.next();
    match ty {
        "f16" => v & 0x83ff | (8 + v % 13) << 10,
        "bf16" => v & 0x807f | (120 + v % 13) << 7,
        "tf32" | "f32" => v & 0x807f_ffff | (120 + (v >> 3) % 13) << 23,
        "e4m3" => v & 0x87 | ((v >> 9) % 14) << 3,
        "e5m2" => v & 0x83 | (8 + (v >> 9) % 14) << 2,
        "s8" | "u8" => v & 0xff,
        "s4" | "u4" => v & 15,
        _ => v % 2_000_001,
    }
}

fn bits(ty: &str) -> usize {
    match ty {
        "s4" | "u4" => 4,
        "s8" | "u8" | "e4m3" | "e5m2" => 8,
        "f16" | "bf16" => 16,
        _ => 32,
    }
}

/// The registers of all lanes, filled from the matrix.
fn fill(ty: &str, elements: usize, place: ElementAt, columns: usize, matrix: &[u32]) -> Vec<u32> {
    let packed = 32 / bits(ty);
    let mut out = vec![0; 32 * elements / packed];
    for lane in 0..32 {
        for i in 0..elements {
            let (row, column) = place(lane, i);
            let slot = &mut out[(lane * elements + i) / packed];
            *slot |= matrix[row * columns + column] << (i % packed * bits(ty));
        }
    }
    out
}

struct Case {
    opcode: &'static str,
    shape: [usize; 3],
    types: [&'static str; 4],
    places: [ElementAt; 3],
    /// Integers clamp.
    clamp: bool,
}

#[test]
fn mma_of_every_type() {
    let case = |opcode, shape, types, places| Case {
        opcode,
        shape,
        types,
        places,
        clamp: false,
    };
    let k16: [ElementAt; 3] = [a_k16, b_k16, c_16];
    let k32: [ElementAt; 3] = [a_bytes32, b_bytes32, c_16];
    let cases = [
        case(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            [16, 8, 16],
            ["f16", "f16", "f32", "f32"],
            k16,
        ),
        case(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            [16, 8, 16],
            ["bf16", "bf16", "f32", "f32"],
            k16,
        ),
        case(
            "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
            [16, 8, 16],
            ["f16", "f16", "f16", "f16"],
            k16,
        ),
        case(
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
            [16, 8, 8],
            ["f16", "f16", "f32", "f32"],
            [a_k8, b_k8, c_16],
        ),
        case(
            "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32",
            [16, 8, 8],
            ["bf16", "bf16", "f32", "f32"],
            [a_k8, b_k8, c_16],
        ),
        case(
            "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32",
            [16, 8, 4],
            ["tf32", "tf32", "f32", "f32"],
            [a_tf32, b_tf32, c_16],
        ),
        case(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
            [16, 8, 8],
            ["tf32", "tf32", "f32", "f32"],
            [a_tf32, b_tf32, c_16],
        ),
        case(
            "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32",
            [16, 8, 32],
            ["e4m3", "e4m3", "f32", "f32"],
            k32,
        ),
        case(
            "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32",
            [16, 8, 32],
            ["e4m3", "e5m2", "f32", "f32"],
            k32,
        ),
        case(
            "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32",
            [16, 8, 32],
            ["e5m2", "e4m3", "f32", "f32"],
            k32,
        ),
        case(
            "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32",
            [16, 8, 16],
            ["s8", "s8", "s32", "s32"],
            [a_bytes16, b_bytes16, c_16],
        ),
        case(
            "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32",
            [16, 8, 32],
            ["u8", "s8", "s32", "s32"],
            k32,
        ),
        case(
            "mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32",
            [8, 8, 16],
            ["s8", "u8", "s32", "s32"],
            [a_small, b_bytes16, c_8],
        ),
        case(
            "mma.sync.aligned.m16n8k64.row.col.s32.s4.u4.s32",
            [16, 8, 64],
            ["s4", "u4", "s32", "s32"],
            [a_nibbles64, b_nibbles64, c_16],
        ),
        Case {
            clamp: true,
            ..case(
                "mma.sync.aligned.m8n8k16.row.col.satfinite.s32.s8.s8.s32",
                [8, 8, 16],
                ["s8", "s8", "s32", "s32"],
                [a_small, b_bytes16, c_8],
            )
        },
    ];
    let mut gpu = Gpu::new();
    let mut random = Random(0x1234_5678_9abc_def1);
    for case in &cases {
        let [m, n, k] = case.shape;
        let [ta, tb, tc, td] = case.types;
        let sizes = [m * k / 32, k * n / 32, m * n / 32];
        let counts = [
            (ta, sizes[0]),
            (tb, sizes[1]),
            (tc, sizes[2]),
            (td, sizes[2]),
        ]
        .map(|(ty, size)| size * bits(ty) / 32);
        let f = gpu.kernel(&kernel(case.opcode, counts, "b32"), "k");
        for round in 0..4 {
            let mut matrix = |ty: &str, size: usize| -> Vec<u32> {
                (0..size).map(|_| code(ty, &mut random)).collect()
            };
            let (a, b) = (matrix(ta, m * k), matrix(tb, k * n));
            let mut c = matrix(tc, m * n);
            if case.clamp && round > 0 {
                // Close to the ends of the range.
                for (n, v) in c.iter_mut().enumerate() {
                    *v = if n % 2 == 0 {
                        i32::MAX - n as i32
                    } else {
                        i32::MIN + n as i32
                    } as u32;
                }
            }
            let registers = [
                fill(ta, sizes[0], case.places[0], k, &a),
                fill(tb, sizes[1], case.places[1], n, &b),
                fill(tc, sizes[2], case.places[2], n, &c),
            ];
            for (n, list) in registers.iter().enumerate() {
                gpu.put32(n as u64 * 0x10000, list);
            }
            launch(&mut gpu, &f);
            let got = gpu.get32(0x30000, 32 * counts[3]);
            let packed = 32 / bits(td);
            for lane in 0..32 {
                for i in 0..sizes[2] {
                    let (row, column) = case.places[2](lane, i);
                    let word = got[(lane * sizes[2] + i) / packed];
                    let got = value(td, word >> (i % packed * bits(td)));
                    let mut exact = value(tc, c[row * n + column]);
                    let mut size = exact.abs();
                    for x in 0..k {
                        let product = value(ta, a[row * k + x]) * value(tb, b[x * n + column]);
                        exact += product;
                        size += product.abs();
                    }
                    let allowed = match td {
                        "s32" => 0.0,
                        // One rounding of the sum in half precision besides those in single.
                        "f16" => {
                            size * 2f64.powi(-22) * k as f64 + exact.abs() * 2f64.powi(-11) + 1e-7
                        }
                        _ => size * 2f64.powi(-24) * (k + 1) as f64,
                    };
                    if td == "s32" {
                        exact = match case.clamp {
                            true => exact.clamp(i32::MIN.into(), i32::MAX.into()),
                            false => f64::from(exact as i64 as i32),
                        };
                    }
                    let error = (got - exact).abs();
                    assert!(
                        error <= allowed,
                        "{}: row {row} column {column}: {got}, expected {exact} within {allowed:e}",
                        case.opcode
                    );
                }
            }
        }
    }
}

#[test]
fn mma_adds_products_at_the_width_of_an_h100() {
    let mut gpu = Gpu::new();
    let text = kernel(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        [4, 2, 4, 4],
        "b32",
    );
    let f = gpu.kernel(&text, "k");
    let mut a = vec![0u32; 16 * 8];
    let mut b = vec![0u32; 8 * 8];
    gpu.put32(0x20000, &[0; 128]);
    // Two bits behind a single's last stay beside the largest term, of either sign; lower
    // bits are truncated.
    for (terms, sum) in [
        ([16_777_216f32, 1.0, 1.0, -16_777_216.0], 2.0f32),
        ([134_217_728.0, 3.0, 3.0, -134_217_728.0], 0.0),
        ([134_217_728.0, -3.0, 5.0, -134_217_728.0], 4.0),
        ([134_217_728.0, -7.0, 5.0, -134_217_728.0], 0.0),
    ] {
        for (k, v) in terms.into_iter().enumerate() {
            a[k] = v.to_bits();
            b[k * 8] = 1f32.to_bits();
        }
        gpu.put32(0, &fill("tf32", 4, a_tf32, 8, &a));
        gpu.put32(0x10000, &fill("tf32", 2, b_tf32, 8, &b));
        launch(&mut gpu, &f);
        assert_eq!(gpu.get32(0x30000, 1), [sum.to_bits()], "{terms:?}");
    }
    // Infinity and NaN pass through; so do subnormals.
    a[0] = f32::INFINITY.to_bits();
    a[8] = f32::NAN.to_bits();
    a[16] = 0x2000;
    gpu.put32(0, &fill("tf32", 4, a_tf32, 8, &a));
    launch(&mut gpu, &f);
    let got = gpu.get32(0x30000, 128);
    assert_eq!(got[0], f32::INFINITY.to_bits());
    assert_eq!(got[4 * 4], 0x7fff_ffff);
    assert_eq!(got[8 * 4], 0x2000);
}

#[test]
fn mma_of_doubles_and_bits() {
    let mut gpu = Gpu::new();
    let mut random = Random(99);
    let text = kernel(
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
        [1, 1, 2, 2],
        "f64",
    );
    let f = gpu.kernel(&text, "k");
    let mut matrix = |size: usize| -> Vec<f64> {
        (0..size)
            .map(|_| f64::from(random.next() as i32) * 1e-3)
            .collect()
    };
    let (a, b, c) = (matrix(32), matrix(32), matrix(64));
    let lanes = |each: usize, place: ElementAt, columns: usize, m: &[f64]| -> Vec<u64> {
        (0..32 * each)
            .map(|n| {
                let (row, column) = place(n / each, n % each);
                m[row * columns + column].to_bits()
            })
            .collect()
    };
    gpu.put64(0, &lanes(1, a_double, 4, &a));
    gpu.put64(0x10000, &lanes(1, b_double, 8, &b));
    gpu.put64(0x20000, &lanes(2, c_8, 8, &c));
    launch(&mut gpu, &f);
    for (n, got) in gpu.get64(0x30000, 64).into_iter().enumerate() {
        let (row, column) = c_8(n / 2, n % 2);
        let want = (0..4).fold(c[row * 8 + column], |sum, k| {
            a[row * 4 + k].mul_add(b[k * 8 + column], sum)
        });
        assert_eq!(got, want.to_bits());
    }
    for (what, combine) in [
        ("xor", (|x, y| x ^ y) as fn(u32, u32) -> u32),
        ("and", |x, y| x & y),
    ] {
        let opcode = format!("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.{what}.popc");
        let f = gpu.kernel(&kernel(&opcode, [1, 1, 2, 2], "b32"), "k");
        let mut words = || -> Vec<u32> {
            (0..64)
                .map(|_| random.next() ^ random.next() << 16)
                .collect()
        };
        let (a, b, c) = (words(), words(), words());
        gpu.put32(0, &a[..32]);
        gpu.put32(0x10000, &b[..32]);
        gpu.put32(0x20000, &c);
        launch(&mut gpu, &f);
        for (n, got) in gpu.get32(0x30000, 64).into_iter().enumerate() {
            let (row, column) = c_8(n / 2, n % 2);
            let ones: u32 = (0..4)
                .map(|t| combine(a[row * 4 + t], b[column * 4 + t]).count_ones())
                .sum();
            assert_eq!(got, c[n].wrapping_add(ones), "{what} {n}");
        }
    }
}

/// `wmma`: D = A × B + C through memory, in both orders of the factors' elements.
#[test]
fn wmma_of_every_shape() {
    let mut gpu = Gpu::new();
    let mut random = Random(7);
    for (shape, ty, sum, counts) in [
        ([16, 16, 16], "f16", "f32", [8, 8, 8]),
        ([32, 8, 16], "f16", "f32", [8, 8, 8]),
        ([8, 32, 16], "f16", "f32", [8, 8, 8]),
        ([16, 16, 16], "bf16", "f32", [4, 4, 8]),
        ([8, 32, 16], "bf16", "f32", [2, 8, 8]),
        ([16, 16, 8], "tf32", "f32", [4, 4, 8]),
        ([16, 16, 16], "s8", "s32", [2, 2, 8]),
        ([32, 8, 16], "u8", "s32", [4, 1, 8]),
        ([8, 32, 16], "u8", "s32", [1, 4, 8]),
    ] {
        for (order_a, order_b) in [("row", "col"), ("col", "row")] {
            let [m, n, k] = shape;
            let name = format!("m{m}n{n}k{k}");
            let list = |c: char, count: usize| {
                let names: Vec<String> = (0..count).map(|n| format!("%{c}{n}")).collect();
                format!("{{{}}}", names.join(","))
            };
            let [ra, rb, rc] = counts;
            // Rows of A and columns of B are 24 and 40 elements apart.
            let product = match ty {
                "f16" => format!("{sum}.{sum}"),
                _ => format!("{sum}.{ty}.{ty}.{sum}"),
            };
            let text = module(&format!(
                ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {{
.reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .b32 %a<8>; .reg .b32 %b<8>; .reg .{st} %c<8>; .reg .{st} %d<8>; .shared .align 32 .b8 tile[4096];
ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2]; ld.param.u64 %rd3, [p3]; mov.u32 %r1, 40;
wmma.load.a.sync.aligned.{order_a}.{name}.global.{ty} {a}, [%rd0], 40;
wmma.load.b.sync.aligned.{order_b}.{name}.{ty} {b}, [%rd1], %r1;
wmma.load.c.sync.aligned.row.{name}.global.{sum} {c}, [%rd2];
wmma.mma.sync.aligned.{order_a}.{order_b}.{name}.{product} {d}, {a}, {b}, {c};
mov.u32 %r2, tile;
wmma.store.d.sync.aligned.col.{name}.shared.{sum} [%r2], {d};
wmma.load.c.sync.aligned.col.{name}.shared.{sum} {c}, [%r2];
wmma.store.d.sync.aligned.row.{name}.global.{sum} [%rd3], {c}, {n};
ret; }}",
                st = if sum == "f32" { "f32" } else { "b32" },
                a = list('a', ra), b = list('b', rb), c = list('c', rc), d = list('d', rc),
            ));
            let f = gpu.kernel(&text, "k");
            let mut codes = |ty: &str, size: usize| -> Vec<u32> {
                (0..size).map(|_| code(ty, &mut random)).collect()
            };
            let (a, b, c) = (codes(ty, 40 * 40), codes(ty, 40 * 40), codes(sum, m * n));
            gpu.put(0, &a, bits(ty) / 8);
            gpu.put(0x10000, &b, bits(ty) / 8);
            gpu.put32(0x20000, &c);
            launch(&mut gpu, &f);
            let at = |order: &str, row: usize, column: usize| match order {
                "row" => row * 40 + column,
                _ => column * 40 + row,
            };
            for (place, got) in gpu.get32(0x30000, m * n).into_iter().enumerate() {
                let (row, column) = (place / n, place % n);
                let (mut exact, mut size) = (value(sum, c[place]), value(sum, c[place]).abs());
                for x in 0..k {
                    let p =
                        value(ty, a[at(order_a, row, x)]) * value(ty, b[at(order_b, x, column)]);
                    exact += p;
                    size += p.abs();
                }
                let allowed = if sum == "s32" {
                    0.0
                } else {
                    size * 2f64.powi(-24) * (k + 1) as f64
                };
                assert!(
                    (value(sum, got) - exact).abs() <= allowed,
                    "{name} {ty} {order_a} {order_b}: {row} {column}"
                );
            }
        }
    }
}

#[test]
fn rows_of_matrices_move_between_shared_memory_and_registers() {
    // Four 8×8 matrices of 16-bit elements in rows of 48 bytes; element = 100 * matrix + 10
    // * row + column.
    let text = module(
        ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {
.reg .b32 %r<16>; .reg .b64 %rd<6>; .shared .align 16 .b8 tile[1536]; .shared .align 16 .b8 back[1536];
ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2]; ld.param.u64 %rd3, [p3];
mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mad.lo.u32 %r1, %r0, 48, %r1; mov.u32 %r2, back; mad.lo.u32 %r2, %r0, 48, %r2;
mad.wide.u32 %rd4, %r0, 16, %rd0; ld.global.v4.u32 {%r4,%r5,%r6,%r7}, [%rd4]; st.shared.v4.u32 [%r1], {%r4,%r5,%r6,%r7};
bar.warp.sync 0xffffffff;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4,%r5,%r6,%r7}, [%r1];
ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%r8,%r9}, [%r1];
movmatrix.sync.aligned.m8n8.trans.b16 %r10, %r6;
stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r2], {%r4,%r5,%r6,%r7};
bar.warp.sync 0xffffffff;
mad.wide.u32 %rd4, %r0, 32, %rd1;
st.global.v4.u32 [%rd4], {%r4,%r5,%r6,%r7}; st.global.v2.u32 [%rd4+16], {%r8,%r9}; st.global.u32 [%rd4+24], %r10;
ld.shared.v4.u32 {%r4,%r5,%r6,%r7}, [%r2]; mad.wide.u32 %rd4, %r0, 16, %rd2; st.global.v4.u32 [%rd4], {%r4,%r5,%r6,%r7};
ret; }",
    );
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    let element = |matrix: u32, row: u32, column: u32| 100 * matrix + 10 * row + column;
    let pair = |low: u32, high: u32| low | high << 16;
    let rows: Vec<u32> = (0..32)
        .flat_map(|lane| (0..4).map(move |w| (lane, w)))
        .map(|(lane, w)| {
            pair(
                element(lane / 8, lane % 8, 2 * w),
                element(lane / 8, lane % 8, 2 * w + 1),
            )
        })
        .collect();
    gpu.put32(0, &rows);
    launch(&mut gpu, &f);
    let got = gpu.get32(0x10000, 32 * 8);
    let back = gpu.get32(0x20000, 32 * 4);
    for lane in 0..32u32 {
        let (row, column) = (lane / 4, lane % 4 * 2);
        let own = &got[lane as usize * 8..];
        for matrix in 0..4 {
            assert_eq!(
                own[matrix as usize],
                pair(
                    element(matrix, row, column),
                    element(matrix, row, column + 1)
                )
            );
        }
        for matrix in 0..2 {
            assert_eq!(
                own[4 + matrix as usize],
                pair(
                    element(matrix, column, row),
                    element(matrix, column + 1, row)
                )
            );
        }
        assert_eq!(
            own[6],
            pair(element(2, column, row), element(2, column + 1, row))
        );
        for w in 0..4 {
            let (matrix, row) = (lane / 8, lane % 8);
            let want = pair(element(matrix, 2 * w, row), element(matrix, 2 * w + 1, row));
            assert_eq!(back[(lane * 4 + w) as usize], want);
        }
    }
}

#[test]
fn a_warp_that_diverged_meets_before_a_matrix_operation() {
    let text = module(
        ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {
.reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<2>;
ld.param.u64 %rd3, [p3]; mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, 5; mov.u32 %r1, 1; @%p1 bra FEW;
mov.u32 %r1, 2; bra MEET;
FEW: mov.u32 %r1, 3;
MEET: movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1;
mad.wide.u32 %rd3, %r0, 4, %rd3; st.global.u32 [%rd3], %r2; ret; }",
    );
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    launch(&mut gpu, &f);
    let got = gpu.get32(0x30000, 32);
    for (lane, &got) in got.iter().enumerate() {
        let source = |row: usize, column: usize| {
            let from = row * 4 + column / 2;
            if column % 2 == 1 {
                0
            } else if from < 5 {
                3u32
            } else {
                2
            }
        };
        let (row, column) = (lane / 4, lane % 4 * 2);
        assert_eq!(got, source(column, row) | source(column + 1, row) << 16);
    }
}
