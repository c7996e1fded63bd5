//! Branches, calls, barriers of the block (PTX ISA 9.7.12, 9.7.13).

use super::function_state::Storage;
use super::{Decoder, Result, Symbol, align_up};
use crate::program::{
    Access, Address, BarReduce, Call, CallTarget, Ext, Extend, Func, MemSpace, Reg, RuntimeCall,
};
use crate::ptx::ast::{Function, Operand, Space, Type, Var};

impl<'m> Decoder<'m> {
    pub(super) fn control(
        &mut self,
        base: &str,
        mods: &[&str],
        operands: &[Operand<'m>],
    ) -> Result<bool> {
        match base {
            "bra" => {
                self.only(mods, &["uni"])?;
                let [target] = self.operands(operands)?;
                let &Operand::Name(name) = target else {
                    return self.unfit("expected a label");
                };
                let target = self.label(name)?;
                self.ext(Ext::Bra { target });
            }
            "brx" => {
                let [index, list] = self.operands(operands)?;
                let &Operand::Name(list) = list else {
                    return self.unfit("expected branch targets");
                };
                let Some(table) = self.find_targets(list) else {
                    return self.unfit(format!("{list} is not a list of branch targets"));
                };
                let index = self.s32(index, Type::U32)?;
                self.ext(Ext::BrxIdx { index, table });
            }
            "call" => self.call(operands)?,
            "ret" => self.ret(),
            "exit" => self.ext(Ext::Exit),
            "trap" => self.ext(Ext::Trap),
            "brkpt" | "pmevent" => self.ext(Ext::Nop),
            "nanosleep" => self.ext(Ext::Yield),
            "setmaxnreg" | "griddepcontrol" => self.ext(Ext::Nop),
            "bar" | "barrier" => return self.barrier(mods, operands),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn call(&mut self, operands: &[Operand<'m>]) -> Result<()> {
        let (returns, callee, args) = match operands {
            [Operand::List(r), Operand::Name(f), Operand::List(a), ..] => {
                (r.as_slice(), *f, a.as_slice())
            }
            [Operand::List(r), Operand::Name(f)] => (r.as_slice(), *f, [].as_slice()),
            [Operand::Name(f), Operand::List(a), ..] => ([].as_slice(), *f, a.as_slice()),
            // In an indirect call without arguments, the prototype follows.
            [Operand::Name(f)] | [Operand::Name(f), Operand::Name(_)] => {
                ([].as_slice(), *f, [].as_slice())
            }
            [Operand::List(r), Operand::Name(f), Operand::Name(_)] => {
                (r.as_slice(), *f, [].as_slice())
            }
            _ => return self.unfit("malformed call"),
        };
        let target = match self.find_register(callee) {
            Some((Reg::R64(row), _)) => CallTarget::Indirect(row),
            Some(_) => return self.unfit("call through a register that is not of 64 bits"),
            None => match self.symbols.get(callee) {
                Some(&Symbol::Function(index)) => CallTarget::Function(index),
                Some(Symbol::Printf) => CallTarget::Printf,
                Some(Symbol::AssertFail) => CallTarget::AssertFail,
                Some(Symbol::SetConditional) => CallTarget::SetConditional,
                Some(Symbol::Malloc) => {
                    self.program.uses_heap = true;
                    CallTarget::Malloc
                }
                Some(Symbol::AlignedMalloc) => {
                    self.program.uses_heap = true;
                    CallTarget::AlignedMalloc
                }
                Some(Symbol::Free) => {
                    self.program.uses_heap = true;
                    CallTarget::Free
                }
                Some(&Symbol::Runtime(call)) => {
                    self.program.uses_heap |= call.uses_heap();
                    self.program.launches |= call.launches();
                    CallTarget::Runtime(call)
                }
                _ if callee.starts_with("__cudaCDP2") || callee.starts_with("cuda") => {
                    return self.unsupported(format!("{callee} of CUDA's device runtime"));
                }
                _ => {
                    return Err(crate::error::PtxError::Unresolved {
                        line: self.line,
                        name: callee.to_owned(),
                    });
                }
            },
        };
        let sizes = match target {
            CallTarget::Function(index) => self.program.funcs.get(index),
            _ => None,
        };
        let (takes, gives): (Vec<u32>, Vec<u32>) = sizes.map_or_else(Default::default, |f| {
            let sizes = |list: &[(u32, u32)]| list.iter().map(|p| p.1).collect();
            (sizes(&f.params), sizes(&f.returns))
        });
        let args = self.arguments(args, &takes)?;
        let (returns, results) = self.results(returns, &gives)?;
        let system = match target {
            CallTarget::Malloc => Some(([8].as_slice(), [8].as_slice())),
            CallTarget::AlignedMalloc => Some(([8, 8].as_slice(), [8].as_slice())),
            CallTarget::Free => Some(([8].as_slice(), [].as_slice())),
            CallTarget::SetConditional => Some(([8, 4].as_slice(), [].as_slice())),
            CallTarget::Runtime(_) => {
                RuntimeCall::of(callee).map(|(_, takes, gives)| (takes, gives))
            }
            _ => None,
        };
        if let Some((taken, given)) = system {
            let fits = |list: &[(u32, u32)], sizes: &[u32]| list.iter().map(|p| &p.1).eq(sizes);
            if !fits(&args, taken) || !fits(&returns, given) {
                return self.unfit(format!("call of {callee} does not fit its declaration"));
            }
        }
        if let CallTarget::Function(index) = target {
            let func = self.program.funcs.get(index);
            let sizes = |list: &[(u32, u32)]| list.iter().map(|&(_, s)| s).collect::<Vec<_>>();
            // Linked code may declare a result that a function does not have. Reading it is
            // undefined.
            let results = |f: &Func| f.returns.is_empty() || sizes(&f.returns) == sizes(&returns);
            let fits = func.is_some_and(|f| !f.entry && f.takes(&args) && results(f));
            if !fits {
                return self.unfit(format!("call of {callee} does not fit its declaration"));
            }
        }
        self.ext(Ext::Call(Call {
            target,
            args,
            returns,
        }));
        for (reg, place) in results {
            self.frame_access(reg, place, Ext::Load);
        }
        Ok(())
    }

    /// Offset and size of a `.param` variable.
    fn param_place(&self, operand: &Operand<'m>) -> Option<(u32, u32)> {
        let &Operand::Name(name) = operand else {
            return None;
        };
        match (self.find_place(name)?, self.find_size(name)?) {
            (Storage::Frame(offset), size) => Some((offset, size)),
            _ => None,
        }
    }

    /// Offsets and sizes of the arguments, each of which is a `.param` variable, or a register
    /// or a constant, which is stored in the frame. `sizes` are those of the parameters, if
    /// known.
    fn arguments(&mut self, list: &[Operand<'m>], sizes: &[u32]) -> Result<Vec<(u32, u32)>> {
        let mut out = Vec::new();
        for (n, operand) in list.iter().enumerate() {
            if let Some(place) = self.param_place(operand) {
                out.push(place);
                continue;
            }
            let (reg, size) = match (operand, sizes.get(n)) {
                (Operand::Name(name), _) => self.call_register(name)?,
                (_, Some(8)) => (Reg::R64(self.s64(operand, Type::B64)?), 8),
                (_, Some(&size @ (1 | 2 | 4))) => (Reg::R32(self.s32(operand, Type::B32)?), size),
                _ => return self.unsupported("this call argument"),
            };
            let place = self.frame_place(size)?;
            self.frame_access(reg, place, Ext::Store);
            out.push(place);
        }
        Ok(out)
    }

    /// Offsets and sizes of a call's results, and those of them that go to registers. `_`
    /// takes none; `sizes` are those of the callee's results, if known.
    #[allow(clippy::type_complexity)]
    fn results(
        &mut self,
        list: &[Operand<'m>],
        sizes: &[u32],
    ) -> Result<(Vec<(u32, u32)>, Vec<(Reg, (u32, u32))>)> {
        let (mut places, mut registers) = (Vec::new(), Vec::new());
        for (n, operand) in list.iter().enumerate() {
            let place = match (self.param_place(operand), operand) {
                (Some(place), _) => place,
                (None, Operand::Name("_")) => match sizes.get(n) {
                    Some(&size) => self.frame_place(size)?,
                    None => return self.unsupported("_ as this call's result"),
                },
                (None, Operand::Name(name)) => {
                    let (reg, size) = self.call_register(name)?;
                    let place = self.frame_place(size)?;
                    registers.push((reg, place));
                    place
                }
                _ => return self.unsupported("this call result"),
            };
            places.push(place);
        }
        Ok((places, registers))
    }

    /// A register in a call, and its size.
    fn call_register(&mut self, name: &'m str) -> Result<(Reg, u32)> {
        match self.find_register(name) {
            Some((reg @ (Reg::R32(_) | Reg::R64(_)), ty)) if ty != Type::B128 => {
                Ok((reg, ty.size()))
            }
            _ => self.unsupported(format!("{name} in a call")),
        }
    }

    /// A place in the frame for a value of `size` bytes.
    fn frame_place(&mut self, size: u32) -> Result<(u32, u32)> {
        let offset = align_up(self.f.local, 8).filter(|&at| at < 1 << 28);
        let Some(offset) = offset else {
            return self.invalid("local memory too large");
        };
        self.f.local = offset + size;
        Ok((offset, size))
    }

    /// Loads or stores a register that passes through the frame.
    pub(super) fn frame_access(
        &mut self,
        reg: Reg,
        (offset, size): (u32, u32),
        access: fn(Access) -> Ext,
    ) {
        let address = Address {
            space: MemSpace::Local,
            base: None,
            offset: i64::from(offset),
            frame: true,
        };
        self.ext(access(Access {
            address,
            width: size as u8,
            extend: Extend::Zero,
            narrow: 0,
            regs: vec![Some(reg)],
            ordered: false,
        }));
    }

    /// Declares the parameters and results of a function that are registers, and loads the
    /// parameters from the frame, where the caller puts them.
    pub(super) fn begin_registers(
        &mut self,
        function: &'m Function<'m>,
        func: &Func,
    ) -> Result<()> {
        let is_register = |var: &Var<'_>| var.space == Space::Register;
        let params = function.params.iter().zip(&func.params);
        for (var, &place) in params.filter(|(var, _)| is_register(var)) {
            self.declare_register(var.ty, var.name, None)?;
            let (reg, _) = self.call_register(var.name)?;
            self.frame_access(reg, place, Ext::Load);
        }
        let returns = function.returns.iter().zip(&func.returns);
        for (var, &place) in returns.filter(|(var, _)| is_register(var)) {
            self.declare_register(var.ty, var.name, None)?;
            let (reg, _) = self.call_register(var.name)?;
            self.f.ending.results.push((reg, place));
        }
        Ok(())
    }

    fn barrier(&mut self, mods: &[&str], operands: &[Operand<'m>]) -> Result<bool> {
        if mods.first() == Some(&"warp") {
            let [mask] = self.operands(operands)?;
            let mask = self.s32(mask, Type::B32)?;
            self.ext(Ext::BarWarp { mask });
            return Ok(true);
        }
        match mods {
            ["cluster", "arrive", rest @ ..] => {
                self.only(rest, &["aligned", "release", "relaxed"])?;
                self.ext(Ext::ClusterArrive);
                return Ok(true);
            }
            ["cluster", "wait", rest @ ..] => {
                self.only(rest, &["aligned", "acquire"])?;
                self.ext(Ext::ClusterWait);
                return Ok(true);
            }
            _ => {}
        }
        let known = [
            "cta", "sync", "arrive", "red", "aligned", "popc", "and", "or",
        ];
        self.only(mods, &known)?;
        if mods.contains(&"red") {
            let (d, rest) = match operands.split_first() {
                Some(split) => split,
                None => return self.unfit("wrong number of operands"),
            };
            let Some((p, rest)) = rest.split_last() else {
                return self.unfit("wrong number of operands");
            };
            let (p, negate) = self.pred(p)?;
            let reduce = if mods.contains(&"popc") {
                BarReduce::Popc {
                    d: self.d32(d)?,
                    p,
                    negate,
                }
            } else if mods.contains(&"and") {
                BarReduce::And {
                    d: self.dp(d)?,
                    p,
                    negate,
                }
            } else {
                BarReduce::Or {
                    d: self.dp(d)?,
                    p,
                    negate,
                }
            };
            let (id, count) = self.barrier_operands(rest)?;
            self.ext(Ext::Barrier {
                id,
                count,
                wait: true,
                reduce,
            });
            return Ok(true);
        }
        let wait = !mods.contains(&"arrive");
        let (id, count) = self.barrier_operands(operands)?;
        if !wait && count.is_none() {
            return self.unfit("arrive needs a thread count");
        }
        self.ext(Ext::Barrier {
            id,
            count,
            wait,
            reduce: BarReduce::None,
        });
        Ok(true)
    }

    fn barrier_operands(&mut self, operands: &[Operand<'m>]) -> Result<(u32, Option<u32>)> {
        match operands {
            [id] => Ok((self.s32(id, Type::U32)?, None)),
            [id, count] => Ok((self.s32(id, Type::U32)?, Some(self.s32(count, Type::U32)?))),
            _ => self.unfit("wrong number of operands"),
        }
    }
}
