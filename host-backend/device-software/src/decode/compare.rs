//! Comparisons and selections (PTX ISA 9.7.6).

use super::half::{HALF_FTZ, HalfKind};
use super::{Decoder, Result};
use crate::program::{Op, Reg};
use crate::ptx::ast::{Operand, Type};

const INVERT: u32 = u32::MAX;

impl<'m> Decoder<'m> {
    /// Compares into predicate `p`.
    fn comparison(
        &mut self,
        what: &str,
        ty: Type,
        ftz: bool,
        p: u32,
        a: &Operand<'m>,
        b: &Operand<'m>,
    ) -> Result<()> {
        match (self.source(a, ty)?, self.source(b, ty)?) {
            (Reg::R32(a), Reg::R32(b)) | (Reg::R64(a), Reg::R64(b)) => {
                self.compare_rows(what, ty, ftz, p, [a, b])
            }
            _ => self.unfit("operands of different widths"),
        }
    }

    /// Compares the lower and the upper halves of packed operands.
    fn compare_halves(
        &mut self,
        what: &str,
        ty: Type,
        ftz: bool,
        a: &Operand<'m>,
        b: &Operand<'m>,
    ) -> Result<[u32; 2]> {
        let half = match ty {
            Type::F16x2 => Type::F16,
            Type::BF16x2 => Type::BF16,
            _ => return self.unsupported("comparison of this packed type"),
        };
        let low = [self.s32(a, ty)?, self.s32(b, ty)?];
        let sixteen = self.f.const32(16);
        let high = low.map(|row| {
            let t = self.f.temp32();
            self.emit(Op::ShrU32, t, row, sixteen, 0, 0);
            t
        });
        let mut out = [0; 2];
        for (p, rows) in out.iter_mut().zip([low, high]) {
            *p = self.f.temp_pred();
            self.compare_rows(what, half, ftz, *p, rows)?;
        }
        Ok(out)
    }

    fn compare_rows(
        &mut self,
        what: &str,
        ty: Type,
        ftz: bool,
        p: u32,
        [mut a, mut b]: [u32; 2],
    ) -> Result<()> {
        if ty.float() {
            let double = ty == Type::F64;
            for row in [&mut a, &mut b] {
                if ftz && ty == Type::F16 {
                    // The greater of a value and itself, flushed.
                    let (t, flush) = (self.f.temp32(), HalfKind::Max as u64 | HALF_FTZ);
                    self.emit(Op::Half, t, *row, *row, *row, flush);
                    *row = t;
                }
                let widen = match ty {
                    Type::F16 => Some(Op::F16ToF32),
                    Type::BF16 => Some(Op::Bf16ToF32),
                    Type::F32 if ftz => Some(Op::FFlush),
                    Type::F32 | Type::F64 => None,
                    _ => return self.unsupported("comparison of packed halves"),
                };
                if let Some(op) = widen {
                    let t = self.f.temp32();
                    self.emit(op, t, *row, 0, 0, 0);
                    *row = t;
                }
            }
            let (eq, lt, le, ne, nan) = if double {
                (Op::DEq, Op::DLt, Op::DLe, Op::DNe, Op::DNan)
            } else {
                (Op::FEq, Op::FLt, Op::FLe, Op::FNe, Op::FNan)
            };
            let (op, x, y, invert) = match what {
                "eq" => (eq, a, b, 0),
                "ne" => (ne, a, b, 0),
                "lt" => (lt, a, b, 0),
                "le" => (le, a, b, 0),
                "gt" => (lt, b, a, 0),
                "ge" => (le, b, a, 0),
                "equ" => (ne, a, b, INVERT),
                "neu" => (eq, a, b, INVERT),
                "ltu" => (le, b, a, INVERT),
                "leu" => (lt, b, a, INVERT),
                "gtu" => (le, a, b, INVERT),
                "geu" => (lt, a, b, INVERT),
                "num" => (nan, a, b, INVERT),
                "nan" => (nan, a, b, 0),
                _ => return self.unsupported(format!("comparison .{what}")),
            };
            self.emit(op, p, x, y, invert, 0);
            return Ok(());
        }
        if matches!(ty, Type::S16 | Type::S8) {
            for row in [&mut a, &mut b] {
                let t = self.f.temp32();
                self.emit(
                    if ty == Type::S16 {
                        Op::Sext16
                    } else {
                        Op::Sext8
                    },
                    t,
                    *row,
                    0,
                    0,
                    0,
                );
                *row = t;
            }
        }
        let wide = ty.size() == 8;
        let (lt, le) = match (wide, ty.signed()) {
            (false, false) => (Op::LtU32, Op::LeU32),
            (false, true) => (Op::LtS32, Op::LeS32),
            (true, false) => (Op::LtU64, Op::LeU64),
            (true, true) => (Op::LtS64, Op::LeS64),
        };
        let eq = if wide { Op::Eq64 } else { Op::Eq32 };
        let (op, x, y, invert) = match what {
            "eq" => (eq, a, b, 0),
            "ne" => (eq, a, b, INVERT),
            "lt" => (lt, a, b, 0),
            "le" => (le, a, b, 0),
            "gt" => (lt, b, a, 0),
            "ge" => (le, b, a, 0),
            "lo" => (if wide { Op::LtU64 } else { Op::LtU32 }, a, b, 0),
            "ls" => (if wide { Op::LeU64 } else { Op::LeU32 }, a, b, 0),
            "hi" => (if wide { Op::LtU64 } else { Op::LtU32 }, b, a, 0),
            "hs" => (if wide { Op::LeU64 } else { Op::LeU32 }, b, a, 0),
            _ => return self.unsupported(format!("comparison .{what}")),
        };
        self.emit(op, p, x, y, invert, 0);
        Ok(())
    }

    pub(super) fn compare(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        match base {
            "setp" => self.setp(mods, operands),
            "set" => self.set(mods, operands),
            "selp" => {
                let ty = self.type_at(mods, 0)?;
                let [d, a, b, p] = self.operands(operands)?;
                let (a, b, (p, negate)) = (self.source(a, ty)?, self.source(b, ty)?, self.pred(p)?);
                let (a, b) = if negate { (b, a) } else { (a, b) };
                match (self.dest(d, ty)?, a, b) {
                    (Reg::R32(d), Reg::R32(a), Reg::R32(b)) => self.emit(Op::Selp32, d, a, b, p, 0),
                    (Reg::R64(d), Reg::R64(a), Reg::R64(b)) => self.emit(Op::Selp64, d, a, b, p, 0),
                    _ => return self.unfit("operands of different widths"),
                }
                Ok(true)
            }
            "slct" => {
                let ftz = mods.contains(&"ftz");
                let rest: Vec<&str> = mods.iter().copied().filter(|m| *m != "ftz").collect();
                let (ty, by) = (self.type_at(&rest, 0)?, self.type_at(&rest, 1)?);
                let [d, a, b, c] = self.operands(operands)?;
                let (a, b, mut c) = (self.source(a, ty)?, self.source(b, ty)?, self.s32(c, by)?);
                if ftz {
                    let t = self.f.temp32();
                    self.emit(Op::FFlush, t, c, 0, 0, 0);
                    c = t;
                }
                let float = by == Type::F32;
                match (self.dest(d, ty)?, a, b) {
                    (Reg::R32(d), Reg::R32(a), Reg::R32(b)) => {
                        self.emit(if float { Op::SlctF32 } else { Op::Slct32 }, d, a, b, c, 0);
                    }
                    (Reg::R64(d), Reg::R64(a), Reg::R64(b)) => {
                        self.emit(if float { Op::SlctF64 } else { Op::Slct64 }, d, a, b, c, 0);
                    }
                    _ => return self.unfit("operands of different widths"),
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn setp(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let what = mods.first().copied().unwrap_or_default();
        let combine = mods
            .get(1)
            .copied()
            .filter(|m| matches!(*m, "and" | "or" | "xor"));
        let ftz = mods.contains(&"ftz");
        let ty = self.last_type(mods)?;
        let known = [what, "and", "or", "xor", "ftz"];
        self.only(mods, &known)?;
        let (d, a, b, c) = match (operands, combine) {
            ([d, a, b], None) => (d, a, b, None),
            ([d, a, b, c], Some(_)) => (d, a, b, Some(c)),
            _ => return self.unfit("wrong number of operands"),
        };
        let (p, q) = match d {
            Operand::Name(p) => (self.pred_named(p)?, None),
            Operand::Pair(p, q) => (self.pred_named(p)?, Some(self.pred_named(q)?)),
            _ => return self.unfit("expected a predicate"),
        };
        if matches!(ty, Type::F16x2 | Type::BF16x2) {
            let Some(q) = q else {
                return self.unsupported("this comparison of packed halves");
            };
            let [low, high] = self.compare_halves(what, ty, ftz, a, b)?;
            self.combine_with(combine.zip(c), &[low, high])?;
            self.write_pair(p, q, low, high);
            return Ok(true);
        }
        if combine.is_none() && q.is_none() {
            self.comparison(what, ty, ftz, p, a, b)?;
            return Ok(true);
        }
        // The results may overwrite the guard or the third operand: work in temporaries, copy last.
        let (yes, no) = (self.f.temp_pred(), self.f.temp_pred());
        self.comparison(what, ty, ftz, yes, a, b)?;
        self.emit(Op::PNot, no, yes, 0, 0, 0);
        self.combine_with(combine.zip(c), &[yes, no])?;
        match q {
            Some(q) => self.write_pair(p, q, yes, no),
            None => self.emit(Op::PMov, p, yes, 0, 0, 0),
        }
        Ok(true)
    }

    /// Combines predicates with another one by `and`, `or` or `xor`.
    fn combine_with(&mut self, by: Option<(&str, &Operand<'m>)>, rows: &[u32]) -> Result<()> {
        let Some((what, c)) = by else {
            return Ok(());
        };
        let c = self.plain_pred(c)?;
        let op = match what {
            "and" => Op::PAnd,
            "or" => Op::POr,
            _ => Op::PXor,
        };
        for &row in rows {
            self.emit(op, row, row, c, 0, 0);
        }
        Ok(())
    }

    /// Writes two predicates, either of which may be the guard.
    fn write_pair(&mut self, p: u32, q: u32, first: u32, second: u32) {
        let guard = self.guard;
        if guard != 0 {
            let held = self.f.temp_pred();
            self.guard = 0;
            self.emit(Op::PMov, held, (guard >> 1) - 1, 0, 0, 0);
            self.guard = ((held + 1) << 1) | (guard & 1);
        }
        self.emit(Op::PMov, q, second, 0, 0, 0);
        self.emit(Op::PMov, p, first, 0, 0, 0);
        self.guard = guard;
    }

    fn set(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let what = mods.first().copied().unwrap_or_default();
        let combine = mods
            .iter()
            .copied()
            .find(|m| matches!(*m, "and" | "or" | "xor"));
        let ftz = mods.contains(&"ftz");
        self.only(mods, &[what, "and", "or", "xor", "ftz"])?;
        let n = mods.len();
        let (dty, sty) = (
            self.type_at(mods, n.wrapping_sub(2))?,
            self.type_at(mods, n.wrapping_sub(1))?,
        );
        let (d, a, b, c) = match (operands, combine) {
            ([d, a, b], None) => (d, a, b, None),
            ([d, a, b, c], Some(_)) => (d, a, b, Some(c)),
            _ => return self.unfit("wrong number of operands"),
        };
        if matches!(sty, Type::F16x2 | Type::BF16x2) {
            let yes = match dty {
                Type::F16x2 => 0x3c00,
                Type::BF16x2 => 0x3f80,
                Type::U32 | Type::S32 => 0xffff,
                _ => return self.unsupported("result type of set"),
            };
            let [low, high] = self.compare_halves(what, sty, ftz, a, b)?;
            self.combine_with(combine.zip(c), &[low, high])?;
            let (yes, no, d) = (self.f.const32(yes), self.f.const32(0), self.d32(d)?);
            let (x, y) = (self.f.temp32(), self.f.temp32());
            self.emit(Op::Selp32, x, yes, no, low, 0);
            self.emit(Op::Selp32, y, yes, no, high, 0);
            self.emit(Op::Pack16, d, x, y, 0, 0);
            return Ok(true);
        }
        let p = self.f.temp_pred();
        self.comparison(what, sty, ftz, p, a, b)?;
        self.combine_with(combine.zip(c), &[p])?;
        let yes = match dty {
            Type::F32 => 1f32.to_bits(),
            Type::F16 => 0x3c00,
            Type::BF16 => 0x3f80,
            Type::U16 | Type::S16 => 0xffff,
            Type::U32 | Type::S32 | Type::B32 => u32::MAX,
            _ => return self.unsupported("result type of set"),
        };
        let (yes, no) = (self.f.const32(yes), self.f.const32(0));
        let d = self.d32(d)?;
        self.emit(Op::Selp32, d, yes, no, p, 0);
        Ok(true)
    }
}
