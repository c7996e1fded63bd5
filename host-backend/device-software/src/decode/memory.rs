//! Loads, stores, atomics, fences (PTX ISA 9.7.9, 9.7.13).

use super::operand::Named;
use super::{Decoder, Result};
use crate::program::{
    Access, Address, AtomOp, Atomic, Ext, Extend, MemSpace, Op, Reg, Special, Wide, WideOp,
};
use crate::ptx::ast::{Operand, Type};

pub(super) fn space(mods: &[&str]) -> MemSpace {
    mods.iter()
        .find_map(|m| match *m {
            "global" | "const" => Some(MemSpace::Global),
            "shared" | "shared::cta" | "shared::cluster" => Some(MemSpace::Shared),
            "local" => Some(MemSpace::Local),
            "param" | "param::entry" | "param::func" => Some(MemSpace::Param),
            _ => None,
        })
        .unwrap_or(MemSpace::Generic)
}

/// Cache hints change no result.
pub(super) fn hint(m: &str) -> bool {
    m.starts_with("L1::")
        || m.starts_with("L2::")
        || matches!(m, "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc")
}

const ORDER: &[&str] = &["relaxed", "acquire", "release", "acq_rel", "sc"];
const SCOPE: &[&str] = &["cta", "gpu", "sys", "cluster"];
const SPACES: &[&str] = &[
    "global",
    "const",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "param",
    "param::entry",
    "param::func",
];

impl<'m> Decoder<'m> {
    /// Resolves an address operand in `space`.
    pub(super) fn address(&mut self, operand: &Operand<'m>, space: MemSpace) -> Result<Address> {
        let Operand::Address { base, offset, more } = operand else {
            return self.unfit("expected an address");
        };
        if !more.is_empty() {
            return self.unfit("unexpected operands in an address");
        }
        let plain = |space, base, offset| Address {
            space,
            base,
            offset,
            frame: false,
        };
        let Some(name) = base else {
            return Ok(plain(space, None, *offset));
        };
        if let Some((reg, _)) = self.find_register(name) {
            return match reg {
                Reg::P(_) => self.unfit("predicate as an address"),
                _ => Ok(plain(space, Some(reg), *offset)),
            };
        }
        match self.named(name)? {
            Named::Constant(value) => Ok(plain(space, None, (value as i64).wrapping_add(*offset))),
            // Parameters of device functions are in local memory.
            Named::Frame(at) if matches!(space, MemSpace::Param | MemSpace::Local) => Ok(Address {
                space: MemSpace::Local,
                base: None,
                offset: i64::from(at).wrapping_add(*offset),
                frame: true,
            }),
            Named::DynamicShared => {
                let d = Reg::R32(self.f.temp32());
                self.ext(Ext::Special {
                    what: Special::DynamicSharedBase,
                    d,
                });
                Ok(plain(space, Some(d), *offset))
            }
            _ => self.unfit(format!("{name} is not an address in this space")),
        }
    }

    pub(super) fn memory(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        match base {
            "ld" | "ldu" => self.load(mods, operands),
            "st" if !matches!(mods.first(), Some(&("async" | "bulk"))) => {
                self.store(mods, operands)
            }
            "atom" | "red" if mods.first() != Some(&"async") => self.atomic(base, mods, operands),
            "membar" | "fence" => {
                self.ext(Ext::Fence);
                Ok(true)
            }
            // A cache policy has no effect.
            "createpolicy" => {
                let Some(d) = operands.first() else {
                    return self.unfit("wrong number of operands");
                };
                let (d, zero) = (self.d64(d)?, self.f.const64(0));
                self.emit(Op::Mov64, d, zero, 0, 0, 0);
                Ok(true)
            }
            "prefetch" | "prefetchu" | "discard" | "applypriority" => {
                self.ext(Ext::Nop);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn access(&mut self, mods: &[&str]) -> Result<(MemSpace, usize, Type, bool)> {
        let mut ordered = false;
        let mut count = 1;
        let Some((ty, rest)) = mods.split_last() else {
            return self.unfit("no type");
        };
        let Some(ty) = Type::parse(ty) else {
            return self.unsupported(format!("type .{ty}"));
        };
        for m in rest {
            match *m {
                "v2" => count = 2,
                "v4" => count = 4,
                "v8" => count = 8,
                // `cv` fetches again what other threads may have written.
                "volatile" | "mmio" | "cv" => ordered = true,
                "weak" => {}
                m if ORDER.contains(&m) => ordered = true,
                m if SCOPE.contains(&m) || SPACES.contains(&m) || hint(m) => {}
                m => return self.unsupported(format!("modifier .{m}")),
            }
        }
        if ty == Type::Pred || ty == Type::B128 && count > 1 {
            return self.unsupported("access of this type");
        }
        Ok((space(rest), count, ty, ordered))
    }

    fn load(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let (space, count, ty, ordered) = self.access(mods)?;
        let (d, address) = match operands {
            // A cache policy may follow.
            [d, address] | [d, address, _] => (d, address),
            _ => return self.unfit("wrong number of operands"),
        };
        let address = self.address(address, space)?;
        let list = match d {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() != count {
            return self.unfit("number of destinations");
        }
        if ty == Type::B128 {
            let d = self.wide_rows(&list[0])?;
            self.wide_access(WideOp::Load, ordered, address, d);
            return Ok(true);
        }
        let mut narrow = 0;
        let mut regs = Vec::new();
        for operand in list {
            if let Operand::Name("_") = operand {
                regs.push(None);
                continue;
            }
            let reg = self.dest(operand, ty)?;
            if let (Operand::Name(name), Some(size)) = (operand, Some(ty.size())) {
                let bits = self.find_register(name).map_or(4, |(_, t)| t.size());
                if bits < size {
                    return self.unfit("destination narrower than the access");
                }
                if bits < 4 {
                    narrow = (bits * 8) as u8;
                }
            }
            regs.push(Some(reg));
        }
        let extend = if ty.signed() {
            Extend::Sign
        } else {
            Extend::Zero
        };
        self.ext(Ext::Load(Access {
            address,
            width: ty.size() as u8,
            extend,
            narrow,
            regs,
            ordered,
        }));
        Ok(true)
    }

    fn store(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let (space, count, ty, ordered) = self.access(mods)?;
        let (address, source) = match operands {
            [address, source] | [address, source, _] => (address, source),
            _ => return self.unfit("wrong number of operands"),
        };
        let address = self.address(address, space)?;
        let list = match source {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() != count {
            return self.unfit("number of sources");
        }
        if ty == Type::B128 {
            let b = self.wide_rows(&list[0])?;
            self.wide_access(WideOp::Store, ordered, address, b);
            return Ok(true);
        }
        let mut regs = Vec::new();
        for operand in list {
            // A register may be wider than the access: its low bits are stored.
            let reg = match operand {
                Operand::Name(name) => match self.find_register(name) {
                    Some((reg, _)) => reg,
                    None => self.source(operand, ty)?,
                },
                _ => self.source(operand, ty)?,
            };
            match reg {
                Reg::P(_) => return self.unfit("predicate in a store"),
                Reg::R32(_) if ty.size() == 8 => {
                    return self.unfit("source narrower than the access");
                }
                _ => regs.push(Some(reg)),
            }
        }
        let width = ty.size() as u8;
        self.ext(Ext::Store(Access {
            address,
            width,
            extend: Extend::Zero,
            narrow: 0,
            regs,
            ordered,
        }));
        Ok(true)
    }

    /// A load or store of 128 bits. One that is ordered is also atomic.
    fn wide_access(&mut self, op: WideOp, ordered: bool, address: Address, rows: [u32; 2]) {
        if ordered {
            let [d, b, c] = [rows; 3];
            self.ext(Ext::Wide(Wide {
                op,
                address,
                d,
                b,
                c,
            }));
            return;
        }
        let access = Access {
            address,
            width: 8,
            extend: Extend::Zero,
            narrow: 0,
            regs: rows.map(|row| Some(Reg::R64(row))).to_vec(),
            ordered,
        };
        self.ext(match op {
            WideOp::Load => Ext::Load(access),
            _ => Ext::Store(access),
        });
    }

    fn atomic(&mut self, base: &str, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        // The manual's grammar and examples disagree about the position of the type.
        let Some(ty) = mods.iter().rev().find_map(|m| Type::parse(m)) else {
            return self.unfit("expected a type");
        };
        let (mut what, mut count) = (None, 1);
        for m in mods {
            match *m {
                m if Type::parse(m).is_some() => {}
                m if ORDER.contains(&m)
                    || SCOPE.contains(&m)
                    || SPACES.contains(&m)
                    || hint(m)
                    || m == "noftz" => {}
                "v2" => count = 2,
                "v4" => count = 4,
                "v8" => count = 8,
                "add" | "min" | "max" | "and" | "or" | "xor" | "inc" | "dec" | "exch" | "cas" => {
                    what = Some(*m)
                }
                m => return self.unsupported(format!("modifier .{m}")),
            }
        }
        let Some(what) = what else {
            return self.unfit("no operation");
        };
        let signed = ty.signed();
        let op = match (what, ty) {
            ("add", Type::F32) => AtomOp::AddF32,
            ("add", Type::F64) => AtomOp::AddF64,
            ("add", Type::F16) => AtomOp::AddF16,
            ("add", Type::F16x2) => AtomOp::AddF16x2,
            ("add", Type::BF16) => AtomOp::AddBf16,
            ("add", Type::BF16x2) => AtomOp::AddBf16x2,
            // Only vectors have them.
            ("min", Type::F16) if count > 1 => AtomOp::MinF16,
            ("min", Type::F16x2) if count > 1 => AtomOp::MinF16x2,
            ("min", Type::BF16) if count > 1 => AtomOp::MinBf16,
            ("min", Type::BF16x2) if count > 1 => AtomOp::MinBf16x2,
            ("max", Type::F16) if count > 1 => AtomOp::MaxF16,
            ("max", Type::F16x2) if count > 1 => AtomOp::MaxF16x2,
            ("max", Type::BF16) if count > 1 => AtomOp::MaxBf16,
            ("max", Type::BF16x2) if count > 1 => AtomOp::MaxBf16x2,
            ("exch", _) if ty.size() >= 4 => AtomOp::Exch,
            ("cas", _) if ty.size() >= 2 => AtomOp::Cas,
            (_, ty) if ty.float() => return self.unsupported("this operation on floats"),
            (_, ty) if ty.size() < 4 => return self.unsupported("this narrow atomic"),
            ("add", _) => AtomOp::Add,
            ("min", _) if signed => AtomOp::MinS,
            ("min", _) => AtomOp::MinU,
            ("max", _) if signed => AtomOp::MaxS,
            ("max", _) => AtomOp::MaxU,
            ("and", _) => AtomOp::And,
            ("or", _) => AtomOp::Or,
            ("xor", _) => AtomOp::Xor,
            ("inc", _) => AtomOp::Inc,
            ("dec", _) => AtomOp::Dec,
            _ => return Ok(false),
        };
        let (d, rest) = match operands.split_first() {
            Some((d, rest)) if base == "atom" => (Some(d), rest),
            _ => (None, operands),
        };
        // A cache policy may follow.
        let (address, b, c) = match (rest, op) {
            ([address, b, c] | [address, b, c, _], AtomOp::Cas) => (address, b, Some(c)),
            ([address, b] | [address, b, _], _) if op != AtomOp::Cas => (address, b, None),
            _ => return self.unfit("wrong number of operands"),
        };
        let address = self.address(address, space(mods))?;
        if ty == Type::B128 {
            let b = self.wide_rows(b)?;
            let c = match c {
                Some(c) => self.wide_rows(c)?,
                None => b,
            };
            let op = match op {
                AtomOp::Exch => WideOp::Exch,
                AtomOp::Cas => WideOp::Cas,
                _ => return self.unsupported("this operation on 128 bits"),
            };
            let d = match d {
                Some(d) => self.wide_rows(d)?,
                None => return self.unfit("expected a register of 128 bits"),
            };
            self.ext(Ext::Wide(Wide {
                op,
                address,
                d,
                b,
                c,
            }));
            return Ok(true);
        }
        if count > 1 {
            return self.atomic_vector(op, ty, count, address, d, b);
        }
        let b = self.source(b, ty)?;
        let c = match c {
            Some(c) => Some(self.source(c, ty)?),
            None => None,
        };
        let d = match d {
            Some(Operand::Name("_")) | None => None,
            Some(d) => Some(self.dest(d, ty)?),
        };
        self.ext(Ext::Atomic(Atomic {
            op,
            address,
            width: ty.size() as u8,
            d,
            b,
            c,
        }));
        Ok(true)
    }

    /// Elements are atomic one by one, as PTX says.
    fn atomic_vector(
        &mut self,
        op: AtomOp,
        ty: Type,
        count: usize,
        mut address: Address,
        d: Option<&Operand<'m>>,
        b: &Operand<'m>,
    ) -> Result<bool> {
        let elements = |list: &Operand<'m>| match list {
            Operand::Vector(list) if list.len() == count => Some(list.clone()),
            _ => None,
        };
        let sources = elements(b);
        let results = match d {
            None | Some(Operand::Name("_")) => Some(vec![Operand::Name("_"); count]),
            Some(d) => elements(d),
        };
        let (Some(sources), Some(results)) = (sources, results) else {
            return self.unfit("number of elements");
        };
        for (b, d) in sources.iter().zip(&results) {
            let b = self.source(b, ty)?;
            let d = match d {
                Operand::Name("_") => None,
                d => Some(self.dest(d, ty)?),
            };
            let width = ty.size() as u8;
            self.ext(Ext::Atomic(Atomic {
                op,
                address,
                width,
                d,
                b,
                c: None,
            }));
            address.offset = address.offset.wrapping_add(i64::from(width));
        }
        Ok(true)
    }
}
