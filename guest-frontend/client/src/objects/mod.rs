//! What a program holds handles of. These types know their own state; what
//! crosses to the host on their behalf is the business of the parts of a
//! session, one file each, named alike.
//!
//! Streams, events, graphs and captures refer to each other in a circle, as
//! CUDA's do: a stream is part of a capture, a capture fills a graph, a node of
//! a graph may record an event, and an event may stand for a point of a
//! capture. Nothing else of the crate is in that circle.

pub mod array;
pub mod capture;
pub mod condition;
mod conditional;
pub mod edge;
pub mod event;
pub mod function;
pub mod graph;
mod graph_edges;
pub mod graph_memory;
pub(crate) mod managed_variable;
pub mod shape;
pub mod stream;
pub mod stream_attributes;
pub mod user_object;
