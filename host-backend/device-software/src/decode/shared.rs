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
    variables: Vec<&'m Var<'m>>,
    bodies: HashMap<&'m str, Mentions<'m>>,
    /// Variables that device functions mention.
    common: HashSet<&'m str>,
    /// Device functions that have shared memory.
    users: HashSet<&'m str>,
}

impl<'m> Shared<'m> {
    pub fn of(module: &'m Module<'m>) -> Self {
        let placed =
            |var: &&Var<'_>| var.space == Space::Shared && var.count.is_some() && !var.external;
        let variables: Vec<_> = module.variables.iter().filter(placed).collect();
        let functions = module.functions.iter().map(|f| f.name);
        let aliases: HashMap<_, _> = module.aliases.iter().copied().collect();
        let mut known: HashSet<&str> = functions.chain(aliases.keys().copied()).collect();
        known.extend(variables.iter().map(|var| var.name));
        let mut shared = Self {
            variables,
            bodies: HashMap::new(),
            common: HashSet::new(),
            users: HashSet::new(),
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
                let names = shared.variables.iter().map(|var| var.name);
                let common: Vec<_> = names.filter(|n| mentions.names.contains(n)).collect();
                if mentions.own || !common.is_empty() {
                    shared.users.insert(function.name);
                }
                shared.common.extend(common);
            }
            shared.bodies.insert(function.name, mentions);
        }
        shared
    }

    /// Whether a variable has one place in the module.
    pub fn is_common(&self, name: &str) -> bool {
        self.common.contains(name)
    }

    /// Whether a kernel has the shared memory of device functions.
    pub fn uses_common(&self, kernel: &Function<'m>) -> bool {
        let mut seen = HashSet::new();
        let mut left = vec![kernel.name];
        while let Some(name) = left.pop() {
            let Some(mentions) = self.bodies.get(name).filter(|_| seen.insert(name)) else {
                continue;
            };
            if self.users.contains(name)
                || mentions.indirect && !self.users.is_empty()
                || mentions.names.iter().any(|n| self.common.contains(n))
            {
                return true;
            }
            left.extend(&mentions.names);
        }
        false
    }

    /// The variables that get a place in this kernel.
    pub fn own(&self, kernel: &Function<'m>) -> impl Iterator<Item = &'m Var<'m>> {
        let mentions = self.bodies.get(kernel.name);
        let is_own = move |var: &&&'m Var<'m>| {
            !self.common.contains(var.name)
                && mentions.is_some_and(|mentions| mentions.names.contains(var.name))
        };
        self.variables.iter().filter(is_own).copied()
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
        Operand::Name(name) | Operand::NameOffset(name, _) => names.push(name),
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
