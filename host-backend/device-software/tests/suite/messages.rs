//! Messages between blocks: vectors that are read and written at once, and blocks that wait
//! for others.

use crate::common::{Arg, Gpu, module};

/// A vector access: what `ld` and `st` say, its type and its elements.
const FORMS: &[(&str, &str, usize)] = &[
    ("relaxed.gpu.global.v2", "b64", 2),
    ("volatile.global.v2", "b64", 2),
    ("volatile.global.v4", "b32", 4),
    ("relaxed.gpu.global.v2", "b32", 2),
    ("relaxed.gpu.global.v4", "b16", 4),
    // These are fast paths, and the hardware has no slower one.
    ("global.v4", "b32", 4),
    ("global.v2", "b32", 2),
    ("global.v4", "b16", 4),
    ("global.cg.v2", "b64", 2),
    // Parts of 16 bytes.
    ("global.v4", "b64", 2),
    ("v4", "b32", 4),
];

/// A kernel in which the first block stores vectors of equal elements, each greater than the
/// one before, and the second counts those in which an element differs, to `g + 128`.
/// `lanes` lanes do so, each on its own vector. `equal` elements from the start are the same.
fn messages(form: &str, ty: &str, equal: usize, lanes: u32, rounds: u32) -> String {
    let count = if form.ends_with("v4") { 4 } else { 2 };
    let list = |name: fn(usize) -> String| (0..count).map(name).collect::<Vec<_>>().join(",");
    let loaded = list(|n| format!("%v{n}"));
    let stored = list(|_| "%x".into());
    let integer = ty.replace('b', "u");
    let compare: String = (1..equal)
        .map(|n| format!("setp.ne.{ty} %p,%v{n},%v0; @%p add.u32 %c,%c,1;\n"))
        .collect();
    // Both halves of an element change.
    let step = match ty {
        "b64" => "0x0000000100000001",
        _ => "1",
    };
    module(&format!(
        ".visible .entry k(.param .u64 data) {{
.reg .pred %p; .reg .b32 %n, %c, %t; .reg .{ty} %x; .reg .{ty} %v<4>; .reg .b64 %g, %o;
ld.param.u64 %o, [data]; mov.u32 %t, %tid.x; mad.wide.u32 %g, %t, 32, %o; add.u64 %o, %o, {};
mov.u32 %n, {rounds}; mov.u32 %c, 0; mov.{ty} %x, 0; mov.u32 %t, %ctaid.x; setp.ne.u32 %p, %t, 0; @%p bra READ;
WRITE: add.{integer} %x, %x, {step}; st.{form}.{ty} [%g], {{{stored}}};
sub.u32 %n, %n, 1; setp.ne.u32 %p, %n, 0; @%p bra WRITE; ret;
READ: ld.{form}.{ty} {{{loaded}}}, [%g];
{compare} sub.u32 %n, %n, 1; setp.ne.u32 %p, %n, 0; @%p bra READ;
red.global.add.u32 [%o], %c; ret; }}",
        32 * lanes
    ))
}

#[test]
fn lanes_access_vectors_at_once() {
    let mut gpu = Gpu::new();
    let base = gpu.arena;
    for &(form, ty, equal) in FORMS {
        for (lanes, rounds) in [(1, 100_000), (7, 30_000), (32, 10_000)] {
            let f = gpu.kernel(&messages(form, ty, equal, lanes, rounds), "k");
            gpu.put32(0, &vec![0; 8 * lanes as usize + 1]);
            gpu.launch(&f, [2, 1, 1], [lanes, 1, 1], &[Arg::P(base)])
                .unwrap();
            let torn = gpu.get32(32 * u64::from(lanes), 1);
            assert_eq!(torn, [0], "{form}.{ty}, {lanes} lanes");
        }
    }
}

#[test]
fn stores_of_128_bits_are_atomic_with_exchanges() {
    let mut gpu = Gpu::new();
    let base = gpu.arena;
    // All blocks add to both halves; a plain vector load finds the expected value.
    let text = module(
        ".visible .entry k(.param .u64 data) {
.reg .pred %p; .reg .b32 %n; .reg .b64 %g, %x<4>, %y<4>, %bad; .reg .b128 %q<3>;
ld.param.u64 %g, [data]; mov.u32 %n, 3000;
NEXT: ld.global.v2.b64 {%x0,%y0}, [%g];
setp.ne.u64 %p, %x0, %y0; @%p red.global.add.u32 [%g+16], 1;
add.u64 %x1, %x0, 1; add.u64 %y1, %y0, 1;
mov.b128 %q0, {%x0,%y0}; mov.b128 %q1, {%x1,%y1};
atom.relaxed.gpu.global.cas.b128 %q2, [%g], %q0, %q1;
mov.b128 {%x2,%y2}, %q2; setp.ne.u64 %p, %x2, %x0; @%p bra NEXT;
sub.u32 %n, %n, 1; setp.ne.u32 %p, %n, 0; @%p bra NEXT; ret; }",
    )
    .replace("sm_75", "sm_90");
    let f = gpu.kernel(&text, "k");
    gpu.put64(0, &[0; 3]);
    gpu.launch(&f, [4, 1, 1], [1, 1, 1], &[Arg::P(base)])
        .unwrap();
    assert_eq!(gpu.get64(0, 3), [12_000, 12_000, 0]);
}

#[test]
fn blocks_wait_for_those_before_them() {
    let mut gpu = Gpu::new();
    // Each block works for a while, waits for the one before it, and lets the next one
    // continue. The first works longer, so that many others wait before it hands back the
    // rest of its share.
    let text = module(
        ".visible .entry k(.param .u64 flags, .param .u32 work) {
.reg .pred %p, %q; .reg .b32 %n, %b, %t, %z; .reg .b64 %g;
ld.param.u64 %g, [flags]; ld.param.u32 %n, [work]; mov.u32 %b, %ctaid.x; mov.u32 %t, %tid.x;
mad.wide.u32 %g, %b, 4, %g; mov.u32 %z, 0; setp.eq.u32 %q, %b, 0; @%q shl.b32 %n, %n, 4;
WORK: sub.u32 %n, %n, 1; setp.ne.u32 %p, %n, 0; @%p bra WORK;
setp.ne.u32 %p, %t, 0; @%p bra DONE; @%q bra SET;
WAIT: ld.relaxed.gpu.global.u32 %z, [%g+-4]; setp.eq.u32 %p, %z, 0; @%p bra WAIT;
SET: add.u32 %z, %z, 1; st.relaxed.gpu.global.u32 [%g], %z;
DONE: ret; }",
    );
    let f = gpu.kernel(&text, "k");
    let base = gpu.arena;
    for (blocks, work) in [
        (1000, 300),
        (1000, 200),
        (1000, 400),
        (1000, 100),
        (64, 100),
    ] {
        gpu.put32(0, &vec![0; blocks]);
        let args = [Arg::P(base), Arg::W(work)];
        gpu.launch(&f, [blocks as u32, 1, 1], [1024, 1, 1], &args)
            .unwrap();
        assert_eq!(gpu.get32(4 * (blocks as u64 - 1), 1), [blocks as u32]);
    }
}
