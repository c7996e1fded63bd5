//! What a device executes of a graph.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use paragpu_protocol::call::WireCall;
use paragpu_protocol::handle::GraphExecHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::Launch;
use parking_lot::Mutex;

use crate::error::Result;
use crate::objects::event::Event;
use crate::objects::flat_graph::Flat;
use crate::objects::graph::{Graph, NodeName, Work};
use crate::objects::graph_memory::GraphMemory;
use crate::user_object::HeldReferences;

use super::WireNode;
use super::nodes::conditional_call;

/// An executable graph of one device.
#[derive(Debug)]
pub(crate) struct DeviceGraph {
    pub(super) handle: GraphExecHandle,
    /// A launch frees memory that an earlier one left allocated.
    pub(super) auto_free: bool,
    pub(super) plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) flat: Vec<Flat>,
    /// Of each flat node.
    pub(super) steps: Vec<Step>,
    pub(super) by_name: HashMap<NodeName, usize>,
    /// The flat nodes whose changes have not been sent, each once. The next launch sends them.
    pub(super) changed: Vec<usize>,
    /// The memory that kernels and copies may use, from all parameters, as for a launch.
    pub(super) words: Vec<u8>,
    /// [`Shadows::before_repeated_launch`](crate::shadow::Shadows::before_repeated_launch) has
    /// seen these words.
    pub(super) has_noted_words: bool,
    /// Events that a launch records, each once, in the order in which they are locked.
    pub(super) events: Vec<Arc<Event>>,
    /// Host functions.
    pub(super) functions: Vec<u64>,
    /// Pinned memory for copies.
    pub(super) staging: Vec<u64>,
    /// Memory that a launch allocates (true) and frees, in order.
    pub(super) memory: Vec<(bool, Arc<GraphMemory>)>,
    /// User objects.
    pub(super) held: HeldReferences,
    pub(super) ended: bool,
}

/// How a flat node is sent.
#[derive(Debug)]
pub(super) struct Step {
    /// Number of the node that does its work.
    pub(super) number: u32,
    pub(super) call: u16,
    /// A kernel's is that of its last change that was sent, others' of the last change.
    pub(super) work: Vec<u8>,
    /// Its change has not been sent.
    pub(super) is_changed: bool,
    /// Where a kernel's parameters begin in [`Plan::words`].
    pub(super) words: usize,
    /// Its host function; 0 for none.
    pub(super) function: u64,
    /// Its bytes go through pinned memory.
    pub(super) staging: Option<Staging>,
    pub(super) enabled: bool,
    /// A conditional node's bodies are the nodes after it; these are their sizes.
    pub(super) bodies: Vec<u32>,
}

/// The pinned memory of a copy from or to memory that the device does not reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staging {
    pub(super) memory: u64,
    /// Its bytes.
    pub(super) size: u64,
    /// Whether bytes come from memory that the device does not reach.
    pub(super) fills: bool,
    /// The host function that fills or empties it.
    pub(super) function: u64,
}

impl Step {
    /// Makes a call its work; whether it differs from the last one.
    pub(super) fn become_call(&mut self, call: u16, work: Vec<u8>) -> bool {
        let differs = call != self.call || work != self.work;
        (self.call, self.work) = (call, work);
        differs
    }
}

impl Plan {
    /// Checks that the graph was not destroyed.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub(super) fn check(&self) -> Result<()> {
        match self.ended {
            true => Err(Status::INVALID_HANDLE),
            false => Ok(()),
        }
    }

    /// Lists what each launch needs to know of the nodes: the words that may be addresses, eight
    /// bytes each, memory and events.
    pub(super) fn gather(&mut self) {
        self.words.clear();
        self.has_noted_words = false;
        self.memory.clear();
        self.events.clear();
        for (flat, step) in self.flat.iter().zip(&mut self.steps) {
            match &flat.work {
                Work::Kernel(kernel) => {
                    step.words = self.words.len();
                    self.words.extend_from_slice(&kernel.parameters);
                    let whole = self.words.len().next_multiple_of(8);
                    self.words.resize(whole, 0);
                }
                Work::MemAlloc(memory, _) => self.memory.push((true, Arc::clone(memory))),
                Work::MemFree(memory) => self.memory.push((false, Arc::clone(memory))),
                Work::EventRecord(marked) => self.events.push(Arc::clone(&marked.event)),
                // Shadows that copies and memsets use are already visible.
                _ => debug_assert!(step.call != Launch::INFO.number),
            }
        }
        self.events.sort_unstable_by_key(|event| event.handle());
        self.events.dedup_by_key(|event| event.handle());
    }

    /// Updates the words of a kernel that had as many bytes of parameters.
    pub(super) fn replace_words(&mut self, index: usize) {
        let (Some(flat), Some(step)) = (self.flat.get(index), self.steps.get(index)) else {
            return;
        };
        if let Work::Kernel(kernel) = &flat.work
            && let Some(words) = self.words.get_mut(step.words..)
            && let Some(words) = words.get_mut(..kernel.parameters.len())
        {
            words.copy_from_slice(&kernel.parameters);
            self.has_noted_words = false;
        }
    }

    /// Records that a node's change must be sent.
    pub(super) fn note_changed(&mut self, index: usize) {
        if let Some(step) = self.steps.get_mut(index)
            && !step.is_changed
        {
            step.is_changed = true;
            self.changed.push(index);
        }
    }

    /// A launch allocates and frees memory; with `again` also what an earlier
    /// one left allocated.
    pub(super) fn launch_memory(&self, again: bool) -> Result<()> {
        check_memory(&self.memory, again)?;
        for (allocates, memory) in &self.memory {
            memory.set_allocated(*allocates);
        }
        Ok(())
    }

    /// Sends the sizes of conditional nodes' bodies. `begins` has the first node of each
    /// flat node, and the number of all nodes.
    pub(super) fn place_bodies(&mut self, begins: &[u32], nodes: &mut [WireNode]) -> Result<()> {
        let begin = |flat: usize| begins.get(flat).copied().ok_or(Status::UNKNOWN);
        for (index, (flat, step)) in self.flat.iter().zip(&mut self.steps).enumerate() {
            let Work::Conditional(conditional) = &flat.work else {
                continue;
            };
            let mut first = index + 1;
            for size in &flat.bodies {
                let end = first + *size as usize;
                step.bodies.push(begin(end)? - begin(first)?);
                first = end;
            }
            (step.call, step.work) = conditional_call(conditional, &step.bodies);
            let wired = nodes.get_mut(step.number as usize).ok_or(Status::UNKNOWN)?;
            (wired.call, wired.work) = (step.call, step.work.clone());
        }
        Ok(())
    }

    pub(super) fn may_be_disabled(&self, name: NodeName) -> Result<usize> {
        let index = *self.by_name.get(&name).ok_or(Status::INVALID_VALUE)?;
        match self.flat.get(index).map(|flat| &flat.work) {
            Some(Work::Kernel(_) | Work::Copy(_) | Work::Memset(_)) => Ok(index),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}

/// Checks that a launch can allocate (true) and free memory in this order.
///
/// # Errors
/// `INVALID_VALUE` if it is allocated already, or not allocated when it is freed.
pub(crate) fn check_memory<'a>(
    memory: impl IntoIterator<Item = &'a (bool, Arc<GraphMemory>)>,
    again: bool,
) -> Result<()> {
    let mut allocated = HashSet::new();
    for (allocates, memory) in memory {
        let fits = match allocates {
            true => (again || !memory.is_allocated()) && allocated.insert(memory.address),
            false => allocated.remove(&memory.address) || memory.is_allocated(),
        };
        if !fits {
            return Err(Status::INVALID_VALUE);
        }
    }
    Ok(())
}

impl DeviceGraph {
    /// The memory that a launch allocates (true) and frees, in order.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it was destroyed.
    pub(crate) fn memory(&self) -> Result<Vec<(bool, Arc<GraphMemory>)>> {
        let plan = self.plan.lock();
        plan.check()?;
        Ok(plan.memory.clone())
    }

    /// Whether it holds no user objects.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.plan.lock().held.is_empty()
    }

    /// The nodes, with their current work.
    pub(crate) fn nodes(&self) -> Vec<Flat> {
        self.plan.lock().flat.clone()
    }

    /// A graph of these nodes.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it was destroyed; `NOT_SUPPORTED` for conditional nodes.
    pub(crate) fn to_graph(&self) -> Result<Arc<Graph>> {
        let plan = self.plan.lock();
        plan.check()?;
        if plan.flat.iter().any(|flat| !flat.bodies.is_empty()) {
            return Err(Status::NOT_SUPPORTED);
        }
        Ok(Graph::of_flat(&plan.flat, plan.held.all()))
    }

    /// Whether a node was created from `name`.
    pub(crate) fn has(&self, name: NodeName) -> bool {
        self.plan.lock().by_name.contains_key(&name)
    }

    /// cuGraphNodeGetEnabled.
    ///
    /// # Errors
    /// As [`Graphs::enable`](super::Graphs::enable).
    pub(crate) fn is_enabled(&self, name: NodeName) -> Result<bool> {
        let plan = self.plan.lock();
        let index = plan.may_be_disabled(name)?;
        Ok(plan.steps.get(index).is_none_or(|step| step.enabled))
    }

    /// The current work of the node created from `name`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node.
    pub(crate) fn work(&self, name: NodeName) -> Result<Work> {
        let plan = self.plan.lock();
        let index = plan.by_name.get(&name).ok_or(Status::INVALID_VALUE)?;
        let flat = plan.flat.get(*index).ok_or(Status::INVALID_VALUE)?;
        Ok(flat.work.clone())
    }
}
