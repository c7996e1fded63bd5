//! Moves, packing, address conversion, dot products (PTX ISA 9.7.9, 9.7.1).

use super::{Decoder, Result};
use crate::program::{Ext, LOCAL_WINDOW, MemSpace, Op, PARAM_WINDOW, Reg, SHARED_WINDOW};
use crate::ptx::ast::{Operand, Type};

/// Generic base of the space in the modifiers; `None` if addresses are already generic.
pub(super) fn window(mods: &[&str]) -> Option<Option<u64>> {
    mods.iter().find_map(|m| match *m {
        "global" | "const" => Some(None),
        "shared" | "shared::cta" | "shared::cluster" => Some(Some(SHARED_WINDOW)),
        "local" => Some(Some(LOCAL_WINDOW)),
        "param" | "param::entry" => Some(Some(PARAM_WINDOW)),
        _ => None,
    })
}

impl<'m> Decoder<'m> {
    pub(super) fn moves(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        match base {
            "mov" => self.mov(mods, operands),
            "mapa" => {
                let (ty, generic) = self.cluster_address(mods)?;
                let [d, a, rank] = self.operands(operands)?;
                let (a, rank) = (self.source(a, ty)?, self.s32(rank, Type::U32)?);
                let d = match ty.size() {
                    8 => Reg::R64(self.d64(d)?),
                    _ => Reg::R32(self.d32(d)?),
                };
                self.ext(Ext::MapRank {
                    d,
                    a,
                    rank,
                    generic,
                });
                Ok(true)
            }
            "getctarank" => {
                let (ty, _) = self.cluster_address(mods)?;
                let [d, a] = self.operands(operands)?;
                let (a, d) = (self.source(a, ty)?, self.d32(d)?);
                self.ext(Ext::RankOf { d, a });
                Ok(true)
            }
            "cvta" => self.cvta(mods, operands),
            "isspacep" => {
                let space = match mods.first() {
                    Some(&("global" | "const")) => MemSpace::Global,
                    Some(&("shared" | "shared::cta" | "shared::cluster")) => MemSpace::Shared,
                    Some(&"local") => MemSpace::Local,
                    Some(&("param" | "param::entry")) => MemSpace::Param,
                    _ => return Ok(false),
                };
                let [p, a] = self.operands(operands)?;
                let (a, p) = (self.s64(a, Type::B64)?, self.dp(p)?);
                let cluster = mods.first() == Some(&"shared::cluster");
                self.ext(Ext::IsSpace {
                    p,
                    a,
                    space,
                    cluster,
                });
                Ok(true)
            }
            "dp4a" | "dp2a" => {
                let at = usize::from(base == "dp2a");
                let (x, y) = (self.type_at(mods, at)?, self.type_at(mods, at + 1)?);
                let high = base == "dp2a" && mods.first() == Some(&"hi");
                let [d, a, b, c] = self.operands(operands)?;
                let (a, b) = (self.s32(a, Type::B32)?, self.s32(b, Type::B32)?);
                let (c, d) = (self.s32(c, Type::B32)?, self.d32(d)?);
                let imm = u64::from(x.signed()) | u64::from(y.signed()) << 1 | u64::from(high) << 2;
                self.emit(
                    if base == "dp4a" { Op::Dp4a } else { Op::Dp2a },
                    d,
                    a,
                    b,
                    c,
                    imm,
                );
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The type of an address in the cluster's shared memory, and whether it is generic.
    fn cluster_address(&self, mods: &[&str]) -> Result<(Type, bool)> {
        let generic = match mods {
            ["shared::cluster", _] => false,
            [_] => true,
            _ => return self.unsupported(format!("address in .{}", mods.join("."))),
        };
        match self.last_type(mods)? {
            ty @ (Type::U32 | Type::U64) if !generic || ty.size() == 8 => Ok((ty, generic)),
            _ => self.unsupported("generic address of 32 bits"),
        }
    }

    fn mov(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        if let (["v2" | "v4", ty], [Operand::Vector(list), a]) = (mods, operands)
            && let Some(ty) = Type::parse(ty)
            && !matches!(ty, Type::Pred | Type::B128)
        {
            return self.mov_vector(ty, list, a);
        }
        let ty = self.type_at(mods, 0)?;
        if mods.len() != 1 {
            return self.unsupported("mov with modifiers");
        }
        let [d, a] = self.operands(operands)?;
        if ty == Type::B128 {
            return self.mov_wide(d, a);
        }
        match (d, a) {
            (Operand::Vector(parts), source) => self.unpack(ty, parts, source),
            (_, Operand::Vector(parts)) => self.pack(ty, d, parts),
            _ => self.mov_rows(ty, d, a),
        }
    }

    /// `mov.v4.u32 {x, y, z, w}, %tid`, or from other registers.
    fn mov_vector(&mut self, ty: Type, list: &[Operand<'m>], a: &Operand<'m>) -> Result<bool> {
        if let Operand::Vector(sources) = a {
            if list.len() != sources.len() {
                return self.unfit("number of elements");
            }
            // All sources are read before a register of theirs is written.
            let mut rows = Vec::new();
            for source in sources {
                let (from, copy) = match self.source(source, ty)? {
                    Reg::R64(row) => (row, self.f.temp64()),
                    Reg::R32(row) | Reg::P(row) => (row, self.f.temp32()),
                };
                let op = if ty.size() == 8 { Op::Mov64 } else { Op::Mov32 };
                self.emit(op, copy, from, 0, 0, 0);
                rows.push((op, copy));
            }
            for (d, (op, copy)) in list.iter().zip(rows) {
                let d = match op {
                    Op::Mov64 => self.d64(d)?,
                    _ => self.d32(d)?,
                };
                self.emit(op, d, copy, 0, 0, 0);
            }
            return Ok(true);
        }
        let &Operand::Name(name) = a else {
            return self.unsupported("this vector");
        };
        let Some(rows) = self.special_vector(name) else {
            return self.unsupported(format!("the vector {name}"));
        };
        for (d, row) in list.iter().zip(rows) {
            let d = self.d32(d)?;
            self.emit(Op::Mov32, d, row, 0, 0, 0);
        }
        Ok(true)
    }

    /// Moves 128 bits between registers, or between one and two of 64 bits.
    fn mov_wide(&mut self, d: &Operand<'m>, a: &Operand<'m>) -> Result<bool> {
        let from = match a {
            Operand::Vector(parts) => {
                let [low, high] = self.operands(parts)?;
                [self.s64(low, Type::B64)?, self.s64(high, Type::B64)?]
            }
            a => self.wide_rows(a)?,
        };
        let to = match d {
            Operand::Vector(parts) => {
                let [low, high] = self.operands(parts)?;
                [self.d64(low)?, self.d64(high)?]
            }
            d => self.wide_rows(d)?,
        };
        for (d, a) in to.into_iter().zip(from) {
            self.emit(Op::Mov64, d, a, 0, 0, 0);
        }
        Ok(true)
    }

    fn mov_rows(&mut self, ty: Type, d: &Operand<'m>, a: &Operand<'m>) -> Result<bool> {
        let (a, d) = (self.source(a, ty)?, self.dest(d, ty)?);
        match (d, a) {
            (Reg::R32(d), Reg::R32(a)) => self.emit(Op::Mov32, d, a, 0, 0, 0),
            (Reg::R64(d), Reg::R64(a)) => self.emit(Op::Mov64, d, a, 0, 0, 0),
            _ => return self.unfit("operands of different widths"),
        }
        Ok(true)
    }

    fn pack(&mut self, ty: Type, d: &Operand<'m>, parts: &[Operand<'m>]) -> Result<bool> {
        match (ty.size(), parts) {
            (8, [lo, hi]) => {
                let (lo, hi, d) = (
                    self.s32(lo, Type::B32)?,
                    self.s32(hi, Type::B32)?,
                    self.d64(d)?,
                );
                self.emit(Op::Pack32, d, lo, hi, 0, 0);
            }
            (8, [a, b, c, e]) => {
                let rows = [self.s32(a, Type::B16)?, self.s32(b, Type::B16)?];
                let more = [self.s32(c, Type::B16)?, self.s32(e, Type::B16)?];
                let (lo, hi, d) = (self.f.temp32(), self.f.temp32(), self.d64(d)?);
                self.emit(Op::Pack16, lo, rows[0], rows[1], 0, 0);
                self.emit(Op::Pack16, hi, more[0], more[1], 0, 0);
                self.emit(Op::Pack32, d, lo, hi, 0, 0);
            }
            (4, [lo, hi]) => {
                let (lo, hi, d) = (
                    self.s32(lo, Type::B16)?,
                    self.s32(hi, Type::B16)?,
                    self.d32(d)?,
                );
                self.emit(Op::Pack16, d, lo, hi, 0, 0);
            }
            (4, [a, b, c, e]) => {
                let mut rows = [0; 4];
                for (row, part) in rows.iter_mut().zip([a, b, c, e]) {
                    let source = self.s32(part, Type::B8)?;
                    *row = self.f.temp32();
                    self.emit(Op::Zext8, *row, source, 0, 0, 0);
                }
                let (eight, d) = (self.f.const32(8), self.d32(d)?);
                for (low, high) in [(rows[0], rows[1]), (rows[2], rows[3])] {
                    self.emit(Op::Shl32, high, high, eight, 0, 0);
                    self.emit(Op::Or32, low, low, high, 0, 0);
                }
                self.emit(Op::Pack16, d, rows[0], rows[2], 0, 0);
            }
            (2, [lo, hi]) => {
                let (lo, hi) = (self.s32(lo, Type::B8)?, self.s32(hi, Type::B8)?);
                let (eight, t, d) = (self.f.const32(8), self.f.temp32(), self.d32(d)?);
                self.emit(Op::Shl32, t, hi, eight, 0, 0);
                self.emit(Op::Zext8, d, lo, 0, 0, 0);
                self.emit(Op::Or32, d, d, t, 0, 0);
                self.emit(Op::Zext16, d, d, 0, 0, 0);
            }
            _ => return self.unsupported("packing of this shape"),
        }
        Ok(true)
    }

    fn unpack(&mut self, ty: Type, parts: &[Operand<'m>], source: &Operand<'m>) -> Result<bool> {
        match (ty.size(), parts) {
            (8, [lo, hi]) => {
                let (a, lo, hi) = (self.s64(source, Type::B64)?, self.d32(lo)?, self.d32(hi)?);
                self.emit(Op::Low64, lo, a, 0, 0, 0);
                self.emit(Op::High64, hi, a, 0, 0, 0);
            }
            (8, [a, b, c, d]) => {
                let wide = self.s64(source, Type::B64)?;
                let (lo, hi) = (self.f.temp32(), self.f.temp32());
                self.emit(Op::Low64, lo, wide, 0, 0, 0);
                self.emit(Op::High64, hi, wide, 0, 0, 0);
                for (from, first, second) in [(lo, a, b), (hi, c, d)] {
                    self.split16(from, first, second)?;
                }
            }
            (4, [lo, hi]) => {
                let a = self.s32(source, Type::B32)?;
                let held = self.f.temp32();
                self.emit(Op::Mov32, held, a, 0, 0, 0);
                self.split16(held, lo, hi)?;
            }
            (4, [a, b, c, d]) => {
                let source = self.s32(source, Type::B32)?;
                let held = self.f.temp32();
                self.emit(Op::Mov32, held, source, 0, 0, 0);
                for (n, part) in [a, b, c, d].into_iter().enumerate() {
                    let (k, len, part) = (
                        self.f.const32(8 * n as u32),
                        self.f.const32(8),
                        self.d32(part)?,
                    );
                    self.emit(Op::BfeU32, part, held, k, len, 0);
                }
            }
            (2, [lo, hi]) => {
                let a = self.s32(source, Type::B16)?;
                let (eight, held) = (self.f.const32(8), self.f.temp32());
                self.emit(Op::Zext16, held, a, 0, 0, 0);
                let (lo, hi) = (self.d32(lo)?, self.d32(hi)?);
                self.emit(Op::Zext8, lo, held, 0, 0, 0);
                self.emit(Op::ShrU32, hi, held, eight, 0, 0);
            }
            _ => return self.unsupported("unpacking of this shape"),
        }
        Ok(true)
    }

    fn split16(&mut self, from: u32, lo: &Operand<'m>, hi: &Operand<'m>) -> Result<()> {
        let (sixteen, lo, hi) = (self.f.const32(16), self.d32(lo)?, self.d32(hi)?);
        self.emit(Op::Zext16, lo, from, 0, 0, 0);
        self.emit(Op::ShrU32, hi, from, sixteen, 0, 0);
        Ok(())
    }

    fn cvta(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let Some(window) = window(mods) else {
            return self.unsupported("this address space in cvta");
        };
        if mods.last() != Some(&"u64") {
            return self.unsupported("32-bit cvta");
        }
        let [d, a] = self.operands(operands)?;
        let (a, d) = (self.s64(a, Type::U64)?, self.d64(d)?);
        match window {
            None => self.emit(Op::Mov64, d, a, 0, 0, 0),
            Some(base) => {
                let k = self.f.const64(base);
                self.emit(
                    if mods.first() == Some(&"to") {
                        Op::Sub64
                    } else {
                        Op::Add64
                    },
                    d,
                    a,
                    k,
                    0,
                    0,
                );
            }
        }
        Ok(true)
    }
}
