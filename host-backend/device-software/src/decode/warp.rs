//! Exchanges between the lanes of a warp (PTX ISA 9.7.9.6, 9.7.13).

use super::{Decoder, Result};
use crate::program::{Ext, ReduxOp, Reg, ShflMode, VoteMode};
use crate::ptx::ast::{Operand, Type};

impl<'m> Decoder<'m> {
    pub(super) fn warp(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        match (base, mods.first()) {
            ("shfl", _) => self.shfl(mods, operands),
            ("vote", _) => self.vote(mods, operands),
            ("match", Some(_)) => {
                let all = mods.contains(&"all");
                self.only(mods, &["any", "all", "sync"])?;
                let ty = self.last_type(mods)?;
                let [d, a, mask] = self.operands(operands)?;
                let (d, p) = match d {
                    Operand::Pair(d, p) => {
                        (self.d32(&Operand::Name(d))?, Some(self.pred_named(p)?))
                    }
                    other => (self.d32(other)?, None),
                };
                let (a, mask) = (self.source(a, ty)?, self.s32(mask, Type::B32)?);
                self.ext(Ext::Match { all, d, p, a, mask });
                Ok(true)
            }
            ("redux", Some(&"sync")) => {
                let ty = self.last_type(mods)?;
                let op = match (mods.get(1), ty.signed()) {
                    (Some(&"add"), _) => ReduxOp::Add,
                    (Some(&"min"), false) => ReduxOp::MinU,
                    (Some(&"min"), true) => ReduxOp::MinS,
                    (Some(&"max"), false) => ReduxOp::MaxU,
                    (Some(&"max"), true) => ReduxOp::MaxS,
                    (Some(&"and"), _) => ReduxOp::And,
                    (Some(&"or"), _) => ReduxOp::Or,
                    (Some(&"xor"), _) => ReduxOp::Xor,
                    _ => return Ok(false),
                };
                if mods.len() != 3 || ty.float() || ty.size() != 4 {
                    return Ok(false);
                }
                let [d, a, mask] = self.operands(operands)?;
                let (a, mask, d) = (self.s32(a, ty)?, self.s32(mask, Type::B32)?, self.d32(d)?);
                self.ext(Ext::Redux { op, d, a, mask });
                Ok(true)
            }
            ("activemask", _) => {
                let [d] = self.operands(operands)?;
                let d = self.d32(d)?;
                self.ext(Ext::ActiveMask { d });
                Ok(true)
            }
            ("elect", Some(&"sync")) => {
                let [d, mask] = self.operands(operands)?;
                let &Operand::Pair(d, p) = d else {
                    return self.unfit("expected d|p");
                };
                let (d, p) = (self.d32(&Operand::Name(d))?, self.pred_named(p)?);
                let mask = self.s32(mask, Type::B32)?;
                self.ext(Ext::Elect { d, p, mask });
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The operands before the member mask, and the mask: without `.sync`, the running
    /// lanes.
    fn membership<'o>(
        &mut self,
        mods: &[&str],
        operands: &'o [Operand<'m>],
    ) -> Result<(&'o [Operand<'m>], u32)> {
        if !mods.contains(&"sync") {
            let d = self.f.temp32();
            self.ext(Ext::ActiveMask { d });
            return Ok((operands, d));
        }
        match operands.split_last() {
            Some((mask, list)) => Ok((list, self.s32(mask, Type::B32)?)),
            None => self.unfit("wrong number of operands"),
        }
    }

    fn shfl(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let modes = [
            ("up", ShflMode::Up),
            ("down", ShflMode::Down),
            ("bfly", ShflMode::Bfly),
            ("idx", ShflMode::Idx),
        ];
        let Some(&(name, mode)) = modes.iter().find(|(name, _)| mods.contains(name)) else {
            return Ok(false);
        };
        self.only(mods, &["sync", name])?;
        let (list, mask) = self.membership(mods, operands)?;
        let [d, a, b, c] = self.operands(list)?;
        let (d, p) = match d {
            Operand::Pair(d, p) => (self.d32(&Operand::Name(d))?, Some(self.pred_named(p)?)),
            other => (self.d32(other)?, None),
        };
        let (a, b) = (self.s32(a, Type::B32)?, self.s32(b, Type::B32)?);
        let c = self.s32(c, Type::B32)?;
        self.ext(Ext::Shfl {
            mode,
            d,
            p,
            a,
            b,
            c,
            mask,
        });
        Ok(true)
    }

    fn vote(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let modes = [
            ("all", VoteMode::All),
            ("any", VoteMode::Any),
            ("uni", VoteMode::Uni),
            ("ballot", VoteMode::Ballot),
        ];
        let Some(&(name, mode)) = modes.iter().find(|(name, _)| mods.contains(name)) else {
            return Ok(false);
        };
        self.only(mods, &["sync", name])?;
        let (list, mask) = self.membership(mods, operands)?;
        let [d, p] = self.operands(list)?;
        let (p, negate) = self.pred(p)?;
        let d = if mode == VoteMode::Ballot {
            Reg::R32(self.d32(d)?)
        } else {
            Reg::P(self.dp(d)?)
        };
        self.ext(Ext::Vote {
            mode,
            d,
            p,
            negate,
            mask,
        });
        Ok(true)
    }
}
