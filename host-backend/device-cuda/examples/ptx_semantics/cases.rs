//! The instructions that are compared.
//!
//! A body reads `%r0`… (and `%f`, `%rs`, `%rd`, `%fd`, views of the same words) and writes `%o0`….

/// What the input words are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Anything, edge cases often.
    Any,
    /// Singles from 2^-7 to 2^6.
    Moderate,
    /// Pairs of halves from 2^-5 to 2^4.
    Halves,
    /// Pairs of bfloats from 2^-5 to 2^4.
    Bfloats,
    /// Four 8-bit floats or integers.
    Bytes8,
    /// Doubles of moderate size.
    Doubles,
}

/// What counts as the same.
#[derive(Debug, Clone, Copy)]
pub enum Check {
    /// Every bit.
    Exact,
    /// Singles within a relative error.
    Single(f64),
    /// Singles within an absolute error.
    Sum(f32),
    /// Pairs of halves within a relative error.
    Halves(f64),
    /// Doubles within a relative error.
    Double(f64),
}

/// An instruction to compare.
pub struct Case {
    /// Least architecture, times ten.
    pub target: u32,
    /// Inputs.
    pub input: Input,
    /// Equality.
    pub check: Check,
    /// PTX.
    pub body: String,
}

fn many(out: &mut Vec<Case>, target: u32, input: Input, check: Check, bodies: &[&str]) {
    out.extend(bodies.iter().map(|body| Case {
        target,
        input,
        check,
        body: (*body).to_owned(),
    }));
}

/// A list of registers.
fn list(name: &str, first: usize, count: usize) -> String {
    let names: Vec<String> = (first..first + count)
        .map(|n| format!("%{name}{n}"))
        .collect();
    format!("{{{}}}", names.join(","))
}

/// `mma` with 32-bit registers: A in `%r0`…, B and C behind it.
fn mma(opcode: &str, a: usize, b: usize, c: usize, floats: bool) -> String {
    let (name, moves) = match floats {
        true => (
            "f",
            (0..c)
                .map(|n| format!(" mov.b32 %o{n}, %f{};", 16 + n))
                .collect(),
        ),
        false => ("r", String::new()),
    };
    let d = if floats {
        list("f", 16, c)
    } else {
        list("o", 0, c)
    };
    format!(
        "mma.sync.aligned.{opcode} {d}, {}, {}, {};{moves}",
        list("r", 0, a),
        list("r", a, b),
        list(name, 8, c)
    )
}

/// All cases.
pub fn all() -> Vec<Case> {
    let mut out = Vec::new();
    integers(&mut out);
    floats(&mut out);
    conversions(&mut out);
    warps(&mut out);
    matrices(&mut out);
    out
}

fn integers(out: &mut Vec<Case>) {
    let bodies = [
        "add.sat.s32 %o0,%r0,%r1;",
        "mul.hi.s32 %o0,%r0,%r1;",
        "mad.hi.u32 %o0,%r0,%r1,%r2;",
        "mul24.lo.s32 %o0,%r0,%r1;",
        "div.s32 %o0,%r0,%r1;",
        "div.u32 %o0,%r0,%r1;",
        "rem.s32 %o0,%r0,%r1;",
        "rem.u32 %o0,%r0,%r1;",
        "sad.s32 %o0,%r0,%r1,%r2;",
        "abs.s32 %o0,%r0;",
        "popc.b32 %o0,%r0;",
        "clz.b32 %o0,%r0;",
        "brev.b32 %o0,%r0;",
        "bfind.u32 %o0,%r0;",
        "bfind.s32 %o0,%r0;",
        "bfind.shiftamt.s32 %o0,%r0;",
        "bfe.u32 %o0,%r0,%r1,%r2;",
        "bfe.s32 %o0,%r0,%r1,%r2;",
        "bfi.b32 %o0,%r0,%r1,%r2,%r3;",
        "bmsk.clamp.b32 %o0,%r0,%r1;",
        "bmsk.wrap.b32 %o0,%r0,%r1;",
        "szext.wrap.s32 %o0,%r0,%r1;",
        "szext.clamp.u32 %o0,%r0,%r1;",
        "and.b32 %r16,%r1,31; bfe.s32 %r17,%r2,3,7; fns.b32 %o0,%r0,%r16,%r17;",
        "shl.b32 %o0,%r0,%r1;",
        "shr.s32 %o0,%r0,%r1;",
        "shf.l.wrap.b32 %o0,%r0,%r1,%r2;",
        "shf.r.clamp.b32 %o0,%r0,%r1,%r2;",
        "lop3.b32 %o0,%r0,%r1,%r2,0x96;",
        "lop3.b32 %o0,%r0,%r1,%r2,0xe8;",
        "prmt.b32 %o0,%r0,%r1,%r2;",
        "prmt.b32.f4e %o0,%r0,%r1,%r2;",
        "prmt.b32.b4e %o0,%r0,%r1,%r2;",
        "prmt.b32.rc8 %o0,%r0,%r1,%r2;",
        "prmt.b32.ecl %o0,%r0,%r1,%r2;",
        "prmt.b32.ecr %o0,%r0,%r1,%r2;",
        "prmt.b32.rc16 %o0,%r0,%r1,%r2;",
        "dp4a.s32.s32 %o0,%r0,%r1,%r2;",
        "dp4a.u32.s32 %o0,%r0,%r1,%r2;",
        "dp2a.lo.s32.u32 %o0,%r0,%r1,%r2;",
        "dp2a.hi.u32.s32 %o0,%r0,%r1,%r2;",
        "slct.s32.f32 %o0,%r0,%r1,%f2;",
        "div.s64 %rd8,%rd0,%rd1; mov.b64 {%o0,%o1},%rd8;",
        "rem.u64 %rd8,%rd0,%rd1; mov.b64 {%o0,%o1},%rd8;",
        "mul.hi.s64 %rd8,%rd0,%rd1; mov.b64 {%o0,%o1},%rd8;",
        "bfe.s64 %rd8,%rd0,%r2,%r3; mov.b64 {%o0,%o1},%rd8;",
        "bfi.b64 %rd8,%rd0,%rd1,%r4,%r5; mov.b64 {%o0,%o1},%rd8;",
        "shr.s64 %rd8,%rd0,%r2; mov.b64 {%o0,%o1},%rd8;",
        "add.cc.u32 %o0,%r0,%r1; addc.cc.u32 %o1,%r2,%r3; addc.u32 %o2,%r4,%r5;",
        "sub.cc.u32 %o0,%r0,%r1; subc.cc.u32 %o1,%r2,%r3; subc.u32 %o2,%r4,%r5;",
        "setp.gt.s32 %p1,%r0,%r1; lop3.or.b32 %o0|%p2,%r0,%r1,%r2,0x80,%p1; selp.u32 %o1,1,0,%p2;",
        "cvt.pack.sat.s8.s32.b32 %o0,%r0,%r1,%r2;",
        "cvt.pack.sat.u16.s32 %o0,%r0,%r1;",
    ];
    many(out, 80, Input::Any, Check::Exact, &bodies);
    let packed = [
        "add.s16x2 %o0,%r0,%r1;",
        "min.s16x2 %o0,%r0,%r1;",
        "max.u16x2 %o0,%r0,%r1;",
        "max.relu.s16x2 %o0,%r0,%r1;",
        "min.relu.s32 %o0,%r0,%r1;",
    ];
    many(out, 90, Input::Any, Check::Exact, &packed);
}

fn floats(out: &mut Vec<Case>) {
    let mut bodies = Vec::new();
    for op in ["add", "sub", "mul"] {
        for mode in ["rn", "rz", "rm", "rp", "rn.ftz", "rn.sat", "rz.ftz"] {
            bodies.push(format!("{op}.{mode}.f32 %f16,%f0,%f1; mov.b32 %o0,%f16;"));
        }
        for mode in ["rn", "rz", "rm", "rp"] {
            bodies.push(format!(
                "{op}.{mode}.f64 %fd8,%fd0,%fd1; mov.b64 %rd8,%fd8; mov.b64 {{%o0,%o1}},%rd8;"
            ));
        }
        for ty in ["f16x2", "bf16x2"] {
            let target = format!("{op}.rn.{ty} %o0,%r0,%r1;");
            out.push(Case {
                target: if ty == "bf16x2" { 90 } else { 80 },
                input: Input::Any,
                check: Check::Exact,
                body: target,
            });
        }
        out.push(Case {
            target: 80,
            input: Input::Any,
            check: Check::Exact,
            body: format!("{op}.rn.ftz.sat.f16x2 %o0,%r0,%r1;"),
        });
    }
    for mode in ["rn", "rz", "rm", "rp", "rn.ftz", "rp.sat"] {
        bodies.push(format!(
            "fma.{mode}.f32 %f16,%f0,%f1,%f2; mov.b32 %o0,%f16;"
        ));
    }
    for mode in ["rn", "rz", "rm", "rp", "rn.ftz"] {
        bodies.push(format!("div.{mode}.f32 %f16,%f0,%f1; mov.b32 %o0,%f16;"));
        bodies.push(format!("rcp.{mode}.f32 %f16,%f0; mov.b32 %o0,%f16;"));
        bodies.push(format!("sqrt.{mode}.f32 %f16,%f0; mov.b32 %o0,%f16;"));
    }
    for body in [
        "min.f32 %f16,%f0,%f1; mov.b32 %o0,%f16;",
        "max.f32 %f16,%f0,%f1; mov.b32 %o0,%f16;",
        "min.NaN.ftz.f32 %f16,%f0,%f1; mov.b32 %o0,%f16;",
        "max.xorsign.abs.f32 %f16,%f0,%f1; mov.b32 %o0,%f16;",
        "min.NaN.xorsign.abs.f32 %f16,%f0,%f1; mov.b32 %o0,%f16;",
        "copysign.f32 %f16,%f0,%f1; mov.b32 %o0,%f16;",
        "neg.ftz.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "neg.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "abs.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "abs.ftz.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "neg.f64 %fd8,%fd0; mov.b64 %rd8,%fd8; mov.b64 {%o0,%o1},%rd8;",
        "abs.f64 %fd8,%fd0; mov.b64 %rd8,%fd8; mov.b64 {%o0,%o1},%rd8;",
        "fma.rz.f64 %fd8,%fd0,%fd1,%fd2; mov.b64 %rd8,%fd8; mov.b64 {%o0,%o1},%rd8;",
        "min.f16x2 %o0,%r0,%r1;",
        "max.NaN.f16x2 %o0,%r0,%r1;",
        "min.bf16x2 %o0,%r0,%r1;",
        "max.NaN.bf16x2 %o0,%r0,%r1;",
        "fma.rn.f16x2 %o0,%r0,%r1,%r2;",
        "fma.rn.relu.f16x2 %o0,%r0,%r1,%r2;",
        "fma.rn.bf16x2 %o0,%r0,%r1,%r2;",
        "fma.rn.relu.bf16x2 %o0,%r0,%r1,%r2;",
        "neg.f16x2 %o0,%r0;",
        "neg.bf16x2 %o0,%r0;",
        "abs.f16x2 %o0,%r0;",
        "abs.bf16x2 %o0,%r0;",
        "set.eq.u32.f16x2 %o0,%r0,%r1;",
        "set.ltu.f16x2.f16x2 %o0,%r0,%r1;",
        "setp.ge.f16x2 %p1|%p2,%r0,%r1; selp.u32 %o0,1,0,%p1; selp.u32 %o1,1,0,%p2;",
        "testp.subnormal.f32 %p1,%f0; selp.u32 %o0,1,0,%p1;",
        "setp.neu.ftz.f32 %p1,%f0,%f1; selp.u32 %o0,1,0,%p1;",
        "fma.rn.f64 %fd8,%fd0,%fd1,%fd2; mov.b64 %rd8,%fd8; mov.b64 {%o0,%o1},%rd8;",
        "div.rn.f64 %fd8,%fd0,%fd1; mov.b64 %rd8,%fd8; mov.b64 {%o0,%o1},%rd8;",
        "sqrt.rn.f64 %fd8,%fd0; mov.b64 %rd8,%fd8; mov.b64 {%o0,%o1},%rd8;",
        "min.f64 %fd8,%fd0,%fd1; mov.b64 %rd8,%fd8; mov.b64 {%o0,%o1},%rd8;",
    ] {
        bodies.push(body.to_owned());
    }
    out.extend(bodies.into_iter().map(|body| Case {
        target: 86,
        input: Input::Any,
        check: Check::Exact,
        body,
    }));
    let approximate = [
        "ex2.approx.ftz.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "ex2.approx.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "lg2.approx.ftz.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "rsqrt.approx.ftz.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "rcp.approx.ftz.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "sqrt.approx.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "div.approx.f32 %f16,%f0,%f1; mov.b32 %o0,%f16;",
        "div.full.f32 %f16,%f0,%f1; mov.b32 %o0,%f16;",
        "tanh.approx.f32 %f16,%f0; mov.b32 %o0,%f16;",
    ];
    many(out, 80, Input::Moderate, Check::Single(1e-3), &approximate);
    many(
        out,
        80,
        Input::Moderate,
        Check::Sum(1e-5),
        &[
            "sin.approx.f32 %f16,%f0; mov.b32 %o0,%f16;",
            "cos.approx.ftz.f32 %f16,%f0; mov.b32 %o0,%f16;",
        ],
    );
    many(
        out,
        80,
        Input::Halves,
        Check::Halves(4e-3),
        &["ex2.approx.f16x2 %o0,%r0;", "tanh.approx.f16x2 %o0,%r0;"],
    );
    let pairs = [
        "add.rn.f32x2 %rd8,%rd0,%rd1; mov.b64 {%o0,%o1},%rd8;",
        "mul.rz.ftz.f32x2 %rd8,%rd0,%rd1; mov.b64 {%o0,%o1},%rd8;",
        "fma.rn.f32x2 %rd8,%rd0,%rd1,%rd2; mov.b64 {%o0,%o1},%rd8;",
        "max.f32 %f16,%f0,%f1,%f2; mov.b32 %o0,%f16;",
    ];
    many(out, 100, Input::Any, Check::Exact, &pairs);
}

fn conversions(out: &mut Vec<Case>) {
    let mut bodies = Vec::new();
    for mode in ["rni", "rzi", "rmi", "rpi", "rzi.ftz"] {
        for ty in ["s32", "u32", "s16", "u8"] {
            bodies.push(format!("cvt.{mode}.{ty}.f32 %o0,%f0;"));
        }
        bodies.push(format!(
            "cvt.{mode}.s64.f32 %rd8,%f0; mov.b64 {{%o0,%o1}},%rd8;"
        ));
        bodies.push(format!(
            "cvt.{mode}.u64.f32 %rd8,%f0; mov.b64 {{%o0,%o1}},%rd8;"
        ));
    }
    for mode in ["rni", "rzi"] {
        for ty in ["s32", "u32"] {
            bodies.push(format!("cvt.{mode}.{ty}.f64 %o0,%fd0;"));
        }
        for ty in ["s64", "u64"] {
            bodies.push(format!(
                "cvt.{mode}.{ty}.f64 %rd8,%fd0; mov.b64 {{%o0,%o1}},%rd8;"
            ));
        }
    }
    for mode in ["rn", "rz", "rm", "rp"] {
        bodies.push(format!("cvt.{mode}.f32.s32 %f16,%r0; mov.b32 %o0,%f16;"));
        bodies.push(format!("cvt.{mode}.f32.u64 %f16,%rd0; mov.b32 %o0,%f16;"));
        bodies.push(format!("cvt.{mode}.f32.f64 %f16,%fd0; mov.b32 %o0,%f16;"));
    }
    for body in [
        "cvt.rn.f16.f32 %rs16,%f0; cvt.u32.u16 %o0,%rs16;",
        "cvt.rz.f16.f32 %rs16,%f0; cvt.u32.u16 %o0,%rs16;",
        "cvt.rn.f16.f64 %rs16,%fd0; cvt.u32.u16 %o0,%rs16;",
        "cvt.f64.f32 %fd8,%f0; mov.b64 %rd8,%fd8; mov.b64 {%o0,%o1},%rd8;",
        "cvt.f32.f16 %f16,%rs0; mov.b32 %o0,%f16;",
        "cvt.rn.f16x2.f32 %o0,%f0,%f1;",
        "cvt.rz.f16x2.f32 %o0,%f0,%f1;",
        "cvt.rn.relu.f16x2.f32 %o0,%f0,%f1;",
        "cvt.rn.bf16x2.f32 %o0,%f0,%f1;",
        "cvt.rz.relu.bf16x2.f32 %o0,%f0,%f1;",
        "cvt.rna.tf32.f32 %o0,%f0;",
        "cvt.sat.s8.s32 %o0,%r0;",
        "cvt.sat.u16.s64 %rs16,%rd0; cvt.u32.u16 %o0,%rs16;",
        "cvt.rni.f32.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "cvt.rzi.f64.f64 %fd8,%fd0; mov.b64 %rd8,%fd8; mov.b64 {%o0,%o1},%rd8;",
        "cvt.sat.f32.f32 %f16,%f0; mov.b32 %o0,%f16;",
        "cvt.rn.f16.u32 %rs16,%r0; cvt.u32.u16 %o0,%rs16;",
    ] {
        bodies.push(body.to_owned());
    }
    out.extend(bodies.into_iter().map(|body| Case {
        target: 80,
        input: Input::Any,
        check: Check::Exact,
        body,
    }));
    let narrow = [
        "cvt.rn.satfinite.e4m3x2.f32 %rs16,%f0,%f1; cvt.u32.u16 %o0,%rs16;",
        "cvt.rn.satfinite.e5m2x2.f32 %rs16,%f0,%f1; cvt.u32.u16 %o0,%rs16;",
        "cvt.rn.satfinite.relu.e4m3x2.f32 %rs16,%f0,%f1; cvt.u32.u16 %o0,%rs16;",
        "cvt.rn.satfinite.e4m3x2.f16x2 %rs16,%r0; cvt.u32.u16 %o0,%rs16;",
        "cvt.rn.satfinite.e5m2x2.f16x2 %rs16,%r0; cvt.u32.u16 %o0,%rs16;",
        "cvt.rn.f16x2.e4m3x2 %o0,%rs0;",
        "cvt.rn.f16x2.e5m2x2 %o0,%rs0;",
        "cvt.rn.relu.f16x2.e4m3x2 %o0,%rs0;",
    ];
    many(out, 89, Input::Any, Check::Exact, &narrow);
    many(
        out,
        90,
        Input::Any,
        Check::Exact,
        &["cvt.rn.tf32.f32 %o0,%f0;", "cvt.rz.relu.tf32.f32 %o0,%f0;"],
    );
}

fn warps(out: &mut Vec<Case>) {
    let bodies = [
        "shfl.sync.up.b32 %o0|%p1,%r0,%r1,%r2,-1; selp.u32 %o1,1,0,%p1;",
        "shfl.sync.down.b32 %o0|%p1,%r0,3,0x1f,-1; selp.u32 %o1,1,0,%p1;",
        "shfl.sync.bfly.b32 %o0|%p1,%r0,%r1,0x181f,-1; selp.u32 %o1,1,0,%p1;",
        "shfl.sync.idx.b32 %o0|%p1,%r0,%r1,0x1c03,-1; selp.u32 %o1,1,0,%p1;",
        "setp.gt.s32 %p1,%r0,0; vote.sync.ballot.b32 %o0,%p1,-1; vote.sync.any.pred %p2,%p1,-1; selp.u32 %o1,1,0,%p2;",
        "and.b32 %r16,%r0,3; match.any.sync.b32 %o0,%r16,-1;",
        "redux.sync.add.s32 %o0,%r0,-1; redux.sync.max.s32 %o1,%r0,-1; redux.sync.min.u32 %o2,%r0,-1;",
        "redux.sync.xor.b32 %o0,%r0,-1; redux.sync.and.b32 %o1,%r0,-1;",
        "activemask.b32 %o0;",
        "setp.gt.s32 %p1,%r0,0; bar.red.popc.u32 %o0,0,%p1; bar.red.and.pred %p2,0,%p1; selp.u32 %o1,1,0,%p2;",
        "mov.u32 %r16,tile; and.b32 %r17,%r0,60; add.u32 %r16,%r16,%r17; st.shared.u32 [tile+0],0; bar.sync 0; \
atom.shared.and.b32 %r18,[%r16],0; bar.sync 0; atom.shared.add.u32 %r18,[%r16],%r1; bar.sync 0; ld.shared.u32 %o0,[%r16];",
        "mov.u32 %r16,tile; mad.lo.u32 %r16,%idx,16,%r16; and.b32 %r17,%r0,15; \
ld.param.u64 %rd8,[in]; mad.wide.u32 %rd8,%idx,64,%rd8; cp.async.cg.shared.global [%r16],[%rd8],16,%r17; cp.async.wait_all; \
ld.shared.v4.u32 {%o0,%o1,%o2,%o3},[%r16];",
    ];
    many(out, 80, Input::Any, Check::Exact, &bodies);
    let tiles = "mov.u32 %r16,tile; mad.lo.u32 %r16,%idx,16,%r16; st.shared.v4.u32 [%r16],{%r0,%r1,%r2,%r3}; bar.sync 0;";
    for body in [
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%o0,%o1,%o2,%o3},[%r16];",
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%o0,%o1,%o2,%o3},[%r16];",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%o0},[%r16];",
    ] {
        many(
            out,
            80,
            Input::Any,
            Check::Exact,
            &[&format!("{tiles} {body}")],
        );
    }
    many(
        out,
        90,
        Input::Any,
        Check::Exact,
        &[
            "movmatrix.sync.aligned.m8n8.trans.b16 %o0,%r0;",
            "mov.u32 %r16,tile; mad.lo.u32 %r16,%idx,16,%r16; stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r16],{%r0,%r1,%r2,%r3}; bar.sync 0; ld.shared.v4.u32 {%o0,%o1,%o2,%o3},[%r16];",
            "mov.u32 %r16,tile; mad.lo.u32 %r16,%idx,16,%r16; stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r16],{%r0,%r1}; bar.sync 0; ld.shared.v2.u32 {%o0,%o1},[tile];",
        ],
    );
}

fn matrices(out: &mut Vec<Case>) {
    let mut add = |target, input, check, body| {
        out.push(Case {
            target,
            input,
            check,
            body,
        })
    };
    let halves = Input::Halves;
    add(
        80,
        halves,
        Check::Exact,
        mma("m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4, true),
    );
    add(
        80,
        halves,
        Check::Exact,
        mma("m16n8k8.row.col.f32.f16.f16.f32", 2, 1, 4, true),
    );
    add(
        80,
        halves,
        Check::Exact,
        mma("m16n8k16.row.col.f16.f16.f16.f16", 4, 2, 2, false),
    );
    add(
        80,
        Input::Bfloats,
        Check::Exact,
        mma("m16n8k16.row.col.f32.bf16.bf16.f32", 4, 2, 4, true),
    );
    add(
        80,
        Input::Bfloats,
        Check::Exact,
        mma("m16n8k8.row.col.f32.bf16.bf16.f32", 2, 1, 4, true),
    );
    add(
        80,
        Input::Moderate,
        Check::Exact,
        mma("m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, 4, true),
    );
    add(
        80,
        Input::Moderate,
        Check::Exact,
        mma("m16n8k4.row.col.f32.tf32.tf32.f32", 2, 1, 4, true),
    );
    for types in [
        "s32.s8.s8.s32",
        "s32.u8.u8.s32",
        "s32.s8.u8.s32",
        "s32.u8.s8.s32",
    ] {
        for limit in ["", ".satfinite"] {
            add(
                80,
                Input::Any,
                Check::Exact,
                mma(&format!("m16n8k32.row.col{limit}.{types}"), 4, 2, 4, false),
            );
            add(
                80,
                Input::Any,
                Check::Exact,
                mma(&format!("m16n8k16.row.col{limit}.{types}"), 2, 1, 4, false),
            );
            add(
                80,
                Input::Any,
                Check::Exact,
                mma(&format!("m8n8k16.row.col{limit}.{types}"), 1, 1, 2, false),
            );
        }
    }
    add(
        80,
        Input::Any,
        Check::Exact,
        mma("m16n8k64.row.col.s32.s4.u4.s32", 4, 2, 4, false),
    );
    add(
        80,
        Input::Any,
        Check::Exact,
        mma("m16n8k256.row.col.s32.b1.b1.s32.and.popc", 4, 2, 4, false),
    );
    for types in [
        "f32.e4m3.e4m3.f32",
        "f32.e4m3.e5m2.f32",
        "f32.e5m2.e5m2.f32",
    ] {
        add(
            89,
            Input::Bytes8,
            Check::Exact,
            mma(&format!("m16n8k32.row.col.{types}"), 4, 2, 4, true),
        );
    }
    add(80, Input::Doubles, Check::Double(1e-12),
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd8,%fd9},{%fd0},{%fd1},{%fd2,%fd3}; mov.b64 %rd8,%fd8; mov.b64 {%o0,%o1},%rd8; mov.b64 %rd8,%fd9; mov.b64 {%o2,%o3},%rd8;".to_owned());
    // The layout of wmma's fragments is open, so matrices go through memory: rows of 16 elements.
    let through = |ty: &str, types: &str, a: usize, sum: &str, register: &str| {
        format!(
            "ld.param.u64 %rd8,[in]; ld.param.u64 %rd9,[out]; bar.sync 0; setp.ge.u32 %p1,%idx,32; @%p1 bra SKIP; \
wmma.load.a.sync.aligned.row.m16n16k16.global.{ty} {a},[%rd8],16; wmma.load.b.sync.aligned.col.m16n16k16.global.{ty} {b},[%rd8+1024],16; \
wmma.load.c.sync.aligned.row.m16n16k16.global.{sum} {c},[%rd8+2048],16; \
wmma.mma.sync.aligned.row.col.m16n16k16.{types} {d},{a},{b},{c}; wmma.store.d.sync.aligned.row.m16n16k16.shared.{sum} [tile],{d},16; \
SKIP: bar.sync 0; mov.u32 %r16,tile; and.b32 %r17,%idx,63; mad.lo.u32 %r16,%r17,16,%r16; ld.shared.v4.u32 {{%o0,%o1,%o2,%o3}},[%r16];",
            a = list("r", 0, a),
            b = list("r", a, a),
            c = list(register, 16, 8),
            d = list(register, 24, 8),
        )
    };
    add(
        80,
        halves,
        Check::Exact,
        through("f16", "f32.f32", 8, "f32", "f"),
    );
    add(
        80,
        Input::Bfloats,
        Check::Exact,
        through("bf16", "f32.bf16.bf16.f32", 4, "f32", "f"),
    );
    add(
        80,
        Input::Any,
        Check::Exact,
        through("s8", "s32.s8.s8.s32", 2, "s32", "r"),
    );
}
