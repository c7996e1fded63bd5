//! Names inside a function: registers, variables, labels, with PTX's block scoping.

use super::function_state::{Scope, Storage};
use super::{Decoder, Result, align_up, place_shared};
use crate::error::PtxError;
use crate::program::{Alignment, Mark, Reg};
use crate::ptx::ast::{Operand, Space, Statement, Type, Var};

/// Names, which no program has, of the elements of the vector registers that an instruction
/// names as a whole.
pub(super) const ELEMENTS: [&str; 16] = [
    "element 0",
    "element 1",
    "element 2",
    "element 3",
    "element 4",
    "element 5",
    "element 6",
    "element 7",
    "element 8",
    "element 9",
    "element 10",
    "element 11",
    "element 12",
    "element 13",
    "element 14",
    "element 15",
];

/// Digits of the largest number of a register in a family.
const MAX_DIGITS: usize = u32::MAX.ilog10() as usize + 1;

impl<'m> Decoder<'m> {
    pub(super) fn scope_mut(&mut self) -> &mut Scope<'m> {
        if self.f.scopes.is_empty() {
            self.f.scopes.push(Scope::default());
        }
        let last = self.f.scopes.len() - 1;
        &mut self.f.scopes[last]
    }

    pub(super) fn declare_register(
        &mut self,
        ty: Type,
        name: &'m str,
        family: Option<u32>,
    ) -> Result<()> {
        match family {
            Some(count) => self
                .scope_mut()
                .families
                .insert(name, (ty, count))
                .map(|_| ()),
            None => self
                .scope_mut()
                .registers
                .insert(name, (ty, None))
                .map(|_| ()),
        };
        Ok(())
    }

    pub(super) fn declare_vector(&mut self, ty: Type, width: usize, name: &'m str) {
        let elements = (0..width).map(|_| (self.f.new_reg(ty), ty)).collect();
        self.scope_mut().vectors.insert(name, elements);
    }

    /// The register of an element, which is called `vector.x` or as in [`ELEMENTS`].
    fn find_element(&self, name: &str) -> Option<(Reg, Type)> {
        if let Some(n) = ELEMENTS.iter().position(|element| *element == name) {
            return self.f.elements.get(n).copied();
        }
        let (vector, component) = name.rsplit_once('.')?;
        let n = match component {
            "x" | "r" => 0,
            "y" | "g" => 1,
            "z" | "b" => 2,
            "w" | "a" => 3,
            _ => return None,
        };
        self.find_vector(vector)?.get(n).copied()
    }

    fn find_vector(&self, name: &str) -> Option<&[(Reg, Type)]> {
        let declares = |s: &&Scope<'m>| {
            let hidden = s.registers.contains_key(name) || s.places.contains_key(name);
            hidden || s.vectors.contains_key(name)
        };
        let scope = self.f.scopes.iter().rev().find(declares)?;
        scope.vectors.get(name).map(Vec::as_slice)
    }

    /// The operands with the elements of vector registers in their place; `None` if there are
    /// no such registers.
    pub(super) fn with_elements(
        &mut self,
        list: &[Operand<'m>],
    ) -> Result<Option<Vec<Operand<'m>>>> {
        if self.f.scopes.iter().all(|scope| scope.vectors.is_empty()) {
            return Ok(None);
        }
        let mut out = Vec::new();
        for operand in list {
            out.push(match operand {
                Operand::Name(name) => match self.find_vector(name).map(<[_]>::to_vec) {
                    Some(elements) => {
                        let first = self.f.elements.len();
                        let names = ELEMENTS.get(first..first + elements.len());
                        let Some(names) = names else {
                            return self.unsupported("as many vector registers");
                        };
                        self.f.elements.extend(elements);
                        Operand::Vector(names.iter().map(|name| Operand::Name(name)).collect())
                    }
                    None => operand.clone(),
                },
                Operand::Address { base, offset, more } => Operand::Address {
                    base: *base,
                    offset: *offset,
                    more: self.with_elements(more)?.unwrap_or_default(),
                },
                operand => operand.clone(),
            });
        }
        Ok(Some(out))
    }

    pub(super) fn declare_variable(&mut self, var: &'m Var<'m>) -> Result<()> {
        if let Some(ty) = var.unserved {
            return Err(PtxError::unsupported(var.line, format!("type {ty}")));
        }
        let too_large = || PtxError::invalid(var.line, "variable too large");
        let size = u32::try_from(var.size())
            .ok()
            .filter(|&s| s <= 1 << 28)
            .ok_or_else(too_large)?;
        let alignment = &mut self.program.alignment;
        let place = match var.space {
            Space::Local | Space::Param => {
                Alignment::raise(&mut alignment.local, var.align);
                let offset = align_up(self.f.local, var.align.max(4)).ok_or_else(too_large)?;
                self.f.local = offset
                    .checked_add(size)
                    .filter(|&e| e <= 1 << 28)
                    .ok_or_else(too_large)?;
                Storage::Frame(offset)
            }
            Space::Shared if var.count.is_none() => {
                Alignment::raise(&mut alignment.dynamic_shared, var.align);
                Storage::DynamicShared
            }
            Space::Shared => Storage::Shared(place_shared(&mut self.f.shared, var)?),
            _ => {
                return Err(PtxError::unsupported(
                    var.line,
                    "global variable inside a function",
                ));
            }
        };
        self.scope_mut().declare(var, place, size);
        Ok(())
    }

    /// The register called `name`, allocated at its first use.
    pub(super) fn find_register(&mut self, name: &'m str) -> Option<(Reg, Type)> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let digits = digits.min(MAX_DIGITS);
        for index in (0..self.f.scopes.len()).rev() {
            let scope = &self.f.scopes[index];
            if let Some(&(ty, reg)) = scope.registers.get(name) {
                if let Some(reg) = reg {
                    return Some((reg, ty));
                }
                let reg = self.f.new_reg(ty);
                self.f.scopes[index].registers.insert(name, (ty, Some(reg)));
                return Some((reg, ty));
            }
            // `%r12` may belong to the family `%r<13>`. A family's name can itself end in
            // digits.
            for cut in 1..=digits {
                let (prefix, number) = name.split_at(name.len() - cut);
                let Some(&(ty, count)) = scope.families.get(prefix) else {
                    continue;
                };
                if number.parse::<u32>().is_ok_and(|n| n < count) {
                    let reg = self.f.new_reg(ty);
                    self.f.scopes[index].registers.insert(name, (ty, Some(reg)));
                    return Some((reg, ty));
                }
            }
            // A variable hides the registers of outer blocks.
            if scope.places.contains_key(name) {
                return None;
            }
        }
        self.find_element(name)
    }

    pub(super) fn find_place(&self, name: &str) -> Option<Storage> {
        self.f
            .scopes
            .iter()
            .rev()
            .find_map(|s| s.places.get(name).copied())
    }

    pub(super) fn find_size(&self, name: &str) -> Option<u32> {
        self.f
            .scopes
            .iter()
            .rev()
            .find_map(|s| s.sizes.get(name).copied())
    }

    /// Bytes of an element of a variable.
    pub(super) fn find_stride(&self, name: &str) -> Option<u32> {
        let mut scopes = self.f.scopes.iter().rev();
        let own = scopes.find_map(|s| s.strides.get(name).copied());
        own.or_else(|| self.strides.get(name).copied())
    }

    pub(super) fn collect_labels(&mut self, list: &'m [Statement<'m>]) {
        for statement in list {
            if let Statement::Label(name) = statement {
                let id = self.f.new_label();
                self.scope_mut().labels.insert(name, id);
            }
        }
    }

    pub(super) fn place_label(&mut self, name: &str, position: u32) -> Result<()> {
        let id = self.label(name)?;
        match self.f.labels.get_mut(id as usize) {
            Some(label) if label.position.is_none() => {
                label.position = Some(position);
                Ok(())
            }
            _ => self.invalid(format!("label {name} twice")),
        }
    }

    /// Number of the label `name`; its position is filled in by [`Self::patch_branches`].
    pub(super) fn label(&self, name: &str) -> Result<u32> {
        match self
            .f
            .scopes
            .iter()
            .rev()
            .find_map(|s| s.labels.get(name).copied())
        {
            Some(id) => Ok(id),
            None => self.invalid(format!("label {name} is not defined")),
        }
    }

    /// Number of the table of the branch targets `name`.
    pub(super) fn find_targets(&self, name: &str) -> Option<u32> {
        self.f
            .scopes
            .iter()
            .rev()
            .find_map(|s| s.targets.get(name).copied())
    }

    /// Replaces label numbers by positions in the branches of the function that begins at
    /// `mark`.
    pub(super) fn patch_branches(&mut self, mark: Mark) -> Result<()> {
        let mut complete = true;
        for target in self.program.targets_from(mark) {
            let label = self.f.labels.get(*target as usize);
            match label.and_then(|label| label.position) {
                Some(position) => *target = position,
                None => complete = false,
            }
        }
        if complete {
            Ok(())
        } else {
            self.invalid("branch to a label that is not defined")
        }
    }
}
