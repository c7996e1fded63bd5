//! Conversions between types (PTX ISA 9.7.9.21, `cvt`).

use super::float::rounding;
use super::{Decoder, Result};
use crate::exec::soft::{Conversion, Format, From as SourceType, Rounding};
use crate::program::{Op, Reg};
use crate::ptx::ast::{Operand, Type};

fn to_integral(mods: &[&str]) -> Option<Rounding> {
    mods.iter().find_map(|m| match *m {
        "rni" => Some(Rounding::Nearest),
        "rzi" => Some(Rounding::Zero),
        "rmi" => Some(Rounding::Down),
        "rpi" => Some(Rounding::Up),
        _ => None,
    })
}

fn format(ty: Type) -> Format {
    match ty {
        Type::F16 | Type::F16x2 => Format::F16,
        Type::BF16 | Type::BF16x2 => Format::Bf16,
        Type::F64 => Format::F64,
        _ => Format::F32,
    }
}

/// Least and greatest value of an integer type, as 64-bit patterns.
fn range(ty: Type) -> (i64, u64) {
    let bits = ty.size() * 8;
    if ty.signed() {
        (i64::MIN >> (64 - bits), (i64::MAX >> (64 - bits)) as u64)
    } else {
        (0, u64::MAX >> (64 - bits))
    }
}

impl<'m> Decoder<'m> {
    pub(super) fn convert(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        if base != "cvt" {
            return Ok(false);
        }
        if self.narrow(mods, operands)? {
            return Ok(true);
        }
        self.only(
            mods,
            &[
                "rn",
                "rz",
                "rm",
                "rp",
                "rna",
                "rni",
                "rzi",
                "rmi",
                "rpi",
                "ftz",
                "sat",
                "relu",
                "satfinite",
            ],
        )?;
        let n = mods.len();
        let (dty, sty) = (
            self.type_at(mods, n.wrapping_sub(2))?,
            self.type_at(mods, n.wrapping_sub(1))?,
        );
        let limits = mods.contains(&"relu") || mods.contains(&"satfinite");
        if limits && (sty != Type::F32 || !dty.float() || dty.size() == 8) {
            return self.unsupported("relu or satfinite in this conversion");
        }
        if [dty, sty].iter().any(|t| {
            matches!(
                t,
                Type::Pred | Type::B128 | Type::S16x2 | Type::U16x2 | Type::F32x2
            )
        }) {
            return self.unfit("type of cvt");
        }
        if matches!(dty, Type::F16x2 | Type::BF16x2) {
            return self.convert_pair(mods, dty, sty, operands);
        }
        let [d, a] = self.operands(operands)?;
        let bits = match d {
            Operand::Name(name) => {
                self.find_register(name)
                    .map_or(dty.size(), |(_, ty)| ty.size())
                    * 8
            }
            _ => dty.size() * 8,
        };
        let a = self.convert_source(a, sty)?;
        match (dty.float(), sty.float()) {
            (false, false) => self.int_to_int(mods, dty, sty, d, a, bits),
            (false, true) => self.float_to_int(mods, dty, sty, d, a, bits),
            (true, false) => self.int_to_float(mods, dty, sty, d, a),
            (true, true) => self.float_to_float(mods, dty, sty, d, a),
        }
    }

    /// The source with the instruction's type, extended to its row.
    fn convert_source(&mut self, a: &Operand<'m>, ty: Type) -> Result<Reg> {
        let mut reg = match a {
            Operand::Name(name) => match self.find_register(name) {
                Some((reg, _)) => reg,
                None => self.load_named(name, 0, ty.size() == 8)?,
            },
            _ => self.source(a, ty)?,
        };
        if let (Reg::R64(row), true) = (reg, ty.size() < 8) {
            let t = self.f.temp32();
            self.emit(Op::Low64, t, row, 0, 0, 0);
            reg = Reg::R32(t);
        }
        let Reg::R32(row) = reg else { return Ok(reg) };
        if ty.size() == 8 {
            return self.unfit("source is not of 64 bits");
        }
        let op = match (ty.size(), ty.signed()) {
            (1, true) => Op::Sext8,
            (1, false) => Op::Zext8,
            (2, true) => Op::Sext16,
            (2, false) => Op::Zext16,
            _ => return Ok(reg),
        };
        let t = self.f.temp32();
        self.emit(op, t, row, 0, 0, 0);
        Ok(Reg::R32(t))
    }

    fn widened(&mut self, a: Reg, signed: bool) -> u32 {
        match a {
            Reg::R64(row) => row,
            Reg::R32(row) | Reg::P(row) => {
                let t = self.f.temp64();
                self.emit(
                    if signed { Op::Sext32 } else { Op::Zext32 },
                    t,
                    row,
                    0,
                    0,
                    0,
                );
                t
            }
        }
    }

    /// Moves the 32-bit value in `row`, of which the low bits of `ty` are valid, to `d`,
    /// extended to `bits`.
    fn settle(&mut self, ty: Type, d: &Operand<'m>, row: u32, bits: u32) -> Result<bool> {
        let d = match self.dest(d, ty)? {
            Reg::R32(d) => d,
            Reg::R64(d) => {
                let t = self.f.temp32();
                self.extend_to(ty, t, row, 32);
                self.emit(
                    if ty.signed() { Op::Sext32 } else { Op::Zext32 },
                    d,
                    t,
                    0,
                    0,
                    0,
                );
                return Ok(true);
            }
            Reg::P(_) => return self.unfit("destination of cvt"),
        };
        self.extend_to(ty, d, row, bits);
        Ok(true)
    }

    fn extend_to(&mut self, ty: Type, d: u32, row: u32, bits: u32) {
        match (ty.size(), ty.signed(), bits) {
            (1, true, 8) | (1, false, _) => self.emit(Op::Zext8, d, row, 0, 0, 0),
            (1, true, 16) => {
                let t = self.f.temp32();
                self.emit(Op::Sext8, t, row, 0, 0, 0);
                self.emit(Op::Zext16, d, t, 0, 0, 0);
            }
            (1, true, _) => self.emit(Op::Sext8, d, row, 0, 0, 0),
            (2, true, 32) => self.emit(Op::Sext16, d, row, 0, 0, 0),
            (2, _, _) => self.emit(Op::Zext16, d, row, 0, 0, 0),
            _ => self.emit(Op::Mov32, d, row, 0, 0, 0),
        }
    }

    fn int_to_int(
        &mut self,
        mods: &[&str],
        dty: Type,
        sty: Type,
        d: &Operand<'m>,
        a: Reg,
        bits: u32,
    ) -> Result<bool> {
        let mut a = a;
        if mods.contains(&"sat") {
            let wide = self.widened(a, sty.signed());
            let t = self.f.temp64();
            let (low, high) = range(dty);
            let high = self.f.const64(high);
            if sty.signed() {
                let low = self.f.const64(low as u64);
                self.emit(Op::MaxS64, t, wide, low, 0, 0);
                // The maximum of u64 does not limit a value that fits an i64.
                if dty.size() < 8 || dty.signed() {
                    self.emit(Op::MinS64, t, t, high, 0, 0);
                }
            } else {
                self.emit(Op::MinU64, t, wide, high, 0, 0);
            }
            a = Reg::R64(t);
        }
        if dty.size() == 8 {
            let d = self.d64(d)?;
            match a {
                Reg::R64(row) => self.emit(Op::Mov64, d, row, 0, 0, 0),
                Reg::R32(row) | Reg::P(row) => {
                    self.emit(
                        if sty.signed() { Op::Sext32 } else { Op::Zext32 },
                        d,
                        row,
                        0,
                        0,
                        0,
                    );
                }
            }
            return Ok(true);
        }
        let row = match a {
            Reg::R64(row) => {
                let t = self.f.temp32();
                self.emit(Op::Low64, t, row, 0, 0, 0);
                t
            }
            Reg::R32(row) | Reg::P(row) => row,
        };
        self.settle(dty, d, row, bits)
    }

    /// Converts a half-precision source to single.
    fn as_single(&mut self, sty: Type, a: Reg) -> Reg {
        match (sty, a) {
            (Type::F16, Reg::R32(row)) => {
                let t = self.f.temp32();
                self.emit(Op::F16ToF32, t, row, 0, 0, 0);
                Reg::R32(t)
            }
            // Unlike arithmetic, it keeps the bits of NaN.
            (Type::BF16, Reg::R32(row)) => {
                let (t, k) = (self.f.temp32(), self.f.const32(16));
                self.emit(Op::Shl32, t, row, k, 0, 0);
                Reg::R32(t)
            }
            _ => a,
        }
    }

    fn float_to_int(
        &mut self,
        mods: &[&str],
        dty: Type,
        sty: Type,
        d: &Operand<'m>,
        a: Reg,
        bits: u32,
    ) -> Result<bool> {
        if matches!(sty, Type::F16x2 | Type::BF16x2) {
            return self.unfit("packed source of cvt");
        }
        let Some(mode) = to_integral(mods) else {
            return self.unfit("cvt to an integer needs .rni, .rzi, .rmi or .rpi");
        };
        let mut a = self.as_single(sty, a);
        if let (Reg::R32(row), true) = (a, mods.contains(&"ftz")) {
            let t = self.f.temp32();
            self.emit(Op::FFlush, t, row, 0, 0, 0);
            a = Reg::R32(t);
        }
        let imm = mode as u64;
        if dty.size() == 8 {
            let d = self.d64(d)?;
            let (op, row) = match (a, dty.signed()) {
                (Reg::R64(row), true) => (Op::F64ToS64, row),
                (Reg::R64(row), false) => (Op::F64ToU64, row),
                (Reg::R32(row) | Reg::P(row), true) => (Op::F32ToS64, row),
                (Reg::R32(row) | Reg::P(row), false) => (Op::F32ToU64, row),
            };
            self.emit(op, d, row, 0, 0, imm);
            return Ok(true);
        }
        let (op, row) = match (a, dty.signed()) {
            (Reg::R64(row), true) => (Op::F64ToS32, row),
            (Reg::R64(row), false) => (Op::F64ToU32, row),
            (Reg::R32(row) | Reg::P(row), true) => (Op::F32ToS32, row),
            (Reg::R32(row) | Reg::P(row), false) => (Op::F32ToU32, row),
        };
        let t = self.f.temp32();
        self.emit(op, t, row, 0, 0, imm);
        if dty.size() < 4 {
            let (low, high) = range(dty);
            let high = self.f.const32(high as u32);
            if dty.signed() {
                let low = self.f.const32(low as u32);
                self.emit(Op::MaxS32, t, t, low, 0, 0);
                self.emit(Op::MinS32, t, t, high, 0, 0);
            } else {
                self.emit(Op::MinU32, t, t, high, 0, 0);
                // NaN becomes the top bit of the type, not of 32 bits.
                if let Reg::R64(row) = a {
                    let (p, top) = (
                        self.f.temp_pred(),
                        self.f.const32(1 << (dty.size() * 8 - 1)),
                    );
                    self.emit(Op::DNan, p, row, row, 0, 0);
                    self.emit(Op::Selp32, t, top, t, p, 0);
                }
            }
        }
        self.settle(dty, d, t, bits)
    }

    fn int_to_float(
        &mut self,
        mods: &[&str],
        dty: Type,
        sty: Type,
        d: &Operand<'m>,
        a: Reg,
    ) -> Result<bool> {
        let a = match mods.contains(&"sat") {
            true => self.within_one(a, sty.signed()),
            false => a,
        };
        let mode = rounding(mods).unwrap_or(Rounding::Nearest);
        let signed = sty.signed();
        let from = if signed {
            SourceType::S64
        } else {
            SourceType::U64
        };
        if dty == Type::F64 {
            let d = self.d64(d)?;
            match a {
                Reg::R32(row) => self.emit(
                    if signed { Op::S32ToF64 } else { Op::U32ToF64 },
                    d,
                    row,
                    0,
                    0,
                    0,
                ),
                Reg::R64(row) if mode == Rounding::Nearest => {
                    self.emit(
                        if signed { Op::S64ToF64 } else { Op::U64ToF64 },
                        d,
                        row,
                        0,
                        0,
                        0,
                    );
                }
                _ => {
                    let row = self.widened(a, signed);
                    let imm = Conversion {
                        from,
                        to: Format::F64,
                        mode,
                        ftz: false,
                    }
                    .pack();
                    self.emit(Op::CvtSoft64, d, row, 0, 0, imm);
                }
            }
            return Ok(true);
        }
        let d = self.d32(d)?;
        match a {
            Reg::R32(row) if dty == Type::F32 && mode == Rounding::Nearest => {
                self.emit(
                    if signed { Op::S32ToF32 } else { Op::U32ToF32 },
                    d,
                    row,
                    0,
                    0,
                    0,
                );
            }
            Reg::R64(row) if dty == Type::F32 && mode == Rounding::Nearest => {
                self.emit(
                    if signed { Op::S64ToF32 } else { Op::U64ToF32 },
                    d,
                    row,
                    0,
                    0,
                    0,
                );
            }
            _ => {
                let row = self.widened(a, signed);
                let imm = Conversion {
                    from,
                    to: format(dty),
                    mode,
                    ftz: false,
                }
                .pack();
                self.emit(Op::CvtSoft32, d, row, 0, 0, imm);
            }
        }
        Ok(true)
    }

    fn float_to_float(
        &mut self,
        mods: &[&str],
        dty: Type,
        sty: Type,
        d: &Operand<'m>,
        a: Reg,
    ) -> Result<bool> {
        if matches!(sty, Type::F16x2 | Type::BF16x2) {
            return self.unfit("packed source of cvt");
        }
        let (ftz, sat) = (mods.contains(&"ftz"), mods.contains(&"sat"));
        let integral = to_integral(mods);
        let mode = rounding(mods).unwrap_or(Rounding::Nearest);
        if dty == Type::F64 {
            let to = self.d64(d)?;
            let d = if sat { self.f.temp64() } else { to };
            match self.as_single(sty, a) {
                Reg::R64(row) => match integral {
                    Some(mode) => self.emit(Op::DRound, d, row, 0, 0, mode as u64),
                    None => self.emit(Op::Mov64, d, row, 0, 0, 0),
                },
                Reg::R32(row) | Reg::P(row) => {
                    let row = if ftz { self.flushed(row) } else { row };
                    self.emit(Op::F32ToF64, d, row, 0, 0, 0);
                }
            }
            if sat {
                self.saturated_double(to, d);
            }
            return Ok(true);
        }
        let d = self.d32(d)?;
        // Everything narrower goes through single precision, which holds it exactly.
        let (mut row, from) = match self.as_single(sty, a) {
            Reg::R64(row) => (row, SourceType::F64),
            Reg::R32(row) | Reg::P(row) => (row, SourceType::F32),
        };
        if from == SourceType::F64 {
            let t = self.f.temp32();
            // Bounds that are exact in every format: to clamp first makes no difference.
            if sat && dty != Type::F32 {
                let clamped = self.f.temp64();
                self.saturated_double(clamped, row);
                row = clamped;
            }
            if dty == Type::F32 && mode == Rounding::Nearest {
                self.emit(Op::F64ToF32, t, row, 0, 0, 0);
            } else {
                let imm = Conversion {
                    from,
                    to: format(dty),
                    mode,
                    ftz,
                }
                .pack();
                self.emit(Op::CvtSoft32, t, row, 0, 0, imm);
            }
            if dty != Type::F32 {
                self.emit(Op::Mov32, d, t, 0, 0, 0);
                return Ok(true);
            }
            row = t;
        }
        if ftz && (dty == Type::F32 || sty == Type::F32) {
            row = self.flushed(row);
        }
        if let Some(mode) = integral {
            let t = self.f.temp32();
            self.emit(Op::FRound, t, row, 0, 0, mode as u64);
            row = t;
        }
        if sat {
            let t = self.f.temp32();
            self.emit(Op::FSat, t, row, 0, 0, 0);
            row = t;
        }
        if dty == Type::F32 {
            self.emit(Op::Mov32, d, row, 0, 0, 0);
        } else {
            let row = self.limited(mods, format(dty), row);
            self.round_to(format(dty), mode, d, row);
        }
        Ok(true)
    }

    /// Clamps a double to [0, 1]; NaN becomes 0.
    fn saturated_double(&mut self, d: u32, row: u32) {
        let (zero, one) = (self.f.const64(0), self.f.const64(1f64.to_bits()));
        self.emit(Op::DMax, d, row, zero, 0, 0);
        self.emit(Op::DMin, d, d, one, 0, 0);
    }

    /// Clamps an integer to 0 or 1.
    fn within_one(&mut self, a: Reg, signed: bool) -> Reg {
        match a {
            Reg::R64(row) => {
                let (t, zero, one) = (self.f.temp64(), self.f.const64(0), self.f.const64(1));
                let least = if signed { Op::MaxS64 } else { Op::MaxU64 };
                self.emit(least, t, row, zero, 0, 0);
                self.emit(Op::MinU64, t, t, one, 0, 0);
                Reg::R64(t)
            }
            Reg::R32(row) | Reg::P(row) => {
                let (t, zero, one) = (self.f.temp32(), self.f.const32(0), self.f.const32(1));
                let least = if signed { Op::MaxS32 } else { Op::MaxU32 };
                self.emit(least, t, row, zero, 0, 0);
                self.emit(Op::MinU32, t, t, one, 0, 0);
                Reg::R32(t)
            }
        }
    }

    fn flushed(&mut self, row: u32) -> u32 {
        let t = self.f.temp32();
        self.emit(Op::FFlush, t, row, 0, 0, 0);
        t
    }

    /// `cvt.rn.f16x2.f32 d, a, b`: `a` into the upper half, `b` into the lower.
    fn convert_pair(
        &mut self,
        mods: &[&str],
        dty: Type,
        sty: Type,
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        if sty != Type::F32 || mods.contains(&"sat") {
            return self.unsupported("this packed conversion");
        }
        let mode = rounding(mods).unwrap_or(Rounding::Nearest);
        let [d, a, b] = self.operands(operands)?;
        let (a, b, d) = (self.s32(a, sty)?, self.s32(b, sty)?, self.d32(d)?);
        let (hi, lo) = (self.f.temp32(), self.f.temp32());
        for (d, row) in [(hi, a), (lo, b)] {
            let row = self.limited(mods, format(dty), row);
            self.round_to(format(dty), mode, d, row);
        }
        self.emit(Op::Pack16, d, lo, hi, 0, 0);
        Ok(true)
    }
}
