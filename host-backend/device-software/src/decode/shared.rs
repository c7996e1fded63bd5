//! Which static shared memory a kernel has.
//!
//! As a GPU's compiler does, a kernel is given the variables that it and the functions that
//! it calls mention, and no others: in a large module all together may be more than a block
//! can have. Variables that device functions mention have one place in the module, because
//! functions are decoded once. Those that kernels alone mention get a place in each of them.

use crate::ptx::ast::{Function, Module, Operand, Space, Statement, Var};
use std::collections::{HashMap, HashSet};

/// What the body of a function mentions.
#[derive(Debug, Default)]
struct Mentions<'m> {
    /// Shared variables of the module, and functions.
    names: HashSet<&'m str>,
    /// Whether it has shared variables of its own.
    own: bool,
    /// Whether it calls through a register.
    indirect: bool,
}

/// The module's shared variables and who mentions them.
pub(super) struct Shared<'m> {
    /// The declaration with a place of each name, and its number: a definition, or else the
    /// first that is `.extern`, for which `ptxas` also reserves its size.
    placed: HashMap<&'m str, (usize, &'m Var<'m>)>,
    bodies: HashMap<&'m str, Mentions<'m>>,
    /// Variables that device functions mention.
    common: HashSet<&'m str>,
    /// Functions with the shared memory of device functions: their own, or that of others that
    /// they call.
    sharing: HashSet<&'m str>,
}

impl<'m> Shared<'m> {
    pub fn of(module: &'m Module<'m>) -> Self {
        let mut placed: HashMap<&str, (usize, &Var<'_>)> = HashMap::new();
        for (number, var) in module.variables.iter().enumerate() {
            if var.space != Space::Shared || var.count.is_none() {
                continue;
            }
            let place = placed.entry(var.name).or_insert((number, var));
            if place.1.external && !var.external {
                *place = (number, var);
            }
        }
        let functions = module.functions.iter().map(|f| f.name);
        let aliases: HashMap<_, _> = module.aliases.iter().copied().collect();
        let mut known: HashSet<&str> = functions.chain(aliases.keys().copied()).collect();
        known.extend(placed.keys());
        let mut shared = Self {
            placed,
            bodies: HashMap::new(),
            common: HashSet::new(),
            sharing: HashSet::new(),
        };
        for function in &module.functions {
            let Some(body) = &function.body else { continue };
            let mut mentions = Mentions::default();
            mentions.list(body, &known);
            let named = mentions
                .names
                .iter()
                .filter_map(|n| aliases.get(n).copied());
            let named: Vec<_> = named.collect();
            mentions.names.extend(named);
            if !function.entry {
                let common = mentions.names.iter().copied();
                let common: Vec<_> = common.filter(|n| shared.is_sized(n)).collect();
                if mentions.own || !common.is_empty() {
                    shared.sharing.insert(function.name);
                }
                shared.common.extend(common);
            }
            shared.bodies.insert(function.name, mentions);
        }
        shared.add_callers();
        shared
    }

    /// Adds the functions that call those with shared memory. A call through a register may be
    /// of any.
    fn add_callers(&mut self) {
        let mut callers: HashMap<&str, Vec<&'m str>> = HashMap::new();
        let mut found: Vec<&str> = self.sharing.iter().copied().collect();
        for (&caller, mentions) in &self.bodies {
            if mentions.indirect && !self.sharing.is_empty()
                || mentions.names.iter().any(|n| self.common.contains(n))
            {
                found.push(caller);
            }
            for name in &mentions.names {
                callers.entry(name).or_default().push(caller);
            }
        }
        self.sharing.extend(&found);
        while let Some(function) = found.pop() {
            let callers = callers.remove(function).unwrap_or_default();
            found.extend(callers.into_iter().filter(|name| self.sharing.insert(name)));
        }
    }

    /// Whether a variable has a size. Without one it is dynamic shared memory.
    pub fn is_sized(&self, name: &str) -> bool {
        self.placed.contains_key(name)
    }

    /// Whether this declaration is the one of its name that has a place.
    pub fn is_placed(&self, var: &Var<'_>) -> bool {
        let place = self.placed.get(var.name);
        place.is_some_and(|(_, place)| std::ptr::eq(*place, var))
    }

    /// Whether a variable has one place in the module.
    pub fn is_common(&self, name: &str) -> bool {
        self.common.contains(name)
    }

    /// Whether a kernel has the shared memory of device functions.
    pub fn uses_common(&self, kernel: &Function<'m>) -> bool {
        self.sharing.contains(kernel.name)
    }

    /// The variables that get a place in this kernel, in order.
    pub fn own(&self, kernel: &Function<'m>) -> impl Iterator<Item = &'m Var<'m>> {
        let mentions = self.bodies.get(kernel.name);
        let names = mentions.into_iter().flat_map(|mentions| &mentions.names);
        let names = names.filter(|name| !self.common.contains(**name));
        let mut own: Vec<_> = names.filter_map(|name| self.placed.get(name)).collect();
        own.sort_unstable_by_key(|(number, _)| *number);
        own.into_iter().map(|(_, var)| *var)
    }
}

impl<'m> Mentions<'m> {
    fn list(&mut self, body: &'m [Statement<'m>], known: &HashSet<&'m str>) {
        for statement in body {
            match statement {
                Statement::Block(inner) => self.list(inner, known),
                Statement::Variable(var) => self.own |= var.space == Space::Shared,
                Statement::Instruction(instruction) => {
                    let mut names = Vec::new();
                    instruction
                        .operands
                        .iter()
                        .for_each(|o| operand(o, &mut names));
                    let calls = instruction.opcode.split('.').next() == Some("call");
                    self.indirect |= calls && !names.iter().any(|name| known.contains(name));
                    self.names
                        .extend(names.into_iter().filter(|name| known.contains(name)));
                }
                _ => {}
            }
        }
    }
}

/// Adds the names in an operand.
fn operand<'m>(of: &Operand<'m>, names: &mut Vec<&'m str>) {
    match of {
        Operand::Name(name)
        | Operand::NameOffset(name, _)
        | Operand::Element { array: name, .. } => names.push(name),
        Operand::Address { base, more, .. } => {
            names.extend(base);
            more.iter().for_each(|o| operand(o, names));
        }
        Operand::Vector(list) | Operand::List(list) => {
            list.iter().for_each(|o| operand(o, names));
        }
        _ => {}
    }
}
