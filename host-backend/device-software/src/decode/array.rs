//! Elements of arrays as operands (PTX ISA 6.4.2): they become addresses.

use super::function_state::Storage;
use super::memory::space;
use super::scope::ELEMENTS;
use super::{Decoder, Result};
use crate::program::{MemSpace, Op, Reg};
use crate::ptx::ast::{Operand, Type};

/// Which operand of an instruction is an address in memory.
fn address_operand(base: &str) -> Option<usize> {
    match base {
        "ld" | "ldu" | "atom" => Some(1),
        "st" | "red" | "prefetch" | "prefetchu" => Some(0),
        _ => None,
    }
}

impl<'m> Decoder<'m> {
    /// The operands with addresses in the place of array elements; `None` if there are none.
    /// `ld` reads `array[3]` in memory, `mov` gives its address.
    pub(super) fn with_addresses(
        &mut self,
        base: &str,
        mods: &[&str],
        list: &[Operand<'m>],
    ) -> Result<Option<Vec<Operand<'m>>>> {
        if !list.iter().any(|o| matches!(o, Operand::Element { .. })) {
            return Ok(None);
        }
        let mut out = Vec::with_capacity(list.len());
        for (n, operand) in list.iter().enumerate() {
            let &Operand::Element {
                array,
                register,
                offset,
            } = operand
            else {
                out.push(operand.clone());
                continue;
            };
            let Some(stride) = self.find_stride(array) else {
                return self.unfit(format!("{array} is not an array"));
            };
            let offset = offset.wrapping_mul(stride.into());
            let is_address = address_operand(base) == Some(n);
            let (name, offset) = match register {
                Some(register) => {
                    let start = (array, offset);
                    let wide = is_address || self.last_type(mods)?.size() == 8;
                    if is_address {
                        self.check_indexed(mods, array)?;
                    }
                    (self.indexed(start, register, stride, wide)?, 0)
                }
                None => (array, offset),
            };
            out.push(match (is_address, register) {
                (true, _) => Operand::Address {
                    base: Some(name),
                    offset,
                    more: Vec::new(),
                },
                (false, Some(_)) => Operand::Name(name),
                (false, None) => Operand::NameOffset(name, offset),
            });
        }
        Ok(Some(out))
    }

    /// Refuses parameters of device functions, which have no address in their space.
    fn check_indexed(&self, mods: &[&str], array: &str) -> Result<()> {
        let in_frame = matches!(self.find_place(array), Some(Storage::Frame(_)));
        if in_frame && space(mods) == MemSpace::Param {
            return self.unsupported("a parameter with an index in a register");
        }
        Ok(())
    }

    /// The name of a register with the address of an array, plus an offset in bytes, plus
    /// `index` elements of `stride` bytes.
    fn indexed(
        &mut self,
        (array, offset): (&str, i64),
        index: &'m str,
        stride: u32,
        wide: bool,
    ) -> Result<&'static str> {
        let index = match self.find_register(index) {
            Some((Reg::R32(row), ty)) if ty.size() == 4 => row,
            _ => return self.unfit(format!("the index {index} is not of 32 bits")),
        };
        let stride = self.f.const32(stride);
        let (address, ty) = match self.load_named(array, offset, wide)? {
            Reg::R64(start) => {
                let d = self.f.temp64();
                self.emit(Op::MadWideU32, d, index, stride, start, 0);
                (Reg::R64(d), Type::B64)
            }
            Reg::R32(start) => {
                let d = self.f.temp32();
                self.emit(Op::MadLo32, d, index, stride, start, 0);
                (Reg::R32(d), Type::B32)
            }
            Reg::P(_) => return self.unfit("a predicate as an array"),
        };
        let Some(name) = ELEMENTS.get(self.f.elements.len()) else {
            return self.unsupported("as many array elements");
        };
        self.f.elements.push((address, ty));
        Ok(name)
    }
}
