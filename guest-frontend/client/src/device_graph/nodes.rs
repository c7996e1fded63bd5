//! Turns a node of a graph into a call. A copy from or to memory that the device
//! cannot reach becomes a copy from or to pinned memory and a host function that
//! moves the data.

use std::sync::Arc;

use paragpu_abi::CU_MEMHOSTALLOC_DEVICEMAP;
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::{Bytes, Field as _, encode_all};
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    Copy, CopyRect, EventRecord, GraphConditional, Launch, Memset, StreamMemory,
};
use paragpu_protocol::types::{ArrayEnd, CopyEnd, LinearEnd};

use super::Graphs;
use crate::copy::{self, host_copy, span, volume};
use crate::error::Result;
use crate::objects::graph::Conditional;
use crate::objects::graph::{CopyNodeEnd, CopyWork, Fill, HostRun, Kernel, MemoryWork, Work};
use crate::stream::wait_for_event;

/// The calls and host functions that a node becomes.
pub(super) enum NodeCalls {
    One(u16, Vec<u8>),
    Host(HostRun),
    /// A host function, then a copy, then another one.
    Staged {
        before: Option<HostRun>,
        copy: (u16, Vec<u8>),
        after: Option<HostRun>,
        /// Address and bytes of the pinned memory between them.
        memory: (u64, u64),
    },
}

pub(super) fn call<'a, C: WireCall<'a>>(call: &C) -> (u16, Vec<u8>) {
    (C::INFO.number, encode_all(call))
}

fn launch_call(kernel: &Kernel) -> (u16, Vec<u8>) {
    let mut work = Vec::new();
    (encode_launch(kernel, &mut work), work)
}

/// Appends the call of a kernel to `out`; its number.
pub(super) fn encode_launch(kernel: &Kernel, out: &mut Vec<u8>) -> u16 {
    let launch = Launch {
        function: kernel.function.handle(),
        stream: StreamHandle::LEGACY,
        grid: kernel.shape.grid,
        block: kernel.shape.block,
        dynamic_shared: kernel.shape.dynamic_shared,
        // The edges determine which nodes begin early.
        flags: Launch::flags_of(kernel.shape.cooperative, false),
        cluster: kernel.shape.cluster,
        preferences: Bytes(&kernel.shape.preferences.encode()),
        parameters: Bytes(&kernel.parameters),
    };
    let tail = launch.encode(out);
    out.extend_from_slice(tail);
    Launch::INFO.number
}

/// The call of a conditional node. The nodes that follow it are its bodies.
pub(super) fn conditional_call(conditional: &Conditional, bodies: &[u32]) -> (u16, Vec<u8>) {
    let bodies: Vec<u8> = bodies.iter().flat_map(|n| n.to_le_bytes()).collect();
    let condition = &conditional.condition;
    call(&GraphConditional {
        condition: condition.handle(),
        kind: conditional.kind.number(),
        value: condition.value,
        assigns: condition.assigns,
        bodies: Bytes(&bodies),
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

impl Graphs {
    /// The end of a copy, as the device can reach it; `None` if it cannot.
    fn reach_end(&self, end: &CopyNodeEnd, extent: [u64; 3]) -> Result<Option<CopyEnd>> {
        let (address, pitch, rows, is_host) = match *end {
            CopyNodeEnd::Device {
                address,
                pitch,
                rows,
            } => (address, pitch, rows, false),
            CopyNodeEnd::Host {
                address,
                pitch,
                rows,
            } => (address, pitch, rows, true),
            CopyNodeEnd::Array {
                ref array, origin, ..
            } => {
                return Ok(Some(CopyEnd::Array(ArrayEnd {
                    array: array.array.handle(),
                    level: array.level,
                    origin,
                })));
            }
        };
        let size = span(extent, pitch, rows)?;
        let Some(address) = self.parts.access.name(address, size, is_host)? else {
            return Ok(None);
        };
        Ok(Some(CopyEnd::Linear(LinearEnd {
            address,
            pitch,
            rows,
        })))
    }

    /// Converts a copy. If the device does not reach one side, its bytes go through pinned
    /// memory: `staging`, given by address and size, if it is large enough, or new memory.
    pub(super) fn make_copy(
        &self,
        copy: &CopyWork,
        staging: Option<(u64, u64)>,
    ) -> Result<NodeCalls> {
        let extent = copy.extent;
        let destination = self.reach_end(&copy.destination, extent)?;
        let source = self.reach_end(&copy.source, extent)?;
        if let (Some(destination), Some(source)) = (destination, source) {
            let (number, work) = copy_call(destination, source, extent);
            return Ok(NodeCalls::One(number, work));
        }
        if let (CopyNodeEnd::Host { .. }, CopyNodeEnd::Host { .. }) =
            (&copy.destination, &copy.source)
        {
            let (to, from) = (copy.destination.clone(), copy.source.clone());
            return Ok(NodeCalls::Host(Arc::new(move || {
                host_copy(&to, &from, extent)
            })));
        }
        let size = volume(extent)?;
        let memory = match staging {
            Some((address, had)) if had >= size => (address, had),
            _ => {
                // A copy that grows step by step gets new memory a few times only.
                let size = size.max(staging.map_or(0, |(_, had)| had.saturating_mul(2)));
                let host = &self.parts.host;
                (host.allocate(size, CU_MEMHOSTALLOC_DEVICEMAP)?, size)
            }
        };
        let between = CopyEnd::Linear(packed(memory.0, extent));
        let [width, height, _] = extent;
        let pinned = CopyNodeEnd::Host {
            address: memory.0,
            pitch: width,
            rows: height,
        };
        Ok(match (destination, source) {
            (Some(destination), _) => {
                let from = copy.source.clone();
                NodeCalls::Staged {
                    before: Some(Arc::new(move || host_copy(&pinned, &from, extent))),
                    copy: copy_call(destination, between, extent),
                    after: None,
                    memory,
                }
            }
            (_, Some(source)) => {
                let to = copy.destination.clone();
                NodeCalls::Staged {
                    before: None,
                    copy: copy_call(between, source, extent),
                    after: Some(Arc::new(move || host_copy(&to, &pinned, extent))),
                    memory,
                }
            }
            // One side is an array or device memory, which the device can reach.
            (None, None) => return Err(Status::UNKNOWN),
        })
    }

    /// Refuses a memset of memory that is not allocated, and an empty one.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn check_fill(&self, fill: &Fill) -> Result<()> {
        self.make_fill(fill).map(drop)
    }

    fn make_fill(&self, fill: &Fill) -> Result<(u16, Vec<u8>)> {
        let size = fill_size(fill)?;
        let destination = self.parts.access.name(fill.destination, size, false)?;
        let destination = destination.ok_or(Status::UNKNOWN)?;
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

    fn make_memory(&self, work: &MemoryWork) -> Result<(u16, Vec<u8>)> {
        let access = &self.parts.access;
        let operations = copy::named(&work.operations, |address, size| {
            access.name(address, size, false)?.ok_or(Status::UNKNOWN)
        })?;
        Ok(call(&StreamMemory {
            stream: StreamHandle::LEGACY,
            operations: Bytes(&operations),
        }))
    }

    /// Converts a node's work.
    pub(super) fn make(&self, work: &Work) -> Result<NodeCalls> {
        if work
            .ordinal()
            .is_some_and(|ordinal| ordinal != self.ordinal)
        {
            return Err(Status::NOT_SUPPORTED);
        }
        let (number, work) = match work {
            Work::Empty | Work::Child(_) | Work::MemAlloc(..) | Work::MemFree(_) => (0, Vec::new()),
            // Its bodies are sent when all nodes have numbers.
            Work::Conditional(_) => (0, Vec::new()),
            Work::Kernel(kernel) => launch_call(kernel),
            Work::Copy(copy) => return self.make_copy(copy, None),
            Work::Memset(fill) => self.make_fill(fill)?,
            Work::Memory(work) => self.make_memory(work)?,
            Work::Host(host) => return Ok(NodeCalls::Host(Arc::clone(&host.run))),
            Work::EventRecord(marked) => call(&EventRecord {
                event: marked.event.handle(),
                stream: StreamHandle::LEGACY,
            }),
            Work::EventWait(marked) => {
                call(&wait_for_event(StreamHandle::LEGACY, marked.event.handle()))
            }
        };
        Ok(NodeCalls::One(number, work))
    }
}

/// Bytes from the first to the last byte of a memset.
pub(super) fn fill_size(fill: &Fill) -> Result<u64> {
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
