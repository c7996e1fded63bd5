//! Names inside a function: registers, variables, labels, with PTX's block scoping.

use super::function_state::{Scope, Storage};
use super::{Decoder, Result, align_up, place_shared};
use crate::error::PtxError;
use crate::program::{Ext, Reg};
use crate::ptx::ast::{Space, Statement, Type, Var};

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

    pub(super) fn declare_variable(&mut self, var: &'m Var<'m>) -> Result<()> {
        if let Some(ty) = var.unserved {
            return Err(PtxError::unsupported(var.line, format!("type {ty}")));
        }
        let too_large = || PtxError::invalid(var.line, "variable too large");
        let size = u32::try_from(var.size())
            .ok()
            .filter(|&s| s <= 1 << 28)
            .ok_or_else(too_large)?;
        let place = match var.space {
            Space::Local | Space::Param => {
                let offset = align_up(self.f.local, var.align.max(4)).ok_or_else(too_large)?;
                self.f.local = offset
                    .checked_add(size)
                    .filter(|&e| e <= 1 << 28)
                    .ok_or_else(too_large)?;
                Storage::Frame(offset)
            }
            Space::Shared if var.count.is_none() => Storage::DynamicShared,
            Space::Shared => Storage::Shared(place_shared(&mut self.f.shared, var)?),
            _ => {
                return Err(PtxError::unsupported(
                    var.line,
                    "global variable inside a function",
                ));
            }
        };
        let scope = self.scope_mut();
        scope.places.insert(var.name, place);
        scope.sizes.insert(var.name, size);
        Ok(())
    }

    /// The register called `name`, allocated at its first use.
    pub(super) fn find_register(&mut self, name: &'m str) -> Option<(Reg, Type)> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
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
        }
        None
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

    pub(super) fn collect_labels(&mut self, list: &'m [Statement<'m>]) {
        for statement in list {
            if let Statement::Label(name) = statement {
                let id = u32::try_from(self.f.positions.len()).unwrap_or(u32::MAX);
                self.f.positions.push(None);
                self.scope_mut().labels.insert(name, id);
            }
        }
    }

    pub(super) fn place_label(&mut self, name: &str, position: u32) -> Result<()> {
        let id = self.label(name)?;
        match self.f.positions.get_mut(id as usize) {
            Some(slot @ None) => {
                *slot = Some(position);
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

    pub(super) fn find_targets(&self, name: &str) -> Option<Vec<u32>> {
        self.f
            .scopes
            .iter()
            .rev()
            .find_map(|s| s.targets.get(name).cloned())
    }

    /// Replaces label numbers by positions in the branches from `start` on.
    pub(super) fn patch_branches(&mut self, start: u32) -> Result<()> {
        let resolve = |id: &mut u32| -> bool {
            match self.f.positions.get(*id as usize).copied().flatten() {
                Some(position) => {
                    *id = position;
                    true
                }
                None => false,
            }
        };
        let mut complete = true;
        for inst in self.program.code.get(start as usize..).unwrap_or_default() {
            if inst.op != crate::program::Op::Ext {
                continue;
            }
            match self.program.ext.get_mut(inst.a as usize) {
                Some(Ext::Bra { target }) => complete &= resolve(target),
                Some(Ext::BrxIdx { targets, .. }) => {
                    for target in targets {
                        complete &= resolve(target);
                    }
                }
                _ => {}
            }
        }
        if complete {
            Ok(())
        } else {
            self.invalid("branch to a label that is not defined")
        }
    }
}
