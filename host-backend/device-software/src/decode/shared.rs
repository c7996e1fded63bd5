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
    /// In order, one of each name.
    variables: Vec<&'m Var<'m>>,
    /// The declaration with a place of each name: a definition, or else the first that is
    /// `.extern`, for which `ptxas` also reserves its size.
    placed: HashMap<&'m str, &'m Var<'m>>,
    bodies: HashMap<&'m str, Mentions<'m>>,
    /// Variables that device functions mention.
    common: HashSet<&'m str>,
    /// Device functions that have shared memory.
    users: HashSet<&'m str>,
}

impl<'m> Shared<'m> {
    pub fn of(module: &'m Module<'m>) -> Self {
        let sized = |var: &&Var<'_>| var.space == Space::Shared && var.count.is_some();
        let mut placed: HashMap<&str, &Var<'_>> = HashMap::new();
        for var in module.variables.iter().filter(sized) {
            let place = placed.entry(var.name).or_insert(var);
            if place.external && !var.external {
                *place = var;
            }
        }
        let variables = module.variables.iter();
        let variables: Vec<_> = variables.filter(|var| is_place(&placed, var)).collect();
        let functions = module.functions.iter().map(|f| f.name);
        let aliases: HashMap<_, _> = module.aliases.iter().copied().collect();
        let mut known: HashSet<&str> = functions.chain(aliases.keys().copied()).collect();
        known.extend(variables.iter().map(|var| var.name));
        let mut shared = Self {
            variables,
            placed,
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

    /// Whether a variable has a size. Without one it is dynamic shared memory.
    pub fn is_sized(&self, name: &str) -> bool {
        self.placed.contains_key(name)
    }

    /// Whether this declaration is the one of its name that has a place.
    pub fn is_placed(&self, var: &Var<'_>) -> bool {
        is_place(&self.placed, var)
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

/// Whether this declaration is the one that has a place.
fn is_place(placed: &HashMap<&str, &Var<'_>>, var: &Var<'_>) -> bool {
    let place = placed.get(var.name);
    place.is_some_and(|place| std::ptr::eq(*place, var))
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
