//! Graphs of the driver.

use core::ffi::c_void;
use std::ptr;

use paragpu_abi::{
    CUDA_CONDITIONAL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D, cudaGraphEdgeData,
    cudaGraphNodeParams, cudaHostNodeParams, cudaMemsetParams,
};
use paragpu_device::{Conditional, ConditionalKind, HostFunction, Launch, Result, Work};
use paragpu_protocol::edge::{Dependency, Edge};
use paragpu_protocol::status::Status;

use super::context::Context;
use super::copy::RectEnd;
use super::driver::check;
use super::launch::attributes_of;
use super::memory::Span;
use super::resources::{Resolved, Stream};
use super::stream_memory::Records;

/// The first compute capability, times ten, of which kernels may begin before the end of others.
const FIRST_EARLY: u32 = 90;

/// A CUgraph, its executable graph, and the data that its nodes point to.
#[derive(Debug)]
pub struct Graph {
    graph: usize,
    exec: usize,
    nodes: Vec<usize>,
    /// Disabled nodes.
    disabled: Vec<u32>,
    /// Boxes of [`HostFunction`]s, kept until the graph is destroyed: a launch in flight may
    /// still run one that was replaced.
    functions: Vec<usize>,
    /// The graphs of conditional nodes, by body.
    bodies: Vec<usize>,
    /// Values of conditional nodes: the node, the session's handle and the driver's handle.
    values: Vec<(u32, u64, u64)>,
}

/// Node parameters, which the driver copies.
enum Record {
    Empty,
    Kernel(CUDA_KERNEL_NODE_PARAMS_v2),
    Copy(CUDA_MEMCPY3D),
    Set(cudaMemsetParams),
    Words(Records),
    Host(cudaHostNodeParams),
    Mark(*mut c_void),
    Wait(*mut c_void),
    Conditional(cudaGraphNodeParams),
}

/// Runs a node's host function.
///
/// # Safety
/// `argument` is a [`HostFunction`] that its graph keeps.
unsafe extern "C" fn run(argument: *mut c_void) {
    // SAFETY: a box that the graph keeps until no launch of it is in flight.
    let function = unsafe { &*argument.cast::<HostFunction>() };
    function();
}

/// The parameter buffer of a kernel, in the driver's format.
struct Extra {
    parameters: Vec<u8>,
    size: usize,
    words: [*mut c_void; 5],
}

impl Extra {
    fn new() -> Box<Self> {
        Box::new(Self {
            parameters: Vec::new(),
            size: 0,
            words: [ptr::null_mut(); 5],
        })
    }

    /// Copies the parameters, and replaces the session's handles of conditional nodes' values
    /// by the driver's.
    fn fill(&mut self, parameters: &[u8], values: &[(u32, u64, u64)]) -> *mut *mut c_void {
        self.parameters = parameters.to_vec();
        if !values.is_empty() {
            for word in self.parameters.as_chunks_mut::<8>().0 {
                let told = u64::from_le_bytes(*word);
                if let Some((.., name)) = values.iter().find(|(_, known, _)| *known == told) {
                    *word = name.to_le_bytes();
                }
            }
        }
        self.size = self.parameters.len();
        self.words = [
            ptr::without_provenance_mut(1),
            self.parameters.as_mut_ptr().cast(),
            ptr::without_provenance_mut(2),
            ptr::from_mut(&mut self.size).cast(),
            ptr::null_mut(),
        ];
        self.words.as_mut_ptr()
    }
}

impl Context {
    /// The driver's parameters of a node. `extra` and the data that `work` borrows must
    /// outlive their use.
    fn record(
        &self,
        graph: &mut Graph,
        work: &Work<'_>,
        found: &Resolved<'_>,
        extra: &mut Extra,
    ) -> Result<Record> {
        Ok(match (work, found) {
            (Work::Launch(launch), Resolved::Function(function)) => {
                let record = CUDA_KERNEL_NODE_PARAMS_v2 {
                    func: function.raw(),
                    gridDimX: launch.grid[0],
                    gridDimY: launch.grid[1],
                    gridDimZ: launch.grid[2],
                    blockDimX: launch.block[0],
                    blockDimY: launch.block[1],
                    blockDimZ: launch.block[2],
                    sharedMemBytes: launch.dynamic_shared,
                    kernelParams: ptr::null_mut(),
                    extra: extra.fill(&launch.parameters, &graph.values),
                    kern: ptr::null_mut(),
                    ctx: ptr::null_mut(),
                };
                Record::Kernel(record)
            }
            (
                Work::Copy { .. },
                Resolved::Spans {
                    destination,
                    source,
                },
            ) => {
                let linear = |span: &Span| RectEnd::Linear {
                    first: *span,
                    pitch: span.size(),
                    rows: 1,
                };
                let extent = [source.size(), 1, 1];
                Record::Copy(self.rect_record(&linear(destination), &linear(source), extent)?)
            }
            (
                Work::CopyRect { extent, .. },
                Resolved::Ends {
                    destination,
                    source,
                },
            ) => Record::Copy(self.rect_record(destination, source, *extent)?),
            (Work::Memset(set), Resolved::Span(span)) => Record::Set(cudaMemsetParams {
                dst: span.address() as *mut c_void,
                pitch: set.pitch as usize,
                value: set.value,
                elementSize: u32::from(set.element),
                width: set.width as usize,
                height: set.height as usize,
            }),
            (Work::Memory(operations), Resolved::Words) => Record::Words(Records::new(operations)),
            (Work::Host(function), _) => {
                let kept = Box::into_raw(Box::new(HostFunction::clone(function)));
                graph.functions.push(kept as usize);
                Record::Host(cudaHostNodeParams {
                    r#fn: Some(run),
                    userData: kept.cast(),
                })
            }
            (Work::EventRecord(_), Resolved::Event(event)) => Record::Mark(event.raw()),
            (Work::EventWait(_), Resolved::Event(event)) => Record::Wait(event.raw()),
            (Work::Conditional(conditional), _) => {
                Record::Conditional(self.conditional_record(graph, conditional))
            }
            // The driver has no copies of zero bytes.
            (_, Resolved::Nothing) => Record::Empty,
            _ => return Err(Status::INVALID_VALUE.into()),
        })
    }

    /// Creates an empty graph, not instantiated.
    pub fn graph_begin(&self) -> Result<Graph> {
        let mut graph = ptr::null_mut();
        // SAFETY: an out-parameter.
        check(unsafe { (self.driver.cuGraphCreate)(&mut graph, 0) })?;
        Ok(Graph {
            graph: graph as usize,
            exec: 0,
            nodes: Vec::new(),
            disabled: Vec::new(),
            functions: Vec::new(),
            bodies: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Adds a node with dependencies, to the graph or to a body in it.
    pub fn graph_add(
        &self,
        graph: &mut Graph,
        body: Option<usize>,
        (work, found): (&Work<'_>, &Resolved<'_>),
        after: &[Dependency],
    ) -> Result<()> {
        // Before Hopper, kernels do not begin before the end of others.
        let begins_early = self.architecture() >= Some(FIRST_EARLY);
        let is_early = |edge| begins_early && edge != Edge::Full;
        let (mut before, mut early) = (Vec::with_capacity(after.len()), Vec::new());
        for dependency in after {
            let node = graph.node(dependency.node)?;
            match is_early(dependency.edge) {
                true => early.push((node, dependency.edge)),
                false => before.push(node),
            }
        }
        let mut extra = Extra::new();
        let mut record = self.record(graph, work, found, &mut extra)?;
        let d = &self.driver;
        let into = match body {
            None => graph.graph,
            Some(body) => *graph.bodies.get(body).ok_or(Status::INVALID_VALUE)?,
        };
        let (mut node, into) = (ptr::null_mut(), into as *mut c_void);
        let (list, count) = (before.as_ptr(), before.len());
        let context = self.raw as *mut c_void;
        // SAFETY: the graph, its nodes and the objects that the records refer to are alive;
        // the driver copies the records and the parameter buffer.
        check(unsafe {
            match &mut record {
                Record::Empty => (d.cuGraphAddEmptyNode)(&mut node, into, list, count),
                Record::Kernel(r) => (d.cuGraphAddKernelNode_v2)(&mut node, into, list, count, r),
                Record::Copy(r) => {
                    (d.cuGraphAddMemcpyNode)(&mut node, into, list, count, r, context)
                }
                Record::Set(r) => {
                    (d.cuGraphAddMemsetNode)(&mut node, into, list, count, r, context)
                }
                Record::Words(records) => {
                    let r = records.node(self.raw);
                    (d.cuGraphAddBatchMemOpNode)(&mut node, into, list, count, &r)
                }
                Record::Host(r) => (d.cuGraphAddHostNode)(&mut node, into, list, count, r),
                Record::Mark(e) => (d.cuGraphAddEventRecordNode)(&mut node, into, list, count, *e),
                Record::Wait(e) => (d.cuGraphAddEventWaitNode)(&mut node, into, list, count, *e),
                Record::Conditional(r) => (d.cuGraphAddNode)(&mut node, into, list, count, r),
            }
        })?;
        graph.nodes.push(node as usize);
        for (from, edge) in early {
            let (from_port, r#type) = edge.numbers();
            let edge = cudaGraphEdgeData {
                from_port,
                to_port: 0,
                r#type,
                reserved: [0; 5],
            };
            // SAFETY: the graph and both nodes are alive; one edge.
            check(unsafe { (d.cuGraphAddDependencies_v2)(into, &from, &node, &edge, 1) })?;
        }
        if let (Record::Conditional(made), Work::Conditional(conditional)) = (&record, work) {
            graph.take_bodies(made, conditional.bodies.len())?;
        }
        if let Work::Launch(launch) = work {
            self.kernel_attributes(node, launch)?;
        }
        Ok(())
    }

    /// Creates the value of conditional node `number` before the node itself, because
    /// earlier kernels refer to it.
    pub fn graph_condition(
        &self,
        graph: &mut Graph,
        number: u32,
        conditional: &Conditional,
    ) -> Result<()> {
        let mut name = 0;
        let (into, context) = (graph.graph as *mut c_void, self.raw as *mut c_void);
        let (value, flags) = (conditional.value, u32::from(conditional.assigns));
        // SAFETY: the graph is alive; an out-parameter.
        check(unsafe {
            (self.driver.cuGraphConditionalHandleCreate)(&mut name, into, context, value, flags)
        })?;
        graph.values.push((number, conditional.condition, name));
        Ok(())
    }

    fn conditional_record(&self, graph: &Graph, conditional: &Conditional) -> cudaGraphNodeParams {
        let known = graph.values.iter();
        let mut names = known.filter(|(_, known, _)| *known == conditional.condition);
        let inside = CUDA_CONDITIONAL_NODE_PARAMS {
            handle: names.next().map_or(0, |(.., name)| *name),
            r#type: match conditional.kind {
                ConditionalKind::If => 0,
                ConditionalKind::While => 1,
                ConditionalKind::Switch => 2,
            },
            size: u32::try_from(conditional.bodies.len()).unwrap_or(u32::MAX),
            phGraph_out: ptr::null_mut(),
            ctx: self.raw as *mut c_void,
        };
        let mut record = cudaGraphNodeParams {
            r#type: paragpu_abi::cudaGraphNodeTypeConditional,
            reserved0: [0; 3],
            reserved1: [0; 29],
            reserved2: 0,
        };
        let place = (&raw mut record.reserved1).cast::<CUDA_CONDITIONAL_NODE_PARAMS>();
        // SAFETY: the record has room for it, aligned alike.
        unsafe { place.write(inside) };
        record
    }

    /// Sets the launch attributes of a kernel node.
    fn kernel_attributes(&self, node: *mut c_void, launch: &Launch<'_>) -> Result<()> {
        for (id, value) in attributes_of(launch) {
            // SAFETY: the node is alive; the value has the attribute's field.
            check(unsafe { (self.driver.cuGraphKernelNodeSetAttribute)(node, id, &value) })?;
        }
        Ok(())
    }

    /// Instantiates the graph, or instantiates it again.
    pub fn graph_ready(&self, graph: &mut Graph) -> Result<()> {
        if !graph.values.is_empty() && graph.exec != 0 {
            // A graph with conditional nodes can have only one executable graph.
            let before = std::mem::take(&mut graph.exec);
            // SAFETY: it is not used again; its launches still run.
            check(unsafe { (self.driver.cuGraphExecDestroy)(before as *mut c_void) })?;
        }
        let mut exec = ptr::null_mut();
        // SAFETY: the graph is alive; an out-parameter.
        check(unsafe {
            (self.driver.cuGraphInstantiateWithFlags)(&mut exec, graph.graph as *mut c_void, 0)
        })?;
        let before = std::mem::replace(&mut graph.exec, exec as usize);
        if before != 0 {
            // SAFETY: it is not used again; its launches still run.
            check(unsafe { (self.driver.cuGraphExecDestroy)(before as *mut c_void) })?;
        }
        let disabled = graph.disabled.clone();
        disabled
            .into_iter()
            .try_for_each(|number| self.enable(graph, number, false))
    }

    /// Updates a node of the executable graph, from its next launch on. Returns false if the
    /// driver cannot: then the graph must be [instantiated](Self::graph_ready) again.
    pub fn graph_update(
        &self,
        graph: &mut Graph,
        number: u32,
        (work, found): (&Work<'_>, &Resolved<'_>),
    ) -> Result<bool> {
        let node = graph.node(number)?;
        if let Work::Conditional(conditional) = work {
            graph.rename(number, conditional.condition)?;
            return Ok(true);
        }
        let mut extra = Extra::new();
        let mut record = self.record(graph, work, found, &mut extra)?;
        let d = &self.driver;
        let exec = graph.exec as *mut c_void;
        let context = self.raw as *mut c_void;
        // SAFETY: as for `graph_add`.
        let changed = check(unsafe {
            match &mut record {
                Record::Empty | Record::Conditional(_) => 0,
                Record::Kernel(r) => (d.cuGraphExecKernelNodeSetParams_v2)(exec, node, r),
                Record::Copy(r) => (d.cuGraphExecMemcpyNodeSetParams)(exec, node, r, context),
                Record::Set(r) => (d.cuGraphExecMemsetNodeSetParams)(exec, node, r, context),
                Record::Words(records) => {
                    let r = records.node(self.raw);
                    (d.cuGraphExecBatchMemOpNodeSetParams)(exec, node, &r)
                }
                Record::Host(r) => (d.cuGraphExecHostNodeSetParams)(exec, node, r),
                Record::Mark(e) => (d.cuGraphExecEventRecordNodeSetEvent)(exec, node, *e),
                Record::Wait(e) => (d.cuGraphExecEventWaitNodeSetEvent)(exec, node, *e),
            }
        });
        match changed {
            Err(error) if error.status.is_sticky() => Err(error),
            changed => Ok(changed.is_ok()),
        }
    }

    /// Updates a node of the graph from which executable graphs are instantiated.
    pub fn graph_set(
        &self,
        graph: &mut Graph,
        number: u32,
        (work, found): (&Work<'_>, &Resolved<'_>),
    ) -> Result<()> {
        let node = graph.node(number)?;
        let mut extra = Extra::new();
        let mut record = self.record(graph, work, found, &mut extra)?;
        let d = &self.driver;
        // SAFETY: as for `graph_add`.
        check(unsafe {
            match &mut record {
                Record::Empty | Record::Conditional(_) => 0,
                Record::Kernel(r) => (d.cuGraphKernelNodeSetParams_v2)(node, r),
                Record::Copy(r) => (d.cuGraphMemcpyNodeSetParams)(node, r),
                Record::Set(r) => (d.cuGraphMemsetNodeSetParams)(node, r),
                Record::Words(records) => {
                    (d.cuGraphBatchMemOpNodeSetParams)(node, &records.node(self.raw))
                }
                Record::Host(r) => (d.cuGraphHostNodeSetParams)(node, r),
                Record::Mark(e) => (d.cuGraphEventRecordNodeSetEvent)(node, *e),
                Record::Wait(e) => (d.cuGraphEventWaitNodeSetEvent)(node, *e),
            }
        })?;
        match work {
            Work::Launch(launch) => self.kernel_attributes(node, launch),
            _ => Ok(()),
        }
    }

    /// Enables or disables a node.
    pub fn graph_enable(&self, graph: &mut Graph, number: u32, enabled: bool) -> Result<()> {
        self.enable(graph, number, enabled)?;
        graph.disabled.retain(|other| *other != number);
        if !enabled {
            graph.disabled.push(number);
        }
        Ok(())
    }

    fn enable(&self, graph: &Graph, number: u32, enabled: bool) -> Result<()> {
        let node = graph.node(number)?;
        // SAFETY: the executable graph and the node are alive.
        check(unsafe {
            (self.driver.cuGraphNodeSetEnabled)(graph.exec as *mut c_void, node, u32::from(enabled))
        })
    }

    /// cuGraphLaunch.
    pub fn graph_launch(&self, graph: &Graph, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive.
        check(unsafe { (self.driver.cuGraphLaunch)(graph.exec as *mut c_void, stream.raw()) })
    }

    /// Destroys a graph that has no launch in flight.
    pub fn graph_destroy(&self, graph: Graph) -> Result<()> {
        let mut outcome = Ok(());
        if graph.exec != 0 {
            // SAFETY: taken by value: not used again.
            outcome = check(unsafe { (self.driver.cuGraphExecDestroy)(graph.exec as *mut c_void) });
        }
        // SAFETY: as above.
        let destroyed = check(unsafe { (self.driver.cuGraphDestroy)(graph.graph as *mut c_void) });
        for function in &graph.functions {
            // SAFETY: it was created in `record`, and no launch can run it any more.
            drop(unsafe { Box::from_raw(*function as *mut HostFunction) });
        }
        outcome.and(destroyed)
    }
}

impl Graph {
    /// Takes the body graphs that the driver created for a conditional node.
    fn take_bodies(&mut self, made: &cudaGraphNodeParams, count: usize) -> Result<()> {
        let place = (&raw const made.reserved1).cast::<CUDA_CONDITIONAL_NODE_PARAMS>();
        // SAFETY: the record is of this type; the driver has filled it.
        let first = unsafe { (*place).phGraph_out };
        if first.is_null() {
            return Err(Status::UNKNOWN.into());
        }
        // SAFETY: the driver keeps a list of this length with the node.
        let bodies = unsafe { std::slice::from_raw_parts(first, count) };
        self.bodies.extend(bodies.iter().map(|body| *body as usize));
        Ok(())
    }

    /// Changes the session's handle of a conditional node's value.
    fn rename(&mut self, number: u32, condition: u64) -> Result<()> {
        let mut values = self.values.iter_mut();
        let value = values.find(|(node, ..)| *node == number);
        value.ok_or(Status::INVALID_VALUE)?.1 = condition;
        Ok(())
    }

    fn node(&self, number: u32) -> Result<*mut c_void> {
        match self.nodes.get(number as usize) {
            Some(node) => Ok(*node as *mut c_void),
            None => Err(Status::INVALID_VALUE.into()),
        }
    }
}
