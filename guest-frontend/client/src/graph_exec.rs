//! Executable graphs (CUDA Driver API, Graph Management).
//!
//! Instantiating sends the nodes, each as the call whose effect it has; a
//! launch is then one posted call. A copy from or to memory that the device
//! does not reach becomes a copy from or to pinned memory and a host function
//! that moves the bytes, so that they are read and written when the graph gets
//! there, at each launch.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::{Bytes, Field, encode_all};
use paragpu_protocol::frame::MAX_PAYLOAD;
use paragpu_protocol::handle::{GraphExecHandle, StreamHandle};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    Copy, CopyRect, EventRecord, GraphBegin, GraphDestroy, GraphInstantiate, GraphLaunch,
    GraphNodeEnable, GraphNodeUpdate, GraphNodes, HostFuncLaunch, Launch, Memset, StreamWaitEvent,
};
use paragpu_protocol::types::{ArrayEnd, CopyEnd, GraphNode, LinearEnd};

use crate::copy_rect::{self, host_copy};
use crate::error::Result;
use crate::event::Event;
use crate::graph::{CopyWork, Fill, Flat, Graph, HostRun, Kernel, NodeName, Place, Work};
use crate::host::Reach;
use crate::session::Session;
use crate::slots::lock;
use crate::stream::Stream;

/// Most bytes of nodes in one call.
const PART: usize = MAX_PAYLOAD - 64;
/// Most dependencies of a node on the wire; more are gathered by empty nodes.
const MOST_AFTER: usize = 4096;
/// CU_MEMHOSTALLOC_DEVICEMAP.
const DEVICEMAP: u32 = 2;

/// Why an executable graph was not updated: CUgraphExecUpdateResult.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The graphs differ in nodes or dependencies.
    Topology = 2,
    /// A node is of another kind.
    Kind = 3,
    /// A node's parameters cannot be changed in this way.
    Parameters = 5,
}

/// An executable graph.
#[derive(Debug)]
pub struct GraphExec {
    handle: GraphExecHandle,
    /// CUgraphInstantiate_flags.
    pub flags: u64,
    plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    flat: Vec<Flat>,
    /// Of each flat node.
    steps: Vec<Step>,
    by_name: HashMap<NodeName, usize>,
    /// What kernels and copies name, as before a launch: all parameters.
    words: Vec<u8>,
    /// Host functions.
    functions: Vec<u64>,
    /// Pinned memory for copies.
    staging: Vec<u64>,
    ended: bool,
}

/// How a flat node is sent.
#[derive(Debug)]
struct Step {
    /// Number of the node that does its work.
    number: u32,
    call: u16,
    work: Vec<u8>,
    /// Its host function; 0 for none.
    function: u64,
    /// Its bytes go through pinned memory.
    staged: bool,
    enabled: bool,
}

/// A node on the wire.
struct Wired {
    call: u16,
    work: Vec<u8>,
    after: Vec<u32>,
}

/// What becomes of a node's work.
enum Made {
    One(u16, Vec<u8>),
    Host(HostRun),
    /// A host function, then a copy, then another one.
    Staged {
        before: Option<HostRun>,
        copy: (u16, Vec<u8>),
        after: Option<HostRun>,
        memory: u64,
    },
}

fn call<'a, C: WireCall<'a>>(call: &C) -> (u16, Vec<u8>) {
    (C::INFO.number, encode_all(call))
}

fn launch_call(kernel: &Kernel) -> (u16, Vec<u8>) {
    call(&Launch {
        function: kernel.function.handle,
        stream: StreamHandle::LEGACY,
        grid: kernel.shape.grid,
        block: kernel.shape.block,
        dynamic_shared: kernel.shape.dynamic_shared,
        flags: u32::from(kernel.shape.cooperative),
        cluster: kernel.shape.cluster,
        parameters: Bytes(&kernel.parameters),
    })
}

/// A copy between ends that the device reaches.
fn copy_call(destination: CopyEnd, source: CopyEnd, extent: [u64; 3]) -> (u16, Vec<u8>) {
    if let (CopyEnd::Linear(to), CopyEnd::Linear(from), [size, 1, 1]) =
        (&destination, &source, extent)
    {
        return call(&Copy {
            destination: to.address,
            source: from.address,
            size,
            stream: StreamHandle::LEGACY,
            token: 0,
        });
    }
    call(&CopyRect {
        destination,
        source,
        extent,
        stream: StreamHandle::LEGACY,
        token: 0,
    })
}

fn packed(address: u64, [width, height, _]: [u64; 3]) -> LinearEnd {
    LinearEnd {
        address,
        pitch: width,
        rows: height,
    }
}

impl Session {
    /// The end as the device reaches it; `None` for memory that it does not.
    fn place_end(&self, place: &Place, extent: [u64; 3]) -> Result<Option<CopyEnd>> {
        let (address, pitch, rows, is_host) = match *place {
            Place::Device {
                address,
                pitch,
                rows,
            } => (address, pitch, rows, false),
            Place::Host {
                address,
                pitch,
                rows,
            } => (address, pitch, rows, true),
            Place::Array {
                ref array, origin, ..
            } => {
                return Ok(Some(CopyEnd::Array(ArrayEnd {
                    array: array.array.handle,
                    level: array.level,
                    origin,
                })));
            }
        };
        let size = copy_rect::span(extent, pitch, rows)?;
        let address = match self.host.reach(address, size) {
            Reach::Direct(address) => {
                self.host.name();
                address
            }
            Reach::Shadow(region) => {
                region.show();
                region.to_device(address)
            }
            Reach::Pageable if is_host => return Ok(None),
            Reach::Pageable => {
                self.check_device(address, size)?;
                address
            }
        };
        Ok(Some(CopyEnd::Linear(LinearEnd {
            address,
            pitch,
            rows,
        })))
    }

    fn make_copy(&self, copy: &CopyWork) -> Result<Made> {
        let extent = copy.extent;
        let destination = self.place_end(&copy.destination, extent)?;
        let source = self.place_end(&copy.source, extent)?;
        if let (Some(destination), Some(source)) = (destination, source) {
            let (number, work) = copy_call(destination, source, extent);
            return Ok(Made::One(number, work));
        }
        if let (Place::Host { .. }, Place::Host { .. }) = (&copy.destination, &copy.source) {
            let (to, from) = (copy.destination.clone(), copy.source.clone());
            return Ok(Made::Host(Arc::new(move || host_copy(&to, &from, extent))));
        }
        let size = extent
            .iter()
            .try_fold(1_u64, |product, n| product.checked_mul(*n))
            .ok_or(Status::INVALID_VALUE)?;
        let memory = self.host_allocate(size, DEVICEMAP)?;
        let between = CopyEnd::Linear(packed(memory, extent));
        let [width, height, _] = extent;
        let pinned = Place::Host {
            address: memory,
            pitch: width,
            rows: height,
        };
        Ok(match (destination, source) {
            (Some(destination), _) => {
                let from = copy.source.clone();
                Made::Staged {
                    before: Some(Arc::new(move || host_copy(&pinned, &from, extent))),
                    copy: copy_call(destination, between, extent),
                    after: None,
                    memory,
                }
            }
            (_, Some(source)) => {
                let to = copy.destination.clone();
                Made::Staged {
                    before: None,
                    copy: copy_call(between, source, extent),
                    after: Some(Arc::new(move || host_copy(&to, &pinned, extent))),
                    memory,
                }
            }
            // One side is an array or device memory, which is reached.
            (None, None) => return Err(Status::UNKNOWN),
        })
    }

    fn make_fill(&self, fill: &Fill) -> Result<(u16, Vec<u8>)> {
        let size = fill_size(fill)?;
        let destination = match self.host.reach(fill.destination, size) {
            Reach::Direct(address) => {
                self.host.name();
                address
            }
            Reach::Shadow(region) => {
                region.show();
                region.to_device(fill.destination)
            }
            Reach::Pageable => {
                self.check_device(fill.destination, size)?;
                fill.destination
            }
        };
        Ok(call(&Memset {
            destination,
            pitch: fill.pitch,
            value: fill.value,
            element: fill.element,
            width: fill.width,
            height: fill.height,
            stream: StreamHandle::LEGACY,
        }))
    }

    fn make(&self, work: &Work) -> Result<Made> {
        if work
            .ordinal()
            .is_some_and(|ordinal| ordinal != self.ordinal)
        {
            return Err(Status::NOT_SUPPORTED);
        }
        let (number, work) = match work {
            Work::Empty | Work::Child(_) => (0, Vec::new()),
            Work::Kernel(kernel) => launch_call(kernel),
            Work::Copy(copy) => return self.make_copy(copy),
            Work::Memset(fill) => self.make_fill(fill)?,
            Work::Host(host) => return Ok(Made::Host(Arc::clone(&host.run))),
            Work::EventRecord(marked) => call(&EventRecord {
                event: marked.event.handle,
                stream: StreamHandle::LEGACY,
            }),
            Work::EventWait(marked) => call(&StreamWaitEvent {
                stream: StreamHandle::LEGACY,
                event: marked.event.handle,
            }),
        };
        Ok(Made::One(number, work))
    }

    /// cuGraphInstantiate. The graph may be changed or destroyed afterwards.
    ///
    /// # Errors
    /// `INVALID_VALUE` for dependencies in a circle or work that cannot be;
    /// `NOT_SUPPORTED` for nodes of several devices; `OUT_OF_MEMORY`.
    pub fn graph_instantiate(&self, graph: &Graph, flags: u64) -> Result<Arc<GraphExec>> {
        self.check()?;
        let exec = Arc::new(GraphExec {
            handle: GraphExecHandle(self.new_handle()),
            flags,
            plan: Mutex::new(Plan {
                flat: graph.flatten()?,
                ..Plan::default()
            }),
        });
        let mut plan = lock(&exec.plan);
        let built = self
            .wire(&mut plan)
            .and_then(|nodes| self.send_graph(exec.handle, &nodes));
        if let Err(status) = built {
            self.release(&mut plan);
            return Err(status);
        }
        plan.gather_words();
        drop(plan);
        Ok(exec)
    }

    /// Makes of each flat node what is sent.
    fn wire(&self, plan: &mut Plan) -> Result<Vec<Wired>> {
        let mut nodes: Vec<Wired> = Vec::with_capacity(plan.flat.len());
        // Where each flat node ends.
        let mut ends: Vec<u32> = Vec::with_capacity(plan.flat.len());
        let mut put = |call, work, after: Vec<u32>| -> Result<u32> {
            let mut after = after;
            while after.len() > MOST_AFTER {
                let rest = after.split_off(after.len() - MOST_AFTER);
                nodes.push(Wired {
                    call: 0,
                    work: Vec::new(),
                    after: rest,
                });
                after.push(last(&nodes)?);
            }
            nodes.push(Wired { call, work, after });
            last(&nodes)
        };
        for index in 0..plan.flat.len() {
            let Some(flat) = plan.flat.get(index) else {
                break;
            };
            let mut after = Vec::with_capacity(flat.after.len());
            for before in &flat.after {
                after.push(*ends.get(*before as usize).ok_or(Status::UNKNOWN)?);
            }
            let name = flat.name;
            let mut step = Step {
                number: 0,
                call: 0,
                work: Vec::new(),
                function: 0,
                staged: false,
                enabled: true,
            };
            let end;
            match self.make(&flat.work)? {
                Made::One(call, work) => {
                    step.number = put(call, work.clone(), after)?;
                    (step.call, step.work) = (call, work);
                    end = step.number;
                }
                Made::Host(run) => {
                    let (call, work) = self.host_node(plan, run);
                    step.function = plan.functions.last().copied().unwrap_or(0);
                    step.number = put(call, work, after)?;
                    end = step.number;
                }
                Made::Staged {
                    before,
                    copy: (call, work),
                    after: then,
                    memory,
                } => {
                    plan.staging.push(memory);
                    step.staged = true;
                    if let Some(run) = before {
                        let (call, work) = self.host_node(plan, run);
                        after = vec![put(call, work, after)?];
                    }
                    step.number = put(call, work.clone(), after)?;
                    (step.call, step.work) = (call, work);
                    end = match then {
                        Some(run) => {
                            let (call, work) = self.host_node(plan, run);
                            put(call, work, vec![step.number])?
                        }
                        None => step.number,
                    };
                }
            }
            ends.push(end);
            plan.by_name.insert(name, index);
            plan.steps.push(step);
        }
        Ok(nodes)
    }

    fn host_node(&self, plan: &mut Plan, run: HostRun) -> (u16, Vec<u8>) {
        let id = self.callbacks.keep(run);
        plan.functions.push(id);
        call(&HostFuncLaunch {
            stream: StreamHandle::LEGACY,
            id,
        })
    }

    fn send_graph(&self, graph: GraphExecHandle, nodes: &[Wired]) -> Result<()> {
        self.link.post(&GraphBegin { graph })?;
        let mut part = Vec::new();
        let (mut first, mut next) = (0, 0);
        for node in nodes {
            let before: Vec<u8> = node.after.iter().flat_map(|n| n.to_le_bytes()).collect();
            let record = GraphNode {
                call: node.call,
                after: Bytes(&before),
                work: Bytes(&node.work),
            };
            let start = part.len();
            let tail = record.encode(&mut part);
            part.extend_from_slice(tail);
            if part.len() > PART && start > 0 {
                let rest = part.split_off(start);
                self.link.post(&GraphNodes {
                    graph,
                    first,
                    nodes: Bytes(&part),
                })?;
                (part, first) = (rest, next);
            }
            next += 1;
        }
        self.link.post(&GraphNodes {
            graph,
            first,
            nodes: Bytes(&part),
        })?;
        let instantiated = self.link.call(&GraphInstantiate { graph, nodes: next });
        if instantiated.is_err() {
            let _ = self.link.post(&GraphDestroy { graph });
        }
        instantiated
    }

    /// Gives back what a graph holds besides its nodes.
    fn release(&self, plan: &mut Plan) {
        plan.ended = true;
        for id in plan.functions.drain(..) {
            self.callbacks.end_kept(id);
        }
        for memory in plan.staging.drain(..) {
            // A session that is over has nothing to be given back to.
            let _ = self.host_free(memory);
        }
    }

    /// cuGraphLaunch; into a stream that captures the graph goes as a node.
    ///
    /// # Errors
    /// As [`crate::link::Link::check`].
    pub fn graph_launch(&self, exec: &GraphExec, stream: &Arc<Stream>) -> Result<()> {
        let plan = lock(&exec.plan);
        if plan.ended {
            return Err(Status::INVALID_HANDLE);
        }
        if stream.is_capturing() {
            return stream.note(Work::Child(Graph::of_flat(&plan.flat)));
        }
        let visible = self.before_launch(&plan.words)?;
        let launch = GraphLaunch {
            graph: exec.handle,
            stream: stream.handle,
        };
        let post = || {
            let position = self.post_work(stream, &launch)?;
            for event in plan.recorded() {
                event.recorded_inside(position, stream);
            }
            self.after_launch(visible, stream, position);
            Ok(position)
        };
        if plan.functions.is_empty() {
            return post().map(|_| ());
        }
        // The functions run only when all of this is noted.
        self.callbacks
            .launch_kept(&plan.functions, &stream.progress, post)?;
        self.link.flush()
    }

    /// cuGraphExecDestroy: launches made before still run.
    ///
    /// # Errors
    /// As [`crate::link::Link::check`].
    pub fn graph_exec_destroy(&self, exec: &GraphExec) -> Result<()> {
        let mut plan = lock(&exec.plan);
        if plan.ended {
            return Err(Status::INVALID_HANDLE);
        }
        self.link.post(&GraphDestroy { graph: exec.handle })?;
        self.release(&mut plan);
        Ok(())
    }

    /// cuGraphExecKernelNodeSetParams and its kin: from the next launch on the
    /// node that was made of `name` does `work`.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such node or it is of another kind;
    /// `GRAPH_EXEC_UPDATE_FAILURE` where its parameters cannot be changed so.
    pub fn graph_exec_set(&self, exec: &GraphExec, name: NodeName, work: Work) -> Result<()> {
        let mut plan = lock(&exec.plan);
        let index = *plan.by_name.get(&name).ok_or(Status::INVALID_VALUE)?;
        let had = plan.flat.get(index).ok_or(Status::INVALID_VALUE)?;
        if had.work.kind() != work.kind() {
            return Err(Status::INVALID_VALUE);
        }
        self.check_work(&work)?;
        let updated = self.update(exec.handle, &mut plan, index, work);
        plan.gather_words();
        updated?.map_err(|_| Status::GRAPH_EXEC_UPDATE_FAILURE)
    }

    /// cuGraphExecChildGraphNodeSetParams, cuGraphExecUpdate: all nodes of
    /// `graph` replace those of the executable graph, or with `child` those
    /// that a node of that name was made of.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such node; inside, the first node of
    /// `graph` that does not fit, if it is one, and why.
    pub fn graph_exec_update(
        &self,
        exec: &GraphExec,
        graph: &Graph,
    ) -> Result<Result<(), (Option<NodeName>, Refusal)>> {
        let flat = graph.flatten()?;
        let mut plan = lock(&exec.plan);
        if plan.ended {
            return Err(Status::INVALID_HANDLE);
        }
        if flat.len() != plan.flat.len() {
            return Ok(Err((None, Refusal::Topology)));
        }
        for (new, had) in flat.iter().zip(&plan.flat) {
            if new.work.kind() != had.work.kind() {
                return Ok(Err((Some(new.name), Refusal::Kind)));
            }
            if new.after != had.after {
                return Ok(Err((Some(new.name), Refusal::Topology)));
            }
        }
        let mut outcome = Ok(());
        for (index, new) in flat.into_iter().enumerate() {
            let updated = self.update(exec.handle, &mut plan, index, new.work)?;
            if let Err(refusal) = updated {
                outcome = Err((Some(new.name), refusal));
                break;
            }
        }
        plan.gather_words();
        Ok(outcome)
    }

    /// Changes what flat node `index` does, if it changes.
    fn update(
        &self,
        graph: GraphExecHandle,
        plan: &mut Plan,
        index: usize,
        work: Work,
    ) -> Result<Result<(), Refusal>> {
        let (Some(flat), Some(step)) = (plan.flat.get_mut(index), plan.steps.get_mut(index)) else {
            return Err(Status::INVALID_VALUE);
        };
        if let (Work::Copy(new), Work::Copy(had)) = (&work, &flat.work)
            && (step.staged || step.function != 0)
        {
            // The bytes go through host functions that know where.
            return Ok(if same_copy(new, had) {
                Ok(())
            } else {
                Err(Refusal::Parameters)
            });
        }
        match self.make(&work)? {
            Made::One(call, bytes) => {
                if call != step.call || bytes != step.work {
                    self.link.post(&GraphNodeUpdate {
                        graph,
                        node: step.number,
                        call,
                        work: Bytes(&bytes),
                    })?;
                    (step.call, step.work) = (call, bytes);
                }
            }
            Made::Host(run) if step.function != 0 => self.callbacks.replace(step.function, run),
            Made::Host(_) => return Ok(Err(Refusal::Parameters)),
            Made::Staged { memory, .. } => {
                self.host_free(memory)?;
                return Ok(Err(Refusal::Parameters));
            }
        }
        flat.work = work;
        Ok(Ok(()))
    }

    /// What launching would refuse at once.
    fn check_work(&self, work: &Work) -> Result<()> {
        match work {
            Work::Kernel(kernel) => self.check_launch(&kernel.function, &kernel.shape),
            Work::Memset(fill) => fill_size(fill).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// cuGraphNodeSetEnabled.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such node, or it is neither kernel nor
    /// memset nor copy; `NOT_SUPPORTED` for copies of memory that the device
    /// does not reach.
    pub fn graph_exec_enable(&self, exec: &GraphExec, name: NodeName, enabled: bool) -> Result<()> {
        let mut plan = lock(&exec.plan);
        let index = plan.may_be_disabled(name)?;
        let step = plan.steps.get_mut(index).ok_or(Status::INVALID_VALUE)?;
        if step.staged || step.function != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        if step.enabled != enabled {
            self.link.post(&GraphNodeEnable {
                graph: exec.handle,
                node: step.number,
                enabled,
            })?;
            step.enabled = enabled;
        }
        Ok(())
    }
}

fn last(nodes: &[Wired]) -> Result<u32> {
    u32::try_from(nodes.len() - 1).map_err(|_| Status::OUT_OF_MEMORY)
}

/// Bytes from the first to the last byte of a memset.
pub(crate) fn fill_size(fill: &Fill) -> Result<u64> {
    let row = fill
        .width
        .checked_mul(fill.element.into())
        .ok_or(Status::INVALID_VALUE)?;
    if fill.width == 0
        || fill.height == 0
        || !matches!(fill.element, 1 | 2 | 4)
        || !fill.destination.is_multiple_of(fill.element.into())
        || (fill.height > 1
            && (fill.pitch < row || !fill.pitch.is_multiple_of(fill.element.into())))
    {
        return Err(Status::INVALID_VALUE);
    }
    (fill.height - 1)
        .checked_mul(fill.pitch)
        .and_then(|above| above.checked_add(row))
        .ok_or(Status::INVALID_VALUE)
}

fn same_copy(one: &CopyWork, other: &CopyWork) -> bool {
    let key = |place: &Place| match place {
        Place::Device {
            address,
            pitch,
            rows,
        } => (0, *address, [*pitch, *rows, 0], 0),
        Place::Host {
            address,
            pitch,
            rows,
        } => (1, *address, [*pitch, *rows, 0], 0),
        Place::Array { array, origin, .. } => (2, array.array.handle.0, *origin, array.level),
    };
    one.extent == other.extent
        && key(&one.destination) == key(&other.destination)
        && key(&one.source) == key(&other.source)
}

impl Plan {
    /// Events that a launch records.
    fn recorded(&self) -> impl Iterator<Item = &Arc<Event>> {
        self.flat.iter().filter_map(|flat| match &flat.work {
            Work::EventRecord(marked) => Some(&marked.event),
            _ => None,
        })
    }

    /// The words that may be addresses, each in eight bytes.
    fn gather_words(&mut self) {
        self.words.clear();
        for (flat, step) in self.flat.iter().zip(&self.steps) {
            match &flat.work {
                Work::Kernel(kernel) => {
                    self.words.extend_from_slice(&kernel.parameters);
                    let whole = self.words.len().next_multiple_of(8);
                    self.words.resize(whole, 0);
                }
                // Shadows that copies and memsets name were shown.
                _ => debug_assert!(step.call != Launch::INFO.number),
            }
        }
    }

    fn may_be_disabled(&self, name: NodeName) -> Result<usize> {
        let index = *self.by_name.get(&name).ok_or(Status::INVALID_VALUE)?;
        match self.flat.get(index).map(|flat| &flat.work) {
            Some(Work::Kernel(_) | Work::Copy(_) | Work::Memset(_)) => Ok(index),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}

impl GraphExec {
    /// cuGraphNodeGetEnabled.
    ///
    /// # Errors
    /// As [`Session::graph_exec_enable`].
    pub fn is_enabled(&self, name: NodeName) -> Result<bool> {
        let plan = lock(&self.plan);
        let index = plan.may_be_disabled(name)?;
        Ok(plan.steps.get(index).is_none_or(|step| step.enabled))
    }

    /// What the node that was made of `name` does now.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such node.
    pub fn work(&self, name: NodeName) -> Result<Work> {
        let plan = lock(&self.plan);
        let index = plan.by_name.get(&name).ok_or(Status::INVALID_VALUE)?;
        let flat = plan.flat.get(*index).ok_or(Status::INVALID_VALUE)?;
        Ok(flat.work.clone())
    }

    /// Replaces what the nodes of a graph in a node do: the new graph's nodes
    /// stand for the old one's in order.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no such node, `GRAPH_EXEC_UPDATE_FAILURE`
    /// where the graphs differ in more than parameters.
    pub fn set_child(&self, session: &Session, had: &Graph, new: &Graph) -> Result<()> {
        let (before, after) = (had.flatten()?, new.flatten()?);
        let like = |(one, other): (&Flat, &Flat)| {
            one.work.kind() == other.work.kind() && one.after == other.after
        };
        if before.len() != after.len() || !before.iter().zip(&after).all(like) {
            return Err(Status::GRAPH_EXEC_UPDATE_FAILURE);
        }
        for (old, new) in before.into_iter().zip(after) {
            if !matches!(new.work, Work::Empty) {
                session.graph_exec_set(self, old.name, new.work)?;
            }
        }
        Ok(())
    }
}

impl Event {
    /// A graph that was launched at `position` of `stream` records the event.
    fn recorded_inside(&self, position: u64, stream: &Arc<Stream>) {
        let mut kept = lock(&self.stream);
        self.point.clear();
        self.inside.store(true, Ordering::Release);
        self.recorded.store(position, Ordering::Release);
        *kept = Some(Arc::clone(stream));
    }
}
