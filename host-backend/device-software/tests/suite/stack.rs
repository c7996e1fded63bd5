//! The stack: memory of `alloca` (per lane, aligned, and freed when a function returns), depth
//! of calls, alignment of frames and of dynamic shared memory.

use crate::common::{Arg, Gpu, STREAM, module};
use paragpu_device::conformance::settle;
use paragpu_protocol::status::Status;

/// `sum(n)` fills `n` words and an aligned rest and adds them up, 300 times for each of 64 lanes.
const TEXT: &str = "
.func (.param .b32 out) sum (.param .b32 n) {
.reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<16>;
ld.param.u32 %r1, [n];
mul.wide.u32 %rd1, %r1, 4;
alloca.u64 %rd2, %rd1, 16;
and.b64 %rd3, %rd2, 15;
setp.ne.u64 %p1, %rd3, 0;
cvta.local.u64 %rd4, %rd2;
mov.u32 %r2, 0;
FILL: setp.ge.u32 %p2, %r2, %r1; @%p2 bra SAVE;
mul.wide.u32 %rd5, %r2, 4; add.u64 %rd5, %rd4, %rd5; st.u32 [%rd5], %r2; add.u32 %r2, %r2, 1; bra FILL;
SAVE: stacksave.u64 %rd6;
alloca.u64 %rd7, 64;
st.local.u32 [%rd7+60], 1000000;
stackrestore.u64 %rd6;
alloca.u64 %rd8, 64;
setp.ne.u64 %p3, %rd7, %rd8;
ld.local.u32 %r4, [%rd8+60];
mov.u32 %r3, 0;
ADD: setp.eq.u32 %p2, %r2, 0; @%p2 bra END;
sub.u32 %r2, %r2, 1;
mul.wide.u32 %rd5, %r2, 4; add.u64 %rd5, %rd4, %rd5; ld.u32 %r5, [%rd5]; add.u32 %r3, %r3, %r5; bra ADD;
END: add.u32 %r3, %r3, %r4;
@%p1 mov.u32 %r3, 1;
@%p3 mov.u32 %r3, 2;
st.param.b32 [out], %r3;
ret;
}
.visible .entry k(.param .u64 data) {
.reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<8>;
ld.param.u64 %rd0, [data]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 4, %rd0; mov.u32 %r1, 0;
AGAIN: add.u32 %r2, %r0, 1;
{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r2; call (r), sum, (a); ld.param.b32 %r3, [r]; }
add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 300; @%p1 bra AGAIN;
st.global.u32 [%rd1], %r3;
ret; }";

#[test]
fn lanes_take_different_amounts_and_returns_give_back() {
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&module(TEXT), "k");
    let base = gpu.arena;
    gpu.launch(&f, [1, 1, 1], [64, 1, 1], &[Arg::P(base)])
        .unwrap();
    for (lane, got) in (0..).zip(gpu.get32(0, 64)) {
        assert_eq!(got, lane * (lane + 1) / 2 + 1_000_000, "lane {lane}");
    }
}

#[test]
fn more_than_the_stack_has_is_a_fault() {
    let text = "
.visible .entry k(.param .u64 data) {
.reg .b64 %rd<4>;
ld.param.u64 %rd0, [data];
alloca.u64 %rd1, 0x10000000;
st.local.u32 [%rd1], 1;
ret; }";
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&module(text), "k");
    let base = gpu.arena;
    let error = gpu
        .launch(&f, [1, 1, 1], [1, 1, 1], &[Arg::P(base)])
        .unwrap_err();
    assert!(error.to_string().contains("stack"), "{error}");
}

#[test]
fn the_stack_limit_bounds_the_depth_of_calls() {
    let text = module(
        "
.func (.param .b32 out) deep (.param .b32 n) {
.reg .pred %p1; .reg .b32 %r<4>;
ld.param.u32 %r1, [n]; mov.u32 %r2, 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra END;
sub.u32 %r3, %r1, 1;
{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r3; call (r), deep, (a); ld.param.b32 %r2, [r]; }
add.u32 %r2, %r2, 1;
END: st.param.b32 [out], %r2; ret; }
.visible .entry k(.param .u64 data, .param .u64 depth) {
.reg .b32 %r<4>; .reg .b64 %rd<4>;
ld.param.u64 %rd0, [data]; ld.param.u64 %rd1, [depth]; cvt.u32.u64 %r1, %rd1;
{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r1; call (r), deep, (a); ld.param.b32 %r2, [r]; }
st.global.u32 [%rd0], %r2; ret; }",
    );
    let mut gpu = Gpu::new();
    gpu.device.ctx_set_limit(0, 256 << 10).unwrap();
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.launch(&f, [1, 1, 1], [32, 1, 1], &[Arg::P(base), Arg::P(5000)])
        .unwrap();
    assert_eq!(gpu.get32(0, 1), [5000]);
    let endless = [Arg::P(base), Arg::P(1_000_000)];
    let error = gpu.launch(&f, [1, 1, 1], [1, 1, 1], &endless).unwrap_err();
    assert_eq!(error.status, Status::HARDWARE_STACK_ERROR);
}

#[test]
fn frames_and_dynamic_shared_memory_have_their_alignment() {
    let text = module(
        "
.extern .shared .align 1024 .b8 dyn[];
.func (.param .b32 out) low () {
.local .align 128 .b8 own[8]; .reg .b32 %r1; .reg .b64 %rd1;
mov.u64 %rd1, own; cvta.local.u64 %rd1, %rd1; and.b64 %rd1, %rd1, 127; cvt.u32.u64 %r1, %rd1;
st.param.b32 [out], %r1; ret; }
.visible .entry k(.param .u64 data) {
.shared .align 4 .b8 fixed[20]; .local .align 4 .b8 first[20]; .reg .b32 %r<4>; .reg .b64 %rd<4>;
ld.param.u64 %rd0, [data]; mov.u32 %r1, dyn; and.b32 %r1, %r1, 1023;
st.shared.u32 [fixed+16], %r1; st.local.u32 [first+16], %r1; st.shared.u32 [dyn+60], %r1;
{ .param .b32 r; call (r), low, (); ld.param.b32 %r2, [r]; }
st.global.v2.u32 [%rd0], {%r1, %r2}; ret; }",
    );
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.put32(0, &[7; 2]);
    gpu.start(&f, [1, 1, 1], [1, 1, 1], 64, false, &[Arg::P(base)])
        .unwrap();
    settle(gpu.device.as_mut(), STREAM).unwrap();
    assert_eq!(gpu.get32(0, 2), [0, 0]);
}
