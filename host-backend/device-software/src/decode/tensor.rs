//! Copies of tensors and changes of their maps (PTX ISA 9.7.9.27, 9.7.9.28).

use super::memory::{hint, space};
use super::{Decoder, Result};
use crate::program::{
    Access, Address, AtomOp, CopyAsync, CopySize, CopyTensor, Ext, Extend, MemSpace, Reg,
    TensorCopy,
};
use crate::ptx::ast::{Operand, Type};
use crate::tensor::{Element, MAX_RANK, SIZE, field};

impl<'m> Decoder<'m> {
    pub(super) fn tensor(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        match (base, mods) {
            ("cp", ["async", "bulk", "tensor", rank, rest @ ..]) => {
                self.tensor_copy(rank, rest, operands)
            }
            ("cp", ["reduce", "async", "bulk", "tensor", rank, rest @ ..]) => {
                self.tensor_reduce(rank, rest, operands)
            }
            ("cp", ["async", "bulk", "prefetch", "tensor", ..]) => {
                self.ext(Ext::Nop);
                Ok(true)
            }
            ("tensormap", ["replace", "tile", field, rest @ ..]) => {
                self.replace(field, rest, operands)
            }
            ("tensormap", ["cp_fenceproxy", rest @ ..]) => self.copy_map(rest, operands),
            _ => Ok(false),
        }
    }

    /// `[map, {coordinates}]`: the address of the map, and as many rows as the copy has
    /// coordinates.
    fn place(&mut self, operand: &Operand<'m>, count: usize) -> Result<(Address, Vec<u32>)> {
        let Operand::Address { base, offset, more } = operand else {
            return self.unfit("expected [map, coordinates]");
        };
        let [list] = more.as_slice() else {
            return self.unfit("expected coordinates of a tensor");
        };
        let list = match list {
            Operand::Vector(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        if list.len() != count {
            return self.unfit("wrong number of coordinates");
        }
        let coordinates: Result<Vec<u32>> = list.iter().map(|c| self.s32(c, Type::S32)).collect();
        let map = Operand::Address {
            base: *base,
            offset: *offset,
            more: Vec::new(),
        };
        Ok((self.address(&map, MemSpace::Generic)?, coordinates?))
    }

    fn tensor_copy(&mut self, rank: &str, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let (load, mods) = match mods {
            ["shared::cluster" | "shared::cta", "global", rest @ ..] => (true, rest),
            ["global", "shared::cta", rest @ ..] => (false, rest),
            _ => return Ok(false),
        };
        let (rows, mods) = match mods {
            ["tile::gather4", rest @ ..] if load => (true, rest),
            ["tile::scatter4", rest @ ..] if !load => (true, rest),
            ["tile", rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        let (Some(rank), [completion, rest @ ..]) = (self.rank(rank, rows), mods) else {
            return Ok(false);
        };
        let multicast = rest.contains(&"multicast::cluster");
        let known = |m: &&str| hint(m) || load && *m == "multicast::cluster";
        if !rest.iter().all(known) {
            return Ok(false);
        }
        let coordinates = if rows { 5 } else { rank };
        let (what, shared, place) = match (*completion, operands) {
            ("mbarrier::complete_tx::bytes", [shared, place, barrier, more @ ..]) if load => {
                let blocks = match (multicast, more) {
                    (false, _) => None,
                    (true, [blocks, ..]) => Some(self.s32(blocks, Type::U16)?),
                    (true, []) => return self.unfit("wrong number of operands"),
                };
                let barrier = self.address(barrier, MemSpace::Shared)?;
                (TensorCopy::Load { barrier, blocks }, shared, place)
            }
            ("bulk_group", [place, shared, ..]) if !load => (TensorCopy::Store, shared, place),
            _ => return Ok(false),
        };
        self.tensor_ext(what, shared, place, (rank, rows, coordinates))
    }

    fn tensor_ext(
        &mut self,
        what: TensorCopy,
        shared: &Operand<'m>,
        place: &Operand<'m>,
        (rank, rows, coordinates): (usize, bool, usize),
    ) -> Result<bool> {
        let (map, coordinates) = self.place(place, coordinates)?;
        let shared = self.address(shared, MemSpace::Shared)?;
        self.ext(Ext::CopyTensor(Box::new(CopyTensor {
            map,
            rank,
            coordinates,
            shared,
            rows,
            what,
        })));
        Ok(true)
    }

    fn tensor_reduce(
        &mut self,
        rank: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        let ["global", "shared::cta", what, rest @ ..] = mods else {
            return Ok(false);
        };
        let rest = rest.strip_prefix(&["tile"]).unwrap_or(rest);
        let (Some(rank), ["bulk_group", rest @ ..]) = (self.rank(rank, false), rest) else {
            return Ok(false);
        };
        // The map tells the type.
        let op = match *what {
            "add" => AtomOp::Add,
            "min" => AtomOp::MinU,
            "max" => AtomOp::MaxU,
            "inc" => AtomOp::Inc,
            "dec" => AtomOp::Dec,
            "and" => AtomOp::And,
            "or" => AtomOp::Or,
            "xor" => AtomOp::Xor,
            _ => return Ok(false),
        };
        let ([place, shared, ..], true) = (operands, rest.iter().all(|m| hint(m))) else {
            return Ok(false);
        };
        self.tensor_ext(TensorCopy::Reduce(op), shared, place, (rank, false, rank))
    }

    /// The number of dimensions that `1d` to `5d` says.
    fn rank(&self, dimensions: &str, rows: bool) -> Option<usize> {
        let rank = dimensions.strip_suffix('d')?.parse().ok()?;
        ((1..=MAX_RANK).contains(&rank) && (!rows || rank == 2)).then_some(rank)
    }

    /// `tensormap.replace`: a store to the field.
    fn replace(&mut self, name: &str, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let ([.., "b1024", ty], [map, operands @ ..]) = (mods, operands) else {
            return Ok(false);
        };
        let (offset, step) = match name {
            "global_address" => (field::ADDRESS, 0),
            "rank" => (field::RANK, 0),
            "box_dim" => (field::EXTENT, 4),
            "global_dim" => (field::DIMENSIONS, 4),
            "global_stride" => (field::STRIDES, 8),
            "element_stride" => (field::STEPS, 4),
            "elemtype" => (field::TYPE, 0),
            "interleave_layout" => (field::INTERLEAVE, 0),
            "swizzle_mode" => (field::SWIZZLE, 0),
            "swizzle_atomicity" => (field::ATOMICITY, 0),
            "fill_mode" => (field::FILL, 0),
            _ => return Ok(false),
        };
        let (index, value) = match operands {
            [value] if step == 0 => (0, value),
            [Operand::Int(index @ 0..=4), value] if step != 0 => (*index as u32, value),
            _ => return self.unfit("operands of tensormap.replace"),
        };
        if step == 8 && index == 4 {
            return self.unfit("a tensor has four strides");
        }
        let (width, value) = match (*ty, name, value) {
            ("b64", ..) => (8, Reg::R64(self.s64(value, Type::B64)?)),
            ("b32", "elemtype", Operand::Int(number)) => match Element::from_ptx(*number) {
                Some(number) => (4, Reg::R32(self.f.const32(number))),
                None => return self.unsupported("tensor maps of 4 and 6 bits"),
            },
            ("b32", ..) => (4, Reg::R32(self.s32(value, Type::B32)?)),
            _ => return Ok(false),
        };
        let mut address = self.address(map, space(mods))?;
        address.offset = address
            .offset
            .wrapping_add(i64::from(offset + step * index));
        self.ext(Ext::Store(Access {
            address,
            width,
            extend: Extend::Zero,
            narrow: 0,
            regs: vec![Some(value)],
            ordered: false,
        }));
        Ok(true)
    }

    /// `tensormap.cp_fenceproxy`: copies a map from shared to global memory.
    fn copy_map(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        let (["global", "shared::cta", ..], [to, from, Operand::Int(128)]) = (mods, operands)
        else {
            return Ok(false);
        };
        let to = self.address(to, MemSpace::Global)?;
        let from = self.address(from, MemSpace::Shared)?;
        let size = CopySize::Fixed(SIZE as u32);
        self.ext(Ext::CopyAsync(Box::new(CopyAsync::plain(to, from, size))));
        Ok(true)
    }
}
