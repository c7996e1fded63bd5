//! What the grammar of PTX allows beyond nvcc's output: it is served, or refuses the kernel
//! that has it and no other.

use crate::common::{Arg, Gpu, module};
use paragpu_device::Function;
use paragpu_protocol::status::Status;

const GOOD: &str = ".visible .entry good(.param .u64 p) { .reg .b64 %rd<2>;
ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 7; ret; }";

/// Loads a module in which `text` stands beside a good kernel, runs that, and returns why
/// the kernel `odd` of `text` is refused.
fn refusal(gpu: &mut Gpu, text: &str) -> Option<String> {
    let text = module(&format!("{text}\n{GOOD}"));
    let module = gpu.load(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let good = gpu.device.module_function(module, "good").unwrap();
    gpu.put32(0, &[0]);
    let at = Arg::P(gpu.arena);
    gpu.launch(&good, [1, 1, 1], [1, 1, 1], &[at]).unwrap();
    assert_eq!(gpu.get32(0, 1), [7]);
    match gpu.device.module_function(module, "odd") {
        Ok(_) => None,
        Err(error) => {
            assert_eq!(error.status, Status::NOT_SUPPORTED, "{text}: {error}");
            Some(error.detail)
        }
    }
}

#[test]
fn what_the_parser_does_not_know_refuses_one_kernel() {
    let mut gpu = Gpu::new();
    for (text, part) in [
        // Operands of a form that no known instruction has.
        (
            ".entry odd() { frob.u32 {%r1, 5}|%x, <3>; ret; }",
            "frob.u32",
        ),
        (
            ".entry odd() { .reg .b32 %r<3>; vmad.s32.s32.s32 %r1, -%r2, %r1, %r2; ret; }",
            "vmad.s32.s32.s32",
        ),
        // Directives.
        (".entry odd() { .frob a, b; ret; }", ".frob"),
        (".entry odd() .frob 3, 4 { ret; }", ".frob"),
        (
            ".entry odd() .reqntid 32 .reqnctapercluster 2 .blocksareclusters { ret; }",
            ".blocksareclusters",
        ),
        (".entry odd(.param .texref t) { ret; }", ".texref"),
        (
            ".entry odd() { .reg .v4 .f32 v<2>; mov.v4.f32 v1, {0.0, 0.0, 0.0, 0.0}; ret; }",
            "vector registers",
        ),
        (
            ".entry odd() { .global .u32 g = 1; .reg .u32 r; ld.global.u32 r, [g]; ret; }",
            "global variable",
        ),
        (
            ".func f (.reg .pred a) { ret; }
.entry odd() { .reg .pred %p<3>; call f, (%p2); ret; }",
            "%p2 in a call",
        ),
        (
            ".func f (.param .b32 a) { ret; }
.entry odd() { .reg .b64 %rd<3>; call f, (%rd2); ret; }",
            "does not fit",
        ),
        (
            ".func f (.param .b32 a, .param .align 8 .b8 more[]) { ret; }
.entry odd() { .param .b64 a; .param .b8 b[8]; call f, (a, b); ret; }",
            "does not fit",
        ),
        (
            ".func f (.param .b32 a, .param .align 8 .b8 more[]) { ret; }
.entry odd() { .param .b32 a; .param .b8 b[8]; call f, (a, b, b); ret; }",
            "does not fit",
        ),
        (
            ".func f (.param .b32 a, .param .align 8 .b8 more[]) { ret; } .entry odd() { call f, (); ret; }",
            "does not fit",
        ),
        (
            ".entry odd(.reg .b32 a) { ret; }",
            "a kernel's parameter in a register",
        ),
        // Variables of types that this device does not have.
        (
            ".global .texref t = {addr_mode_0 = mirror, filter_mode = linear};
.entry odd() { .reg .f32 %f<7>; tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [t, {%f5,%f6}]; ret; }",
            "references",
        ),
        (
            ".global .surfref s; .entry odd() { .reg .b64 %rd; mov.u64 %rd, s; ret; }",
            "variable s",
        ),
        // A known instruction in an unknown form, with its name.
        (
            ".entry odd() { .reg .b32 %r<3>; add.u32 %r1, %r2; ret; }",
            "add.u32: ",
        ),
        (
            ".entry odd() { .reg .b64 %rd; mov.u64 %rd, %pm0_64; ret; }",
            "%pm0_64",
        ),
    ] {
        let why = refusal(&mut gpu, text).unwrap_or_else(|| panic!("accepted: {text}"));
        assert!(why.contains(part) && why.contains("odd"), "{text}: {why}");
    }
}

#[test]
fn what_is_no_ptx_at_all_refuses_the_module() {
    let mut gpu = Gpu::new();
    for text in [
        "add.u32 %r1, %r1, %r1 mov.u32 %r1, 5;",
        "add.u32 %r1, %r1, %r1 }",
        "mov.u32 %r1, undeclared;",
        "mov.u32 %r1, \"text\";",
        "bra NOWHERE;",
        "mov.u32 %r1, 1 / 0; mov.u32 %r1, (5; }",
    ] {
        let text = module(&format!(
            ".entry odd() {{ .reg .b32 %r<3>; {text} ret; }}\n{GOOD}"
        ));
        let error = gpu.load(&text).unwrap_err();
        assert_eq!(error.status, Status::INVALID_PTX, "{text}: {error}");
    }
}

#[test]
fn directives_without_effect() {
    let mut gpu = Gpu::new();
    for text in [
        ".func f() .noreturn { exit; }\n.entry odd() .pragma \"nounroll\"; { ret; }",
        ".func f() .abi_preserve 8 { ret; }\n.entry odd() { ret; }",
        ".func .attribute(.unified(0xAB, 0xCD)) f() { ret; }\n.entry odd() { ret; }",
        ".visible .global .attribute(.managed, .unified(19, 95)) .f32 v;\n.entry odd() { ret; }",
        ".file 1 \"a.cu\", 12, 13\n.entry odd() { .loc 1 5 3, function_name inf+16, inlined_at 1 2 3\nret; }
.section .debug_str { inf: .b8 97,0\n.b32 .debug_abbrev\n}",
        ".func f() { ret; }\n.entry odd() { .reg .b64 %rd; mov.u64 %rd, f; T: .calltargets f; call %rd, (), T; ret; }",
        ".func f() { ret; }\n.entry odd() { .reg .b64 %rd; mov.u64 %rd, f;
P: .callprototype ()_ () .noreturn .abi_preserve 8; call %rd, P; ret; }",
    ] {
        assert_eq!(refusal(&mut gpu, text), None, "{text}");
    }
}

/// A kernel that stores what `body` leaves in `%r0` to `%r3`, from each thread.
fn words(gpu: &mut Gpu, before: &str, body: &str) -> Function {
    gpu.kernel(
        &module(&format!(
            "{before}\n.visible .entry k(.param .u64 p) {{ .reg .pred %p<5>; .reg .b16 %h<5>; .reg .b32 %r<20>; .reg .b64 %rd<9>;
mov.u32 %r19, %tid.x; ld.param.u64 %rd8, [p]; mad.wide.u32 %rd8, %r19, 16, %rd8;
{body}
st.global.v4.u32 [%rd8], {{%r0,%r1,%r2,%r3}}; ret; }}"
        )),
        "k",
    )
}

#[test]
fn special_registers_as_vectors() {
    let mut gpu = Gpu::new();
    let at = Arg::P(gpu.arena);
    for (name, expected) in [
        ("%tid", [3, 0, 0, 0]),
        ("%ntid", [5, 1, 1, 0]),
        ("%ctaid", [0, 0, 0, 0]),
        ("%nctaid", [1, 1, 1, 0]),
        ("%nclusterid", [1, 1, 1, 0]),
    ] {
        let whole = words(
            &mut gpu,
            "",
            &format!("mov.v4.u32 {{%r0,%r1,%r2,%r3}}, {name};"),
        );
        gpu.launch(&whole, [1, 1, 1], [5, 1, 1], &[at]).unwrap();
        assert_eq!(gpu.get32(3 * 16, 4), expected, "{name}");
        let parts = format!(
            "mov.v4.u32 {{%r0,_,_,%r3}}, {name}; mov.u32 %r1, {name}.w; mov.u32 %r2, {name}.x;"
        );
        let parts = words(&mut gpu, "", &parts);
        gpu.launch(&parts, [1, 1, 1], [5, 1, 1], &[at]).unwrap();
        let [x, ..] = expected;
        assert_eq!(gpu.get32(3 * 16, 4), [x, 0, x, 0], "{name}");
    }
    // Without a driver's own values, and in no graph.
    let other = "mov.u32 %r4, %envreg0; mov.u64 %rd1, %current_graph_exec; cvt.u32.u64 %r0, %rd1;
or.b32 %r0, %r0, %r4; mov.u32 %r1, %envreg31; mov.u32 %r2, %total_smem_size;
mov.u32 %r3, %aggr_smem_size; sub.u32 %r3, %r3, %r2;";
    let other = words(&mut gpu, "", other);
    gpu.launch(&other, [1, 1, 1], [1, 1, 1], &[at]).unwrap();
    assert_eq!(gpu.get32(0, 4), [0, 0, 0, 1024]);
}

#[test]
fn constant_expressions() {
    let mut gpu = Gpu::new();
    let at = Arg::P(gpu.arena);
    for (expression, expected) in [
        ("5+3", 8),
        ("(5+3)*2", 16),
        ("5+3*2", 11),
        ("7-2-1", 4),
        ("1<<4", 16),
        ("-8>>1", -4_i32 as u32),
        ("0xFFFFFFFFFFFFFFF8>>60", 15),
        ("!5", 0),
        ("!0", 1),
        ("~5", !5),
        ("-(3)", -3_i32 as u32),
        ("- -3", 3),
        ("5 > 3 ? 1 : 2", 1),
        ("5 < 3 ? 1 : 0 ? 4 : 6", 6),
        ("-1 < 1", 1),
        ("(.u64)-1 < 1", 0),
        ("WARP_SZ-1", 31),
        ("WARP_SZ", 32),
        ("7/2*2+7 % 2", 7),
        ("-7/2", -3_i32 as u32),
        ("6&3|8^1", 11),
        ("1==1&&2!=2||3>=3", 1),
        ("0b101+017+0x1F", 51),
    ] {
        let body =
            format!("mov.u32 %r0, {expression}; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;");
        let kernel = words(&mut gpu, "", &body);
        gpu.launch(&kernel, [1, 1, 1], [1, 1, 1], &[at]).unwrap();
        assert_eq!(gpu.get32(0, 1), [expected], "{expression}");
    }
    let variables = ".global .align 4 .b32 G[2*2] = {1+1, -2, 3<<2, WARP_SZ};";
    let body = "mov.u64 %rd0, G+4*2; ld.global.u32 %r0, [%rd0]; ld.global.u32 %r1, [G+4*3]; ld.global.u32 %r2, [G+8-4].unified;
mov.f32 %r3, .5;";
    let kernel = words(&mut gpu, variables, body);
    gpu.launch(&kernel, [1, 1, 1], [1, 1, 1], &[at]).unwrap();
    assert_eq!(gpu.get32(0, 4), [12, 32, -2_i32 as u32, 0.5_f32.to_bits()]);
}

#[test]
fn variables_hide_registers_of_outer_blocks() {
    let mut gpu = Gpu::new();
    let before = ".func (.param .b32 r) twice(.param .b32 x) { .reg .b32 a;
ld.param.b32 a, [x]; shl.b32 a, a, 1; st.param.b32 [r], a; ret; }";
    let body = ".reg .v2 .b32 v; mov.b32 v.x, 64; mov.b32 %r4, 64; mov.b32 %r5, 64; mov.b64 %rd0, 64;
{ .local .b32 %rd0[2]; st.local.b32 [%rd0+4], 5; ld.local.b32 %r0, %rd0[1]; }
{ .shared .b32 %r4[2]; .shared .b32 v[2]; mov.u32 %r6, v; st.shared.b32 [v+4], 6; ld.shared.b32 %r1, [%r6+4];
  mov.u32 %r6, %r4; sub.u32 %r6, 64, %r6; setp.eq.u32 %p0, %r6, 0; @%p0 mov.u32 %r1, 0; }
{ .param .b32 %r5; .param .b32 %p1; st.param.b32 [%r5], 7; call (%p1), twice, (%r5); ld.param.b32 %r2, [%p1];
  { .reg .b32 %r5; mov.b32 %r5, 1; add.u32 %r2, %r2, %r5; } }
cvt.u32.u64 %r3, %rd0; add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5; add.u32 %r3, %r3, v.x;";
    let kernel = words(&mut gpu, before, body);
    let at = Arg::P(gpu.arena);
    gpu.launch(&kernel, [1, 1, 1], [1, 1, 1], &[at]).unwrap();
    assert_eq!(gpu.get32(0, 4), [5, 6, 15, 256]);
}

#[test]
fn results_that_nobody_takes() {
    let mut gpu = Gpu::new();
    let before = ".global .u32 G;
.func (.reg .b32 low, .reg .b64 high) two(.reg .b32 x) { add.u32 low, x, 1; mov.b64 high, 9; st.global.u32 [G], x; ret; }
.func (.param .align 4 .b8 r[40]) many() { st.param.b32 [r+36], 1; red.global.add.u32 [G], 100; ret; }";
    let body = "call (%r0, _), two, (4); ld.global.u32 %r1, [G]; call (_, %rd0), two, (5);
cvt.u32.u64 %r2, %rd0; call (_), many; ld.global.u32 %r3, [G];";
    let kernel = words(&mut gpu, before, body);
    let at = Arg::P(gpu.arena);
    gpu.launch(&kernel, [1, 1, 1], [1, 1, 1], &[at]).unwrap();
    assert_eq!(gpu.get32(0, 4), [5, 4, 9, 105]);
}

#[test]
fn initial_values_that_are_parts_of_addresses() {
    let mut gpu = Gpu::new();
    let variables = ".global .align 8 .b64 G[4];
.global .align 8 .u8 A[16] = {1, 2, 3, 4, 5, 6, 7, 8, 0xff(G+8), 0xff00(generic(G)+8), 0xff0000(G+8), 0xff000000(G+8),
0xff00000000(G+8), 0xff0000000000(G+8), 0xff000000000000(G+8), 0xff00000000000000(G+8)};
.global .align 4 .u32 L = G;";
    let body = "mov.u64 %rd0, G; ld.global.u64 %rd1, [A+8]; sub.u64 %rd1, %rd1, %rd0; cvt.u32.u64 %r0, %rd1;
ld.global.u32 %r1, [L]; cvt.u32.u64 %r2, %rd0; sub.u32 %r1, %r1, %r2; ld.global.u32 %r2, [A]; ld.global.u32 %r3, [A+4];";
    let kernel = words(&mut gpu, variables, body);
    let at = Arg::P(gpu.arena);
    gpu.launch(&kernel, [1, 1, 1], [1, 1, 1], &[at]).unwrap();
    assert_eq!(gpu.get32(0, 4), [8, 0, 0x0403_0201, 0x0807_0605]);
}

#[test]
fn elements_of_arrays_are_operands() {
    // Each body computes %rd0 from the thread's number %r0.
    type Form = (&'static str, fn(u64) -> u64);
    let forms: [Form; 19] = [
        ("ld.global.u64 %rd0, tab[%r0];", |t| 10 * t + 10),
        ("ld.global.u64 %rd0, tab[0];", |_| 10),
        ("ld.global.u64 %rd0, tab[8];", |_| 90),
        ("ld.global.u64 %rd0, tab[2*3-1];", |_| 60),
        ("ld.global.u64 %rd0, tab[%r0+2];", |t| 10 * t + 30),
        ("add.u32 %r1, %r0, 2; ld.global.u64 %rd0, tab[%r1-1];", |t| {
            10 * t + 20
        }),
        (
            "mov.u64 %rd0, tab[3]; mov.u64 %rd1, tab; sub.u64 %rd0, %rd0, %rd1;",
            |_| 24,
        ),
        (
            "mov.u64 %rd0, tab[%r0]; mov.u64 %rd1, tab; sub.u64 %rd0, %rd0, %rd1;",
            |t| 8 * t,
        ),
        // The index is unsigned.
        (
            "mov.u32 %r1, -1; mov.u64 %rd0, tab[%r1]; mov.u64 %rd1, tab; sub.u64 %rd0, %rd0, %rd1;",
            |_| 8 * 0xffff_ffff,
        ),
        ("ld.const.u32 %r1, few[%r0]; cvt.u64.u32 %rd0, %r1;", |t| {
            t + 5
        }),
        (
            "st.local.u32 own[%r0], 77; mul.wide.u32 %rd1, %r0, 4; mov.u64 %rd2, own[0]; add.u64 %rd1, %rd1, %rd2;
ld.local.u32 %r1, [%rd1]; cvt.u64.u32 %rd0, %r1;",
            |_| 77,
        ),
        (
            "st.shared.u32 all[%r0], %r0; bar.sync 0; sub.u32 %r1, 3, %r0; ld.shared.u32 %r2, all[%r1]; cvt.u64.u32 %rd0, %r2;",
            |t| 3 - t,
        ),
        (
            "mov.u32 %r1, all[%r0]; mov.u32 %r2, all[1]; sub.u32 %r1, %r1, %r2; cvt.s64.s32 %rd0, %r1;",
            |t| (4 * t).wrapping_sub(4),
        ),
        // Elements are vectors.
        (
            "ld.global.v2.u32 {%r1, %r2}, pairs[%r0]; mov.b64 %rd0, {%r1, %r2};",
            |t| (2 * t + 1) | (2 * t + 2) << 32,
        ),
        ("atom.global.add.u64 %rd0, sums[%r0], 5;", |_| 0),
        ("red.global.add.u64 sums[%r0], 6; ld.global.u64 %rd0, sums[%r0];", |_| 11),
        (
            "and.b32 %r1, %r0, 1; ld.param.u32 %r2, p[%r1]; cvt.u64.u32 %rd0, %r2;",
            |t| 21 + t % 2,
        ),
        (
            "setp.eq.u32 %p1, %r0, 2; mov.u64 %rd0, 1; @%p1 ld.global.u64 %rd0, tab[%r0];",
            |t| if t == 2 { 30 } else { 1 },
        ),
        (
            ".reg .v2 .u32 v; mov.v2.u32 v, {8, 9}; st.global.v2.u32 others[%r0], v; ld.global.u64 %rd0, others[%r0];",
            |_| 8 | 9 << 32,
        ),
    ];
    let bodies = forms
        .iter()
        .enumerate()
        .map(|(n, (body, _))| format!("{{ {body} st.global.u64 [%rd9+{}], %rd0; }}\n", n * 32));
    let text = module(&format!(
        ".visible .global .align 8 .u64 tab[12] = {{10, 20, 30, 40, 50, 60, 70, 80, 90}};
.const .align 4 .u32 few[4] = {{5, 6, 7, 8}}; .global .v2 .u32 pairs[4] = {{{{1, 2}}, {{3, 4}}, {{5, 6}}, {{7, 8}}}};
.global .u64 sums[4]; .global .u64 others[4];
.visible .entry k(.param .u64 out, .param .u32 p[2]) {{ .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<10>;
.local .u32 own[4]; .shared .u32 all[4];
ld.param.u64 %rd9, [out]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd9, %r0, 8, %rd9;
{} ret; }}",
        bodies.collect::<String>()
    ));
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, "k");
    let arguments = [Arg::P(gpu.arena), Arg::P(21 | 22 << 32)];
    gpu.launch(&f, [1, 1, 1], [4, 1, 1], &arguments).unwrap();
    let got = gpu.get64(0, forms.len() * 4);
    for ((body, want), got) in forms.iter().zip(got.chunks_exact(4)) {
        let want: Vec<u64> = (0..4).map(want).collect();
        assert_eq!(got, want, "{body}");
    }
    for (text, part) in [
        (
            ".entry odd() { .reg .b64 %rd<2>; ld.global.u64 %rd1, %rd1[0]; ret; }",
            "%rd1 is not an array",
        ),
        (
            ".global .u64 tab[2]; .entry odd() { .reg .b64 %rd<2>; ld.global.u64 %rd1, tab[%rd1]; ret; }",
            "the index %rd1 is not of 32 bits",
        ),
        (
            ".func f(.param .u32 p[2]) { .reg .b32 %r<2>; mov.u32 %r1, 1; ld.param.u32 %r1, p[%r1]; ret; }
.entry odd() { .param .b32 p[2]; call f, (p); ret; }",
            "a parameter with an index in a register",
        ),
    ] {
        let refused = refusal(&mut gpu, text).unwrap_or_else(|| panic!("{text} is served"));
        assert!(refused.contains(part), "{text}: {refused}");
    }
}
