//! Exchanges between lanes that are at different instructions.

use crate::common::{Arg, Gpu, module};

/// A kernel with this body, in which `%r0` is the lane; its result is `%r9`.
fn kernel(functions: &str, body: &str) -> String {
    module(&format!(
        "{functions}
.visible .entry k(.param .u64 out) {{
.reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %rd<4>;
ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 4, %rd0; mov.u32 %r9, 0;
{body}
st.global.u32 [%rd1], %r9; ret; }}"
    ))
}

/// The results of a warp.
fn run(functions: &str, body: &str) -> Vec<u32> {
    let text = kernel(functions, body);
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    gpu.launch(&f, [1, 1, 1], [32, 1, 1], &[Arg::P(base)])
        .unwrap_or_else(|e| panic!("{e}\n{text}"));
    gpu.get32(0, 32)
}

#[test]
fn the_same_operation_in_both_branches() {
    // Each with other registers. The lanes meet as the odd and the even ones.
    type Result = fn(u32) -> u32;
    let table: [(&str, &str, Result); 6] = [
        (
            "add.u32 %r1,%r0,100; shfl.sync.bfly.b32 %r9,%r1,1,31,-1;",
            "add.u32 %r2,%r0,200; xor.b32 %r3,%r0,1; shfl.sync.bfly.b32 %r4|%p2,%r2,1,31,-1; selp.u32 %r9,%r4,7,%p2;",
            |l| (l ^ 1) + if l % 2 == 0 { 100 } else { 200 },
        ),
        (
            "setp.lt.u32 %p1,%r0,9; vote.sync.ballot.b32 %r9,%p1,-1;",
            "setp.ge.u32 %p3,%r0,9; vote.sync.ballot.b32 %r9,!%p3,-1;",
            |_| 0x1ff,
        ),
        (
            "setp.lt.u32 %p1,%r0,9; vote.sync.any.pred %p2,%p1,-1; selp.u32 %r9,5,6,%p2;",
            "setp.gt.u32 %p3,%r0,90; vote.sync.any.pred %p4,%p3,-1; selp.u32 %r9,5,6,%p4;",
            |_| 5,
        ),
        (
            "shr.u32 %r1,%r0,2; match.any.sync.b32 %r9,%r1,-1;",
            "shr.u32 %r5,%r0,2; match.any.sync.b32 %r9,%r5,-1;",
            |l| 15 << (l & !3),
        ),
        (
            "mov.u32 %r1,3; redux.sync.add.s32 %r9,%r1,-1;",
            "mov.u32 %r5,4; redux.sync.add.s32 %r9,%r5,-1;",
            |_| 16 * 7,
        ),
        (
            "elect.sync %r9|%p1,-1; @%p1 add.u32 %r9,%r9,50;",
            "elect.sync %r9|%p5,-1; @%p5 add.u32 %r9,%r9,60;",
            |l| if l == 0 { 60 } else { 0 },
        ),
    ];
    for (odd, even, want) in table {
        let body = format!(
            "and.b32 %r8,%r0,1; setp.eq.u32 %p0,%r8,0; @%p0 bra EVEN; {odd} bra END; EVEN: {even} END:"
        );
        let want: Vec<u32> = (0..32).map(want).collect();
        assert_eq!(run("", &body), want, "{odd}");
    }
}

#[test]
fn masks_shrink_in_a_loop_and_its_remainder() {
    // As nvcc unrolls `for (i = 0; i <= lane; i++) r += shfl(-1 << i, lane * i, 31)`: two
    // steps at a time, then one.
    let step = "shl.b32 %r2,-1,%r1; mul.lo.u32 %r3,%r0,%r1;";
    let body = format!(
        "add.u32 %r7,%r0,1; mov.u32 %r1,0; setp.lt.u32 %p0,%r7,2; @%p0 bra REST;
LOOP: {step} shfl.sync.idx.b32 %r4,%r3,31,31,%r2; add.u32 %r9,%r9,%r4; add.u32 %r1,%r1,1;
{step} shfl.sync.idx.b32 %r5,%r3,31,31,%r2; add.u32 %r9,%r9,%r5; add.u32 %r1,%r1,1;
add.u32 %r6,%r1,1; setp.lt.u32 %p1,%r6,%r7; @%p1 bra LOOP;
REST: setp.ge.u32 %p2,%r1,%r7; @%p2 bra END;
{step} shfl.sync.idx.b32 %r6,%r3,31,31,%r2; add.u32 %r9,%r9,%r6; add.u32 %r1,%r1,1; bra REST;
END:"
    );
    let want: Vec<u32> = (0..32u32).map(|l| (0..=l).map(|i| 31 * i).sum()).collect();
    assert_eq!(run("", &body), want);
}

#[test]
fn groups_complete_one_by_one_and_in_called_functions() {
    // Each eight lanes are a group, of which the lower four wait in a function. One lane of
    // the upper four has exited.
    let function = ".func (.param .b32 r) f (.param .b32 a, .param .b32 m) { .reg .b32 %r<4>;
ld.param.b32 %r1,[a]; ld.param.b32 %r2,[m]; redux.sync.add.u32 %r3,%r1,%r2; st.param.b32 [r],%r3; ret; }";
    let body = "setp.eq.u32 %p3,%r0,7; @%p3 exit;
shr.u32 %r1,%r0,3; shl.b32 %r1,%r1,3; shl.b32 %r2,0xff,%r1;
and.b32 %r3,%r0,4; setp.eq.u32 %p0,%r3,0; @%p0 bra CALL;
redux.sync.add.u32 %r9,%r0,%r2; bra END;
CALL: { .param .b32 a; .param .b32 m; .param .b32 r; st.param.b32 [a],%r0; st.param.b32 [m],%r2; call (r), f, (a, m); ld.param.b32 %r9,[r]; }
END:";
    let sum = |l: u32| (l & !7..(l & !7) + 8).filter(|&l| l != 7).sum();
    let mut want: Vec<u32> = (0..32).map(sum).collect();
    want[7] = 0;
    assert_eq!(run(function, body), want);
}

#[test]
fn other_operations_do_not_meet() {
    // Each half of the warp waits for the other, at an operation that the other is not at.
    for other in [
        "vote.sync.ballot.b32 %r9,%p1,-1;",
        "shfl.sync.idx.b32 %r9,%r0,1,31,-1;",
        "shfl.sync.bfly.b32 %r9,%r0,1,31,0x7fffffff;",
    ] {
        let text = kernel(
            "",
            &format!(
                "and.b32 %r8,%r0,1; setp.eq.u32 %p0,%r8,0; setp.lt.u32 %p1,%r0,3; @%p0 bra EVEN;
shfl.sync.bfly.b32 %r9,%r0,1,31,-1; bra END; EVEN: {other} END:"
            ),
        );
        let mut gpu = Gpu::new();
        let f = gpu.kernel(&text, "k");
        let base = gpu.arena;
        let ended = gpu.launch(&f, [1, 1, 1], [32, 1, 1], &[Arg::P(base)]);
        assert!(ended.is_err(), "{other}");
    }
}
