//! Integer arithmetic, logic, shifts and bit fields (PTX ISA 9.7.1, 9.7.2, 9.7.8).

use super::{Decoder, Result};
use crate::program::{Ext, Op, Reg, Special};
use crate::ptx::ast::{Operand, Type};

/// Operations that exist as 32-bit unsigned, 32-bit signed, 64-bit unsigned, 64-bit signed.
fn by_type(ops: [Op; 4], ty: Type) -> Op {
    ops[usize::from(ty.size() == 8) * 2 + usize::from(ty.signed())]
}

impl<'m> Decoder<'m> {
    /// A source of an integer operation; 16-bit signed values are extended to 32 bits.
    fn integer(&mut self, operand: &Operand<'m>, ty: Type) -> Result<u32> {
        if ty.size() == 8 {
            return self.s64(operand, ty);
        }
        let row = self.s32(operand, ty)?;
        if ty == Type::S16 {
            let t = self.f.temp32();
            self.emit(Op::Sext16, t, row, 0, 0, 0);
            return Ok(t);
        }
        Ok(row)
    }

    fn integer_dest(&mut self, operand: &Operand<'m>, ty: Type) -> Result<u32> {
        if ty.size() == 8 {
            self.d64(operand)
        } else {
            self.d32(operand)
        }
    }

    /// Emits an operation and truncates its 16-bit result.
    fn narrowed(&mut self, op: Op, ty: Type, d: u32, [a, b, c]: [u32; 3], imm: u64) {
        if ty.size() == 2 {
            let t = self.f.temp32();
            self.emit(op, t, a, b, c, imm);
            self.emit(Op::Zext16, d, t, 0, 0, 0);
        } else {
            self.emit(op, d, a, b, c, imm);
        }
    }

    pub(super) fn arith(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        if base == "prmt" {
            return self.prmt(mods, operands);
        }
        let Some(ty) = mods.last().and_then(|m| Type::parse(m)) else {
            return Ok(false);
        };
        if matches!(base, "and" | "or" | "xor" | "not" | "mov") && ty == Type::Pred {
            return self.pred_logic(base, operands);
        }
        if ty.float() || ty == Type::Pred || ty == Type::B128 {
            return Ok(false);
        }
        match base {
            "add" | "sub" | "addc" | "subc" => self.add_sub(base, mods, ty, operands),
            "mul" | "mad" | "madc" => self.mul_mad(base, mods, ty, operands),
            "mul24" | "mad24" => self.mul24(base, mods, ty, operands),
            "div" | "rem" | "min" | "max" | "and" | "or" | "xor" => {
                self.only(
                    mods,
                    if matches!(base, "min" | "max") && ty == Type::S32 {
                        &["relu"]
                    } else if matches!(base, "min" | "max") {
                        &[]
                    } else {
                        &["to"]
                    },
                )?;
                let ops = match base {
                    "div" => [Op::DivU32, Op::DivS32, Op::DivU64, Op::DivS64],
                    "rem" => [Op::RemU32, Op::RemS32, Op::RemU64, Op::RemS64],
                    "min" => [Op::MinU32, Op::MinS32, Op::MinU64, Op::MinS64],
                    "max" => [Op::MaxU32, Op::MaxS32, Op::MaxU64, Op::MaxS64],
                    "and" => [Op::And32, Op::And32, Op::And64, Op::And64],
                    "or" => [Op::Or32, Op::Or32, Op::Or64, Op::Or64],
                    _ => [Op::Xor32, Op::Xor32, Op::Xor64, Op::Xor64],
                };
                let [d, a, b] = self.operands(operands)?;
                let (a, b, d) = (
                    self.integer(a, ty)?,
                    self.integer(b, ty)?,
                    self.integer_dest(d, ty)?,
                );
                self.narrowed(by_type(ops, ty), ty, d, [a, b, 0], 0);
                if mods.contains(&"relu") {
                    let zero = self.f.const32(0);
                    self.emit(Op::MaxS32, d, d, zero, 0, 0);
                }
                Ok(true)
            }
            "abs" | "neg" | "not" | "cnot" => {
                self.only(mods, &[])?;
                let ops = match base {
                    "abs" => [Op::AbsS32, Op::AbsS32, Op::AbsS64, Op::AbsS64],
                    "neg" => [Op::Neg32, Op::Neg32, Op::Neg64, Op::Neg64],
                    "not" => [Op::Not32, Op::Not32, Op::Not64, Op::Not64],
                    _ => [Op::Cnot32, Op::Cnot32, Op::Cnot64, Op::Cnot64],
                };
                let [d, a] = self.operands(operands)?;
                let (a, d) = (self.integer(a, ty)?, self.integer_dest(d, ty)?);
                self.narrowed(by_type(ops, ty), ty, d, [a, 0, 0], 0);
                Ok(true)
            }
            "sad" => {
                self.only(mods, &[])?;
                let [d, a, b, c] = self.operands(operands)?;
                let (a, b) = (self.integer(a, ty)?, self.integer(b, ty)?);
                let (c, d) = (self.integer(c, ty)?, self.integer_dest(d, ty)?);
                let op = by_type([Op::SadU32, Op::SadS32, Op::SadU64, Op::SadS64], ty);
                self.narrowed(op, ty, d, [a, b, c], 0);
                Ok(true)
            }
            "shl" | "shr" => {
                self.only(mods, &[])?;
                let [d, a, b] = self.operands(operands)?;
                let (a, b, d) = (
                    self.integer(a, ty)?,
                    self.s32(b, Type::U32)?,
                    self.integer_dest(d, ty)?,
                );
                let ops = if base == "shl" {
                    [Op::Shl32, Op::Shl32, Op::Shl64, Op::Shl64]
                } else {
                    [Op::ShrU32, Op::ShrS32, Op::ShrU64, Op::ShrS64]
                };
                self.narrowed(by_type(ops, ty), ty, d, [a, b, 0], 0);
                Ok(true)
            }
            "shf" => {
                let op = match (mods.first(), mods.get(1)) {
                    (Some(&"l"), Some(&"wrap")) => Op::ShfLWrap,
                    (Some(&"r"), Some(&"wrap")) => Op::ShfRWrap,
                    (Some(&"l"), Some(&"clamp")) => Op::ShfLClamp,
                    (Some(&"r"), Some(&"clamp")) => Op::ShfRClamp,
                    _ => return Ok(false),
                };
                let [d, a, b, c] = self.operands(operands)?;
                let (a, b) = (self.s32(a, ty)?, self.s32(b, ty)?);
                let (c, d) = (self.s32(c, Type::U32)?, self.d32(d)?);
                self.emit(op, d, a, b, c, 0);
                Ok(true)
            }
            "popc" | "clz" | "bfind" => self.count_bits(base, mods, ty, operands),
            "brev" => {
                let [d, a] = self.operands(operands)?;
                let (a, d) = (self.integer(a, ty)?, self.integer_dest(d, ty)?);
                self.emit(
                    by_type([Op::Brev32, Op::Brev32, Op::Brev64, Op::Brev64], ty),
                    d,
                    a,
                    0,
                    0,
                    0,
                );
                Ok(true)
            }
            "bfe" | "bfi" => self.bit_field(base, ty, operands),
            "bmsk" => {
                let wrap = mods.contains(&"wrap");
                self.only(mods, &["wrap", "clamp"])?;
                let [d, a, b] = self.operands(operands)?;
                let (a, b, d) = (self.s32(a, ty)?, self.s32(b, ty)?, self.d32(d)?);
                // ((1 << width) - 1) << position, with wrapped or clamped amounts.
                let (mut position, mut width) = (a, b);
                if wrap {
                    let k = self.f.const32(31);
                    let (t, u) = (self.f.temp32(), self.f.temp32());
                    self.emit(Op::And32, t, a, k, 0, 0);
                    self.emit(Op::And32, u, b, k, 0, 0);
                    (position, width) = (t, u);
                }
                let (one, t) = (self.f.const32(1), self.f.temp32());
                self.emit(Op::Shl32, t, one, width, 0, 0);
                self.emit(Op::Sub32, t, t, one, 0, 0);
                self.emit(Op::Shl32, d, t, position, 0, 0);
                Ok(true)
            }
            "szext" => {
                self.only(mods, &["wrap", "clamp"])?;
                let [d, a, b] = self.operands(operands)?;
                let (a, b, d) = (self.s32(a, ty)?, self.s32(b, Type::U32)?, self.d32(d)?);
                let imm = u64::from(ty.signed()) | u64::from(mods.contains(&"wrap")) << 1;
                self.emit(Op::Szext, d, a, b, 0, imm);
                Ok(true)
            }
            "fns" => {
                self.only(mods, &[])?;
                let [d, mask, base, offset] = self.operands(operands)?;
                let (mask, base) = (self.s32(mask, ty)?, self.s32(base, ty)?);
                let (offset, d) = (self.s32(offset, Type::S32)?, self.d32(d)?);
                self.emit(Op::Fns, d, mask, base, offset, 0);
                Ok(true)
            }
            "lop3" => {
                // `lop3.or.b32 d|p, a, b, c, lut, q`: p is whether d differs from zero, or q.
                let (list, combine) = match (mods, operands) {
                    ([what @ ("or" | "and"), _], [list @ .., q]) => (list, Some((*what, q))),
                    ([_], list) => (list, None),
                    _ => return self.unsupported("this form of lop3"),
                };
                let [d, a, b, c, lut] = self.operands(list)?;
                let combine = match (combine, d) {
                    (Some((what, q)), Operand::Pair(_, p)) => {
                        Some((what, self.plain_pred(q)?, self.pred_named(p)?))
                    }
                    (None, _) => None,
                    _ => return self.unfit("expected d|p"),
                };
                let named;
                let d = match d {
                    Operand::Pair(name, _) => {
                        named = Operand::Name(name);
                        &named
                    }
                    d => d,
                };
                let &Operand::Int(lut) = lut else {
                    return self.unfit("lop3 needs a constant");
                };
                let (a, b) = (self.s32(a, ty)?, self.s32(b, ty)?);
                let (c, d) = (self.s32(c, ty)?, self.d32(d)?);
                self.emit(Op::Lop3, d, a, b, c, lut & 0xff);
                if let Some((what, q, p)) = combine {
                    let (set, zero) = (self.f.temp_pred(), self.f.const32(0));
                    self.emit(Op::Eq32, set, d, zero, u32::MAX, 0);
                    self.emit(
                        if what == "or" { Op::POr } else { Op::PAnd },
                        p,
                        set,
                        q,
                        0,
                        0,
                    );
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// `prmt.b32` or `prmt.b32.mode`.
    fn prmt(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let mode = match mods {
            ["b32"] => 0,
            ["b32", "f4e"] => 1,
            ["b32", "b4e"] => 2,
            ["b32", "rc8"] => 3,
            ["b32", "ecl"] => 4,
            ["b32", "ecr"] => 5,
            ["b32", "rc16"] => 6,
            _ => return Ok(false),
        };
        let [d, a, b, c] = self.operands(operands)?;
        let (a, b) = (self.s32(a, Type::B32)?, self.s32(b, Type::B32)?);
        let (c, d) = (self.s32(c, Type::B32)?, self.d32(d)?);
        self.emit(Op::Prmt, d, a, b, c, mode);
        Ok(true)
    }

    fn pred_logic(&mut self, base: &str, operands: &[Operand<'m>]) -> Result<bool> {
        if matches!(base, "not" | "mov") {
            let [d, a] = self.operands(operands)?;
            if *a == Operand::Name("%is_explicit_cluster") {
                let (what, d) = (Special::IsExplicitCluster, Reg::P(self.dp(d)?));
                self.ext(Ext::Special { what, d });
                return Ok(true);
            }
            let ((a, negate), d) = (self.pred(a)?, self.dp(d)?);
            self.emit(
                if negate != (base == "not") {
                    Op::PNot
                } else {
                    Op::PMov
                },
                d,
                a,
                0,
                0,
                0,
            );
            return Ok(true);
        }
        let [d, a, b] = self.operands(operands)?;
        let (a, b) = (self.plain_pred(a)?, self.plain_pred(b)?);
        let d = self.dp(d)?;
        let op = match base {
            "and" => Op::PAnd,
            "or" => Op::POr,
            _ => Op::PXor,
        };
        self.emit(op, d, a, b, 0, 0);
        Ok(true)
    }

    /// A predicate source, negated if necessary.
    pub(super) fn plain_pred(&mut self, operand: &Operand<'m>) -> Result<u32> {
        let (p, negate) = self.pred(operand)?;
        if !negate {
            return Ok(p);
        }
        let t = self.f.temp_pred();
        self.emit(Op::PNot, t, p, 0, 0, 0);
        Ok(t)
    }

    fn add_sub(
        &mut self,
        base: &str,
        mods: &[&str],
        ty: Type,
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        let carry_in = base.ends_with('c');
        let carry_out = mods.contains(&"cc");
        let add = base.starts_with("add");
        self.only(mods, &["cc", "sat"])?;
        let [d, a, b] = self.operands(operands)?;
        let (a, b, d) = (
            self.integer(a, ty)?,
            self.integer(b, ty)?,
            self.integer_dest(d, ty)?,
        );
        if carry_in || carry_out {
            self.carry_op(add, carry_in, carry_out, ty, d, a, b);
            return Ok(true);
        }
        if mods.contains(&"sat") {
            if ty != Type::S32 {
                return self.unsupported("saturation of this type");
            }
            self.saturating(add, d, a, b);
            return Ok(true);
        }
        let op = match (ty.size() == 8, add) {
            (false, true) => Op::Add32,
            (false, false) => Op::Sub32,
            (true, true) => Op::Add64,
            (true, false) => Op::Sub64,
        };
        self.narrowed(op, ty, d, [a, b, 0], 0);
        Ok(true)
    }

    /// A signed sum or difference of 32 bits: in 64 bits, then clamped to the range of 32.
    fn saturating(&mut self, add: bool, d: u32, a: u32, b: u32) {
        let (x, y) = (self.f.temp64(), self.f.temp64());
        self.emit(Op::Sext32, x, a, 0, 0, 0);
        self.emit(Op::Sext32, y, b, 0, 0, 0);
        self.emit(if add { Op::Add64 } else { Op::Sub64 }, x, x, y, 0, 0);
        let (low, high) = (
            self.f.const64(i64::from(i32::MIN) as u64),
            self.f.const64(i64::from(i32::MAX) as u64),
        );
        self.emit(Op::MaxS64, x, x, low, 0, 0);
        self.emit(Op::MinS64, x, x, high, 0, 0);
        self.emit(Op::Low64, d, x, 0, 0, 0);
    }

    #[allow(clippy::too_many_arguments)]
    fn carry_op(
        &mut self,
        add: bool,
        carry_in: bool,
        carry_out: bool,
        ty: Type,
        d: u32,
        a: u32,
        b: u32,
    ) {
        let flag = self.f.carry();
        let op = match (ty.size() == 8, add) {
            (false, true) => Op::AddCc32,
            (false, false) => Op::SubCc32,
            (true, true) => Op::AddCc64,
            (true, false) => Op::SubCc64,
        };
        let flags = u32::from(carry_in) | u32::from(carry_out) << 1;
        self.emit(op, d, a, b, flags, u64::from(flag));
    }

    fn mul_mad(
        &mut self,
        base: &str,
        mods: &[&str],
        ty: Type,
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        self.only(mods, &["lo", "hi", "wide", "cc", "sat"])?;
        let saturate = mods.contains(&"sat");
        if saturate && (base != "mad" || mods != ["hi", "sat", "s32"]) {
            return self.unsupported("saturation of this type");
        }
        let carry_out = mods.contains(&"cc");
        let carry_in = base == "madc";
        let mode = mods.first().copied().unwrap_or_default();
        let (d, a, b, c) = if base == "mul" {
            let [d, a, b] = self.operands(operands)?;
            (d, a, b, None)
        } else {
            let [d, a, b, c] = self.operands(operands)?;
            (d, a, b, Some(c))
        };
        let (a, b) = (self.integer(a, ty)?, self.integer(b, ty)?);
        if mode == "wide" {
            if carry_in || carry_out {
                return self.unsupported("wide multiply with carry");
            }
            return self.wide(ty, d, a, b, c);
        }
        let d = self.integer_dest(d, ty)?;
        let c = match c {
            Some(c) => Some(self.integer(c, ty)?),
            None => None,
        };
        let wide64 = ty.size() == 8;
        if mode == "lo" && !carry_in && !carry_out {
            let op = match (wide64, c.is_some()) {
                (false, false) => Op::MulLo32,
                (false, true) => Op::MadLo32,
                (true, false) => Op::MulLo64,
                (true, true) => Op::MadLo64,
            };
            self.narrowed(op, ty, d, [a, b, c.unwrap_or(0)], 0);
            return Ok(true);
        }
        // The product first, then the sum.
        let product = if wide64 {
            self.f.temp64()
        } else {
            self.f.temp32()
        };
        match (mode, ty.size()) {
            ("lo", 8) => self.emit(Op::MulLo64, product, a, b, 0, 0),
            ("lo", _) => self.emit(Op::MulLo32, product, a, b, 0, 0),
            ("hi", 2) => {
                // 16-bit operands are extended: the whole product fits 32 bits.
                let k = self.f.const32(16);
                self.emit(Op::MulLo32, product, a, b, 0, 0);
                self.emit(Op::ShrU32, product, product, k, 0, 0);
            }
            ("hi", _) => {
                let ops = [Op::MulHiU32, Op::MulHiS32, Op::MulHiU64, Op::MulHiS64];
                self.emit(by_type(ops, ty), product, a, b, 0, 0);
            }
            _ => return Ok(false),
        }
        match c {
            Some(c) if carry_in || carry_out => {
                self.carry_op(true, carry_in, carry_out, ty, d, product, c)
            }
            Some(c) if saturate => self.saturating(true, d, product, c),
            Some(c) => self.narrowed(
                if wide64 { Op::Add64 } else { Op::Add32 },
                ty,
                d,
                [product, c, 0],
                0,
            ),
            None => self.narrowed(
                if wide64 { Op::Mov64 } else { Op::Mov32 },
                ty,
                d,
                [product, 0, 0],
                0,
            ),
        }
        Ok(true)
    }

    fn wide(
        &mut self,
        ty: Type,
        d: &Operand<'m>,
        a: u32,
        b: u32,
        c: Option<&Operand<'m>>,
    ) -> Result<bool> {
        match ty.size() {
            4 => {
                let d = self.d64(d)?;
                let ops = if c.is_some() {
                    [Op::MadWideU32, Op::MadWideS32]
                } else {
                    [Op::MulWideU32, Op::MulWideS32]
                };
                let c = match c {
                    Some(c) => self.s64(c, Type::B64)?,
                    None => 0,
                };
                self.emit(ops[usize::from(ty.signed())], d, a, b, c, 0);
                Ok(true)
            }
            2 => {
                let d = self.d32(d)?;
                let (op, c) = match c {
                    Some(c) => (Op::MadLo32, self.s32(c, Type::B32)?),
                    None => (Op::MulLo32, 0),
                };
                self.emit(op, d, a, b, c, 0);
                Ok(true)
            }
            _ => self.unsupported("wide multiply of 64 bits"),
        }
    }

    fn mul24(
        &mut self,
        base: &str,
        mods: &[&str],
        ty: Type,
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        self.only(mods, &["lo", "hi", "sat"])?;
        let saturate = mods.contains(&"sat");
        if saturate && (base != "mad24" || mods != ["hi", "sat", "s32"]) {
            return self.unsupported("saturation of this type");
        }
        if ty.size() != 4 {
            return self.unfit("24-bit multiplication takes 32-bit operands");
        }
        let (d, a, b, c) = match operands {
            [d, a, b] if base == "mul24" => (d, a, b, None),
            [d, a, b, c] if base == "mad24" => (d, a, b, Some(c)),
            _ => return self.unfit("wrong number of operands"),
        };
        let (a, b, d) = (self.s32(a, ty)?, self.s32(b, ty)?, self.d32(d)?);
        let (x, y, eight) = (self.f.temp32(), self.f.temp32(), self.f.const32(8));
        let shift = if ty.signed() { Op::ShrS32 } else { Op::ShrU32 };
        for (t, v) in [(x, a), (y, b)] {
            self.emit(Op::Shl32, t, v, eight, 0, 0);
            self.emit(shift, t, t, eight, 0, 0);
        }
        if mods.first() == Some(&"lo") {
            self.emit(Op::MulLo32, x, x, y, 0, 0);
        } else {
            // Bits 47 to 16 of the 48-bit product.
            let (wide, sixteen) = (self.f.temp64(), self.f.const32(16));
            self.emit(
                if ty.signed() {
                    Op::MulWideS32
                } else {
                    Op::MulWideU32
                },
                wide,
                x,
                y,
                0,
                0,
            );
            self.emit(Op::ShrU64, wide, wide, sixteen, 0, 0);
            self.emit(Op::Low64, x, wide, 0, 0, 0);
        }
        match c {
            Some(c) if saturate => {
                let c = self.s32(c, ty)?;
                self.saturating(true, d, x, c);
            }
            Some(c) => {
                let c = self.s32(c, ty)?;
                self.emit(Op::Add32, d, x, c, 0, 0);
            }
            None => self.emit(Op::Mov32, d, x, 0, 0, 0),
        }
        Ok(true)
    }

    fn count_bits(
        &mut self,
        base: &str,
        mods: &[&str],
        ty: Type,
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        let amount = mods.contains(&"shiftamt");
        self.only(mods, if base == "bfind" { &["shiftamt"] } else { &[] })?;
        let ops = match base {
            "popc" => [Op::Popc32, Op::Popc32, Op::Popc64, Op::Popc64],
            "clz" => [Op::Clz32, Op::Clz32, Op::Clz64, Op::Clz64],
            _ => [Op::BfindU32, Op::BfindS32, Op::BfindU64, Op::BfindS64],
        };
        let [d, a] = self.operands(operands)?;
        let (a, d) = (self.integer(a, ty)?, self.d32(d)?);
        self.emit(by_type(ops, ty), d, a, 0, 0, u64::from(amount));
        Ok(true)
    }

    fn bit_field(&mut self, base: &str, ty: Type, operands: &[Operand<'m>]) -> Result<bool> {
        if base == "bfe" {
            let [d, a, b, c] = self.operands(operands)?;
            let (a, b) = (self.integer(a, ty)?, self.s32(b, Type::U32)?);
            let (c, d) = (self.s32(c, Type::U32)?, self.integer_dest(d, ty)?);
            self.emit(
                by_type([Op::BfeU32, Op::BfeS32, Op::BfeU64, Op::BfeS64], ty),
                d,
                a,
                b,
                c,
                0,
            );
            return Ok(true);
        }
        // The fourth source is in the immediate.
        let [d, a, b, c, len] = self.operands(operands)?;
        let (a, b) = (self.integer(a, ty)?, self.integer(b, ty)?);
        let (c, len) = (self.s32(c, Type::U32)?, self.s32(len, Type::U32)?);
        let d = self.integer_dest(d, ty)?;
        self.emit(
            by_type([Op::Bfi32, Op::Bfi32, Op::Bfi64, Op::Bfi64], ty),
            d,
            a,
            b,
            c,
            u64::from(len),
        );
        Ok(true)
    }
}
