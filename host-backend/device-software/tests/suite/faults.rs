//! Faults of kernels and images, and their errors.

use crate::common::{Arg, DeviceSlot, Gpu, STREAM, module};
use paragpu_device::Error;
use paragpu_device::conformance::settle;
use paragpu_device_software::Options;
use paragpu_device_software::device::SoftwareDevice;
use paragpu_protocol::status::Status;

fn kernel(body: &str) -> String {
    module(&format!(
        ".visible .entry wrong(.param .u64 data) {{
.reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>; ld.param.u64 %rd1, [data]; mov.u32 %r1, %tid.x; {body} ret; }}"
    ))
}

fn fails(body: &str, threads: u32) -> (Gpu, Error) {
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&kernel(body), "wrong");
    let base = gpu.arena;
    let error = gpu
        .launch(&f, [1, 1, 1], [threads, 1, 1], &[Arg::P(base)])
        .unwrap_err();
    (gpu, error)
}

#[test]
fn out_of_bounds_names_kernel_address_and_thread_and_sticks() {
    let (mut gpu, error) = fails(
        "mad.wide.u32 %rd2, %r1, 0x200000, %rd1; add.u64 %rd2, %rd2, 0x1000; st.global.u32 [%rd2], %r1;",
        40,
    );
    assert_eq!(error.status, Status::ILLEGAL_ADDRESS);
    // 16 chunks are mapped: thread 16 is the first outside.
    let address = format!("{:#x}", gpu.arena + 16 * 0x20_0000 + 0x1000);
    for part in ["wrong", "thread (16, 0, 0)", &address] {
        assert!(error.detail.contains(part), "{part} in {}", error.detail);
    }
    assert_eq!(gpu.device.context_query().unwrap_err(), error);
    assert_eq!(gpu.device.stream_create(0, 0).unwrap_err(), error);
    // Another session's device does not notice.
    let mut other = Gpu::new();
    other.put32(0, &[3]);
    assert_eq!(other.get32(0, 1), [3]);
}

#[test]
fn registered_ranges_join_and_do_not_overlap() {
    const PAGE: u64 = 4096;
    let mut gpu = Gpu::new();
    let memory = vec![7_u8; 7 * PAGE as usize];
    let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
    let page = |number: u64| start + number * PAGE;
    for number in [4, 2, 0, 1] {
        gpu.device.host_register(page(number), PAGE).unwrap();
    }
    for (number, pages) in [(0, 1), (1, 3), (2, 1), (3, 2), (0, 6)] {
        let refused = gpu.device.host_register(page(number), pages * PAGE);
        let status = refused.unwrap_err().status;
        assert_eq!(status, Status::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let to = gpu.arena;
    let mut copies = |from: u64, size: u64| gpu.device.copy(to, from, size, STREAM).is_ok();
    assert!(copies(page(0), 3 * PAGE) && copies(page(2) + 5, PAGE - 5) && copies(page(4), PAGE));
    assert!(!copies(page(2), PAGE + 1) && !copies(page(3), PAGE) && !copies(page(4) - 1, 2));
    settle(gpu.device.as_mut(), STREAM).unwrap();
    gpu.device.host_unregister(page(1)).unwrap();
    let again = gpu.device.host_unregister(page(1)).unwrap_err();
    assert_eq!(again.status, Status::HOST_MEMORY_NOT_REGISTERED);
    let mut copies = |from: u64, size: u64| gpu.device.copy(to, from, size, STREAM).is_ok();
    assert!(!copies(page(0), 3 * PAGE) && copies(page(0), PAGE) && copies(page(2), PAGE));
    settle(gpu.device.as_mut(), STREAM).unwrap();
    for number in [0, 2, 4] {
        gpu.device.host_unregister(page(number)).unwrap();
    }
}

#[test]
fn null_and_host_pointers_are_illegal() {
    let local = 7u32;
    let body = format!(
        "mov.u64 %rd2, {}; ld.u32 %r2, [%rd2];",
        &raw const local as u64
    );
    assert_eq!(fails(&body, 1).1.status, Status::ILLEGAL_ADDRESS);
    assert_eq!(
        fails("mov.u64 %rd2, 0; ld.global.u32 %r2, [%rd2];", 1)
            .1
            .status,
        Status::ILLEGAL_ADDRESS
    );
    assert_eq!(
        fails("mov.u64 %rd2, 0xfffffffffffffffc; ld.u32 %r2, [%rd2];", 1)
            .1
            .status,
        Status::ILLEGAL_ADDRESS
    );
    assert_eq!(
        fails("atom.global.add.u32 %r2, [%rd1+0x40000000], 1;", 1)
            .1
            .status,
        Status::ILLEGAL_ADDRESS
    );
}

#[test]
fn shared_local_and_misaligned_accesses_are_checked() {
    let shared = fails(".shared .b8 s[64]; st.shared.u32 [s+128], %r1;", 1).1;
    assert_eq!(shared.status, Status::ILLEGAL_ADDRESS);
    let misaligned = fails("ld.global.u32 %r2, [%rd1+2];", 1).1;
    assert_eq!(misaligned.status, Status::MISALIGNED_ADDRESS);
    let vector = fails("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+8];", 1).1;
    assert_eq!(vector.status, Status::MISALIGNED_ADDRESS);
}

#[test]
fn traps_deadlocks_and_endless_recursion() {
    assert_eq!(fails("trap;", 1).1.status, Status::LAUNCH_FAILED);
    let stuck = fails(
        "setp.eq.u32 %p1, %r1, 0; @%p1 bar.sync 1, 64; @!%p1 bar.sync 2, 64;",
        32,
    )
    .1;
    assert_eq!(stuck.status, Status::LAUNCH_FAILED);
    assert!(stuck.detail.contains("barrier"), "{}", stuck.detail);

    let text = module(
        ".func deep(.param .b32 n) { .local .align 8 .b8 room[512]; .reg .b32 %r<2>; ld.param.u32 %r1, [n];
{ .param .b32 a; st.param.b32 [a], %r1; call.uni deep, (a); } ret; }
.visible .entry wrong(.param .u64 data) { { .param .b32 a; st.param.b32 [a], 1; call.uni deep, (a); } ret; }",
    );
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "wrong");
    let error = gpu
        .launch(&f, [1, 1, 1], [1, 1, 1], &[Arg::P(0)])
        .unwrap_err();
    assert_eq!(error.status, Status::HARDWARE_STACK_ERROR);
}

#[test]
fn each_thread_of_a_failed_assertion_has_its_message() {
    const CHILD: &str = "PARAGPU_TEST_ASSERTION";
    if std::env::var_os(CHILD).is_none() {
        // The messages go to the standard error of the process.
        let name = "faults::each_thread_of_a_failed_assertion_has_its_message";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        let errors = String::from_utf8(child.stderr).unwrap();
        let failed = |line: &&str| line.contains("Assertion");
        let lines: Vec<&str> = errors.lines().filter(failed).collect();
        let of = |thread| {
            format!(
                "a.cu:12: a.cu: block: [0,0,0], thread: [{thread},0,0] Assertion `x > 0` failed."
            )
        };
        assert_eq!(lines, [of(0), of(2)], "{errors}");
        return;
    }
    let text = module(
        ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 what[6] = {120, 32, 62, 32, 48, 0}; .global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};
.visible .entry wrong(.param .u64 data) { .reg .pred %p; .reg .b32 %r; .reg .b64 %rd<4>;
mov.u32 %r, %tid.x; setp.eq.u32 %p, %r, 1; @%p ret;
mov.u64 %rd1, what; mov.u64 %rd2, file; mov.u64 %rd3, 1;
{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
st.param.b64 [a], %rd1; st.param.b64 [b], %rd2; st.param.b32 [c], 12; st.param.b64 [d], %rd2; st.param.b64 [e], %rd3;
call.uni __assertfail, (a, b, c, d, e); } ret; }",
    );
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "wrong");
    let error = gpu
        .launch(&f, [1, 1, 1], [3, 1, 1], &[Arg::P(0)])
        .unwrap_err();
    assert_eq!(error.status, Status::ASSERT);
    for part in ["a.cu:12", "thread: [0,0,0]", "Assertion `x > 0` failed"] {
        assert!(error.detail.contains(part), "{}", error.detail);
    }
}

#[test]
fn a_kernel_that_never_ends_can_be_cancelled() {
    let text = kernel("LOOP: add.u32 %r2, %r2, 1; bra LOOP;");
    for (blocks, threads) in [(64, 256), (1, 32)] {
        let mut gpu = Gpu::new();
        let f = gpu.kernel(&text, "wrong");
        gpu.start(&f, [blocks, 1, 1], [threads, 1, 1], 0, false, &[Arg::P(0)])
            .unwrap();
        assert!(!gpu.device.stream_query(STREAM).unwrap());
        // Dropping the device must stop the kernel. Otherwise this test never ends.
    }
}

#[test]
fn cancelling_fails_the_session() {
    let place = DeviceSlot::take();
    let regions = place.regions();
    let mut device = SoftwareDevice::open(
        &Options {
            memory: 64 << 20,
            cores: 2,
            ..Options::default()
        },
        0,
        regions,
    )
    .unwrap();
    use paragpu_device::{Launch, ModuleDevice, StreamId, WorkDevice};
    let (module, _) = device
        .module_load(
            &kernel("LOOP: add.u32 %r2, %r2, 1; bra LOOP;")
                .as_str()
                .into(),
            &[],
        )
        .unwrap();
    let function = device.module_function(module, "wrong").unwrap();
    let launch = Launch {
        function: function.id,
        grid: [8, 1, 1],
        block: [32, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
        programmatic: false,
        cluster: [0; 3],
        preferences: Vec::new(),
        parameters: [0; 8].as_slice().into(),
    };
    device.launch(launch, StreamId::LEGACY).unwrap();
    device.cancel();
    assert_eq!(
        settle(&mut device, StreamId::LEGACY).unwrap_err().status,
        Status::LAUNCH_TIMEOUT
    );
}

#[test]
fn launches_that_cannot_be() {
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&kernel(""), "wrong");
    let arg = [Arg::P(0)];
    for (grid, block, shared) in [
        ([0, 1, 1], [1, 1, 1], 0),
        ([1, 65536, 1], [1, 1, 1], 0),
        ([1, 1, 1], [0, 1, 1], 0),
        ([1, 1, 1], [1025, 1, 1], 0),
        ([1, 1, 1], [1, 1, 65], 0),
        ([1, 1, 1], [32, 1, 1], 49 << 10),
    ] {
        let error = gpu.start(&f, grid, block, shared, false, &arg).unwrap_err();
        assert_eq!(
            error.status,
            Status::INVALID_VALUE,
            "{grid:?} {block:?} {shared}"
        );
    }
    let error = gpu
        .start(&f, [100_000, 1, 1], [1024, 1, 1], 0, true, &arg)
        .unwrap_err();
    assert_eq!(error.status, Status::COOPERATIVE_LAUNCH_TOO_LARGE);
    gpu.device.func_set_attribute(f.id, 8, 200 << 10).unwrap();
    gpu.start(&f, [1, 1, 1], [32, 1, 1], 200 << 10, false, &arg)
        .unwrap();
    settle(gpu.device.as_mut(), STREAM).unwrap();
}

#[test]
fn what_is_not_served_is_refused_by_name_and_line() {
    let mut gpu = Gpu::new();
    for (body, status, part) in [
        (
            "tcgen05.alloc.cta_group::1.sync.aligned.b32 [%rd1], 32;",
            Status::NOT_SUPPORTED,
            "tcgen05",
        ),
        // Shapes that no device has must not reach the arithmetic.
        (
            "mma.sync.aligned.m16n8k0.row.col.f32.f16.f16.f32 {}, {}, {}, {};",
            Status::NOT_SUPPORTED,
            "m16n8k0",
        ),
        (
            "wmma.mma.sync.aligned.row.col.m64n64k64.f32.f32 {%r1}, {%r1}, {%r1}, {%r1};",
            Status::NOT_SUPPORTED,
            "size",
        ),
        (
            "wmma.mma.sync.aligned.row.col.m65536n65536k1.f32.f32 {%r1}, {%r1}, {%r1}, {%r1};",
            Status::NOT_SUPPORTED,
            "m65536",
        ),
        ("frobnicate.u32 %r1, %r2;", Status::NOT_SUPPORTED, "line 5"),
        (
            "add.u32 %r1, %r2;",
            Status::NOT_SUPPORTED,
            "add.u32: expected 3 operands",
        ),
        ("add.u32 %r1, %r2, %nope;", Status::NOT_SUPPORTED, "%nope"),
        ("bra NOWHERE;", Status::INVALID_PTX, "NOWHERE"),
        (
            "add.u64 %rd1, %rd1, %r1;",
            Status::NOT_SUPPORTED,
            "add.u64: operand is not of 64",
        ),
        (
            "add.f32.nonsense %r1, %r1, %r1;",
            Status::NOT_SUPPORTED,
            "nonsense",
        ),
        ("{ call.uni elsewhere; }", Status::INVALID_PTX, "elsewhere"),
        (
            "st.global.b128 [%rd1], %rd1;",
            Status::NOT_SUPPORTED,
            "not a register of 128 bits",
        ),
        (
            "multimem.st.global.f32 [%rd1], %r1;",
            Status::NOT_SUPPORTED,
            "multimem",
        ),
        (
            "ld.global.u32.fancy %r1, [%rd1];",
            Status::NOT_SUPPORTED,
            "fancy",
        ),
    ] {
        let found = gpu
            .load(&kernel(body))
            .and_then(|module| gpu.device.module_function(module, "wrong"));
        let error = found.unwrap_err();
        assert_eq!(error.status, status, "{body}: {error}");
        assert!(error.detail.contains(part), "{body}: {error}");
    }
    let text = kernel("").replace("sm_75", "sm_130");
    assert_eq!(
        gpu.load(&text).unwrap_err().status,
        Status::NO_BINARY_FOR_GPU
    );
}

/// A module with one kernel that runs and others that cannot.
const MIXED: &str = ".func helper() { tcgen05.fence::before_thread_sync; ret; }
.visible .entry good(.param .u64 p) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 7; ret; }
.visible .entry direct() { frobnicate.u32 1; ret; }
.visible .entry indirect() { call.uni helper; ret; }
.visible .entry pointer(.param .u64 p) { .reg .b64 %rd<3>; .param .b64 x;
mov.u64 %rd1, helper; PROTO: .callprototype _ (); call %rd1, PROTO; ret; }";

#[test]
fn a_refused_kernel_leaves_the_others_of_its_module() {
    let mut gpu = Gpu::new();
    let (module, log) = gpu
        .device
        .module_load(&module(MIXED).as_str().into(), &[])
        .unwrap();
    assert!(
        log.contains("direct: ") && log.contains("helper: "),
        "{log}"
    );
    let base = gpu.arena;
    let good = gpu.device.module_function(module, "good").unwrap();
    gpu.launch(&good, [1, 1, 1], [1, 1, 1], &[Arg::P(base)])
        .unwrap();
    assert_eq!(gpu.get32(0, 1), [7]);
    for (name, part) in [("direct", "frobnicate"), ("indirect", "tcgen05")] {
        let error = gpu.device.module_function(module, name).unwrap_err();
        assert_eq!(error.status, Status::NOT_SUPPORTED);
        assert!(error.detail.contains(part), "{error}");
        assert!(error.detail.contains(name), "{error}");
    }
    let pointer = gpu.device.module_function(module, "pointer").unwrap();
    let error = gpu
        .launch(&pointer, [1, 1, 1], [1, 1, 1], &[Arg::P(base)])
        .unwrap_err();
    assert_eq!(error.status, Status::NOT_SUPPORTED);
    assert!(error.detail.contains("tcgen05"), "{error}");
}
