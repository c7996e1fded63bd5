//! Resources that the session freed while its work may still use them.
//!
//! CUDA waits for that work in the call that frees the resource. A worker must not wait,
//! because a host function in that work may be waiting for the worker.

use std::sync::Arc;

use paragpu_device::Result;

use crate::sys::{Array, Context, Event, Graph, Module};

/// A resource to free.
pub enum Leaving {
    /// An arena mapping, or an alias, which has no handle.
    Mapping {
        address: u64,
        size: u64,
        handle: Option<u64>,
    },
    /// An array.
    Array(Array),
    /// A module, and with it its kernels and variables.
    Module(Module),
    /// A graph.
    Graph(Graph),
}

impl Leaving {
    /// Frees the resource. No work may use it any more.
    pub fn give_back(self, context: &Context) -> Result<()> {
        match self {
            Self::Mapping {
                address,
                size,
                handle,
            } => context.unmap(address, size, handle),
            Self::Array(array) => context.array_destroy(array),
            Self::Module(module) => context.module_unload(module),
            Self::Graph(graph) => context.graph_destroy(graph),
        }
    }
}

/// An object to be released when the events are complete.
struct Retired {
    what: Leaving,
    after: Vec<Arc<Event>>,
}

/// The objects that wait for their release.
#[derive(Default)]
pub struct Retirement {
    waiting: Vec<Retired>,
}

impl Retirement {
    /// Frees `what` when the events `after` are complete.
    pub fn add(&mut self, what: Leaving, after: Vec<Arc<Event>>) {
        self.waiting.push(Retired { what, after });
    }

    /// Whether a retired mapping overlaps the range.
    pub fn overlaps(&self, start: u64, length: u64) -> bool {
        self.waiting.iter().any(|retired| match retired.what {
            Leaving::Mapping { address, size, .. } => {
                address < start + length && start < address + size
            }
            _ => false,
        })
    }

    /// Frees the resources that no work uses any more.
    pub fn reap(&mut self, context: &Context) -> Result<()> {
        let mut index = 0;
        while let Some(retired) = self.waiting.get_mut(index) {
            while let Some(event) = retired.after.pop() {
                if !context.event_query(&event)? {
                    retired.after.push(event);
                    break;
                }
                context.event_destroy(event)?;
            }
            if retired.after.is_empty() {
                self.waiting.swap_remove(index).what.give_back(context)?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Frees all resources. No work may use them any more. After a sticky error the driver
    /// refuses, and the process ends anyway.
    pub fn clear(&mut self, context: &Context) {
        for retired in self.waiting.drain(..) {
            let _ = retired.what.give_back(context);
        }
    }
}
