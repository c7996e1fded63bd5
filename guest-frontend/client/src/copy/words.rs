//! Memory words that streams write and wait for (CUDA Driver API, Stream Memory
//! Operations).

use std::sync::Arc;

use paragpu_abi::{
    CU_STREAM_MEM_OP_BARRIER as BARRIER, CU_STREAM_MEM_OP_WAIT_VALUE_32 as WAIT_32,
    CU_STREAM_MEM_OP_WAIT_VALUE_64 as WAIT_64, CU_STREAM_MEM_OP_WRITE_VALUE_32 as WRITE_32,
    CU_STREAM_MEM_OP_WRITE_VALUE_64 as WRITE_64,
};
use paragpu_protocol::codec::{Bytes, Field};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::StreamMemory;
use paragpu_protocol::types::MemoryOperation;

use super::Copies;
use crate::error::Result;
use crate::objects::graph::{MemoryWork, Work};
use crate::objects::stream::Stream;

const WAITS: [u32; 2] = [WAIT_32, WAIT_64];
const WRITES: [u32; 2] = [WRITE_32, WRITE_64];

/// Bytes of the operation's word; `None` for a barrier.
fn size(operation: &MemoryOperation) -> Option<u64> {
    match operation.kind {
        WAIT_32 | WRITE_32 => Some(4),
        WAIT_64 | WRITE_64 => Some(8),
        _ => None,
    }
}

/// Refuses invalid operations.
fn check(operation: &MemoryOperation) -> Result<()> {
    let most = match operation.kind {
        kind if WAITS.contains(&kind) => 3,
        kind if WRITES.contains(&kind) || kind == BARRIER => 1,
        _ => return Err(Status::INVALID_VALUE),
    };
    let aligned = size(operation).is_none_or(|size| operation.address.is_multiple_of(size));
    if operation.flags > most || !aligned {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

/// The operations on the wire. `name` converts the addresses of words.
pub(crate) fn named(
    operations: &[MemoryOperation],
    name: impl Fn(u64, u64) -> Result<u64>,
) -> Result<Vec<u8>> {
    let mut named = Vec::new();
    for operation in operations {
        check(operation)?;
        let address = match size(operation) {
            Some(size) => name(operation.address, size)?,
            None => 0,
        };
        let operation = MemoryOperation {
            address,
            ..*operation
        };
        let tail = operation.encode(&mut named);
        named.extend_from_slice(tail);
    }
    Ok(named)
}

impl Copies {
    /// cuStreamBatchMemOp. For a graph node, `given` are the program's parameters.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn operate(
        &self,
        operations: Vec<MemoryOperation>,
        given: Vec<[u64; 6]>,
        stream: &Stream,
    ) -> Result<()> {
        if operations.is_empty() || operations.len() > StreamMemory::MAX_OPERATIONS {
            return Err(Status::INVALID_VALUE);
        }
        operations.iter().try_for_each(check)?;
        if stream.is_capturing() {
            return stream.note(Work::Memory(Arc::new(MemoryWork {
                ordinal: self.ordinal,
                operations,
                given,
            })));
        }
        let named = named(&operations, |address, size| {
            self.access.before(address, size)
        })?;
        let position = self.streams.post_work(
            stream,
            &StreamMemory {
                stream: stream.handle(),
                operations: Bytes(&named),
            },
        )?;
        for operation in operations.iter().filter(|one| WRITES.contains(&one.kind)) {
            let size = size(operation).unwrap_or(0);
            self.access
                .after_write(operation.address, size, stream, position);
        }
        // Another thread may be waiting for the word.
        self.link.flush()
    }
}
