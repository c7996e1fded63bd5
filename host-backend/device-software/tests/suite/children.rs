//! Kernels that launch kernels, and forged launches.

use crate::common::{Arg, Gpu, module};
use paragpu_device_software::Options;

/// What nvcc declares, and kernels: `count` adds its parameter to a word; `parent` launches
/// `count` or itself, depending on the words at `data`, and writes the status. `body`
/// precedes the launch, with the buffer in %buffer.
fn program(body: &str) -> String {
    module(&format!(
        ".extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2(.param .b64 f,
    .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);
.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 p, .param .b64 s);
.visible .entry count(.param .u64 data, .param .u32 by) {{
    .reg .b32 %by; .reg .b64 %data;
    ld.param.u64 %data, [data]; ld.param.u32 %by, [by];
    red.global.add.u32 [%data], %by; ret; }}
.visible .entry parent(.param .u64 data, .param .u32 itself) {{
    .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %data, %f, %g, %buffer, %x;
    .param .b64 func; .param .align 4 .b8 grid[12]; .param .align 4 .b8 block[12]; .param .b32 shared;
    .param .b64 got; .param .b64 where; .param .b64 stream; .param .b32 status;
    ld.param.u64 %data, [data]; ld.param.u32 %r1, [itself];
    mov.u64 %f, count; mov.u64 %g, parent; setp.ne.u32 %p, %r1, 0; selp.u64 %f, %g, %f, %p;
    st.param.b64 [func], %f; ld.global.u32 %r2, [%data+16];
    st.param.b32 [grid], 2; st.param.b32 [grid+4], 1; st.param.b32 [grid+8], 1;
    st.param.b32 [block], %r2; st.param.b32 [block+4], 1; st.param.b32 [block+8], 1;
    st.param.b32 [shared], 0;
    call (got), __cudaCDP2GetParameterBufferV2, (func, grid, block, shared);
    ld.param.b64 %buffer, [got];
    st.u64 [%buffer], %data; st.u32 [%buffer+8], %r1;
    {body}
    st.param.b64 [where], %buffer; st.param.b64 [stream], 0;
    call (status), __cudaCDP2LaunchDeviceV2, (where, stream);
    ld.param.b32 %r3, [status]; red.global.max.u32 [%data+8], %r3;
    red.global.add.u32 [%data+24], 1; ret; }}"
    ))
}

/// Runs `parent`, whose child has blocks of `threads` threads. Returns the words of its
/// memory.
fn run(body: &str, threads: u32, itself: u32) -> Vec<u32> {
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&program(body), "parent");
    let base = gpu.arena;
    gpu.put32(0, &[0, 0, 0, 0, threads, 0, 0]);
    gpu.launch(&f, [1, 1, 1], [1, 1, 1], &[Arg::P(base), Arg::W(itself)])
        .unwrap();
    gpu.get32(0, 7)
}

#[test]
fn a_child_runs_before_its_parent_is_over() {
    let by_three = "st.u32 [%buffer+8], 3;";
    assert_eq!(run(by_three, 5, 0)[..3], [3 * 2 * 5, 0, 0]);
}

#[test]
fn a_family_has_a_last_generation() {
    // Each of two blocks with one thread launches two more.
    let words = run(
        "ld.global.u32 %r4, [%data+24]; setp.gt.u32 %p, %r4, 3000; @%p ret;",
        1,
        1,
    );
    assert!(words[6] > 3000, "{words:?}");
    // Each launches one more, without end.
    let one = "mov.u32 %r4, 1; st.global.u32 [%buffer-40], %r4;";
    let words = run(one, 1, 1);
    // cudaErrorLaunchMaxDepthExceeded.
    assert_eq!((words[2], words[6]), (65, 24), "{words:?}");
}

#[test]
fn what_a_kernel_wrote_into_its_buffer_is_checked() {
    let wrong = [
        // Blocks that are too large, and a grid of none: cudaErrorInvalidConfiguration.
        ("", 1025, 9),
        ("st.u32 [%buffer-40], 0;", 1, 9),
        // Not a kernel: cudaErrorInvalidDeviceFunction.
        ("st.u64 [%buffer-48], 77;", 1, 98),
        (
            "mov.u64 %x, 0x4000000000ff0; st.u64 [%buffer-48], %x;",
            1,
            98,
        ),
        // Not a buffer, and one that was launched: cudaErrorInvalidValue.
        ("mov.u64 %buffer, 0;", 1, 1),
        ("mov.u64 %buffer, 17;", 1, 1),
        ("mov.u64 %buffer, 0xfffffffffffffff0;", 1, 1),
        ("add.u64 %buffer, %data, 48;", 1, 98),
        (
            "st.param.b64 [where], %buffer; st.param.b64 [stream], 0;
            call (status), __cudaCDP2LaunchDeviceV2, (where, stream);",
            1,
            1,
        ),
    ];
    for (body, threads, status) in wrong {
        let words = run(body, threads, 0);
        assert_eq!(words[2], status, "{body}: {words:?}");
    }
}

/// A kernel that takes an aligned buffer for the parameters of a kernel and launches that.
/// `body` fills or replaces the buffer in %buffer.
fn undescribed(alignment: &str, kernel: &str, body: &str) -> String {
    let text = program("");
    format!(
        "{text}
.extern .func (.param .b64 r) __cudaCDP2GetParameterBuffer(.param .b64 a, .param .b64 s);
.extern .func (.param .b32 r) __cudaCDP2LaunchDevice_ptsz(.param .b64 f, .param .b64 p,
    .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s, .param .b64 t);
.visible .entry nothing() {{ ret; }}
.visible .entry undescribed(.param .u64 data) {{
    .reg .b32 %r<9>; .reg .b64 %data, %buffer, %x;
    .param .b64 func; .param .align 4 .b8 grid[12]; .param .align 4 .b8 block[12]; .param .b32 shared;
    .param .b64 align; .param .b64 size; .param .b64 got; .param .b64 stream; .param .b32 status;
    ld.param.u64 %data, [data];
    st.param.b64 [align], {alignment}; st.param.b64 [size], 12;
    call (got), __cudaCDP2GetParameterBuffer, (align, size);
    ld.param.b64 %buffer, [got]; st.global.u64 [%data+32], %buffer;
    {body}
    mov.u64 %x, {kernel}; st.param.b64 [func], %x;
    st.param.b32 [grid], 1; st.param.b32 [grid+4], 2; st.param.b32 [grid+8], 3;
    st.param.b32 [block], 5; st.param.b32 [block+4], 7; st.param.b32 [block+8], 1;
    st.param.b32 [shared], 0; st.param.b64 [got], %buffer; st.param.b64 [stream], 0;
    call (status), __cudaCDP2LaunchDevice_ptsz, (func, got, grid, block, shared, stream);
    ld.param.b32 %r1, [status]; st.global.u32 [%data+8], %r1; ret; }}"
    )
}

#[test]
fn a_library_launches_a_kernel_with_a_buffer_of_its_own() {
    let run = |alignment: &str, kernel: &str, body: &str| {
        let mut gpu = Gpu::new();
        let f = gpu.kernel(&undescribed(alignment, kernel, body), "undescribed");
        let base = gpu.arena;
        gpu.put32(0, &[0; 12]);
        gpu.launch(&f, [1, 1, 1], [1, 1, 1], &[Arg::P(base)])
            .unwrap();
        gpu.get32(0, 12)
    };
    let fill = "st.u64 [%buffer], %data; st.u32 [%buffer+8], 3;";
    for alignment in [1, 64, 4096] {
        let words = run(&alignment.to_string(), "count", fill);
        assert_eq!(words[..3], [3 * 6 * 35, 0, 0], "{alignment}");
        assert!(words[8] != 0 && words[8] % alignment == 0, "{words:?}");
    }
    // No power of two, and more than there is: no buffer.
    for alignment in ["0", "48", "0x8000000000000000"] {
        assert_eq!(run(alignment, "nothing", "")[8..10], [0, 0], "{alignment}");
    }
    // A kernel without parameters needs none.
    assert_eq!(run("0", "nothing", "")[2], 0);
    // cudaErrorInvalidValue: no buffer, no beginning of one; cudaErrorInvalidDeviceFunction.
    assert_eq!(run("64", "count", "mov.u64 %buffer, 0;")[2], 1);
    assert_eq!(run("64", "count", "add.u64 %buffer, %buffer, 16;")[2], 1);
    assert_eq!(run("64", "77", "")[2], 98);
}

/// A kernel that fills rows and copies rows from there, writing both statuses, besides one
/// that calls an unsupported function.
fn rows([pitch, width, rows]: [u64; 3]) -> String {
    module(&format!(
        ".extern .func (.param .b32 r) __cudaCDP2Memset2DAsync_ptsz(.param .b64 to, .param .b64 pitch,
    .param .b32 value, .param .b64 width, .param .b64 rows, .param .b64 stream);
.extern .func (.param .b32 r) __cudaCDP2Memcpy2DAsync_ptsz(.param .b64 to, .param .b64 pitch, .param .b64 from,
    .param .b64 pitch2, .param .b64 width, .param .b64 rows, .param .b32 kind, .param .b64 stream);
.extern .func (.param .b32 r) __cudaCDP2Memcpy3DAsync_ptsz(.param .b64 what, .param .b64 stream);
.visible .entry refused(.param .u64 data) {{
    .param .b64 what; .param .b64 stream; .param .b32 status;
    st.param.b64 [what], 0; st.param.b64 [stream], 0;
    call (status), __cudaCDP2Memcpy3DAsync_ptsz, (what, stream); ret; }}
.visible .entry rows(.param .u64 data) {{
    .reg .b32 %r<9>; .reg .b64 %data, %x;
    .param .b64 to; .param .b64 pitch; .param .b64 from; .param .b64 pitch2; .param .b32 value; .param .b64 width;
    .param .b64 rows; .param .b32 kind; .param .b64 stream; .param .b32 status;
    ld.param.u64 %data, [data]; add.u64 %x, %data, 8;
    st.param.b64 [to], %x; st.param.b64 [pitch], {pitch}; st.param.b32 [value], 0x7;
    st.param.b64 [width], {width}; st.param.b64 [rows], {rows}; st.param.b64 [stream], 0;
    call (status), __cudaCDP2Memset2DAsync_ptsz, (to, pitch, value, width, rows, stream);
    ld.param.b32 %r1, [status]; st.global.b32 [%data], %r1;
    st.param.b64 [from], %x; add.u64 %x, %data, 40;
    st.param.b64 [to], %x; st.param.b64 [pitch], 4; st.param.b64 [pitch2], {pitch};
    st.param.b64 [width], 4; st.param.b64 [rows], 2; st.param.b32 [kind], 3; st.param.b64 [stream], 0;
    call (status), __cudaCDP2Memcpy2DAsync_ptsz, (to, pitch, from, pitch2, width, rows, kind, stream);
    ld.param.b32 %r1, [status]; st.global.b32 [%data+4], %r1; ret; }}"
    ))
}

#[test]
fn rows_are_filled_and_copied() {
    let run = |shape| {
        let mut gpu = Gpu::new();
        let f = gpu.kernel(&rows(shape), "rows");
        let base = gpu.arena;
        gpu.put32(0, &[99; 12]);
        gpu.launch(&f, [1, 1, 1], [1, 1, 1], &[Arg::P(base)])
            .unwrap();
        gpu.get32(0, 12)
    };
    const SEVENS: u32 = 0x0707_0707;
    let words = run([16, 4, 2]);
    assert_eq!(words[..2], [0, 0]);
    assert_eq!(words[2..8], [SEVENS, 99, 99, 99, SEVENS, 99]);
    assert_eq!(words[10..], [SEVENS, SEVENS]);
    // Empty rows, however many; rows longer than the pitch; too many rows:
    // cudaErrorInvalidValue.
    assert_eq!(run([16, 0, 1 << 60])[..2], [0, 0]);
    assert_eq!(run([2, 4, 2])[..2], [1, 1]);
    assert_eq!(run([16, 4, 1 << 60])[..2], [1, 0]);
    assert_eq!(run([1 << 62, 4, 9])[..2], [1, 1]);
}

#[test]
fn what_is_not_there_refuses_its_kernel_alone() {
    let mut gpu = Gpu::new();
    let text = rows([16, 4, 2]);
    let (module, _) = gpu.device.module_load(&text.as_str().into(), &[]).unwrap();
    gpu.device.module_function(module, "rows").unwrap();
    let refused = gpu.device.module_function(module, "refused").unwrap_err();
    assert!(refused.to_string().contains("Memcpy3DAsync"), "{refused}");
}

/// A kernel that stores the status of each call in order, and lets the calls write to the
/// words of its results: `%at` of the first, 256 bytes for each.
fn questions(calls: &[(&str, &[&str])]) -> String {
    let (mut prototypes, mut body) = (String::new(), String::new());
    for (number, (name, arguments)) in calls.iter().enumerate() {
        let types: Vec<&str> = arguments
            .iter()
            .map(|value| {
                if value.starts_with("%rd") || *value == "%at" {
                    "b64"
                } else {
                    "b32"
                }
            })
            .collect();
        let list =
            |of: &dyn Fn(usize) -> String| (0..types.len()).map(of).collect::<Vec<_>>().join(",");
        if !prototypes.contains(&format!("__cudaCDP2{name}(")) {
            let takes = list(&|n| format!(".param .{} p{n}", types[n]));
            prototypes += &format!(".extern .func (.param .b32 r) __cudaCDP2{name}({takes});\n");
        }
        body += "{ .param .b32 status;";
        for (n, value) in arguments.iter().enumerate() {
            body += &format!(" .param .{0} q{n}; st.param.{0} [q{n}],{value};", types[n]);
        }
        let given = list(&|n| format!("q{n}"));
        body += &format!(
            " call (status), __cudaCDP2{name}, ({given}); ld.param.b32 %r1,[status]; }}
st.global.u32 [%rd1+{}],%r1; add.u64 %at,%at,256;
",
            4 * number
        );
    }
    module(&format!(
        "{prototypes}
.const .align 4 .b8 table[20];
.visible .entry other(.param .u64 p) .maxntid 192,1,1 {{
    .shared .align 16 .b8 own[4096]; .reg .b32 %r<3>; .reg .b64 %rd<3>; .local .b8 frame[64];
    mov.u32 %r1,own; ld.const.u32 %r2,[table]; st.shared.u32 [%r1],%r2; ret; }}
.visible .entry asks(.param .u64 to) {{
    .reg .b32 %r<4>; .reg .b64 %rd<4>, %at;
    ld.param.u64 %rd1,[to]; add.u64 %at,%rd1,256; mov.u64 %rd2,other; mov.u64 %rd3,20480;
{body} ret; }}"
    ))
}

#[test]
fn a_kernel_asks_what_the_program_may_ask() {
    const OCCUPANCY: &str = "OccupancyMaxActiveBlocksPerMultiprocessor";
    const WITH_FLAGS: &str = "OccupancyMaxActiveBlocksPerMultiprocessorWithFlags";
    let mut gpu = Gpu::new();
    let kernel = gpu.kernel(
        &questions(&[
            // Multiprocessors, threads of a block, the last and no attribute; another device.
            ("DeviceGetAttribute", &["%at", "16", "0"]),
            ("DeviceGetAttribute", &["%at", "1", "0"]),
            ("DeviceGetAttribute", &["%at", "75", "0"]),
            ("DeviceGetAttribute", &["%at", "100000", "0"]),
            ("DeviceGetAttribute", &["%at", "16", "1"]),
            // The stack, the heap, none.
            ("DeviceGetLimit", &["%at", "0"]),
            ("DeviceGetLimit", &["%at", "2"]),
            ("DeviceGetLimit", &["%at", "77"]),
            ("DeviceGetCacheConfig", &["%at"]),
            ("DeviceGetSharedMemConfig", &["%at"]),
            ("RuntimeGetVersion", &["%at"]),
            ("FuncGetAttributes", &["%at", "%rd2"]),
            ("FuncGetAttributes", &["%at", "%rd1"]),
            (OCCUPANCY, &["%at", "%rd2", "96", "%rd3"]),
            (WITH_FLAGS, &["%at", "%rd2", "192", "%rd3", "0"]),
            (OCCUPANCY, &["%at", "%rd2", "193", "%rd3"]),
            (OCCUPANCY, &["%at", "%rd2", "0", "%rd3"]),
            ("GetLastError", &[]),
        ]),
        "asks",
    );
    gpu.device.ctx_set_limit(0, 4096).unwrap();
    let untouched = u32::MAX;
    gpu.put32(0, &vec![untouched; 64 * 20]);
    let args = [Arg::P(gpu.arena)];
    gpu.launch(&kernel, [1; 3], [1; 3], &args).unwrap();
    let found = gpu.get32(0, 64 * 20);
    // 1: cudaErrorInvalidValue, 101: InvalidDevice, 215: UnsupportedLimit,
    // 98: InvalidDeviceFunction.
    let statuses = [0, 0, 0, 1, 101, 0, 0, 215, 0, 0, 0, 0, 98, 0, 0, 0, 1, 1];
    assert_eq!(found[..18], statuses);
    let answer = |number: usize| &found[64 * (number + 1)..][..64];
    for number in [3, 4, 7, 12, 16, 17] {
        assert_eq!(answer(number), [untouched; 64], "call {number}");
    }
    let sms = Options::default().compute_capability.0;
    assert_eq!([answer(0)[0], answer(1)[0], answer(2)[0]], [2, 1024, sms]);
    assert_eq!(answer(0)[1], untouched);
    assert_eq!(
        [&answer(5)[..3], &answer(6)[..3]],
        [[4096, 0, untouched], [8 << 20, 0, untouched]]
    );
    assert_eq!([answer(8)[0], answer(9)[0], answer(10)[0]], [0, 1, 13000]);
    // Bytes of shared, constant and local memory; threads of a block, registers, versions,
    // cache mode; bytes of dynamic shared memory, carve-out.
    let facts = [
        4096,
        0,
        20,
        0,
        64,
        0,
        192,
        32,
        75,
        75,
        0,
        (48 << 10) - 4096,
        untouched,
    ];
    assert_eq!(answer(11)[..13], facts);
    // Clusters and reserved fields: the structure has 144 bytes.
    assert_eq!(answer(11)[13..36], [0; 23]);
    assert_eq!(answer(11)[36..], [untouched; 28]);
    // 24 KiB of shared memory each and 1 KiB that is reserved, of 228 KiB.
    assert_eq!([answer(13)[0], answer(14)[0], answer(15)[0]], [9, 9, 0]);
}
