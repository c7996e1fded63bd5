//! Packed arithmetic: two 16-bit integers or two singles in a register (PTX ISA 9.7.1, 9.7.3).

use super::{Decoder, Result};
use crate::program::Op;
use crate::ptx::ast::{Operand, Type};

impl<'m> Decoder<'m> {
    pub(super) fn packed(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        match mods.last().and_then(|m| Type::parse(m)) {
            Some(ty @ (Type::S16x2 | Type::U16x2)) => self.integer_pair(base, mods, ty, operands),
            Some(Type::F32x2) => self.single_pair(base, mods, operands),
            _ => Ok(false),
        }
    }

    /// Both halves of `row`, extended to 32 bits.
    fn halves(&mut self, row: u32, signed: bool) -> [u32; 2] {
        let (low, high, k) = (self.f.temp32(), self.f.temp32(), self.f.const32(16));
        let (extend, shift) = match signed {
            true => (Op::Sext16, Op::ShrS32),
            false => (Op::Zext16, Op::ShrU32),
        };
        self.emit(extend, low, row, 0, 0, 0);
        self.emit(shift, high, row, k, 0, 0);
        [low, high]
    }

    fn integer_pair(
        &mut self,
        base: &str,
        mods: &[&str],
        ty: Type,
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        let signed = ty == Type::S16x2;
        let op = match (base, signed) {
            ("add", _) => Op::Add32,
            ("sub", _) => Op::Sub32,
            ("min", true) => Op::MinS32,
            ("min", false) => Op::MinU32,
            ("max", true) => Op::MaxS32,
            ("max", false) => Op::MaxU32,
            _ => return Ok(false),
        };
        let relu = mods.contains(&"relu");
        self.only(
            mods,
            if signed && matches!(base, "min" | "max") {
                &["relu"]
            } else {
                &[]
            },
        )?;
        let [d, a, b] = self.operands(operands)?;
        let (a, b, d) = (self.s32(a, ty)?, self.s32(b, ty)?, self.d32(d)?);
        let (a, b) = (self.halves(a, signed), self.halves(b, signed));
        let mut out = [0; 2];
        for n in 0..2 {
            out[n] = self.f.temp32();
            self.emit(op, out[n], a[n], b[n], 0, 0);
            if relu {
                let zero = self.f.const32(0);
                self.emit(Op::MaxS32, out[n], out[n], zero, 0, 0);
            }
        }
        self.emit(Op::Pack16, d, out[0], out[1], 0, 0);
        Ok(true)
    }

    fn single_pair(&mut self, base: &str, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let expected = match base {
            "add" | "sub" | "mul" => 2,
            "fma" => 3,
            _ => return Ok(false),
        };
        self.only(mods, &["rn", "rz", "rm", "rp", "ftz"])?;
        let Some((d, sources)) = operands.split_first().filter(|(_, s)| s.len() == expected) else {
            return self.unfit(format!("{base} takes {expected} sources"));
        };
        let mut rows = [[0; 3]; 2];
        for (n, source) in sources.iter().enumerate() {
            let wide = self.s64(source, Type::B64)?;
            for (half, op) in rows.iter_mut().zip([Op::Low64, Op::High64]) {
                half[n] = self.f.temp32();
                self.emit(op, half[n], wide, 0, 0, 0);
            }
        }
        let (low, high, d) = (self.f.temp32(), self.f.temp32(), self.d64(d)?);
        self.single_rows(base, mods, low, rows[0])?;
        self.single_rows(base, mods, high, rows[1])?;
        self.emit(Op::Pack32, d, low, high, 0, 0);
        Ok(true)
    }
}
