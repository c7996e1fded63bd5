//! A piece of work, submitted to a stream or executed by a node of a graph.
//!
//! One value travels from the decoded call to the driver. The worker creates it with the
//! device's IDs of the objects that the call names; the device resolves these and submits
//! the work to its driver.

use parking_lot::Mutex;
use std::borrow::Cow;
use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;

use crate::{ArrayId, Conditional, EventId, FunctionId, Result, StreamId};

/// One end of a rectangular copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyEnd {
    /// Memory that the device can access.
    Linear {
        /// Address of the copy's first byte.
        address: u64,
        /// Bytes from one row to the next.
        pitch: u64,
        /// Rows from one slice to the next.
        rows: u64,
    },
    /// A CUDA array.
    Array {
        /// The array.
        array: ArrayId,
        /// Its mipmap level.
        level: u32,
        /// Byte in the row, row, slice.
        origin: [u64; 3],
    },
}

/// A kernel launch.
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    /// The kernel.
    pub function: FunctionId,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Whether it is cooperative: all blocks run concurrently and may synchronize.
    pub cooperative: bool,
    /// Whether the kernel may start before the preceding kernel of its stream has ended, if
    /// that one permits it (programmatic dependent launch). In graphs, edges express this.
    pub programmatic: bool,
    /// Blocks per cluster; zeros for none.
    pub cluster: [u32; 3],
    /// Attributes that steer the GPU without changing results. A device without these
    /// attributes ignores them.
    pub preferences: Vec<Preference>,
    /// The parameters, in the layout of [`Function::parameters`](crate::Function).
    pub parameters: Cow<'a, [u8]>,
}

impl<'a> Launch<'a> {
    /// One block of one thread, without shared memory and attributes.
    #[must_use]
    pub fn of_one_thread(function: FunctionId, parameters: impl Into<Cow<'a, [u8]>>) -> Self {
        Self {
            function,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
            programmatic: false,
            cluster: [0; 3],
            preferences: Vec::new(),
            parameters: parameters.into(),
        }
    }

    /// Whether it has attributes as a graph's node.
    #[must_use]
    pub fn has_attributes(&self) -> bool {
        self.cooperative || self.cluster != [0; 3] || !self.preferences.is_empty()
    }
}

/// An attribute of a launch (CUlaunchAttribute).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preference {
    /// CUlaunchAttributeID.
    pub attribute: u32,
    /// CUlaunchAttributeValue.
    pub value: [u8; 64],
}

/// A memset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memset {
    /// First address to write.
    pub destination: u64,
    /// Bytes from one row to the next.
    pub pitch: u64,
    /// The element's value in its low bytes.
    pub value: u32,
    /// Bytes of an element: 1, 2, 4.
    pub element: u8,
    /// Elements in a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

impl Memset {
    /// Whether it sets no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0
    }
}

/// A word of memory that the device can access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// Its address, a multiple of its size.
    pub address: u64,
    /// Whether it has eight bytes instead of four.
    pub is_wide: bool,
}

impl Word {
    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        if self.is_wide { 8 } else { 4 }
    }
}

/// The condition that ends a wait for a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The word is at least the value, modulo wrap-around.
    AtLeast,
    /// The word equals the value.
    Equal,
    /// The word and the value have a common bit.
    And,
    /// Some bit is set neither in the word nor in the value.
    Nor,
}

impl Until {
    /// Whether the condition holds if memory contains `there`.
    #[must_use]
    pub fn holds(self, there: u64, value: u64, is_wide: bool) -> bool {
        let mask = if is_wide {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        };
        let sign = mask ^ (mask >> 1);
        match self {
            Self::AtLeast => there.wrapping_sub(value) & sign == 0,
            Self::Equal => (there ^ value) & mask == 0,
            Self::And => there & value & mask != 0,
            Self::Nor => !(there | value) & mask != 0,
        }
    }
}

/// An operation on memory (CUDA Driver API, Stream Memory Operations).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryOperation {
    /// Writes a word.
    Write {
        /// The word.
        word: Word,
        /// The value, in its low bytes.
        value: u64,
        /// Whether earlier writes may become visible later.
        is_relaxed: bool,
    },
    /// Waits for a word.
    Wait {
        /// The word.
        word: Word,
        /// The comparand.
        value: u64,
        /// The condition.
        until: Until,
    },
    /// A memory barrier: earlier writes become visible before later ones.
    Barrier {
        /// Whether it concerns only this device.
        is_local: bool,
    },
}

impl MemoryOperation {
    /// The word that it accesses.
    #[must_use]
    pub fn word(&self) -> Option<Word> {
        match self {
            Self::Write { word, .. } | Self::Wait { word, .. } => Some(*word),
            Self::Barrier { .. } => None,
        }
    }
}

/// A host function. It runs on a thread of the device each time the device reaches it;
/// later work of the stream waits until it returns.
pub type HostFunction = Arc<dyn Fn() + Send + Sync>;

/// A piece of work.
#[derive(Clone)]
pub enum Work<'a> {
    /// Nothing; only orders other work.
    Empty,
    /// A kernel.
    Launch(Launch<'a>),
    /// A copy between two addresses that the device can access.
    Copy {
        /// First address to write.
        destination: u64,
        /// First address to read.
        source: u64,
        /// Bytes.
        size: u64,
    },
    /// A rectangular copy.
    CopyRect {
        /// The destination.
        destination: CopyEnd,
        /// The source.
        source: CopyEnd,
        /// Bytes in a row, rows, slices.
        extent: [u64; 3],
    },
    /// A memset.
    Memset(Memset),
    /// Operations on memory, in order.
    Memory(Cow<'a, [MemoryOperation]>),
    /// A host function.
    Host(HostFunction),
    /// Records an event.
    EventRecord(EventId),
    /// Waits for an event's last record.
    EventWait(EventId),
    /// A conditional node, which runs other nodes of its graph.
    Conditional(Conditional),
}

impl Work<'_> {
    /// The same work with owned parameters.
    #[must_use]
    pub fn into_owned(self) -> Work<'static> {
        match self {
            Self::Launch(launch) => Work::Launch(Launch {
                parameters: Cow::Owned(launch.parameters.into_owned()),
                ..launch
            }),
            Self::Empty => Work::Empty,
            Self::Copy {
                destination,
                source,
                size,
            } => Work::Copy {
                destination,
                source,
                size,
            },
            Self::CopyRect {
                destination,
                source,
                extent,
            } => Work::CopyRect {
                destination,
                source,
                extent,
            },
            Self::Memset(set) => Work::Memset(set),
            Self::Memory(operations) => Work::Memory(Cow::Owned(operations.into_owned())),
            Self::Host(function) => Work::Host(function),
            Self::EventRecord(event) => Work::EventRecord(event),
            Self::EventWait(event) => Work::EventWait(event),
            Self::Conditional(conditional) => Work::Conditional(conditional),
        }
    }

    /// Whether `other` is of the same kind.
    #[must_use]
    pub fn is_like(&self, other: &Work<'_>) -> bool {
        // Both are memcpy nodes in CUDA.
        let copies = |work: &Work<'_>| matches!(work, Work::Copy { .. } | Work::CopyRect { .. });
        copies(self) && copies(other) || discriminant(self) == discriminant(other)
    }

    /// Whether a node with this work may be disabled.
    #[must_use]
    pub fn may_be_disabled(&self) -> bool {
        matches!(
            self,
            Self::Launch(_) | Self::Copy { .. } | Self::CopyRect { .. } | Self::Memset(_)
        )
    }
}

/// Shows the kind and the operands, but no data of the program.
impl fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Launch(launch) => f
                .debug_struct("Launch")
                .field("function", &launch.function)
                .field("grid", &launch.grid)
                .field("block", &launch.block)
                .field("dynamic_shared", &launch.dynamic_shared)
                .field("cooperative", &launch.cooperative)
                .field("programmatic", &launch.programmatic)
                .field("cluster", &launch.cluster)
                .field("parameter_bytes", &launch.parameters.len())
                .finish(),
            Self::Copy {
                destination,
                source,
                size,
            } => write!(
                f,
                "Copy of {size} bytes from {source:#x} to {destination:#x}"
            ),
            Self::CopyRect {
                destination,
                source,
                extent,
            } => write!(
                f,
                "CopyRect of {extent:?} from {source:x?} to {destination:x?}"
            ),
            Self::Memset(Memset {
                destination,
                pitch,
                element,
                width,
                height,
                ..
            }) => write!(
                f,
                "Memset of {height} rows of {width} elements of {element} bytes at \
                 {destination:#x}, {pitch} bytes apart"
            ),
            Self::Memory(operations) => write!(f, "Memory {operations:x?}"),
            Self::Host(_) => f.write_str("Host"),
            Self::EventRecord(event) => write!(f, "EventRecord of {event:?}"),
            Self::EventWait(event) => write!(f, "EventWait of {event:?}"),
            Self::Conditional(conditional) => write!(f, "{conditional:x?}"),
        }
    }
}

/// A kernel and a stream, into which any thread may launch it.
pub trait LaunchTarget: Send + Sync {
    /// Launches the kernel, which `launch` names once more.
    ///
    /// # Errors
    /// As [`WorkDevice::submit`].
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;
}

/// A recording of an event in a stream, for any thread to run.
pub type Recording = Box<dyn FnOnce() -> Result<()> + Send>;

/// Submission of work to a device.
pub trait WorkDevice {
    /// Submits work to `stream`.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it names an object that does not exist; `INVALID_VALUE` if memory
    /// is not completely accessible or a value is invalid; `LAUNCH_OUT_OF_RESOURCES`,
    /// `COOPERATIVE_LAUNCH_TOO_LARGE`, …
    fn submit(&mut self, work: &Work<'_>, stream: StreamId) -> Result<()>;

    /// The target of launches that other threads submit, while this one asks for targets and
    /// recordings, and creates and queries events. Before any other method is called, all targets must have been dropped.
    /// `None` if only this thread can launch the kernel into the stream.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn launch_target(
        &mut self,
        _function: FunctionId,
        _stream: StreamId,
    ) -> Result<Option<Arc<dyn LaunchTarget>>> {
        Ok(None)
    }

    /// A recording of the event behind the work that is submitted to `stream` before it runs. Like
    /// targets, it runs before any other method is called. `None` if only this thread can record
    /// events in the stream.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    fn recording(&mut self, _event: EventId, _stream: StreamId) -> Result<Option<Recording>> {
        Ok(None)
    }

    /// Launches a kernel.
    fn launch(&mut self, launch: Launch<'_>, stream: StreamId) -> Result<()> {
        self.submit(&Work::Launch(launch), stream)
    }

    /// Copies between two addresses that the device can access.
    fn copy(&mut self, destination: u64, source: u64, size: u64, stream: StreamId) -> Result<()> {
        let work = Work::Copy {
            destination,
            source,
            size,
        };
        self.submit(&work, stream)
    }

    /// Copies `extent` (bytes, rows, slices).
    fn copy_rect(
        &mut self,
        destination: CopyEnd,
        source: CopyEnd,
        extent: [u64; 3],
        stream: StreamId,
    ) -> Result<()> {
        let work = Work::CopyRect {
            destination,
            source,
            extent,
        };
        self.submit(&work, stream)
    }

    /// Writes `height` rows of `width` elements of `element` bytes (1, 2, 4).
    #[allow(clippy::too_many_arguments)]
    fn memset(
        &mut self,
        destination: u64,
        pitch: u64,
        value: u32,
        element: u8,
        width: u64,
        height: u64,
        stream: StreamId,
    ) -> Result<()> {
        let set = Memset {
            destination,
            pitch,
            value,
            element,
            width,
            height,
        };
        self.submit(&Work::Memset(set), stream)
    }

    /// Runs `function` once when `stream` reaches it.
    fn host_function(
        &mut self,
        stream: StreamId,
        function: Box<dyn FnOnce() + Send>,
    ) -> Result<()> {
        let once = Mutex::new(Some(function));
        let run = move || {
            let function = once.lock().take();
            if let Some(function) = function {
                function();
            }
        };
        self.submit(&Work::Host(Arc::new(run)), stream)
    }

    /// Makes a stream wait for the last record of an event.
    fn stream_wait_event(&mut self, stream: StreamId, event: EventId) -> Result<()> {
        self.submit(&Work::EventWait(event), stream)
    }

    /// Records an event in a stream.
    fn event_record(&mut self, event: EventId, stream: StreamId) -> Result<()> {
        self.submit(&Work::EventRecord(event), stream)
    }
}

#[cfg(test)]
mod tests {
    use super::Until;

    #[test]
    fn words_are_compared_as_wide_as_they_are() {
        for (until, there, value, narrow, wide) in [
            (Until::AtLeast, 5, 5, true, true),
            (Until::AtLeast, 4, 5, false, false),
            // Numbers wrap around.
            (Until::AtLeast, 1, 0xffff_ffff, true, false),
            (Until::AtLeast, 0, u64::MAX, true, true),
            (Until::Equal, 1 << 32 | 7, 7, true, false),
            (Until::And, 1 << 32, 1 << 32, false, true),
            (Until::And, 6, 2, true, true),
            (Until::Nor, 0xffff_ffff, 0, false, true),
            (Until::Nor, u64::MAX, 0, false, false),
            (Until::Nor, 0xf0, 0x0f, true, true),
        ] {
            assert_eq!(
                until.holds(there, value, false),
                narrow,
                "{until:?} {there:x} {value:x}"
            );
            assert_eq!(
                until.holds(there, value, true),
                wide,
                "{until:?} {there:x} {value:x}"
            );
        }
    }
}
