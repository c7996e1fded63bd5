//! The objects behind a program's handles. These types hold local state. The parts of a
//! session, in files of the same names, make the calls to the host.
//!
//! Streams, events, graphs and captures refer to each other in a cycle, as in CUDA: a
//! stream is part of a capture, a capture fills a graph, a node of a graph may record
//! an event, and an event may stand for a point of a capture. Nothing else in the
//! crate is part of that cycle.

pub mod array;
pub(crate) mod array_limits;
pub mod capture;
pub mod condition;
mod conditional;
pub mod edge;
pub mod event;
pub(crate) mod flat_graph;
pub mod function;
pub mod graph;
mod graph_edges;
pub mod graph_memory;
mod graph_memory_limits;
mod graph_memory_reuse;
pub(crate) mod junction;
mod kernel;
pub(crate) mod live_streams;
pub(crate) mod managed_variable;
mod moved_graph;
pub mod preference;
pub mod shape;
pub mod stream;
pub mod stream_attributes;
pub mod user_object;
pub(crate) mod words;
