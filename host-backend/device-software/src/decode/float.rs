//! Floating-point arithmetic (PTX ISA 9.7.3 to 9.7.5).

use super::half::{HALF_BFLOAT, HALF_FTZ, HALF_SAT, HALF_XORSIGN, HalfKind};
use super::{Decoder, Result};
use crate::exec::soft::{Format, Kind, Recipe, Rounding};
use crate::program::Op;
use crate::ptx::ast::{Operand, Type};

pub(super) fn rounding(mods: &[&str]) -> Option<Rounding> {
    mods.iter().find_map(|m| match *m {
        "rn" => Some(Rounding::Nearest),
        "rz" => Some(Rounding::Zero),
        "rm" => Some(Rounding::Down),
        "rp" => Some(Rounding::Up),
        "rna" => Some(Rounding::NearestAway),
        _ => None,
    })
}

fn sources_of(base: &str) -> usize {
    match base {
        "fma" | "mad" => 3,
        "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => 2,
        _ => 1,
    }
}

const KNOWN: &[&str] = &[
    "rn", "rz", "rm", "rp", "ftz", "sat", "approx", "full", "NaN", "xorsign", "abs",
];

impl<'m> Decoder<'m> {
    pub(super) fn float(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        if base == "testp" {
            return self.testp(mods, operands);
        }
        // cuDNN's PTX contains `ex2.approx.f32.ftz`, which NVIDIA's assembler accepts as
        // `.ftz.f32`.
        let turned;
        let mods = match mods {
            [rest @ .., ty @ "f32", "ftz"] => {
                turned = [rest, &["ftz", *ty]].concat();
                turned.as_slice()
            }
            _ => mods,
        };
        let Some(ty) = mods.last().and_then(|m| Type::parse(m)) else {
            return Ok(false);
        };
        if !ty.float() {
            return Ok(false);
        }
        let known = matches!(
            base,
            "add"
                | "sub"
                | "mul"
                | "fma"
                | "mad"
                | "div"
                | "rcp"
                | "sqrt"
                | "rsqrt"
                | "min"
                | "max"
                | "neg"
                | "abs"
                | "sin"
                | "cos"
                | "ex2"
                | "lg2"
                | "tanh"
                | "copysign"
        );
        if !known {
            return Ok(false);
        }
        if let [rest @ .., single @ "f32", "f16" | "bf16"] = mods {
            return self.mixed(base, &[rest, &[*single]].concat(), ty, operands);
        }
        if mods.iter().filter(|m| Type::parse(m).is_some()).count() > 1 {
            return self.unsupported("these types together");
        }
        match ty {
            Type::F32 => self.single(base, mods, operands),
            Type::F64 => self.double(base, mods, operands),
            _ => self.half(base, mods, ty, operands),
        }
    }

    /// Single precision with half-precision operands; the last one is single (PTX ISA,
    /// mixed precision instructions).
    fn mixed(
        &mut self,
        base: &str,
        mods: &[&str],
        ty: Type,
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        self.only(mods, &["rn", "rz", "rm", "rp", "sat"])?;
        let expected = match base {
            "add" | "sub" => 2,
            "fma" => 3,
            _ => return self.unsupported("these types together"),
        };
        let [d, halves @ .., last] = operands else {
            return self.unfit(format!("{base} takes {expected} sources"));
        };
        if halves.len() + 1 != expected {
            return self.unfit(format!("{base} takes {expected} sources"));
        }
        let widen = match ty {
            Type::F16 => Op::F16ToF32,
            _ => Op::Bf16ToF32,
        };
        let mut rows = [0u32; 3];
        for (row, half) in rows.iter_mut().zip(halves) {
            let source = self.s32(half, ty)?;
            *row = self.f.temp32();
            self.emit(widen, *row, source, 0, 0, 0);
        }
        let last = self.s32(last, Type::F32)?;
        if let Some(row) = rows.get_mut(expected - 1) {
            *row = last;
        }
        let d = self.d32(d)?;
        self.single_rows(base, mods, d, rows)?;
        Ok(true)
    }

    fn single(&mut self, base: &str, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        self.only(mods, KNOWN)?;
        let d = self.d32(operands.first().unwrap_or(&Operand::Int(0)))?;
        let mut rows = [0u32; 3];
        let sources = operands.get(1..).unwrap_or_default();
        for (row, source) in rows.iter_mut().zip(sources) {
            *row = self.s32(source, Type::F32)?;
        }
        let expected = sources_of(base);
        let (sign, magnitude) = (mods.contains(&"xorsign"), mods.contains(&"abs"));
        let three = matches!(base, "min" | "max") && sources.len() == 3;
        if sign && (three || !magnitude) || magnitude && !sign && !three {
            return self.unsupported("xorsign or abs here");
        }
        if three {
            if magnitude {
                for row in &mut rows {
                    let t = self.f.temp32();
                    self.emit(Op::FAbs, t, *row, 0, 0, 0);
                    *row = t;
                }
            }
            let t = self.f.temp32();
            self.single_rows(base, mods, t, [rows[0], rows[1], 0])?;
            self.single_rows(base, mods, d, [t, rows[2], 0])?;
            return Ok(true);
        }
        if sources.len() != expected {
            return self.unfit(format!("{base} takes {expected} sources"));
        }
        if sign {
            // The magnitudes compare; the sign is that of the product.
            let (x, y) = (self.f.temp32(), self.f.temp32());
            let (t, sign) = (self.f.temp32(), self.f.temp32());
            self.emit(Op::FAbs, x, rows[0], 0, 0, 0);
            self.emit(Op::FAbs, y, rows[1], 0, 0, 0);
            self.emit(Op::Xor32, sign, rows[0], rows[1], 0, 0);
            self.single_rows(base, mods, t, [x, y, 0])?;
            self.emit(Op::FXorsign, d, sign, t, 0, 0);
            return Ok(true);
        }
        self.single_rows(base, mods, d, rows)?;
        Ok(true)
    }

    /// A single-precision operation on rows.
    pub(super) fn single_rows(
        &mut self,
        base: &str,
        mods: &[&str],
        d: u32,
        mut rows: [u32; 3],
    ) -> Result<()> {
        let (ftz, sat) = (mods.contains(&"ftz"), mods.contains(&"sat"));
        let mode = rounding(mods).unwrap_or(Rounding::Nearest);
        let result = if sat { self.f.temp32() } else { d };
        let soft = match (base, mode) {
            (_, Rounding::Nearest) => None,
            ("add", _) => Some(Kind::Add),
            ("sub", _) => Some(Kind::Sub),
            ("mul", _) => Some(Kind::Mul),
            ("fma" | "mad", _) => Some(Kind::Fma),
            ("div", _) => Some(Kind::Div),
            ("rcp", _) => Some(Kind::Rcp),
            ("sqrt", _) => Some(Kind::Sqrt),
            _ => return self.unsupported("rounding mode here"),
        };
        if let Some(kind) = soft {
            let imm = Recipe {
                kind,
                format: Format::F32,
                mode,
                ftz,
            }
            .pack();
            self.emit(Op::FSoft, result, rows[0], rows[1], rows[2], imm);
        } else {
            let native = match (base, ftz) {
                ("add", false) => Some(Op::FAdd),
                ("add", true) => Some(Op::FAddZ),
                ("sub", false) => Some(Op::FSub),
                ("sub", true) => Some(Op::FSubZ),
                ("mul", false) => Some(Op::FMul),
                ("mul", true) => Some(Op::FMulZ),
                ("fma" | "mad", false) => Some(Op::FFma),
                ("fma" | "mad", true) => Some(Op::FFmaZ),
                ("copysign", _) => Some(Op::FCopysign),
                ("neg", true) => Some(Op::FNegZ),
                _ => None,
            };
            if let Some(op) = native {
                self.emit(op, result, rows[0], rows[1], rows[2], 0);
            } else {
                let op = match base {
                    "div" => Op::FDiv,
                    "rcp" => Op::FRcp,
                    "sqrt" => Op::FSqrt,
                    "rsqrt" => Op::FRsqrt,
                    "min" if mods.contains(&"NaN") => Op::FMinNan,
                    "max" if mods.contains(&"NaN") => Op::FMaxNan,
                    "min" => Op::FMin,
                    "max" => Op::FMax,
                    "neg" => Op::FNeg,
                    "abs" => Op::FAbs,
                    "sin" => Op::FSin,
                    "cos" => Op::FCos,
                    "ex2" => Op::FEx2,
                    "lg2" => Op::FLg2,
                    _ => Op::FTanh,
                };
                if ftz {
                    for row in rows.iter_mut().take(sources_of(base)) {
                        let t = self.f.temp32();
                        self.emit(Op::FFlush, t, *row, 0, 0, 0);
                        *row = t;
                    }
                    let t = self.f.temp32();
                    self.emit(op, t, rows[0], rows[1], rows[2], 0);
                    self.emit(Op::FFlush, result, t, 0, 0, 0);
                } else {
                    self.emit(op, result, rows[0], rows[1], rows[2], 0);
                }
            }
        }
        if sat {
            self.emit(Op::FSat, d, result, 0, 0, 0);
        }
        Ok(())
    }

    fn double(&mut self, base: &str, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        self.only(mods, &["rn", "rz", "rm", "rp", "approx", "ftz"])?;
        let mode = rounding(mods).unwrap_or(Rounding::Nearest);
        let approx = mods.contains(&"approx");
        let d = self.d64(operands.first().unwrap_or(&Operand::Int(0)))?;
        let mut rows = [0u32; 3];
        let sources = operands.get(1..).unwrap_or_default();
        for (row, source) in rows.iter_mut().zip(sources) {
            *row = self.s64(source, Type::F64)?;
        }
        let (expected, op, kind) = match base {
            "add" => (2, Op::DAdd, Some(Kind::Add)),
            "sub" => (2, Op::DSub, Some(Kind::Sub)),
            "mul" => (2, Op::DMul, Some(Kind::Mul)),
            "fma" | "mad" => (3, Op::DFma, Some(Kind::Fma)),
            "div" => (2, Op::DDiv, Some(Kind::Div)),
            "rcp" if approx => (1, Op::DRcpApprox, None),
            "rcp" => (1, Op::DRcp, Some(Kind::Rcp)),
            "sqrt" => (1, Op::DSqrt, Some(Kind::Sqrt)),
            "rsqrt" if mods.contains(&"ftz") => (1, Op::DRsqrtApprox, None),
            "rsqrt" => (1, Op::DRsqrt, None),
            "min" => (2, Op::DMin, None),
            "max" => (2, Op::DMax, None),
            "neg" => (1, Op::DNeg, None),
            "abs" => (1, Op::DAbs, None),
            "copysign" => (2, Op::DCopysign, None),
            _ => return Ok(false),
        };
        if sources.len() != expected {
            return self.unfit(format!("{base} takes {expected} sources"));
        }
        match (mode, kind) {
            (Rounding::Nearest, _) => self.emit(op, d, rows[0], rows[1], rows[2], 0),
            (_, Some(kind)) => {
                let imm = Recipe {
                    kind,
                    format: Format::F64,
                    mode,
                    ftz: false,
                }
                .pack();
                self.emit(Op::DSoft, d, rows[0], rows[1], rows[2], imm);
            }
            _ => return self.unsupported("rounding mode here"),
        }
        Ok(true)
    }

    fn half(
        &mut self,
        base: &str,
        mods: &[&str],
        ty: Type,
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        self.only(
            mods,
            &[
                "rn", "ftz", "sat", "approx", "NaN", "relu", "xorsign", "abs",
            ],
        )?;
        let nan = mods.contains(&"NaN");
        let (expected, kind) = match base {
            "add" => (2, HalfKind::Add),
            "sub" => (2, HalfKind::Sub),
            "mul" => (2, HalfKind::Mul),
            "fma" if mods.contains(&"relu") => (3, HalfKind::FmaRelu),
            "fma" => (3, HalfKind::Fma),
            "neg" => (1, HalfKind::Neg),
            "abs" => (1, HalfKind::Abs),
            "min" if nan => (2, HalfKind::MinNan),
            "max" if nan => (2, HalfKind::MaxNan),
            "min" => (2, HalfKind::Min),
            "max" => (2, HalfKind::Max),
            "ex2" => (1, HalfKind::Ex2),
            "tanh" => (1, HalfKind::Tanh),
            _ => return Ok(false),
        };
        let xorsign = mods.contains(&"xorsign");
        if xorsign != mods.contains(&"abs") || xorsign && !matches!(base, "min" | "max") {
            return self.unsupported("xorsign or abs here");
        }
        if mods.contains(&"relu") && base != "fma" {
            return self.unsupported("relu here");
        }
        let sources = operands.get(1..).unwrap_or_default();
        if sources.len() != expected {
            return self.unfit(format!("{base} takes {expected} sources"));
        }
        let mut rows = [0u32; 3];
        for (row, source) in rows.iter_mut().zip(sources) {
            *row = self.s32(source, ty)?;
        }
        let d = self.d32(operands.first().unwrap_or(&Operand::Int(0)))?;
        let mut imm = kind as u64;
        for (on, flag) in [
            (matches!(ty, Type::BF16 | Type::BF16x2), HALF_BFLOAT),
            (mods.contains(&"ftz"), HALF_FTZ),
            (mods.contains(&"sat"), HALF_SAT),
            (xorsign, HALF_XORSIGN),
        ] {
            imm |= if on { flag } else { 0 };
        }
        let op = if ty.size() == 4 {
            Op::HalfPair
        } else {
            Op::Half
        };
        self.emit(op, d, rows[0], rows[1], rows[2], imm);
        Ok(true)
    }

    fn testp(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let what = match mods.first() {
            Some(&"finite") => 0,
            Some(&"infinite") => 1,
            Some(&"number") => 2,
            Some(&"notanumber") => 3,
            Some(&"normal") => 4,
            Some(&"subnormal") => 5,
            _ => return Ok(false),
        };
        let [p, a] = self.operands(operands)?;
        let p = self.dp(p)?;
        match self.type_at(mods, 1)? {
            Type::F32 => {
                let a = self.s32(a, Type::F32)?;
                self.emit(Op::TestF, p, a, 0, 0, what);
            }
            Type::F64 => {
                let a = self.s64(a, Type::F64)?;
                self.emit(Op::TestD, p, a, 0, 0, what);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
