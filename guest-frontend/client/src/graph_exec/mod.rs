//! Executable graphs, of one device or several (CUDA Driver API, Graph Management).
//!
//! The nodes of each device are divided into segments ([`partition`]), each of which is a
//! graph that the device executes. A launch launches the segments in order, in streams of
//! their devices, and orders these streams by events, as a program could do it. So nothing
//! else knows of graphs that span devices: a launch that waits for another device does it
//! as any stream does, an update changes the segments' nodes, and each session moves its
//! own segments, streams and events. Nearly all graphs are one segment, launched in the
//! program's stream.

mod partition;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use paragpu_abi::{
    CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING,
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
};
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use crate::Session;
use crate::device_graph::{DeviceGraph, check_memory};
pub use crate::device_graph::{KernelChange, Refusal};
use crate::error::Result;
use crate::event::Event;
use crate::objects::edge::renumbered;
use crate::objects::flat_graph::Flat;
use crate::objects::graph::{Graph, NodeName, Work};
use crate::objects::stream::Stream;
use partition::{Segment, partition};

/// An executable graph.
#[derive(Debug)]
pub struct GraphExec {
    /// CUgraphInstantiate_flags.
    pub flags: u64,
    /// In an order in which they can be executed one after another.
    parts: Vec<Part>,
    /// The nodes of a graph of several segments; their current work is in the segments.
    whole: Vec<Flat>,
    /// Locked during a launch that spans streams.
    spans: Mutex<Spans>,
    /// Of a graph that can have only one ([`Graph::instance`]), until this one is destroyed.
    instance: Mutex<Option<Arc<()>>>,
}

/// A segment.
#[derive(Debug)]
struct Part {
    session: &'static Session,
    segment: Segment,
    graph: DeviceGraph,
    /// Segments in other streams wait for it.
    is_awaited: bool,
    /// Its end in the last launch.
    end: OnceLock<Arc<Event>>,
}

impl Part {
    fn end(&self) -> Result<&Event> {
        if let Some(end) = self.end.get() {
            return Ok(end);
        }
        let made = self.session.events().create(CU_EVENT_DISABLE_TIMING)?;
        Ok(self.end.get_or_init(|| made))
    }
}

/// The streams and events of launches of several streams, made when they are first needed.
#[derive(Debug, Default)]
struct Spans {
    /// By their number ([`Segment::lane`]).
    lanes: HashMap<usize, (&'static Session, Arc<Stream>)>,
    /// Where launches into a device's streams begin and end, by its ordinal.
    marks: HashMap<u32, (&'static Session, Arc<Event>)>,
    /// Where the last launch ended.
    last: Option<(&'static Session, StreamHandle)>,
}

impl Spans {
    fn lane(&mut self, lane: usize, session: &'static Session) -> Result<Arc<Stream>> {
        if let Some((_, stream)) = self.lanes.get(&lane) {
            return Ok(Arc::clone(stream));
        }
        let stream = session.streams().create(CU_STREAM_NON_BLOCKING, 0)?;
        self.lanes.insert(lane, (session, Arc::clone(&stream)));
        Ok(stream)
    }

    fn mark(&mut self, session: &'static Session) -> Result<Arc<Event>> {
        if let Some((_, mark)) = self.marks.get(&session.ordinal()) {
            return Ok(Arc::clone(mark));
        }
        let mark = session.events().create(CU_EVENT_DISABLE_TIMING)?;
        let kept = (session, Arc::clone(&mark));
        self.marks.insert(session.ordinal(), kept);
        Ok(mark)
    }
}

/// The nodes of a segment, without their dependencies on others.
fn select(flat: &[Flat], nodes: &[usize]) -> Vec<Flat> {
    let places: HashMap<u32, u32> = nodes
        .iter()
        .zip(0..)
        .filter_map(|(node, place)| Some((u32::try_from(*node).ok()?, place)))
        .collect();
    let chosen = nodes.iter().filter_map(|node| flat.get(*node));
    chosen
        .map(|node| Flat {
            after: renumbered(&node.after, &places),
            ..node.clone()
        })
        .collect()
}

impl GraphExec {
    /// cuGraphInstantiate. The graph may be changed or destroyed afterwards. Nodes that need
    /// no particular device go to `home`; `session` opens those of others.
    ///
    /// # Errors
    /// `INVALID_VALUE` for cyclic dependencies or impossible work; `NOT_SUPPORTED` for a
    /// conditional node with nodes of several devices, and for a second instance of a graph
    /// whose nodes allocate or free memory; `OUT_OF_MEMORY`.
    pub fn instantiate(
        graph: &Graph,
        flags: u64,
        home: u32,
        session: impl Fn(u32) -> Result<&'static Session>,
    ) -> Result<Arc<Self>> {
        let instance = graph.instance()?;
        let mut flat = graph.flatten()?;
        let segments = partition(&flat, home);
        let awaited = segments.iter().flat_map(|one| one.after.iter().copied());
        let awaited: HashSet<usize> = awaited.collect();
        let is_whole = segments.len() == 1;
        let mut exec = Self {
            flags,
            parts: Vec::with_capacity(segments.len()),
            whole: Vec::new(),
            spans: Mutex::default(),
            instance: Mutex::new(instance),
        };
        for (number, segment) in segments.into_iter().enumerate() {
            let nodes = match is_whole {
                true => std::mem::take(&mut flat),
                false => select(&flat, &segment.nodes),
            };
            let held = graph.references();
            let made = session(segment.ordinal).and_then(|session| {
                let graph = session.graphs().instantiate(
                    nodes,
                    held,
                    flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH != 0,
                )?;
                Ok(Part {
                    session,
                    segment,
                    graph,
                    is_awaited: awaited.contains(&number),
                    end: OnceLock::new(),
                })
            });
            match made {
                Ok(part) => exec.parts.push(part),
                Err(status) => {
                    // The first error is the one to report.
                    let _ = exec.destroy();
                    return Err(status);
                }
            }
        }
        exec.whole = flat;
        graph.note_instantiated();
        Ok(Arc::new(exec))
    }

    /// cuGraphLaunch. In a capturing stream, the graph becomes a node.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it was destroyed; `INVALID_VALUE` if memory that a node would
    /// allocate is allocated; `STREAM_CAPTURE_UNSUPPORTED` of a graph of several devices in
    /// a capturing stream; as [`Link::check`](crate::connection::Link::check).
    pub fn launch(&self, session: &'static Session, stream: &Arc<Stream>) -> Result<()> {
        if stream.is_capturing() {
            return self.capture(stream);
        }
        match &*self.parts {
            [part] if std::ptr::eq(part.session, session) => {
                session.graphs().launch(&part.graph, stream)
            }
            _ => self.launch_across(session, stream),
        }
    }

    fn launch_across(&self, session: &'static Session, stream: &Arc<Stream>) -> Result<()> {
        let mut spans = self.spans.lock();
        self.check_launch()?;
        // Each session's own launches of a graph are executed one after another. Those of
        // the whole graph must be, too.
        if let Some((earlier, handle)) = spans.last
            && !(std::ptr::eq(earlier, session) && handle == stream.handle())
        {
            let ended = spans.mark(earlier)?;
            session.wait_event_of(stream, earlier, &ended)?;
        }
        let mark = spans.mark(session)?;
        session.record_event(&mark, stream)?;
        // One of the device's streams is the program's.
        let is_here = |part: &&Part| std::ptr::eq(part.session, session);
        let here = self
            .parts
            .iter()
            .find(is_here)
            .map(|part| part.segment.lane);
        let is_elsewhere = |part: &Part| here != Some(part.segment.lane);
        for part in &self.parts {
            let lane = match is_elsewhere(part) {
                true => spans.lane(part.segment.lane, part.session)?,
                false => Arc::clone(stream),
            };
            if part.segment.is_first && is_elsewhere(part) {
                part.session.wait_event_of(&lane, session, &mark)?;
            }
            for before in part.segment.after.iter().filter_map(|n| self.parts.get(*n)) {
                part.session
                    .wait_event_of(&lane, before.session, before.end()?)?;
            }
            part.session.graphs().launch(&part.graph, &lane)?;
            if part.is_awaited || (part.segment.is_last && is_elsewhere(part)) {
                part.session.record_event(part.end()?, &lane)?;
            }
        }
        for part in self.parts.iter().filter(|part| is_elsewhere(part)) {
            if part.segment.is_last {
                session.wait_event_of(stream, part.session, part.end()?)?;
            }
        }
        session.record_event(&mark, stream)?;
        spans.last = Some((session, stream.handle()));
        Ok(())
    }

    /// Checks that a launch can begin, before any segment is launched.
    fn check_launch(&self) -> Result<()> {
        let mut memory = Vec::new();
        for part in &self.parts {
            part.session.check()?;
            memory.extend(part.graph.memory()?);
        }
        check_memory(
            &memory,
            self.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH != 0,
        )
    }

    /// Adds the graph to a capture. As natively, a graph of several devices is refused.
    fn capture(&self, stream: &Stream) -> Result<()> {
        let [part] = &*self.parts else {
            return stream.cannot_capture();
        };
        stream.note(Work::Child(part.graph.to_graph()?))
    }

    /// All nodes, with their current work.
    fn flat(&self) -> Vec<Flat> {
        if let [part] = &*self.parts {
            return part.graph.nodes();
        }
        let mut all = self.whole.clone();
        for part in &self.parts {
            for (place, current) in part.segment.nodes.iter().zip(part.graph.nodes()) {
                if let Some(node) = all.get_mut(*place) {
                    node.work = current.work;
                }
            }
        }
        all
    }

    /// cuGraphExecDestroy: launches posted before still run.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it was destroyed; as
    /// [`Link::check`](crate::connection::Link::check).
    pub fn destroy(&self) -> Result<()> {
        drop(self.instance.lock().take());
        let spans = std::mem::take(&mut *self.spans.lock());
        let mut outcome = Ok(());
        let mut note = |ended: Result<()>| outcome = outcome.and(ended);
        for part in &self.parts {
            note(part.session.graphs().destroy(&part.graph));
            if let Some(end) = part.end.get() {
                note(part.session.events().destroy(end));
            }
        }
        for (session, mark) in spans.marks.values() {
            note(session.events().destroy(mark));
        }
        for (session, stream) in spans.lanes.values() {
            note(session.streams().destroy(stream));
        }
        outcome
    }

    /// The segment that executes the node created from `name`.
    fn part(&self, name: NodeName) -> Result<&Part> {
        if let [part] = &*self.parts {
            // It looks for the node itself.
            return Ok(part);
        }
        let found = self.parts.iter().find(|part| part.graph.has(name));
        found.ok_or(Status::INVALID_VALUE)
    }

    /// The current work of the node created from `name`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node.
    pub fn work(&self, name: NodeName) -> Result<Work> {
        self.part(name)?.graph.work(name)
    }

    /// cuGraphNodeGetEnabled.
    ///
    /// # Errors
    /// As [`enable`](Self::enable).
    pub fn is_enabled(&self, name: NodeName) -> Result<bool> {
        self.part(name)?.graph.is_enabled(name)
    }

    /// cuGraphNodeSetEnabled.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node, or it is neither kernel nor memset nor
    /// copy; `NOT_SUPPORTED` for copies of memory that the device does not reach.
    pub fn enable(&self, name: NodeName, enabled: bool) -> Result<()> {
        let part = self.part(name)?;
        part.session.graphs().enable(&part.graph, name, enabled)
    }

    /// cuGraphExecKernelNodeSetParams and similar: from the next launch on, the node
    /// created from `name` does `work`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node or it is of another kind;
    /// `GRAPH_EXEC_UPDATE_FAILURE` if its parameters cannot be changed in this way.
    pub fn set(&self, name: NodeName, work: Work) -> Result<()> {
        let part = self.part(name)?;
        part.session.graphs().set(&part.graph, name, work)
    }

    /// As [`set`](Self::set) for a kernel. Its attributes stay.
    ///
    /// # Errors
    /// As [`set`](Self::set); those that a launch would return immediately.
    pub fn set_kernel(&self, name: NodeName, new: &KernelChange<'_>) -> Result<()> {
        let part = self.part(name)?;
        part.session.graphs().set_kernel(&part.graph, name, new)
    }

    /// Replaces the work of a child graph's nodes: the new graph's nodes replace the old
    /// one's in order.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node, `GRAPH_EXEC_UPDATE_FAILURE` if the
    /// graphs differ in more than parameters.
    pub fn set_child(&self, old: &Graph, new: &Graph) -> Result<()> {
        if let [part] = &*self.parts
            && let Some(works) = old.paired(new)
        {
            let works = works.into_iter().map(|(number, work)| {
                let graph = old.id();
                (NodeName { graph, number }, work)
            });
            let works = works.filter(|(_, work)| !matches!(work, Work::Empty));
            part.session.graphs().set_each(&part.graph, works)?;
            self.replace_references(Some(old.id()), new);
            return Ok(());
        }
        let (before, after) = (old.flatten()?, new.flatten()?);
        let like = |(one, other): (&Flat, &Flat)| {
            one.work.kind() == other.work.kind() && one.after == other.after
        };
        if before.len() != after.len() || !before.iter().zip(&after).all(like) {
            return Err(Status::GRAPH_EXEC_UPDATE_FAILURE);
        }
        for (old, new) in before.into_iter().zip(after) {
            if !matches!(new.work, Work::Empty) {
                self.set(old.name, new.work)?;
            }
        }
        self.replace_references(Some(old.id()), new);
        Ok(())
    }

    /// cuGraphExecUpdate: all nodes of `graph` replace those of the executable graph. The
    /// inner result is the first node of `graph` that does not fit, if any, and the reason.
    ///
    /// # Errors
    /// `INVALID_VALUE` for cyclic dependencies; `INVALID_HANDLE` if it was destroyed.
    pub fn update(&self, graph: &Graph) -> Result<Result<(), Difference>> {
        let flat = graph.flatten()?;
        let old = self.flat();
        let keeps_priorities = self.flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY != 0;
        if let Some(difference) = difference(&flat, &old, keeps_priorities) {
            return Ok(Err(difference));
        }
        for part in &self.parts {
            let nodes = part.segment.nodes.iter().filter_map(|node| flat.get(*node));
            let nodes = nodes.cloned().collect();
            let updated = part.session.graphs().update(&part.graph, nodes)?;
            if updated.is_err() {
                return Ok(updated);
            }
        }
        self.replace_references(None, graph);
        Ok(Ok(()))
    }

    fn replace_references(&self, first: Option<u32>, graph: &Graph) {
        if graph.holds_nothing() && self.parts.iter().all(|part| part.graph.holds_nothing()) {
            return;
        }
        for part in &self.parts {
            let graphs = part.session.graphs();
            graphs.replace_references(&part.graph, first, graph.references());
        }
    }
}

/// What forbids that nodes of a graph replace those of an executable graph: the first of its
/// nodes that does not fit, and the reason.
type Difference = (Option<NodeName>, Refusal);

/// Whether a kernel is of another context than the one that it replaces.
fn has_other_context(new: &Work, old: &Work) -> bool {
    matches!((new, old), (Work::Kernel(new), Work::Kernel(old)) if new.context != old.context)
}

/// Whether a kernel has other attributes than the one that it replaces, which must have the same.
fn has_other_attributes(new: &Work, old: &Work, keeps_priorities: bool) -> bool {
    let (Work::Kernel(new), Work::Kernel(old)) = (new, old) else {
        return false;
    };
    let (new, old) = (&new.shape, &old.shape);
    new.cooperative != old.cooperative
        || keeps_priorities && new.preferences.priority() != old.preferences.priority()
}

/// What forbids that the nodes `new` replace the nodes `old`.
fn difference(new: &[Flat], old: &[Flat], keeps_priorities: bool) -> Option<Difference> {
    let found = match new.len() == old.len() {
        true => new.iter().zip(old).find_map(|(new, old)| {
            let refusal = if new.kind() != old.kind() {
                Refusal::Kind
            } else if new.after != old.after || new.bodies != old.bodies || new.child != old.child {
                Refusal::Topology
            } else if has_other_context(&new.work, &old.work) {
                Refusal::Function
            } else if new.work.ordinal() != old.work.ordinal() {
                Refusal::Parameters
            } else if has_other_attributes(&new.work, &old.work, keeps_priorities) {
                Refusal::Attributes
            } else {
                return None;
            };
            Some((Some(new.name), refusal))
        }),
        false => Some((None, Refusal::Topology)),
    };
    // The reason that is reported is the one in the outermost graph.
    found.map(|found| difference_by_level(new, old, 0).unwrap_or(found))
}

/// A difference of two lists of nodes that begin at `depth`: graph for graph, from the outside
/// to the inside.
fn difference_by_level(new: &[Flat], old: &[Flat], depth: u32) -> Option<Difference> {
    let (one, other) = (level(new, depth), level(old, depth));
    if one.len() != other.len() {
        return Some((None, Refusal::Topology));
    }
    if depth == 0 {
        let (ends, had) = (ends(new), ends(old));
        if ends.len() != had.len() {
            // One of the ends is reported if there are more than before.
            let end = ends.first().filter(|_| ends.len() > had.len()).copied();
            return Some((end, Refusal::Topology));
        }
    }
    one.into_iter().zip(other).find_map(|(place, had)| {
        let (node, replaced) = (new.get(place)?, old.get(had)?);
        if node.kind() != replaced.kind() {
            return Some((Some(node.name), Refusal::Kind));
        }
        let inside = new.get(place.checked_sub(node.child? as usize)?..place)?;
        let had_inside = old.get(had.checked_sub(replaced.child? as usize)?..had)?;
        difference_by_level(inside, had_inside, depth + 1)
    })
}

/// Positions of the nodes whose graph is nested in `depth` others.
fn level(flat: &[Flat], depth: u32) -> Vec<usize> {
    let places = flat.iter().enumerate();
    let places = places.filter(|(_, node)| node.depth == depth);
    places.map(|(place, _)| place).collect()
}

/// The nodes of the outermost graph on which none depends.
fn ends(flat: &[Flat]) -> Vec<NodeName> {
    let followed: HashSet<u32> = flat
        .iter()
        .flat_map(|node| node.after.iter().map(|before| before.node))
        .collect();
    let nodes = (0_u32..).zip(flat);
    nodes
        .filter(|(place, node)| node.depth == 0 && !followed.contains(place))
        .map(|(_, node)| node.name)
        .collect()
}

#[cfg(test)]
#[path = "difference_tests.rs"]
mod difference_tests;
