//! The stack of local memory (PTX ISA 9.7.17).

use super::{Decoder, Result};
use crate::program::{Ext, Reg};
use crate::ptx::ast::{Operand, Statement, Type};

/// Maximum alignment in bytes of an `alloca`.
const MAX_ALIGN: u64 = 1 << 16;

fn has_alloca(list: &[Statement<'_>]) -> bool {
    list.iter().any(|statement| match statement {
        Statement::Block(inner) => has_alloca(inner),
        Statement::Instruction(i) => i.opcode.starts_with("alloca."),
        _ => false,
    })
}

impl<'m> Decoder<'m> {
    /// Saves the end of the stack in functions with `alloca`, to restore it on return.
    pub(super) fn begin_stack(&mut self, body: &[Statement<'_>]) {
        if has_alloca(body) {
            let d = Reg::R32(self.f.save_stack());
            self.ext(Ext::StackSave { d });
        }
    }

    /// Gives the function an end that all its returns share, if more than a return is there.
    pub(super) fn begin_end(&mut self) {
        if self.f.saved_stack().is_some() || !self.f.ending.results.is_empty() {
            self.f.ending.label = Some(self.f.new_label());
        }
    }

    /// Returns from the function.
    pub(super) fn ret(&mut self) {
        match self.f.ending.label {
            Some(target) => self.ext(Ext::Bra { target }),
            None => self.ext(Ext::Ret),
        }
    }

    /// The end of the function, which stores its results and restores the stack.
    pub(super) fn end_of_function(&mut self) {
        let position = self.position();
        let end = self.f.ending.label;
        if let Some(end) = end.and_then(|end| self.f.labels.get_mut(end as usize)) {
            end.position = Some(position);
        }
        for (reg, place) in self.f.ending.results.clone() {
            self.frame_access(reg, place, Ext::Store);
        }
        if let Some(row) = self.f.saved_stack() {
            self.ext(Ext::StackRestore { a: Reg::R32(row) });
        }
        self.ext(Ext::Ret);
    }

    pub(super) fn stack(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        if !matches!(base, "alloca" | "stacksave" | "stackrestore") {
            return Ok(false);
        }
        let ty = match mods {
            ["u32"] => Type::U32,
            ["u64"] => Type::U64,
            _ => return self.unfit("expected .u32 or .u64"),
        };
        let wide = ty == Type::U64;
        if base == "stackrestore" {
            let [a] = self.operands(operands)?;
            let a = self.source(a, ty)?;
            self.ext(Ext::StackRestore { a });
            return Ok(true);
        }
        let (d, rest) = match operands.split_first() {
            Some((d, rest)) if wide => (Reg::R64(self.d64(d)?), rest),
            Some((d, rest)) => (Reg::R32(self.d32(d)?), rest),
            None => return self.unfit("wrong number of operands"),
        };
        match (base, rest) {
            ("stacksave", []) => self.ext(Ext::StackSave { d }),
            ("alloca", [size, align @ ..]) => {
                let align = match align {
                    [] => 8,
                    [Operand::Int(align)] if align.is_power_of_two() && *align <= MAX_ALIGN => {
                        (*align).max(8) as u32
                    }
                    _ => return self.unfit("alignment"),
                };
                let size = self.source(size, ty)?;
                self.ext(Ext::Alloca { d, size, align });
            }
            _ => return self.unfit("wrong number of operands"),
        }
        Ok(true)
    }
}
