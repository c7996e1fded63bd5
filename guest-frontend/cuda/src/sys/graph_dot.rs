//! Graphs as DOT files (CUDA Driver API, Graph Management).

use std::ffi::c_uint;

use paragpu_abi::CUgraph;
use paragpu_protocol::status::Status;

use super::boundary::Text;
use super::{Result, graph};
use crate::dot::{self, Details};

pub(crate) fn cuGraphDebugDotPrint(graph: CUgraph, path: Text<'_>, flags: c_uint) -> Result {
    let path = path.get()?;
    let details = Details::of(flags);
    let text = dot::print(&graph::find(graph)?, details);
    std::fs::write(path, text).map_err(|_| Status::OPERATING_SYSTEM)
}
