//! The driver's functions, and the unsafe code that calls them.
#![allow(unsafe_code)]

mod context;
mod copy;
mod driver;
mod event;
mod graph;
mod green;
mod info;
mod jit_options;
mod launch;
mod link;
mod memory;
mod module;
mod native;
pub mod nvml;
pub mod reservations;
mod resources;
mod stream;
mod stream_memory;
mod tensor_map;
mod texture;
mod topology;

pub use context::Context;
pub use copy::RectEnd;
pub use driver::Driver;
pub use graph::Graph;
pub use green::SmPart;
pub use memory::Span;
pub use resources::{Array, Event, Function, Green, Module, Resolved, Stream};
pub use texture::Resource;
