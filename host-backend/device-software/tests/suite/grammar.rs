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
            ".entry odd() { .reg .b64 %rd; mov.u64 %rd, %current_graph_exec; ret; }",
            "%current_graph_exec",
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
    // Without a driver's own values.
    let other = "mov.u32 %r0, %envreg0; mov.u32 %r1, %envreg31; mov.u32 %r2, %total_smem_size;
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
