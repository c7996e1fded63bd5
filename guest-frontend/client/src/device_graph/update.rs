//! Updates executable graphs.

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::handle::GraphExecHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{GraphNodeEnable, GraphNodeUpdate};

use super::Graphs;
use super::nodes::{NodeCalls, conditional_call, fill_size};
use super::plan::{DeviceGraph, Plan, Staging, Step};
use crate::copy::volume;
use crate::error::Result;
use crate::objects::graph::{Flat, NodeName, Work};
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
    /// A kernel is of another device.
    Function = 7,
}

impl Graphs {
    /// cuGraphExecKernelNodeSetParams and similar: from the next launch on, the node
    /// created from `name` does `work`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node or it is of another kind;
    /// `GRAPH_EXEC_UPDATE_FAILURE` if its parameters cannot be changed in this way.
    pub(crate) fn set(&self, graph: &DeviceGraph, name: NodeName, work: Work) -> Result<()> {
        let mut plan = graph.plan.lock();
        let index = *plan.by_name.get(&name).ok_or(Status::INVALID_VALUE)?;
        let old = plan.flat.get(index).ok_or(Status::INVALID_VALUE)?;
        if old.work.kind() != work.kind() {
            return Err(Status::INVALID_VALUE);
        }
        self.check_work(&work)?;
        let updated = self.change(graph.handle, &mut plan, index, work);
        plan.gather_words();
        updated?.map_err(|_| Status::GRAPH_EXEC_UPDATE_FAILURE)
    }

    /// Nodes with the same dependencies replace those of the graph, up to the first that
    /// does not fit, if any. The inner result is that node, and the reason.
    ///
    /// # Errors
    /// As [`Link::check`](crate::connection::Link::check).
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
            let updated = self.change(graph.handle, &mut plan, index, new.work)?;
            if let Err(refusal) = updated {
                outcome = Err((Some(new.name), refusal));
                break;
            }
        }
        plan.gather_words();
        Ok(outcome)
    }

    /// Updates the work of flat node `index` if it differs.
    fn change(
        &self,
        graph: GraphExecHandle,
        plan: &mut Plan,
        index: usize,
        work: Work,
    ) -> Result<Result<(), Refusal>> {
        let (Some(flat), Some(step)) = (plan.flat.get_mut(index), plan.steps.get_mut(index)) else {
            return Err(Status::INVALID_VALUE);
        };
        if let (Work::Copy(new), Work::Copy(old)) = (&work, &flat.work)
            && let Some(staging) = step.staging
        {
            if volume(new.extent)? != volume(old.extent)? {
                return Ok(Err(Refusal::Parameters));
            }
            // Launches of a graph run one after another, so they can share the memory.
            let made = self.make_copy(new, Some(staging.memory))?;
            let replaced = self.restage(graph, step, staging, made)?;
            if replaced.is_ok() {
                flat.work = work;
            }
            return Ok(replaced);
        }
        if let (Work::MemAlloc(new) | Work::MemFree(new), Work::MemAlloc(old) | Work::MemFree(old)) =
            (&work, &flat.work)
            && new.address != old.address
        {
            return Ok(Err(Refusal::Parameters));
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
        match made {
            NodeCalls::One(call, bytes) if step.function == 0 => {
                self.send_change(graph, step, call, bytes)?;
            }
            NodeCalls::Host(run) if step.function != 0 => {
                self.parts.host_functions.replace(step.function, run)
            }
            NodeCalls::One(..) | NodeCalls::Host(_) => return Ok(Err(Refusal::Parameters)),
            NodeCalls::Staged { memory, .. } => {
                self.parts.host.free(memory)?;
                return Ok(Err(Refusal::Parameters));
            }
        }
        flat.work = work;
        Ok(Ok(()))
    }

    /// Sends the new work of a step's node, if it changed.
    fn send_change(
        &self,
        graph: GraphExecHandle,
        step: &mut Step,
        call: u16,
        bytes: Vec<u8>,
    ) -> Result<()> {
        if call != step.call || bytes != step.work {
            self.parts.link.post(&GraphNodeUpdate {
                graph,
                node: step.number,
                call,
                work: Bytes(&bytes),
            })?;
            (step.call, step.work) = (call, bytes);
        }
        Ok(())
    }

    /// Changes a copy that is staged in pinned memory, if the new copy is staged in the
    /// same direction.
    fn restage(
        &self,
        graph: GraphExecHandle,
        step: &mut Step,
        staging: Staging,
        made: NodeCalls,
    ) -> Result<Result<(), Refusal>> {
        let NodeCalls::Staged {
            before,
            copy: (call, bytes),
            after,
            ..
        } = made
        else {
            return Ok(Err(Refusal::Parameters));
        };
        let Some(run) = (if staging.fills { before } else { after }) else {
            return Ok(Err(Refusal::Parameters));
        };
        self.send_change(graph, step, call, bytes)?;
        self.parts.host_functions.replace(staging.function, run);
        Ok(Ok(()))
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
