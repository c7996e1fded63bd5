//! Updates executable graphs.

use std::sync::Arc;

use paragpu_protocol::codec::{Bytes, Field as _};
use paragpu_protocol::handle::GraphExecHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{GraphNodeEnable, GraphNodeUpdate, GraphNodeUpdates};

use super::nodes::{NodeCalls, conditional_call, encode_launch, fill_size};
use super::plan::{DeviceGraph, Plan, Staging, Step};
use super::{Graphs, PART};
use crate::error::Result;
use crate::host_function::HostFunctions;
use crate::objects::flat_graph::Flat;
use crate::objects::function::Function;
use crate::objects::graph::{CopyNodeEnd, CopyWork, HostRun, Kernel, NodeName, Work};
use crate::objects::shape::Shape;
use crate::objects::user_object::References;

/// Why an executable graph was not updated: CUgraphExecUpdateResult.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The graphs differ in nodes or dependencies.
    Topology = 2,
    /// A node is of another kind.
    Kind = 3,
    /// A node's parameters cannot be changed in this way.
    Parameters = 5,
    /// A kernel is of another context.
    Function = 7,
    /// A kernel has other attributes, which cannot be changed.
    Attributes = 8,
}

/// New parameters of a kernel's node.
#[derive(Debug)]
pub struct KernelChange<'a> {
    /// Device of the guest that it runs on.
    pub ordinal: u32,
    /// The program's handle of its context.
    pub context: u64,
    /// The kernel.
    pub function: &'a Arc<Function>,
    /// The program's handle of it.
    pub handle: u64,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads in a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Its parameters, in the layout of [`Function::parameters`].
    pub parameters: &'a [u8],
}

impl KernelChange<'_> {
    fn extents(&self) -> ([u32; 3], [u32; 3], u32) {
        (self.grid, self.block, self.dynamic_shared)
    }

    /// Whether the node has these parameters already.
    fn is_of(&self, kernel: &Kernel) -> bool {
        let shape = &kernel.shape;
        Arc::ptr_eq(self.function, &kernel.function)
            && (self.context, self.handle) == (kernel.context, kernel.handle)
            && self.extents() == (shape.grid, shape.block, shape.dynamic_shared)
            && *self.parameters == *kernel.parameters
    }

    /// A kernel with these parameters, and with the attributes of another one.
    #[must_use]
    pub fn to_kernel(&self, had: Option<&Kernel>) -> Kernel {
        let mut shape = Shape {
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            ..Shape::default()
        };
        if let Some(Kernel { shape: had, .. }) = had {
            shape.take_attributes(had);
        }
        let (function, parameters) = (Arc::clone(self.function), self.parameters.to_vec());
        let (ordinal, context) = (self.ordinal, self.context);
        Kernel::new(ordinal, context, function, self.handle, shape, parameters)
    }
}

impl Graphs {
    /// cuGraphExecKernelNodeSetParams and similar: from the next launch on, the node
    /// created from `name` does `work`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node or it is of another kind;
    /// `GRAPH_EXEC_UPDATE_FAILURE` if its parameters cannot be changed in this way.
    pub(crate) fn set(&self, graph: &DeviceGraph, name: NodeName, work: Work) -> Result<()> {
        self.set_each(graph, std::iter::once((name, work)))
    }

    /// The same for several nodes, up to the first that fails.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub(crate) fn set_each(
        &self,
        graph: &DeviceGraph,
        works: impl Iterator<Item = (NodeName, Work)>,
    ) -> Result<()> {
        let mut plan = graph.plan.lock();
        for (name, work) in works {
            let index = *plan.by_name.get(&name).ok_or(Status::INVALID_VALUE)?;
            let old = plan.flat.get(index).ok_or(Status::INVALID_VALUE)?;
            if old.work.kind() != work.kind() {
                return Err(Status::INVALID_VALUE);
            }
            self.check_work(&work)?;
            // The memory of a copy or the dimensions of a memset would change.
            let is_invalid = matches!(work, Work::Copy(_) | Work::Memset(_));
            let updated = self.change(&mut plan, index, work)?;
            updated.map_err(|_| match is_invalid {
                true => Status::INVALID_VALUE,
                false => Status::GRAPH_EXEC_UPDATE_FAILURE,
            })?;
        }
        Ok(())
    }

    /// As [`set`](Self::set) for a kernel. Its attributes stay.
    ///
    /// # Errors
    /// As [`set`](Self::set); as [`Launches::check`](crate::launch::Launches::check).
    pub(crate) fn set_kernel(
        &self,
        graph: &DeviceGraph,
        name: NodeName,
        new: &KernelChange<'_>,
    ) -> Result<()> {
        let mut plan = graph.plan.lock();
        let index = *plan.by_name.get(&name).ok_or(Status::INVALID_VALUE)?;
        let flat = plan.flat.get_mut(index).ok_or(Status::INVALID_VALUE)?;
        let Work::Kernel(kernel) = &mut flat.work else {
            return Err(Status::INVALID_VALUE);
        };
        if new.context != kernel.context {
            return Err(Status::GRAPH_EXEC_UPDATE_FAILURE);
        }
        if new.is_of(kernel) {
            return self.parts.launches.check(new.function, &kernel.shape);
        }
        // A graph that the program may still read has the first one.
        let Some(own) = Arc::get_mut(kernel) else {
            let work = Work::Kernel(Arc::new(new.to_kernel(Some(kernel))));
            self.check_work(&work)?;
            let updated = self.change(&mut plan, index, work)?;
            return updated.map_err(|_| Status::GRAPH_EXEC_UPDATE_FAILURE);
        };
        let had = (own.shape.grid, own.shape.block, own.shape.dynamic_shared);
        let shape = &mut own.shape;
        (shape.grid, shape.block, shape.dynamic_shared) = new.extents();
        if let Err(status) = self.parts.launches.check(new.function, shape) {
            (shape.grid, shape.block, shape.dynamic_shared) = had;
            return Err(status);
        }
        let is_alike = own.parameters.len() == new.parameters.len();
        own.handle = new.handle;
        own.replace(new.function, new.parameters);
        plan.note_changed(index);
        match is_alike {
            true => plan.replace_words(index),
            false => plan.gather(),
        }
        Ok(())
    }

    /// Nodes with the same dependencies replace those of the graph, up to the first that
    /// does not fit, if any. The inner result is that node, and the reason.
    pub(crate) fn update(
        &self,
        graph: &DeviceGraph,
        flat: Vec<Flat>,
    ) -> Result<Result<(), (Option<NodeName>, Refusal)>> {
        let mut plan = graph.plan.lock();
        plan.check()?;
        let mut outcome = Ok(());
        // Conditions first, because kernels refer to them.
        let is_value = |flat: &Flat| matches!(flat.work, Work::Conditional(_));
        let (values, others): (Vec<_>, Vec<_>) = flat
            .into_iter()
            .enumerate()
            .partition(|(_, flat)| is_value(flat));
        for (index, new) in values.into_iter().chain(others) {
            let updated = self.change(&mut plan, index, new.work)?;
            if let Err(refusal) = updated {
                outcome = Err((Some(new.name), refusal));
                break;
            }
        }
        Ok(outcome)
    }

    /// Updates the work of flat node `index`.
    fn change(&self, plan: &mut Plan, index: usize, work: Work) -> Result<Result<(), Refusal>> {
        let (Some(flat), Some(step)) = (plan.flat.get_mut(index), plan.steps.get_mut(index)) else {
            return Err(Status::INVALID_VALUE);
        };
        if let (Work::Copy(new), Work::Copy(_)) = (&work, &flat.work)
            && let Some(staging) = step.staging
        {
            // Launches of a graph run one after another, so they can share the memory.
            let made = self.make_copy(new, Some((staging.memory, staging.size)))?;
            if let NodeCalls::Staged { memory, .. } = &made
                && memory.0 != staging.memory
            {
                // Earlier launches may still use the old memory. It stays as long as the graph.
                plan.staging.push(memory.0);
            }
            match Self::restage(&self.parts.host_functions, step, staging, new, made) {
                Err(refusal) => return Ok(Err(refusal)),
                Ok(differs) => {
                    flat.work = work;
                    if differs {
                        plan.note_changed(index);
                    }
                    return Ok(Ok(()));
                }
            }
        }
        if let (
            Work::MemAlloc(new, _) | Work::MemFree(new),
            Work::MemAlloc(old, _) | Work::MemFree(old),
        ) = (&work, &flat.work)
            && new.address != old.address
        {
            return Ok(Err(Refusal::Parameters));
        }
        // Of a memset with rows only address and value can be changed.
        if let (Work::Memset(new), Work::Memset(old)) = (&work, &flat.work)
            && (new.height > 1 || old.height > 1)
            && new.extent() != old.extent()
        {
            return Ok(Err(Refusal::Parameters));
        }
        if let (Work::Kernel(new), Work::Kernel(old)) = (&work, &flat.work) {
            if new.context != old.context {
                return Ok(Err(Refusal::Function));
            }
            let differs = !new.is_like(old);
            let is_alike = new.parameters.len() == old.parameters.len();
            flat.work = work;
            if differs {
                plan.note_changed(index);
                match is_alike {
                    true => plan.replace_words(index),
                    false => plan.gather(),
                }
            }
            return Ok(Ok(()));
        }
        let made = match (&work, &flat.work) {
            (Work::Conditional(new), Work::Conditional(old)) if new.kind != old.kind => {
                return Ok(Err(Refusal::Parameters));
            }
            (Work::Conditional(new), _) => {
                let (call, bytes) = conditional_call(new, &step.bodies);
                NodeCalls::One(call, bytes)
            }
            _ => self.make(&work)?,
        };
        let mut differs = false;
        match made {
            NodeCalls::One(call, bytes) if step.function == 0 => {
                differs = step.become_call(call, bytes);
            }
            NodeCalls::Host(run) if step.function != 0 => {
                self.parts.host_functions.replace(step.function, run)
            }
            NodeCalls::One(..) | NodeCalls::Host(_) => return Ok(Err(Refusal::Parameters)),
            NodeCalls::Staged { memory, .. } => {
                self.parts.host.free(memory.0)?;
                return Ok(Err(Refusal::Parameters));
            }
        }
        let is_listed = matches!(
            work,
            Work::MemAlloc(..) | Work::MemFree(_) | Work::EventRecord(_)
        );
        flat.work = work;
        if differs {
            plan.note_changed(index);
        }
        if is_listed {
            plan.gather();
        }
        Ok(Ok(()))
    }

    /// Sends the nodes that changed since the last launch, in as few calls as possible: a
    /// program may change all nodes of a graph before each launch.
    pub(super) fn send_changes(&self, graph: GraphExecHandle, plan: &mut Plan) -> Result<()> {
        if plan.changed.is_empty() {
            return Ok(());
        }
        let changed = std::mem::take(&mut plan.changed);
        let (mut updates, mut update) = (Vec::new(), Vec::new());
        // Conditions first, because kernels refer to them.
        for of_conditions in [true, false] {
            for index in &changed {
                let (Some(flat), Some(step)) = (plan.flat.get(*index), plan.steps.get_mut(*index))
                else {
                    continue;
                };
                if matches!(flat.work, Work::Conditional(_)) != of_conditions {
                    continue;
                }
                step.is_changed = false;
                if let Work::Kernel(kernel) = &flat.work {
                    step.work.clear();
                    step.call = encode_launch(kernel, &mut step.work);
                }
                let call = GraphNodeUpdate {
                    graph,
                    node: step.number,
                    call: step.call,
                    work: Bytes(&step.work),
                };
                update.clear();
                let tail = call.encode(&mut update);
                update.extend_from_slice(tail);
                if !updates.is_empty() && updates.len() + update.len() > PART {
                    self.send_updates(&updates)?;
                    updates.clear();
                }
                if update.len() > PART {
                    self.parts.link.post(&call)?;
                    continue;
                }
                let bytes = Bytes(&update);
                let tail = bytes.encode(&mut updates);
                updates.extend_from_slice(tail);
            }
        }
        plan.changed = changed;
        plan.changed.clear();
        match updates.is_empty() {
            true => Ok(()),
            false => self.send_updates(&updates),
        }
    }

    fn send_updates(&self, updates: &[u8]) -> Result<()> {
        let updates = Bytes(updates);
        self.parts
            .link
            .post(&GraphNodeUpdates { updates })
            .map(drop)
    }

    /// Changes a copy that is staged in pinned memory, if the new copy has the same direction.
    /// Returns whether it must be sent.
    fn restage(
        functions: &HostFunctions,
        step: &mut Step,
        mut staging: Staging,
        new: &CopyWork,
        made: NodeCalls,
    ) -> Result<bool, Refusal> {
        let is_host = |end: &CopyNodeEnd| matches!(end, CopyNodeEnd::Host { .. });
        let (run, (call, bytes)): (HostRun, _) = match made {
            NodeCalls::Staged {
                before,
                copy,
                after,
                memory,
            } => {
                (staging.memory, staging.size) = memory;
                let run = if staging.fills { before } else { after };
                (run.ok_or(Refusal::Parameters)?, copy)
            }
            // The device reaches the program's memory now. The host function remains a node.
            NodeCalls::One(call, bytes)
                if is_host(&new.source) == staging.fills
                    && is_host(&new.destination) != staging.fills =>
            {
                (Arc::new(|| {}), (call, bytes))
            }
            NodeCalls::One(..) | NodeCalls::Host(_) => return Err(Refusal::Parameters),
        };
        let differs = step.become_call(call, bytes);
        step.staging = Some(staging);
        functions.replace(staging.function, run);
        Ok(differs)
    }

    /// The errors that a launch would return immediately.
    fn check_work(&self, work: &Work) -> Result<()> {
        match work {
            Work::Kernel(kernel) => self.parts.launches.check(&kernel.function, &kernel.shape),
            Work::Memset(fill) => fill_size(fill).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// cuGraphNodeSetEnabled.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node, or it is neither kernel nor
    /// memset nor copy; `NOT_SUPPORTED` for copies of memory that the device
    /// does not reach.
    pub(crate) fn enable(&self, graph: &DeviceGraph, name: NodeName, enabled: bool) -> Result<()> {
        let mut plan = graph.plan.lock();
        let index = plan.may_be_disabled(name)?;
        let step = plan.steps.get_mut(index).ok_or(Status::INVALID_VALUE)?;
        if step.staging.is_some() || step.function != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        if step.enabled != enabled {
            self.parts.link.post(&GraphNodeEnable {
                graph: graph.handle,
                node: step.number,
                enabled,
            })?;
            step.enabled = enabled;
        }
        Ok(())
    }

    /// User objects of a graph's new source replace those of its old one: of the graphs
    /// numbered from `first` on, or of all.
    pub(crate) fn replace_references(
        &self,
        graph: &DeviceGraph,
        first: Option<u32>,
        held: Vec<(u32, References)>,
    ) {
        let mut plan = graph.plan.lock();
        let replaced = plan.held.replace(first, held);
        self.parts.streams.retire(replaced, plan.held.launches());
    }
}
