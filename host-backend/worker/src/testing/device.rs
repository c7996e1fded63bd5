//! The device for tests.
//!
//! Work submitted to a stream is executed when it is polled, unless the test holds the
//! stream. Kernels by name: `noop`; `fault` loses the context; `reject` is refused at
//! launch; `store` writes its remaining parameters to the address in the first. A module's
//! variables are unknown if its image begins with `UNLISTED`.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paragpu_device::{
    ArrayId, ContextDevice, CopyEnd, Error, EventId, FunctionId, GraphDevice, GraphId, GraphNode,
    HostFunction, Launch, LaunchTarget, MemoryOperation, Memset, ModuleId, NativeDevice,
    Preference, Recording, Result, Snapshot, StreamDevice, StreamId, SurfaceId, TextureDevice,
    TextureId, TextureResource, Work, WorkDevice,
};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{ArrayShape, ResourceView, Sampling};

use self::memory::Memory;
use self::module::Module;

mod event;
mod green;
mod memory;
mod module;

#[cfg(test)]
pub use module::{TELLING, TOLD, UNLISTED};

/// Bytes of memory that the device has.
pub const TOTAL: u64 = 64 * CHUNK;

enum Task {
    Copy(u64, u64, u64),
    Store(u64, Vec<u8>),
    Fault,
    Record(EventId, u64),
    Wait(EventId, u64),
    /// Until the word is at least this, counted around.
    Await(u64, u32),
    Host(Option<HostFunction>, Arc<AtomicBool>),
}

#[derive(Default)]
struct Stream {
    work: VecDeque<Task>,
    held: bool,
}

/// The test's handle on the device.
#[derive(Default)]
pub struct State {
    streams: BTreeMap<u64, Stream>,
    /// Times recorded and times reached.
    events: HashMap<EventId, (u64, u64)>,
    memory: Memory,
    arrays: HashMap<ArrayId, Vec<u8>>,
    modules: BTreeMap<ModuleId, Module>,
    functions: HashMap<FunctionId, String>,
    others: BTreeSet<u64>,
    graphs: HashMap<GraphId, Vec<GraphNode>>,
    /// What to call when the watched events are reached; the test decides when that is.
    pub watches: Vec<Box<dyn FnOnce() + Send>>,
    lost: Option<Error>,
    next: u64,
    /// Memory belongs to the process: idle streams can be bypassed.
    pub in_place: bool,
    /// It needs no processor of this host.
    pub is_apart: bool,
    /// Methods called, in order.
    pub log: Vec<&'static str>,
    /// Errors of the next call of a method.
    pub fail: HashMap<&'static str, Status>,
}

/// The device; a clone is the same one.
#[derive(Clone, Default)]
pub struct TestDevice(Arc<Mutex<State>>);

impl TestDevice {
    /// The test's handle on the device.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Holds a stream, or releases it; streams count from 1 in order of
    /// creation of all objects, the legacy stream is 0.
    #[cfg(test)]
    pub fn hold(&self, stream: u64, held: bool) {
        self.state().streams.entry(stream).or_default().held = held;
    }

    /// The contents of its memory.
    #[cfg(test)]
    pub fn bytes(&self, address: u64, size: u64) -> Vec<u8> {
        self.state().memory.read(address, size)
    }

    /// Counts the calls of a method.
    #[cfg(test)]
    pub fn count(&self, method: &str) -> usize {
        let state = self.state();
        state.log.iter().filter(|name| **name == method).count()
    }

    /// Where the registered range of `size` bytes is.
    #[cfg(test)]
    pub fn registered_at(&self, size: u64) -> u64 {
        let state = self.state();
        let mut found = state.memory.registered.iter();
        found
            .find(|(_, length)| **length == size)
            .map_or(0, |(start, _)| *start)
    }

    fn enter(&self, method: &'static str) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if state.log.len() < 100_000 {
            state.log.push(method);
        }
        if let Some(status) = state.fail.remove(method) {
            return Err(Error::new(status, format!("{method} was made to fail")));
        }
        match &state.lost {
            Some(error) => Err(error.clone()),
            None => Ok(state),
        }
    }
}

impl State {
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn has_stream(&self, stream: StreamId) -> Result<()> {
        if stream == StreamId::LEGACY || self.streams.contains_key(&stream.0) {
            Ok(())
        } else {
            Err(Status::INVALID_HANDLE.into())
        }
    }

    fn give(&mut self, stream: StreamId, work: Task) -> Result<()> {
        self.has_stream(stream)?;
        let stream = self.streams.entry(stream.0).or_default();
        stream.work.push_back(work);
        Ok(())
    }

    /// Executes what can be executed.
    fn advance(&mut self) -> Result<()> {
        let mut moved = true;
        while moved && self.lost.is_none() {
            moved = false;
            let streams: Vec<u64> = self.streams.keys().copied().collect();
            for stream in streams {
                while self.step(stream) {
                    moved = true;
                }
            }
        }
        self.lost.clone().map_or(Ok(()), Err)
    }

    fn step(&mut self, stream: u64) -> bool {
        let is_lost = self.lost.is_some();
        let Some(queue) = self
            .streams
            .get_mut(&stream)
            .filter(|stream| !stream.held && !is_lost)
        else {
            return false;
        };
        let Some(work) = queue.work.pop_front() else {
            return false;
        };
        let stands = match work {
            Task::Copy(to, from, size) => {
                let bytes = self.memory.read(from, size);
                self.memory.write(to, &bytes);
                None
            }
            Task::Store(to, bytes) => {
                self.memory.write(to, &bytes);
                None
            }
            Task::Fault => {
                self.lost = Some(Error::new(Status::ILLEGAL_ADDRESS, "in the kernel fault"));
                None
            }
            Task::Record(event, time) => {
                if let Some((_, reached)) = self.events.get_mut(&event) {
                    *reached = (*reached).max(time);
                }
                None
            }
            Task::Wait(event, time) => {
                let reached = self.events.get(&event).is_none_or(|at| at.1 >= time);
                (!reached).then_some(Task::Wait(event, time))
            }
            Task::Await(address, value) => {
                let bytes = self.memory.read(address, 4);
                let word = u32::from_le_bytes(bytes.try_into().unwrap_or_default());
                let is_over = word.wrapping_sub(value).cast_signed() >= 0;
                (!is_over).then_some(Task::Await(address, value))
            }
            Task::Host(function, over) => {
                if let Some(function) = function {
                    let done = Arc::clone(&over);
                    std::thread::spawn(move || {
                        function();
                        done.store(true, Ordering::SeqCst);
                    });
                }
                let is_over = over.load(Ordering::SeqCst);
                (!is_over).then_some(Task::Host(None, over))
            }
        };
        match (stands, self.streams.get_mut(&stream)) {
            (Some(work), Some(queue)) => {
                queue.work.push_front(work);
                false
            }
            _ => true,
        }
    }
}

/// The properties of a test device.
#[must_use]
pub fn snapshot() -> Snapshot {
    Snapshot {
        driver_version: 13_000,
        total_memory: TOTAL,
        uuid: [7; 16],
        name: "test device".into(),
        pci_bus_id: "0000:00:01.0".into(),
        attributes: vec![(1, 1024), (2, -1)],
    }
}

impl paragpu_device::management::Management for TestDevice {}

impl WorkDevice for TestDevice {
    fn submit(&mut self, work: &Work<'_>, stream: StreamId) -> Result<()> {
        match work {
            Work::Empty | Work::Conditional(_) => Ok(()),
            Work::Launch(launch) => self.launches(launch, stream),
            Work::Copy {
                destination,
                source,
                size,
            } => self.copies(*destination, *source, *size, stream),
            Work::CopyRect {
                destination,
                source,
                extent,
            } => self.copies_rect(*destination, *source, *extent, stream),
            Work::Memset(set) => self.sets(set, stream),
            Work::Memory(operations) => self.operates(operations, stream),
            Work::Host(function) => self.hosts(stream, Arc::clone(function)),
            Work::EventRecord(event) => self.records(*event, stream),
            Work::EventWait(event) => self.waits(stream, *event),
        }
    }

    fn launch_target(
        &mut self,
        _function: FunctionId,
        stream: StreamId,
    ) -> Result<Option<Arc<dyn LaunchTarget>>> {
        if stream == StreamId::LEGACY {
            return Ok(None);
        }
        self.state().has_stream(stream)?;
        Ok(Some(Arc::new(Target {
            device: self.clone(),
            stream,
        })))
    }

    fn recording(&mut self, event: EventId, stream: StreamId) -> Result<Option<Recording>> {
        if stream == StreamId::LEGACY {
            return Ok(None);
        }
        self.state().has_stream(stream)?;
        let mut device = self.clone();
        Ok(Some(Box::new(move || device.records(event, stream))))
    }
}

struct Target {
    device: TestDevice,
    stream: StreamId,
}

impl LaunchTarget for Target {
    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        self.device.clone().launches(launch, self.stream)
    }
}

impl TestDevice {
    fn copies(&mut self, destination: u64, source: u64, size: u64, stream: StreamId) -> Result<()> {
        let mut state = self.enter("copy")?;
        state.memory.reachable(destination, size)?;
        state.memory.reachable(source, size)?;
        state.give(stream, Task::Copy(destination, source, size))
    }

    fn copies_rect(
        &mut self,
        destination: CopyEnd,
        source: CopyEnd,
        [width, height, depth]: [u64; 3],
        stream: StreamId,
    ) -> Result<()> {
        let mut state = self.enter("copy_rect")?;
        let at = |end: CopyEnd, row: u64, slice: u64| match end {
            CopyEnd::Linear {
                address,
                pitch,
                rows,
            } => address
                .checked_add(pitch.wrapping_mul(rows.wrapping_mul(slice).wrapping_add(row)))
                .ok_or(Error::from(Status::INVALID_VALUE)),
            CopyEnd::Array { .. } => Err(Status::NOT_SUPPORTED.into()),
        };
        if height.saturating_mul(depth) > 1 << 16 {
            return Err(Status::INVALID_VALUE.into());
        }
        let mut rows = Vec::new();
        for slice in 0..depth {
            for row in 0..height {
                let (to, from) = (at(destination, row, slice)?, at(source, row, slice)?);
                state.memory.reachable(to, width)?;
                state.memory.reachable(from, width)?;
                rows.push(Task::Copy(to, from, width));
            }
        }
        rows.into_iter()
            .try_for_each(|work| state.give(stream, work))
    }

    fn sets(&mut self, set: &Memset, stream: StreamId) -> Result<()> {
        let Memset {
            destination,
            pitch,
            value,
            element,
            width,
            height,
        } = *set;
        let mut state = self.enter("memset")?;
        let value = value.to_le_bytes();
        if width.saturating_mul(height) > TOTAL || height > 1 << 16 {
            return Err(Status::INVALID_VALUE.into());
        }
        let row = value.get(..usize::from(element)).unwrap_or(&[]);
        let row = row.repeat(width as usize);
        for index in 0..height {
            let to = destination.wrapping_add(index.wrapping_mul(pitch));
            state.memory.reachable(to, row.len() as u64)?;
            state.give(stream, Task::Store(to, row.clone()))?;
        }
        Ok(())
    }

    fn operates(&mut self, operations: &[MemoryOperation], stream: StreamId) -> Result<()> {
        let mut state = self.enter("operate")?;
        for operation in operations {
            match *operation {
                MemoryOperation::Write { word, value, .. } => {
                    state.memory.reachable(word.address, word.size())?;
                    let mut bytes = value.to_le_bytes().to_vec();
                    bytes.truncate(word.size() as usize);
                    state.give(stream, Task::Store(word.address, bytes))?;
                }
                MemoryOperation::Wait { word, value, .. } => {
                    state.memory.reachable(word.address, word.size())?;
                    state.give(stream, Task::Await(word.address, value as u32))?;
                }
                MemoryOperation::Barrier { .. } => {}
            }
        }
        Ok(())
    }

    fn launches(&mut self, launch: &Launch<'_>, stream: StreamId) -> Result<()> {
        let preferred = |preference: &Preference| (preference.attribute, preference.value[0]);
        let preferred: Vec<_> = launch.preferences.iter().map(preferred).collect();
        let mut state = self.enter(match (launch.programmatic, preferred.as_slice()) {
            (true, _) => "programmatic_launch",
            (false, []) => "launch",
            (false, [(8, 7)]) => "launch_with_priority_7",
            (false, _) => "launch_with_preferences",
        })?;
        let name = state.functions.get(&launch.function);
        let work = match name.map(String::as_str) {
            Some("noop") => return state.has_stream(stream),
            Some("fault") => Task::Fault,
            Some("store") => match launch.parameters.split_first_chunk::<8>() {
                Some((to, bytes)) => Task::Store(u64::from_le_bytes(*to), bytes.to_vec()),
                None => return Err(Status::INVALID_VALUE.into()),
            },
            Some(_) => return Err(Error::new(Status::INVALID_VALUE, "this kernel is refused")),
            None => return Err(Status::INVALID_HANDLE.into()),
        };
        state.give(stream, work)
    }

    fn hosts(&mut self, stream: StreamId, function: HostFunction) -> Result<()> {
        let mut state = self.enter("host_function")?;
        let over = Arc::new(AtomicBool::new(false));
        state.give(stream, Task::Host(Some(function), over))?;
        let _ = state.advance();
        Ok(())
    }
}

impl TextureDevice for TestDevice {
    fn array_create(&mut self, _: &ArrayShape) -> Result<ArrayId> {
        let mut state = self.enter("array_create")?;
        let id = ArrayId(state.id());
        state.arrays.insert(id, Vec::new());
        Ok(id)
    }

    fn array_destroy(&mut self, array: ArrayId) -> Result<()> {
        let gone = self.enter("array_destroy")?.arrays.remove(&array);
        gone.map(drop).ok_or(Status::INVALID_HANDLE.into())
    }

    fn texture_create(
        &mut self,
        _: TextureResource,
        _: &Sampling,
        _: Option<&ResourceView>,
    ) -> Result<TextureId> {
        let mut state = self.enter("texture_create")?;
        let id = state.id();
        state.others.insert(id);
        Ok(TextureId(id))
    }

    fn texture_destroy(&mut self, texture: TextureId) -> Result<()> {
        let gone = self.enter("texture_destroy")?.others.remove(&texture.0);
        gone.then_some(()).ok_or(Status::INVALID_HANDLE.into())
    }

    fn surface_create(&mut self, _: ArrayId, _: u32) -> Result<SurfaceId> {
        let mut state = self.enter("surface_create")?;
        let id = state.id();
        state.others.insert(id);
        Ok(SurfaceId(id))
    }

    fn surface_destroy(&mut self, surface: SurfaceId) -> Result<()> {
        let gone = self.enter("surface_destroy")?.others.remove(&surface.0);
        gone.then_some(()).ok_or(Status::INVALID_HANDLE.into())
    }
}

impl StreamDevice for TestDevice {
    fn stream_create(&mut self, _: u32, _: i32) -> Result<StreamId> {
        let mut state = self.enter("stream_create")?;
        let id = state.id();
        state.streams.insert(id, Stream::default());
        Ok(StreamId(id))
    }

    fn stream_destroy(&mut self, stream: StreamId) -> Result<()> {
        let gone = self.enter("stream_destroy")?.streams.remove(&stream.0);
        gone.map(drop).ok_or(Status::INVALID_HANDLE.into())
    }

    fn stream_set_attribute(&mut self, _: StreamId, _: u32, _: &[u8; 64]) -> Result<()> {
        self.enter("stream_set_attribute").map(drop)
    }

    fn stream_query(&mut self, stream: StreamId) -> Result<bool> {
        let mut state = self.enter("stream_query")?;
        state.has_stream(stream)?;
        state.advance()?;
        let busy = |stream: &Stream| !stream.work.is_empty();
        Ok(!state.streams.get(&stream.0).is_some_and(busy))
    }

    fn stream_doze(&mut self, _: StreamId, timeout: Duration) -> Result<()> {
        std::thread::sleep(timeout);
        Ok(())
    }
}

impl GraphDevice for TestDevice {
    fn graph_create(&mut self, nodes: Vec<GraphNode>) -> Result<GraphId> {
        let mut state = self.enter("graph_create")?;
        for (number, node) in nodes.iter().enumerate() {
            if node
                .after
                .iter()
                .any(|before| before.node as usize >= number)
            {
                return Err(Status::INVALID_VALUE.into());
            }
        }
        let id = GraphId(state.id());
        state.graphs.insert(id, nodes);
        Ok(id)
    }

    fn graph_update(&mut self, graph: GraphId, node: u32, work: Work<'static>) -> Result<()> {
        let mut state = self.enter("graph_update")?;
        let nodes = state.graphs.get_mut(&graph).ok_or(Status::INVALID_HANDLE)?;
        let node = nodes.get_mut(node as usize).ok_or(Status::INVALID_VALUE)?;
        if !node.work.is_like(&work) {
            return Err(Status::GRAPH_EXEC_UPDATE_FAILURE.into());
        }
        node.work = work;
        Ok(())
    }

    fn graph_enable(&mut self, graph: GraphId, _: u32, _: bool) -> Result<()> {
        let known = self.enter("graph_enable")?.graphs.contains_key(&graph);
        known.then_some(()).ok_or(Status::INVALID_HANDLE.into())
    }

    fn graph_launch(&mut self, graph: GraphId, stream: StreamId) -> Result<()> {
        let nodes = self.enter("graph_launch")?.graphs.get(&graph).cloned();
        for node in nodes.ok_or(Status::INVALID_HANDLE)? {
            self.submit(&node.work, stream)?;
        }
        Ok(())
    }

    fn graph_destroy(&mut self, graph: GraphId) -> Result<()> {
        let gone = self.enter("graph_destroy")?.graphs.remove(&graph);
        gone.map(drop).ok_or(Status::INVALID_HANDLE.into())
    }
}

impl NativeDevice for TestDevice {
    fn event_elapsed_time(&mut self, _: EventId, _: EventId) -> Result<f32> {
        self.enter("event_elapsed_time").map(|_| 1.5)
    }

    fn func_set_attribute(&mut self, _: FunctionId, _: u32, _: i32) -> Result<()> {
        self.enter("func_set_attribute").map(drop)
    }

    fn func_set_cache_config(&mut self, _: FunctionId, _: u32) -> Result<()> {
        self.enter("func_set_cache_config").map(drop)
    }

    fn occupancy_max_active_blocks_per_multiprocessor_with_flags(
        &mut self,
        _: FunctionId,
        block: i32,
        _: u64,
        _: u32,
    ) -> Result<i32> {
        drop(self.enter("occupancy_max_active_blocks_per_multiprocessor_with_flags")?);
        Ok(2048 / block.max(1))
    }

    fn occupancy_available_dynamic_smem_per_block(
        &mut self,
        _: FunctionId,
        _: i32,
        _: i32,
    ) -> Result<u64> {
        self.enter("occupancy_available_dynamic_smem_per_block")
            .map(|_| 4096)
    }

    fn ctx_set_limit(&mut self, limit: u32, _: u64) -> Result<()> {
        drop(self.enter("ctx_set_limit")?);
        match limit {
            0 => Ok(()),
            _ => Err(Status::NOT_SUPPORTED.into()),
        }
    }

    fn ctx_get_limit(&mut self, limit: u32) -> Result<u64> {
        self.enter("ctx_get_limit").map(|_| u64::from(limit) + 1)
    }
}

impl ContextDevice for TestDevice {
    fn context_query(&mut self) -> Result<bool> {
        let mut state = self.enter("context_query")?;
        state.advance()?;
        Ok(state.streams.values().all(|stream| stream.work.is_empty()))
    }

    fn flush_output(&mut self) -> Result<()> {
        self.enter("flush_output").map(drop)
    }

    fn computes_on_host(&self) -> bool {
        !self.state().is_apart
    }
}
