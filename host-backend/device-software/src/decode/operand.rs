//! Operands: names and literals become rows.

use super::function_state::Storage;
use super::{Decoder, Result, Symbol};
use crate::attributes::RESERVED_SHARED;
use crate::program::{Ext, FUNCTION_BASE, FUNCTION_STRIDE, Op, Reg, Special};
use crate::ptx::ast::{Operand, Type};

/// The meaning of a name that is not a register.
pub(super) enum Named {
    Constant(u64),
    /// Dynamic shared memory, whose offset is known at launch.
    DynamicShared,
    /// Offset in the frame's local memory.
    Frame(u32),
    Special(Special),
}

fn special(name: &str) -> Option<Special> {
    let axis = |s: &str| match s {
        ".x" => Some(0),
        ".y" => Some(1),
        ".z" => Some(2),
        _ => None,
    };
    for (prefix, make) in VECTORS {
        if let Some(axis) = name.strip_prefix(prefix).and_then(axis) {
            return Some(make(axis));
        }
    }
    Some(match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::NWarpId,
        "%smid" => Special::SmId,
        "%nsmid" => Special::NSmId,
        "%gridid" => Special::GridId,
        "%lanemask_eq" => Special::LaneMaskEq,
        "%lanemask_le" => Special::LaneMaskLe,
        "%lanemask_lt" => Special::LaneMaskLt,
        "%lanemask_ge" => Special::LaneMaskGe,
        "%lanemask_gt" => Special::LaneMaskGt,
        "%clock" => Special::Clock,
        "%clock_hi" => Special::ClockHi,
        "%clock64" => Special::Clock64,
        "%globaltimer" => Special::GlobalTimer,
        "%globaltimer_lo" => Special::GlobalTimerLo,
        "%globaltimer_hi" => Special::GlobalTimerHi,
        "%dynamic_smem_size" => Special::DynamicSharedSize,
        "%total_smem_size" => Special::TotalSharedSize,
        "%aggr_smem_size" => Special::AllSharedSize,
        "%reserved_smem_offset_begin" | "%reserved_smem_offset_0" => Special::ReservedShared(0),
        "%reserved_smem_offset_1" => Special::ReservedShared(RESERVED_SHARED / 2),
        "%reserved_smem_offset_end" => Special::ReservedShared(RESERVED_SHARED),
        "%envreg1" => Special::WorkspaceHigh,
        "%envreg2" => Special::WorkspaceLow,
        "%cluster_ctarank" => Special::ClusterCtaRank,
        "%cluster_nctarank" => Special::ClusterNctaRank,
        "%is_explicit_cluster" => Special::IsExplicitCluster,
        _ => return None,
    })
}

/// Whether `name` is a special register that is always zero: a fourth component, one that
/// only a driver's own code sets, or the graph of a device launch, which does not exist here.
fn is_zero(name: &str) -> bool {
    let fourth = |name: &str| is_vector(name.strip_suffix(".w")?).then_some(());
    let of_driver = |name: &str| name.strip_prefix("%envreg")?.parse::<u32>().ok();
    let is_graph = name == "%current_graph_exec";
    is_graph
        || fourth(name).is_some()
        || of_driver(name).is_some_and(|n| n < 32 && !matches!(n, 1 | 2))
}

/// Whether `name` is a special register with components.
fn is_vector(name: &str) -> bool {
    VECTORS.iter().any(|(vector, _)| *vector == name)
}

/// Makes the special register of a component.
type Component = fn(u8) -> Special;

/// The special registers with components.
const VECTORS: [(&str, Component); 8] = [
    ("%tid", Special::Tid),
    ("%ntid", Special::Ntid),
    ("%ctaid", Special::Ctaid),
    ("%nctaid", Special::Nctaid),
    ("%clusterid", Special::ClusterId),
    ("%nclusterid", Special::NClusterId),
    ("%cluster_ctaid", Special::ClusterCtaid),
    ("%cluster_nctaid", Special::ClusterNctaid),
];

impl<'m> Decoder<'m> {
    /// The component rows of a special register that is named without a component.
    pub(super) fn special_vector(&mut self, name: &str) -> Option<[u32; 4]> {
        let (_, make) = VECTORS.iter().find(|(vector, _)| *vector == name)?;
        // The fourth component is always zero.
        let mut rows = [self.f.const32(0); 4];
        for (axis, row) in (0..3).zip(&mut rows) {
            *row = self.f.temp32();
            let (what, d) = (make(axis), Reg::R32(*row));
            self.ext(Ext::Special { what, d });
        }
        Some(rows)
    }

    /// The meaning of `name`, which is not a register.
    pub(super) fn named(&self, name: &str) -> Result<Named> {
        if name == "WARP_SZ" {
            return Ok(Named::Constant(32));
        }
        if name == "%reserved_smem_offset_cap" {
            return Ok(Named::Constant(u64::from(RESERVED_SHARED)));
        }
        if is_zero(name) {
            return Ok(Named::Constant(0));
        }
        if let Some(place) = self.find_place(name) {
            return Ok(match place {
                Storage::Param(offset) | Storage::Shared(offset) => {
                    Named::Constant(u64::from(offset))
                }
                Storage::Frame(offset) => Named::Frame(offset),
                Storage::DynamicShared => Named::DynamicShared,
            });
        }
        if let Some(&symbol) = self.symbols.get(name) {
            return match symbol {
                Symbol::Memory(address) => Ok(Named::Constant(address)),
                Symbol::Shared(offset) => Ok(Named::Constant(u64::from(offset))),
                Symbol::DynamicShared => Ok(Named::DynamicShared),
                Symbol::Function(index) => Ok(Named::Constant(
                    FUNCTION_BASE + index as u64 * FUNCTION_STRIDE,
                )),
                Symbol::Printf
                | Symbol::AssertFail
                | Symbol::Malloc
                | Symbol::AlignedMalloc
                | Symbol::Free
                | Symbol::Runtime(_)
                | Symbol::SetConditional => self.unsupported(format!("address of {name}")),
                Symbol::Unserved => self.unsupported(format!("variable {name} of this type")),
            };
        }
        if let Some(special) = special(name) {
            return Ok(Named::Special(special));
        }
        if name.starts_with('%') {
            return self.unsupported(format!(
                "register {name}, which is undeclared or an unknown special register"
            ));
        }
        self.invalid(format!("{name} is not declared"))
    }

    /// Loads the value of `name` into a register of 32 or 64 bits.
    pub(super) fn load_named(&mut self, name: &str, offset: i64, wide: bool) -> Result<Reg> {
        let named = self.named(name)?;
        let d = match named {
            Named::Constant(value) => {
                let value = value.wrapping_add_signed(offset);
                return Ok(if wide {
                    Reg::R64(self.f.const64(value))
                } else {
                    Reg::R32(self.f.const32(value as u32))
                });
            }
            _ if wide => Reg::R64(self.f.temp64()),
            _ => Reg::R32(self.f.temp32()),
        };
        match named {
            Named::DynamicShared => self.ext(Ext::Special {
                what: Special::DynamicSharedBase,
                d,
            }),
            Named::Frame(at) => self.ext(Ext::LocalAddress { d, offset: at }),
            Named::Special(what) => {
                self.program.reserves_shared |= matches!(what, Special::ReservedShared(_));
                self.ext(Ext::Special { what, d });
            }
            Named::Constant(_) => {}
        }
        if offset != 0 {
            match d {
                Reg::R64(d) => {
                    let k = self.f.const64(offset as u64);
                    self.emit(Op::Add64, d, d, k, 0, 0);
                }
                Reg::R32(d) => {
                    let k = self.f.const32(offset as u32);
                    self.emit(Op::Add32, d, d, k, 0, 0);
                }
                Reg::P(_) => {}
            }
        }
        Ok(d)
    }

    /// A source of at most 32 bits; literals are converted to `ty`.
    pub(super) fn s32(&mut self, operand: &Operand<'m>, ty: Type) -> Result<u32> {
        let reg = match operand {
            Operand::Name(name) => match self.find_register(name) {
                Some((reg, _)) => reg,
                None => self.load_named(name, 0, false)?,
            },
            Operand::NameOffset(name, offset) => self.load_named(name, *offset, false)?,
            Operand::Int(v) => {
                let value = match ty {
                    Type::F32 => (*v as i64 as f32).to_bits(),
                    _ if ty.size() == 2 => *v as u32 & 0xffff,
                    _ if ty.size() == 1 => *v as u32 & 0xff,
                    _ => *v as u32,
                };
                Reg::R32(self.f.const32(value))
            }
            Operand::F32(v) if ty.size() == 4 => Reg::R32(self.f.const32(*v)),
            Operand::F64(v) if ty == Type::F32 => {
                Reg::R32(self.f.const32((f64::from_bits(*v) as f32).to_bits()))
            }
            _ => return self.unfit("expected a 32-bit operand"),
        };
        match reg {
            Reg::R32(row) => Ok(row),
            _ => self.unfit("operand is not of 32 bits"),
        }
    }

    /// A source of 64 bits.
    pub(super) fn s64(&mut self, operand: &Operand<'m>, ty: Type) -> Result<u32> {
        let reg = match operand {
            Operand::Name(name) => match self.find_register(name) {
                Some((_, Type::B128)) => return self.unfit("expected a 64-bit operand"),
                Some((reg, _)) => reg,
                None => self.load_named(name, 0, true)?,
            },
            Operand::NameOffset(name, offset) => self.load_named(name, *offset, true)?,
            Operand::Int(v) => {
                let value = if ty == Type::F64 {
                    (*v as i64 as f64).to_bits()
                } else {
                    *v
                };
                Reg::R64(self.f.const64(value))
            }
            Operand::F64(v) => Reg::R64(self.f.const64(*v)),
            Operand::F32(v) if ty == Type::F64 => {
                Reg::R64(self.f.const64(f64::from(f32::from_bits(*v)).to_bits()))
            }
            _ => return self.unfit("expected a 64-bit operand"),
        };
        match reg {
            Reg::R64(row) => Ok(row),
            _ => self.unfit("operand is not of 64 bits"),
        }
    }

    /// A source of the width of `ty`.
    pub(super) fn source(&mut self, operand: &Operand<'m>, ty: Type) -> Result<Reg> {
        match ty {
            Type::Pred => {
                let (p, negate) = self.pred(operand)?;
                if negate {
                    let t = self.f.temp_pred();
                    self.emit(Op::PNot, t, p, 0, 0, 0);
                    return Ok(Reg::P(t));
                }
                Ok(Reg::P(p))
            }
            Type::B128 => self.unsupported("128-bit operand"),
            _ if ty.size() == 8 => Ok(Reg::R64(self.s64(operand, ty)?)),
            _ => Ok(Reg::R32(self.s32(operand, ty)?)),
        }
    }

    /// A destination register by name; `_` is a scratch register as wide as `ty`.
    pub(super) fn dest(&mut self, operand: &Operand<'m>, ty: Type) -> Result<Reg> {
        match operand {
            Operand::Name("_") => Ok(match ty {
                Type::Pred => Reg::P(self.f.temp_pred()),
                _ if ty.size() == 8 => Reg::R64(self.f.temp64()),
                _ => Reg::R32(self.f.temp32()),
            }),
            Operand::Name(name) => match self.find_register(name) {
                Some((_, Type::B128)) => self.unfit("destination is of 128 bits"),
                Some((reg, _)) => Ok(reg),
                None => self.unfit(format!("{name} is not a register")),
            },
            _ => self.unfit("expected a destination register"),
        }
    }

    /// The rows of a register of 128 bits, the low bits first.
    pub(super) fn wide_rows(&mut self, operand: &Operand<'m>) -> Result<[u32; 2]> {
        match operand {
            Operand::Name("_") => Ok([self.f.temp64(), self.f.temp64()]),
            Operand::Name(name) => match self.find_register(name) {
                Some((Reg::R64(low), Type::B128)) => Ok([low, low + 1]),
                _ => self.unfit(format!("{name} is not a register of 128 bits")),
            },
            _ => self.unfit("expected a register of 128 bits"),
        }
    }

    /// A 32-bit destination.
    pub(super) fn d32(&mut self, operand: &Operand<'m>) -> Result<u32> {
        match self.dest(operand, Type::B32)? {
            Reg::R32(row) => Ok(row),
            _ => self.unfit("destination is not of 32 bits"),
        }
    }

    /// A 64-bit destination.
    pub(super) fn d64(&mut self, operand: &Operand<'m>) -> Result<u32> {
        match self.dest(operand, Type::B64)? {
            Reg::R64(row) => Ok(row),
            _ => self.unfit("destination is not of 64 bits"),
        }
    }

    /// A predicate by name.
    pub(super) fn pred_named(&mut self, name: &'m str) -> Result<u32> {
        if name == "_" {
            return Ok(self.f.temp_pred());
        }
        match self.find_register(name) {
            Some((Reg::P(p), _)) => Ok(p),
            _ => self.unfit(format!("{name} is not a predicate")),
        }
    }

    /// A predicate source and whether it is negated.
    pub(super) fn pred(&mut self, operand: &Operand<'m>) -> Result<(u32, bool)> {
        match operand {
            Operand::Name(name) => Ok((self.pred_named(name)?, false)),
            Operand::Not(name) => Ok((self.pred_named(name)?, true)),
            Operand::Int(v) => {
                // A constant predicate: x xor x, then inverted for one.
                let t = self.f.temp_pred();
                self.emit(Op::PXor, t, t, t, 0, 0);
                Ok((t, *v != 0))
            }
            _ => self.unfit("expected a predicate"),
        }
    }

    /// A destination predicate.
    pub(super) fn dp(&mut self, operand: &Operand<'m>) -> Result<u32> {
        match operand {
            Operand::Name(name) => self.pred_named(name),
            _ => self.unfit("expected a predicate"),
        }
    }

    /// The type modifier at `index`.
    pub(super) fn type_at(&self, mods: &[&str], index: usize) -> Result<Type> {
        match mods.get(index).and_then(|m| Type::parse(m)) {
            Some(ty) => Ok(ty),
            None => self.unfit("expected a type"),
        }
    }

    /// The last modifier, which is a type.
    pub(super) fn last_type(&self, mods: &[&str]) -> Result<Type> {
        self.type_at(mods, mods.len().wrapping_sub(1))
    }

    /// Refuses all modifiers except those in `known`.
    pub(super) fn only(&self, mods: &[&str], known: &[&str]) -> Result<()> {
        match mods
            .iter()
            .find(|m| !known.contains(m) && Type::parse(m).is_none())
        {
            Some(unknown) => self.unsupported(format!("modifier .{unknown}")),
            None => Ok(()),
        }
    }
}
