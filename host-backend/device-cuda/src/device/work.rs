//! Work: what it names is looked up, then it goes to the driver.

use paragpu_device::{
    CopyEnd, Deferred, FunctionId, Launch, MemoryOperation, Memset, Result, StreamId, Work,
    WorkDevice,
};
use paragpu_protocol::status::Status;

use super::{CudaDevice, Named, find, stream};
use crate::memory::rect_bytes;
use crate::sys::{Found, RectEnd};
use std::sync::Arc;

/// Kernels and streams of deferred launches that are remembered.
const MOST_NAMED: usize = 1024;

impl WorkDevice for CudaDevice {
    fn submit(&mut self, work: &Work<'_>, order: StreamId) -> Result<()> {
        let found = self.look_up(work)?;
        let order = stream(&self.streams, order)?;
        self.context.submit(work, &found, order)
    }

    fn defer(&mut self, work: &Work<'_>, order: StreamId) -> Result<Option<Deferred>> {
        // The legacy stream's order is that in which streams were given work.
        if order == StreamId::LEGACY {
            return Ok(None);
        }
        Ok(Some(match work {
            Work::Launch(launch) => {
                let named = self.named(order, launch.function)?;
                named.kernel.check_parameters(&launch.parameters)?;
                let launch = Launch {
                    parameters: launch.parameters.to_vec().into(),
                    ..launch.clone()
                };
                Box::new(move || {
                    let Named {
                        context,
                        kernel,
                        stream,
                    } = named.as_ref();
                    context.make_current()?;
                    context.launch(&launch, &kernel.function, &stream.stream)
                })
            }
            Work::EventRecord(event) => {
                let context = Arc::clone(&self.context);
                let stream = Arc::clone(find(&self.streams, order.0)?);
                let event = Arc::clone(find(&self.events, event.0)?);
                Box::new(move || {
                    context.make_current()?;
                    context.event_record(&event, &stream.stream)
                })
            }
            _ => return Ok(None),
        }))
    }
}

impl CudaDevice {
    /// What a deferred launch names.
    fn named(&mut self, stream: StreamId, function: FunctionId) -> Result<Arc<Named>> {
        let key = (stream.0, function.0);
        if let Some(named) = self.names.deferred.get(&key) {
            return Ok(Arc::clone(named));
        }
        let named = Arc::new(Named {
            context: Arc::clone(&self.context),
            kernel: Arc::clone(find(&self.functions, function.0)?),
            stream: Arc::clone(find(&self.streams, stream.0)?),
        });
        if self.names.deferred.len() >= MOST_NAMED {
            self.names.deferred.clear();
        }
        self.names.deferred.insert(key, Arc::clone(&named));
        Ok(named)
    }

    /// Checks that the work refers to live objects and to the session's memory.
    pub(crate) fn look_up(&self, work: &Work<'_>) -> Result<Found<'_>> {
        Ok(match work {
            Work::Launch(launch) => {
                let kernel = find(&self.functions, launch.function.0)?;
                kernel.check_parameters(&launch.parameters)?;
                Found::Function(&kernel.function)
            }
            // Of a graph alone.
            Work::Conditional(_) => Found::Nothing,
            Work::Copy { size: 0, .. } => Found::Nothing,
            Work::Copy {
                destination,
                source,
                size,
            } => Found::Spans {
                destination: self.memory.span(*destination, *size)?,
                source: self.memory.span(*source, *size)?,
            },
            Work::CopyRect { extent, .. } if extent.contains(&0) => Found::Nothing,
            Work::CopyRect {
                destination,
                source,
                extent,
            } => Found::Ends {
                destination: self.rect_end(*destination, *extent)?,
                source: self.rect_end(*source, *extent)?,
            },
            Work::Memset(set) if set.is_empty() => Found::Nothing,
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
                Found::Span(self.memory.span(destination, bytes)?)
            }
            Work::Memory(operations) if operations.is_empty() => Found::Nothing,
            Work::Memory(operations) => {
                for word in operations.iter().filter_map(MemoryOperation::word) {
                    self.memory.span(word.address, word.size())?;
                    if !word.address.is_multiple_of(word.size()) {
                        return Err(Status::INVALID_VALUE.into());
                    }
                }
                Found::Words
            }
            Work::EventRecord(event) | Work::EventWait(event) => {
                Found::Event(find(&self.events, event.0)?)
            }
            Work::Empty | Work::Host(_) => Found::Nothing,
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
