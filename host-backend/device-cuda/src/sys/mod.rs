//! The driver's functions and what little unsafe code is needed to call them.
#![allow(unsafe_code)]

mod driver;
mod graph;
mod ops;
mod resources;

pub use driver::Driver;
pub use graph::{Graph, NodeWork};
pub use ops::{Context, LaunchConfig, RectEnd, Resource, Span};
pub use resources::{Array, Event, Function, Module, Stream};
