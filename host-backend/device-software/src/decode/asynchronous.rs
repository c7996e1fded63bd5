//! Asynchronous copies and barrier objects (PTX ISA 9.7.9.25, 9.7.13.15).

use super::memory::{hint, space};
use super::{Decoder, Result};
use crate::program::{
    Access, Address, AtomOp, Barrier64, BarrierOp, CopyAsync, CopySize, Ext, Extend, MemSpace, Op,
    Reg,
};
use crate::ptx::ast::{Operand, Type};

impl<'m> Decoder<'m> {
    pub(super) fn asynchronous(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        match (base, mods) {
            ("cp", ["async", "bulk", rest @ ..]) => self.bulk(rest, operands),
            ("cp", ["reduce", "async", "bulk", rest @ ..]) => self.bulk_reduce(rest, operands),
            ("cp", ["async", rest @ ..]) => self.copy(rest, operands),
            ("mbarrier", [what, rest @ ..]) => self.barrier_object(what, rest, operands),
            ("st" | "red", ["async", rest @ ..]) => self.remote(base, rest, operands),
            ("st", ["bulk", rest @ ..]) => self.fill(rest, operands),
            ("clusterlaunchcontrol", ["try_cancel", "async", rest @ ..]) => {
                self.try_cancel(rest, operands)
            }
            ("clusterlaunchcontrol", ["query_cancel", rest @ ..]) => {
                self.query_cancel(rest, operands)
            }
            _ => Ok(false),
        }
    }

    /// `st.async` and `red.async` on shared memory of the cluster: they complete with the
    /// instruction, and count their bytes at a barrier object.
    fn remote(&mut self, base: &str, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let completes = |m: &&str| *m == "mbarrier::complete_tx::bytes";
        if !mods.iter().any(completes) || !mods.contains(&"shared::cluster") {
            return self.unsupported(format!("{base}.async.{}", mods.join(".")));
        }
        let plain: Vec<&str> = mods.iter().copied().filter(|m| !completes(m)).collect();
        let Some((barrier, rest)) = operands.split_last() else {
            return self.unfit("wrong number of operands");
        };
        let ty = self.last_type(mods)?;
        if !self.memory(base, &plain, rest)? {
            return Ok(false);
        }
        let count = match rest.last() {
            Some(Operand::Vector(list)) => list.len() as u64,
            _ => 1,
        };
        let address = self.address(barrier, MemSpace::Shared)?;
        let bytes = Reg::R32(self.f.const32((count * u64::from(ty.size())) as u32));
        self.on_barrier(BarrierOp::Complete, address, None, Some(bytes));
        Ok(true)
    }

    /// `st.bulk`, which fills shared memory with zeros: a copy that reads nothing.
    fn fill(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        self.only(mods, &["weak", "shared::cta"])?;
        let [to, size, value] = self.operands(operands)?;
        if !matches!(value, Operand::Int(0)) {
            return self.unfit("st.bulk stores zeros");
        }
        let space = match mods.contains(&"shared::cta") {
            true => MemSpace::Shared,
            false => MemSpace::Generic,
        };
        let size = CopySize::Fill(self.s64(size, Type::U64)?);
        let (to, from) = (self.address(to, space)?, self.address(to, space)?);
        let none = self.f.const32(0);
        self.ext(Ext::CopyAsync(Box::new(CopyAsync {
            source: Some(none),
            ..CopyAsync::plain(to, from, size)
        })));
        Ok(true)
    }

    fn copy(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        match mods {
            // Every copy completes with its instruction.
            ["commit_group" | "wait_group" | "wait_all"] => {
                self.ext(Ext::Nop);
                return Ok(true);
            }
            ["mbarrier", "arrive", rest @ ..] => {
                let [address] = self.operands(operands)?;
                let address = self.address(address, space(rest))?;
                if rest.contains(&"noinc") {
                    self.on_barrier(BarrierOp::Arrive, address, None, None);
                } else {
                    // The arrival that it adds to the phase and its own cancel out.
                    self.ext(Ext::Nop);
                }
                return Ok(true);
            }
            ["ca" | "cg", to, "global", rest @ ..]
                if to.starts_with("shared") && rest.iter().all(|m| hint(m)) => {}
            _ => return Ok(false),
        }
        let [to, from, size, more @ ..] = operands else {
            return self.unfit("wrong number of operands");
        };
        let &Operand::Int(size @ (4 | 8 | 16)) = size else {
            return self.unfit("cp.async copies 4, 8 or 16 bytes");
        };
        let to = self.address(to, MemSpace::Shared)?;
        let from = self.address(from, MemSpace::Global)?;
        let (mut source, mut ignore) = (None, None);
        for operand in more {
            match operand {
                Operand::Name(name) => match self.find_register(name) {
                    Some((Reg::R32(row), _)) => source = Some(row),
                    Some((Reg::P(p), _)) => ignore = Some(p),
                    // A cache policy.
                    Some((Reg::R64(_), _)) => {}
                    None => return self.unfit(format!("{name} is not a register")),
                },
                Operand::Not(_) => ignore = Some(self.plain_pred(operand)?),
                operand => source = Some(self.s32(operand, Type::U32)?),
            }
        }
        self.ext(Ext::CopyAsync(Box::new(CopyAsync {
            source,
            ignore,
            ..CopyAsync::plain(to, from, CopySize::Fixed(size as u32))
        })));
        Ok(true)
    }

    /// `cp.async.bulk` between global and shared memory, and from the block's shared memory
    /// to that of another block of the cluster.
    fn bulk(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let is_shared = |m: &str| matches!(m, "shared" | "shared::cta" | "shared::cluster");
        let ([to, from], barrier) = match mods {
            ["commit_group"] | ["wait_group", ..] | ["prefetch", "L2", ..] => {
                self.ext(Ext::Nop);
                return Ok(true);
            }
            [to, "global", rest @ ..]
                if is_shared(to) && rest.first() == Some(&"mbarrier::complete_tx::bytes") =>
            {
                let known = |m: &&str| hint(m) || matches!(*m, "ignore_oob" | "multicast::cluster");
                if !rest.iter().skip(1).all(known) {
                    return self.unsupported(format!("cp.async.bulk.{}", mods.join(".")));
                }
                ([MemSpace::Shared, MemSpace::Global], true)
            }
            [
                "shared::cluster",
                "shared::cta",
                "mbarrier::complete_tx::bytes",
            ] => ([MemSpace::Shared, MemSpace::Shared], true),
            ["global", from, "bulk_group", rest @ ..]
                if is_shared(from) && rest.iter().all(|m| hint(m) || *m == "cp_mask") =>
            {
                ([MemSpace::Global, MemSpace::Shared], false)
            }
            _ => return Ok(false),
        };
        let [d, a, size, more @ ..] = operands else {
            return self.unfit("wrong number of operands");
        };
        let (to, from) = (self.address(d, to)?, self.address(a, from)?);
        let size = CopySize::Bulk(self.s32(size, Type::U32)?);
        let (edges, more) = match more {
            [left, right, more @ ..] if mods.contains(&"ignore_oob") => {
                let edges = [self.s32(left, Type::U32)?, self.s32(right, Type::U32)?];
                (Some(edges), more)
            }
            more => (None, more),
        };
        let (barrier, more) = match (barrier, more) {
            (true, [address, more @ ..]) => (Some(self.address(address, MemSpace::Shared)?), more),
            (true, []) => return self.unfit("wrong number of operands"),
            (false, more) => (None, more),
        };
        let blocks = match (mods.contains(&"multicast::cluster"), more) {
            (false, _) => None,
            (true, [blocks, ..]) => Some(self.s32(blocks, Type::U16)?),
            (true, []) => return self.unfit("wrong number of operands"),
        };
        // It comes last, behind a cache policy.
        let bytes = match (mods.contains(&"cp_mask"), more.last()) {
            (false, _) => None,
            (true, Some(mask)) => Some(self.s32(mask, Type::U16)?),
            (true, None) => return self.unfit("wrong number of operands"),
        };
        self.ext(Ext::CopyAsync(Box::new(CopyAsync {
            barrier,
            bytes,
            edges,
            blocks,
            ..CopyAsync::plain(to, from, size)
        })));
        Ok(true)
    }

    /// `cp.reduce.async.bulk`: as [`Self::bulk`], combined with what is there.
    fn bulk_reduce(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let [places @ .., what, ty] = mods else {
            return Ok(false);
        };
        let (places, what) = match (places, *what) {
            ([places @ .., what], "noftz") => (places, *what),
            (places, what) => (places, what),
        };
        let Some(ty) = Type::parse(ty) else {
            return Ok(false);
        };
        let op = match (what, ty) {
            ("add", Type::F32) => AtomOp::AddF32,
            ("add", Type::F64) => AtomOp::AddF64,
            ("add", Type::F16) => AtomOp::AddF16,
            ("add", Type::BF16) => AtomOp::AddBf16,
            ("min", Type::F16) => AtomOp::MinF16,
            ("min", Type::BF16) => AtomOp::MinBf16,
            ("max", Type::F16) => AtomOp::MaxF16,
            ("max", Type::BF16) => AtomOp::MaxBf16,
            (_, ty) if ty.float() => return Ok(false),
            ("add", _) => AtomOp::Add,
            ("min", _) if ty.signed() => AtomOp::MinS,
            ("min", _) => AtomOp::MinU,
            ("max", _) if ty.signed() => AtomOp::MaxS,
            ("max", _) => AtomOp::MaxU,
            ("inc", _) => AtomOp::Inc,
            ("dec", _) => AtomOp::Dec,
            ("and", _) => AtomOp::And,
            ("or", _) => AtomOp::Or,
            ("xor", _) => AtomOp::Xor,
            _ => return Ok(false),
        };
        // Its destination is in the cluster or in global memory: no form reads that.
        if places.contains(&"cp_mask") || !self.bulk(places, operands)? {
            return Ok(false);
        }
        if let Some(Ext::CopyAsync(copy)) = self.program.ext.last_mut() {
            copy.combine = Some((op, ty.size() as u8));
        }
        Ok(true)
    }

    /// `clusterlaunchcontrol.try_cancel`, which may always answer that no block is left to
    /// cancel: then each block that was launched runs.
    fn try_cancel(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        // Of a cluster's blocks each would need the answer.
        if mods.iter().any(|m| m.starts_with("multicast")) {
            return Ok(false);
        }
        self.only(mods, &["shared::cta", "mbarrier::complete_tx::bytes"])?;
        let [answer, barrier] = self.operands(operands)?;
        let space = space(mods);
        let address = self.address(answer, space)?;
        let barrier = self.address(barrier, space)?;
        let none = Some(Reg::R64(self.f.const64(0)));
        self.ext(Ext::Store(Access {
            address,
            width: 8,
            extend: Extend::Zero,
            narrow: 0,
            regs: vec![none; 2],
            ordered: false,
        }));
        let bytes = Reg::R32(self.f.const32(16));
        self.on_barrier(BarrierOp::Complete, barrier, None, Some(bytes));
        Ok(true)
    }

    /// `clusterlaunchcontrol.query_cancel`: whether a block was cancelled, and its indices,
    /// which are undefined if none was.
    fn query_cancel(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let [d, answer] = self.operands(operands)?;
        let [low, _] = self.wide_rows(answer)?;
        let zero = self.f.const32(0);
        match mods {
            ["is_canceled", "pred", "b128"] => {
                let (p, none) = (self.dp(d)?, self.f.const64(0));
                self.emit(Op::Eq64, p, low, none, 0, 0);
                self.emit(Op::PNot, p, p, 0, 0, 0);
            }
            ["get_first_ctaid", "v4", "b32", "b128"] => {
                let Operand::Vector(list) = d else {
                    return self.unfit("expected four destinations");
                };
                for d in list {
                    let d = self.d32(d)?;
                    self.emit(Op::Mov32, d, zero, 0, 0, 0);
                }
            }
            [of, "b32", "b128"] if of.starts_with("get_first_ctaid::") => {
                let d = self.d32(d)?;
                self.emit(Op::Mov32, d, zero, 0, 0, 0);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn on_barrier(&mut self, op: BarrierOp, address: Address, d: Option<Reg>, a: Option<Reg>) {
        self.ext(Ext::Barrier64(Barrier64 { op, address, d, a }));
    }

    fn barrier_object(
        &mut self,
        what: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        const KNOWN: &[&str] = &[
            "expect_tx",
            "noComplete",
            "parity",
            "relaxed",
            "acquire",
            "release",
            "cta",
            "cluster",
            "shared",
            "shared::cta",
            "shared::cluster",
        ];
        self.only(mods, KNOWN)?;
        let mut space = space(mods);
        let parity = mods.contains(&"parity");
        if what == "pending_count" {
            let [d, state] = self.operands(operands)?;
            let (state, d) = (self.s64(state, Type::B64)?, self.d32(d)?);
            // The lowest field of the state.
            let mask = self.f.const32((1 << 20) - 1);
            self.emit(crate::program::Op::Low64, d, state, 0, 0, 0);
            self.emit(crate::program::Op::And32, d, d, mask, 0, 0);
            return Ok(true);
        }
        if space == MemSpace::Global {
            return self.unfit("a barrier object must be in shared memory");
        }
        if matches!(what, "arrive" | "arrive_drop" | "test_wait" | "try_wait")
            && mods.iter().any(|m| matches!(*m, "cta" | "cluster"))
            && !mods.iter().any(|m| m.starts_with("shared"))
        {
            space = MemSpace::Generic;
        }
        let (op, d, address, a) = match (what, operands) {
            ("init", [address, count]) => {
                let count = Reg::R32(self.s32(count, Type::U32)?);
                (BarrierOp::Init, None, address, Some(count))
            }
            ("inval", [_]) => {
                self.ext(Ext::Nop);
                return Ok(true);
            }
            ("expect_tx" | "complete_tx", [address, count]) => {
                let count = Reg::R32(self.s32(count, Type::U32)?);
                let op = match what {
                    "expect_tx" => BarrierOp::Expect,
                    _ => BarrierOp::Complete,
                };
                (op, None, address, Some(count))
            }
            ("arrive" | "arrive_drop", [d, address, more @ ..]) if more.len() < 2 => {
                let expects = mods.contains(&"expect_tx");
                let op = match (what, expects) {
                    ("arrive", true) => BarrierOp::ArriveExpect,
                    ("arrive", false) => BarrierOp::Arrive,
                    _ => BarrierOp::ArriveDrop,
                };
                let count = match more {
                    // The expected bytes keep the phase from completing before the arrival.
                    [bytes] if expects && op == BarrierOp::ArriveDrop => {
                        let bytes = Reg::R32(self.s32(bytes, Type::U32)?);
                        let address = self.address(address, space)?;
                        self.on_barrier(BarrierOp::Expect, address, None, Some(bytes));
                        None
                    }
                    [count] => Some(Reg::R32(self.s32(count, Type::U32)?)),
                    _ if op == BarrierOp::ArriveExpect => {
                        return self.unfit("wrong number of operands");
                    }
                    _ => None,
                };
                let d = match d {
                    Operand::Name("_") => None,
                    d => Some(Reg::R64(self.d64(d)?)),
                };
                (op, d, address, count)
            }
            ("test_wait" | "try_wait", [d, address, state, more @ ..]) if more.len() < 2 => {
                let op = match (what, parity) {
                    ("test_wait", false) => BarrierOp::Test,
                    ("test_wait", true) => BarrierOp::TestParity,
                    (_, false) => BarrierOp::Try,
                    (_, true) => BarrierOp::TryParity,
                };
                let state = match parity {
                    true => Reg::R32(self.s32(state, Type::U32)?),
                    false => Reg::R64(self.s64(state, Type::B64)?),
                };
                (op, Some(Reg::P(self.dp(d)?)), address, Some(state))
            }
            _ => return Ok(false),
        };
        let address = self.address(address, space)?;
        self.on_barrier(op, address, d, a);
        Ok(true)
    }
}
