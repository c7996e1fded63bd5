//! Memory words that streams write and wait for.

use paragpu_device::{MemoryOperation, Until, Word, Work};
use paragpu_protocol::codec::Reader;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::StreamMemory;
use paragpu_protocol::types::MemoryOperation as WireOperation;

use crate::error::{Outcome, fail};
use crate::session::gpu::Gpu;
use crate::session::graph::NodeWork;
use crate::session::objects::Objects;
use crate::session::queue::pieces;

impl Objects {
    pub(crate) fn stream_memory(&mut self, gpu: &mut Gpu, call: &StreamMemory<'_>) -> Outcome<()> {
        let NodeWork { work, .. } = self.stream_memory_work(call)?;
        let stream = self
            .streams
            .for_pieces(gpu, call.stream, pieces(&work, 0))?;
        self.streams.wait(call.stream);
        Ok(gpu.submit(&work, stream)?)
    }

    pub(crate) fn stream_memory_work(&self, call: &StreamMemory<'_>) -> Outcome<NodeWork<'static>> {
        let mut reader = Reader::new(call.operations.0);
        let mut operations = Vec::new();
        while reader.remaining() > 0 {
            let Ok(wire) = reader.field::<WireOperation>() else {
                return fail(Status::INVALID_VALUE, "an operation is truncated");
            };
            if operations.len() == StreamMemory::MAX_OPERATIONS {
                return fail(
                    Status::INVALID_VALUE,
                    format!("more than {} operations", StreamMemory::MAX_OPERATIONS),
                );
            }
            operations.push(operation(&wire)?);
        }
        Ok(Work::Memory(operations.into()).into())
    }
}

fn operation(wire: &WireOperation) -> Outcome<MemoryOperation> {
    let word = |is_wide| Word {
        address: wire.address,
        is_wide,
    };
    let value = wire.value;
    Ok(match (wire.kind, wire.flags) {
        (kind @ (1 | 4), flags) => MemoryOperation::Wait {
            word: word(kind == 4),
            value,
            until: match flags {
                0 => Until::AtLeast,
                1 => Until::Equal,
                2 => Until::And,
                3 => Until::Nor,
                _ => return unknown(wire),
            },
        },
        (kind @ (2 | 5), flags @ (0 | 1)) => MemoryOperation::Write {
            word: word(kind == 5),
            value,
            is_relaxed: flags == 1,
        },
        (6, flags @ (0 | 1)) => MemoryOperation::Barrier {
            is_local: flags == 1,
        },
        _ => return unknown(wire),
    })
}

fn unknown<T>(wire: &WireOperation) -> Outcome<T> {
    let (kind, flags) = (wire.kind, wire.flags);
    let why = format!("unknown operation of kind {kind} with flags {flags:#x}");
    fail(Status::INVALID_VALUE, why)
}
