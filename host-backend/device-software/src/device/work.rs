//! Checks work of a session and submits it to a stream.

use super::{SoftwareDevice, handle};
use crate::attributes::STACK_LIMIT;
use crate::conditional::Make;
use crate::copy::{self, RectEnd};
use crate::error::invalid;
use crate::exec::block::Surroundings;
use crate::launch;
use crate::memory_unsafe::Memory;
use crate::scheduler::{Stamp, Task, Work};
use paragpu_device::{
    CopyEnd, Launch, MemoryOperation, Memset, Result, StreamId, Work as DeviceWork, WorkDevice,
};
use std::sync::Arc;

/// Maximum number of bytes of a copy or fill that is executed immediately instead of by
/// another thread: the size of a slot of a guest's staging memory, less than 0.1 ms.
const SHORT: u64 = 512 << 10;

/// Stream work for a copy or fill of this many bytes.
fn moving(bytes: u64, task: Task) -> Work {
    if bytes <= SHORT {
        Work::Short(task)
    } else {
        Work::Task(task)
    }
}

impl WorkDevice for SoftwareDevice {
    fn submit(&mut self, work: &DeviceWork<'_>, stream: StreamId) -> Result<()> {
        self.scheduler.check()?;
        match work {
            DeviceWork::EventRecord(event) => {
                handle(self.events.get(&event.0))?;
                let stamp = Stamp::default();
                let ticket = self.give(stream, Work::Record(Arc::clone(&stamp)))?;
                self.record(*event, ticket, stamp);
            }
            DeviceWork::EventWait(event) => {
                if let Some(record) = self.recorded(*event)? {
                    handle(self.scheduler.submit(stream.0, &[record], Work::Marker))?;
                }
            }
            work => {
                let work = self.stream_work(work)?;
                self.give(stream, work)?;
            }
        }
        Ok(())
    }
}

impl SoftwareDevice {
    /// Checks work and converts it to stream work. Event records and waits become markers.
    pub(crate) fn stream_work(&mut self, work: &DeviceWork<'_>) -> Result<Work> {
        match work {
            DeviceWork::Launch(launch) => self.launch_work(launch),
            DeviceWork::Copy {
                destination,
                source,
                size,
            } => copy_work(&self.memory, *destination, *source, *size),
            DeviceWork::CopyRect {
                destination,
                source,
                extent,
            } => rect_work(
                &self.memory,
                &self.end(destination)?,
                &self.end(source)?,
                *extent,
            ),
            DeviceWork::Memset(set) => memset_work(&self.memory, set),
            DeviceWork::Memory(operations) => self.memory_work(operations),
            DeviceWork::Host(function) => Ok(Work::Host(Arc::clone(function))),
            DeviceWork::Empty | DeviceWork::EventRecord(_) | DeviceWork::EventWait(_) => {
                Ok(Work::Marker)
            }
            DeviceWork::Conditional(_) => Err(invalid("a conditional node outside of a graph")),
        }
    }

    fn end(&self, end: &CopyEnd) -> Result<RectEnd> {
        Ok(match *end {
            CopyEnd::Linear {
                address,
                pitch,
                rows,
            } => RectEnd::Linear(address, pitch, rows),
            CopyEnd::Array {
                array,
                level,
                origin,
            } => RectEnd::Array(self.objects.array(array)?, level, origin),
        })
    }

    /// Checks operations on memory and converts them to stream work.
    fn memory_work(&self, operations: &[MemoryOperation]) -> Result<Work> {
        for word in operations.iter().filter_map(MemoryOperation::word) {
            let (at, size) = (word.address, word.size());
            if !at.is_multiple_of(size) || !self.memory.reachable(at, size) {
                return Err(invalid("a word is not aligned or not mapped"));
            }
        }
        let memory = Arc::clone(&self.memory);
        let (operations, mut next) = (operations.to_vec(), 0);
        Ok(Work::Attempt(Box::new(move || {
            while let Some(operation) = operations.get(next) {
                if !copy::operate(&memory, operation)? {
                    return Ok(false);
                }
                next += 1;
            }
            Ok(true)
        })))
    }

    /// Checks a launch and converts it to stream work.
    fn launch_work(&mut self, launch: &Launch<'_>) -> Result<Work> {
        let context = self.launch_context();
        handle(self.code.functions.get(&launch.function.0))?.prepare(launch, &context)
    }

    fn launch_context(&mut self) -> launch::Context {
        self.launching.launches += 1;
        launch::Context {
            device: Surroundings {
                memory: Arc::clone(&self.memory),
                heaps: Arc::clone(&self.launching.heaps),
                textures: Arc::clone(self.objects.textures()),
                output: Arc::clone(&self.launching.output),
                conditions: Arc::clone(&self.launching.conditions),
                kernel_memory: Arc::clone(&self.launching.kernel_memory),
                properties: Arc::clone(&self.properties),
                sms: self.options.cores,
            },
            workspaces: Arc::clone(&self.launching.workspaces),
            pending: Arc::clone(&self.launching.pending),
            id: self.launching.launches,
            stack: self.properties.limits.get(STACK_LIMIT).unwrap_or(0),
        }
    }

    /// Creates a body's work for each run.
    pub(crate) fn make(&mut self, work: &DeviceWork<'static>) -> Result<Make> {
        let memory = Arc::clone(&self.memory);
        Ok(match *work {
            DeviceWork::Empty => Arc::new(|| Work::Marker),
            DeviceWork::Launch(ref launch) => {
                let (launch, context) = (launch.clone(), self.launch_context());
                let kernel = handle(self.code.functions.get(&launch.function.0))?.clone();
                Arc::new(move || made(kernel.prepare(&launch, &context)))
            }
            DeviceWork::Copy {
                destination,
                source,
                size,
            } => Arc::new(move || made(copy_work(&memory, destination, source, size))),
            DeviceWork::CopyRect {
                ref destination,
                ref source,
                extent,
            } => {
                let (destination, source) = (self.end(destination)?, self.end(source)?);
                Arc::new(move || made(rect_work(&memory, &destination, &source, extent)))
            }
            DeviceWork::Memset(set) => Arc::new(move || made(memset_work(&memory, &set))),
            _ => return Err(invalid("a body cannot do this")),
        })
    }
}

/// Converts an error to work that fails when it runs.
fn made(work: Result<Work>) -> Work {
    work.unwrap_or_else(|error| Work::Task(Box::new(move || Err(error))))
}

/// Checks a copy and converts it to stream work.
fn copy_work(memory: &Arc<Memory>, destination: u64, source: u64, size: u64) -> Result<Work> {
    if size != 0 && !(memory.reachable(destination, size) && memory.reachable(source, size)) {
        return Err(invalid("a range of the copy is not completely mapped"));
    }
    let memory = Arc::clone(memory);
    let copy = move || copy::linear(&memory, destination, source, size);
    Ok(moving(size, Box::new(copy)))
}

/// Checks a rectangular copy and converts it to stream work.
fn rect_work(
    memory: &Arc<Memory>,
    destination: &RectEnd,
    source: &RectEnd,
    extent: [u64; 3],
) -> Result<Work> {
    if extent.contains(&0) {
        return Ok(Work::Marker);
    }
    destination.check(memory, extent)?;
    source.check(memory, extent)?;
    let memory = Arc::clone(memory);
    let bytes = extent
        .iter()
        .fold(1, |bytes: u64, n| bytes.saturating_mul(*n));
    let (destination, source) = (destination.clone(), source.clone());
    let copy = move || copy::rectangle(&memory, &destination, &source, extent);
    Ok(moving(bytes, Box::new(copy)))
}

/// Checks a memset and converts it to stream work.
fn memset_work(memory: &Arc<Memory>, set: &Memset) -> Result<Work> {
    let Memset {
        destination,
        pitch,
        value,
        element,
        width,
        height,
    } = *set;
    if !matches!(element, 1 | 2 | 4) || !destination.is_multiple_of(u64::from(element.max(1))) {
        return Err(invalid("element size or alignment"));
    }
    if width != 0 && height != 0 {
        let row = width
            .checked_mul(u64::from(element))
            .ok_or_else(|| invalid("width"))?;
        if height > 1 && !pitch.is_multiple_of(u64::from(element)) {
            return Err(invalid("the pitch is not a multiple of the element size"));
        }
        RectEnd::Linear(destination, pitch, height).check(memory, [row, height, 1])?;
    }
    let memory = Arc::clone(memory);
    let bytes = width.saturating_mul(height).saturating_mul(element.into());
    let fill = move || copy::fill(&memory, destination, pitch, value, element, width, height);
    Ok(moving(bytes, Box::new(fill)))
}
