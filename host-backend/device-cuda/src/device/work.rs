//! Work: resolves its objects and submits it to the driver.

use std::sync::Arc;

use paragpu_device::{
    CopyEnd, EventId, FunctionId, Launch, LaunchTarget, MemoryOperation, Memset, Recording, Result,
    StreamId, Work, WorkDevice,
};
use paragpu_protocol::status::Status;

use super::{CudaDevice, Target, find, stream};
use crate::memory::rect_bytes;
use crate::sys::{RectEnd, Resolved};

/// Maximum number of remembered targets.
const MAX_TARGETS: usize = 1024;

impl WorkDevice for CudaDevice {
    fn submit(&mut self, work: &Work<'_>, order: StreamId) -> Result<()> {
        let found = self.look_up(work)?;
        let order = stream(&self.streams, order)?;
        let context = &self.context;
        match (work, &found) {
            (Work::Launch(launch), Resolved::Function(function)) => {
                context.launch(launch, function, order)
            }
            (
                Work::Copy { .. },
                Resolved::Spans {
                    destination,
                    source,
                },
            ) => context.copy(*destination, *source, order),
            (
                Work::CopyRect { extent, .. },
                Resolved::Ends {
                    destination,
                    source,
                },
            ) => context.copy_rect(destination, source, *extent, order),
            (Work::Memset(set), Resolved::Span(span)) => context.set(*span, set, order),
            (Work::Memory(operations), Resolved::Words) => context.operate(operations, order),
            (Work::Host(function), _) => context.host_function(order, function.clone()),
            (Work::EventRecord(_), Resolved::Event(event)) => context.event_record(event, order),
            (Work::EventWait(_), Resolved::Event(event)) => context.stream_wait(order, event),
            (_, Resolved::Nothing) => Ok(()),
            _ => Err(Status::INVALID_VALUE.into()),
        }
    }

    fn launch_target(
        &mut self,
        function: FunctionId,
        order: StreamId,
    ) -> Result<Option<Arc<dyn LaunchTarget>>> {
        // Work of the legacy stream is ordered by when other streams received theirs.
        if order == StreamId::LEGACY {
            return Ok(None);
        }
        Ok(Some(self.target(order, function)?))
    }

    fn recording(&mut self, event: EventId, order: StreamId) -> Result<Option<Recording>> {
        if order == StreamId::LEGACY {
            return Ok(None);
        }
        let context = Arc::clone(&self.context);
        let event = Arc::clone(&find(&self.events, event.0)?.event);
        let order = Arc::clone(find(&self.streams, order.0)?);
        Ok(Some(Box::new(move || {
            context.make_current()?;
            context.event_record(&event, &order.stream)
        })))
    }
}

impl LaunchTarget for Target {
    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        self.kernel.check_parameters(&launch.parameters)?;
        self.context.make_current()?;
        let (function, stream) = (&self.kernel.function, &self.stream.stream);
        self.context.launch(launch, function, stream)
    }
}

impl CudaDevice {
    /// The target of launches from other threads.
    fn target(&mut self, stream: StreamId, function: FunctionId) -> Result<Arc<Target>> {
        let key = (stream.0, function.0);
        if let Some(target) = self.names.targets.get(&key) {
            return Ok(Arc::clone(target));
        }
        let target = Arc::new(Target {
            context: Arc::clone(&self.context),
            kernel: Arc::clone(find(&self.functions, function.0)?),
            stream: Arc::clone(find(&self.streams, stream.0)?),
        });
        if self.names.targets.len() >= MAX_TARGETS {
            self.names.targets.clear();
        }
        self.names.targets.insert(key, Arc::clone(&target));
        Ok(target)
    }

    /// Checks that the work refers to live objects and to the session's memory.
    pub(crate) fn look_up(&self, work: &Work<'_>) -> Result<Resolved<'_>> {
        Ok(match work {
            Work::Launch(launch) => {
                let kernel = find(&self.functions, launch.function.0)?;
                kernel.check_parameters(&launch.parameters)?;
                Resolved::Function(&kernel.function)
            }
            // Only exists in graphs.
            Work::Conditional(_) => Resolved::Nothing,
            Work::Copy { size: 0, .. } => Resolved::Nothing,
            Work::Copy {
                destination,
                source,
                size,
            } => Resolved::Spans {
                destination: self.memory.span(*destination, *size)?,
                source: self.memory.span(*source, *size)?,
            },
            Work::CopyRect { extent, .. } if extent.contains(&0) => Resolved::Nothing,
            Work::CopyRect {
                destination,
                source,
                extent,
            } => Resolved::Ends {
                destination: self.rect_end(*destination, *extent)?,
                source: self.rect_end(*source, *extent)?,
            },
            Work::Memset(set) if set.is_empty() => Resolved::Nothing,
            Work::Memset(set) => {
                let Memset {
                    destination,
                    pitch,
                    element,
                    width,
                    height,
                    ..
                } = *set;
                let row = width
                    .checked_mul(element.into())
                    .ok_or(Status::INVALID_VALUE)?;
                let bytes = rect_bytes(pitch, 0, [row, height, 1]).ok_or(Status::INVALID_VALUE)?;
                Resolved::Span(self.memory.span(destination, bytes)?)
            }
            Work::Memory(operations) if operations.is_empty() => Resolved::Nothing,
            Work::Memory(operations) => {
                for word in operations.iter().filter_map(MemoryOperation::word) {
                    self.memory.span(word.address, word.size())?;
                    if !word.address.is_multiple_of(word.size()) {
                        return Err(Status::INVALID_VALUE.into());
                    }
                }
                Resolved::Words
            }
            Work::EventRecord(event) | Work::EventWait(event) => {
                Resolved::Event(&find(&self.events, event.0)?.event)
            }
            Work::Empty | Work::Host(_) => Resolved::Nothing,
        })
    }

    fn rect_end(&self, end: CopyEnd, extent: [u64; 3]) -> Result<RectEnd<'_>> {
        match end {
            CopyEnd::Linear {
                address,
                pitch,
                rows,
            } => {
                let bytes = rect_bytes(pitch, rows, extent).ok_or(Status::INVALID_VALUE)?;
                let first = self.memory.span(address, bytes)?;
                Ok(RectEnd::Linear { first, pitch, rows })
            }
            CopyEnd::Array {
                array,
                level,
                origin,
            } => Ok(RectEnd::Array {
                array: find(&self.arrays, array.0)?,
                level,
                origin,
            }),
        }
    }
}
