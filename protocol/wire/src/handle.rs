//! Handles: the guest's numbers for the objects of its session.
//!
//! The guest chooses each number and never reuses it in a session; the worker maps it to
//! the device's object. Each kind of handle is a type of its own, so that kinds cannot be
//! confused.

use crate::codec::{DecodeError, Field, Reader};

macro_rules! handles {
    ($( $(#[$meta:meta])* $name:ident => $kind:ident ),* $(,)?) => {
        /// The kinds of objects.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ObjectKind {
            $( $(#[$meta])* $kind ),*
        }
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
            pub struct $name(pub u64);

            impl Field<'_> for $name {
                fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
                    out.extend_from_slice(&self.0.to_le_bytes());
                    &[]
                }
                fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                    reader.field().map(Self)
                }
            }
        )*
    };
}

handles! {
    /// A range of device memory, named by its first address in the arena.
    DeviceAddress => Memory,
    /// An alias of device memory, named by its first address.
    AliasAddress => Alias,
    /// A range of the shared window used as pinned memory, named by its
    /// offset in the device's region of windows.
    WindowOffset => HostMemory,
    /// A shadow: the worker's copy of guest memory, named by its address on the device.
    ShadowAddress => Shadow,
    /// A CUDA array or mipmapped array.
    ArrayHandle => Array,
    /// A texture object.
    TextureHandle => Texture,
    /// A surface object.
    SurfaceHandle => Surface,
    /// A loaded module or library.
    ModuleHandle => Module,
    /// A kernel of a module.
    FunctionHandle => Function,
    /// A stream; see the constants for the two default streams.
    StreamHandle => Stream,
    /// An event.
    EventHandle => Event,
    /// An instantiated graph.
    GraphExecHandle => GraphExec,
    /// A green context.
    GreenHandle => Green,
}

impl StreamHandle {
    /// The legacy default stream (CUDA's null stream and `CU_STREAM_LEGACY`).
    pub const LEGACY: Self = Self(0);
    /// The first handle of created streams. The guest library also creates a stream for each
    /// thread's per-thread default stream (`CU_STREAM_PER_THREAD`).
    pub const FIRST: Self = Self(16);
}
