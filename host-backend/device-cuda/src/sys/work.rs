//! Work given to a stream.

use paragpu_device::{Result, Work};
use paragpu_protocol::status::Status;

use super::context::Context;
use super::copy::RectEnd;
use super::memory::Span;
use super::resources::{Event, Function, Stream};

/// The resolved objects and memory of a piece of work: alive while they are borrowed,
/// and owned by this process.
pub enum Resolved<'a> {
    /// It uses no objects, or has nothing to do.
    Nothing,
    Function(&'a Function),
    Spans {
        destination: Span,
        source: Span,
    },
    Ends {
        destination: RectEnd<'a>,
        source: RectEnd<'a>,
    },
    /// Covers every row.
    Span(Span),
    /// Every word is one of the session's.
    Words,
    Event(&'a Event),
}

impl Context {
    /// Gives `work` to a stream; `found` is what it names.
    pub fn submit(&self, work: &Work<'_>, found: &Resolved<'_>, stream: &Stream) -> Result<()> {
        match (work, found) {
            (Work::Launch(launch), Resolved::Function(function)) => {
                self.launch(launch, function, stream)
            }
            (
                Work::Copy { .. },
                Resolved::Spans {
                    destination,
                    source,
                },
            ) => self.copy(*destination, *source, stream),
            (
                Work::CopyRect { extent, .. },
                Resolved::Ends {
                    destination,
                    source,
                },
            ) => self.copy_rect(destination, source, *extent, stream),
            (Work::Memset(set), Resolved::Span(span)) => self.set(*span, set, stream),
            (Work::Memory(operations), Resolved::Words) => self.operate(operations, stream),
            (Work::Host(function), _) => self.host_function(stream, function.clone()),
            (Work::EventRecord(_), Resolved::Event(event)) => self.event_record(event, stream),
            (Work::EventWait(_), Resolved::Event(event)) => self.stream_wait(stream, event),
            (_, Resolved::Nothing) => Ok(()),
            _ => Err(Status::INVALID_VALUE.into()),
        }
    }
}
