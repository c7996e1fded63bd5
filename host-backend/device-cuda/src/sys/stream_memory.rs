//! Words that streams write and wait for.

use std::ptr;

use paragpu_abi::{
    CU_STREAM_MEM_OP_BARRIER, CU_STREAM_MEM_OP_WAIT_VALUE_32, CU_STREAM_MEM_OP_WAIT_VALUE_64,
    CU_STREAM_MEM_OP_WRITE_VALUE_32, CU_STREAM_MEM_OP_WRITE_VALUE_64,
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUstreamBatchMemOpParams,
};
use paragpu_device::{MemoryOperation, Result, Until};

use super::context::Context;
use super::driver::check;
use super::resources::Stream;

/// Of a word and of a wide one.
const WAIT: [u64; 2] = [
    CU_STREAM_MEM_OP_WAIT_VALUE_32 as u64,
    CU_STREAM_MEM_OP_WAIT_VALUE_64 as u64,
];
const WRITE: [u64; 2] = [
    CU_STREAM_MEM_OP_WRITE_VALUE_32 as u64,
    CU_STREAM_MEM_OP_WRITE_VALUE_64 as u64,
];
const BARRIER: u64 = CU_STREAM_MEM_OP_BARRIER as u64;

/// An operation in the driver's format.
fn record(operation: &MemoryOperation) -> CUstreamBatchMemOpParams {
    let pad = match *operation {
        MemoryOperation::Write {
            word,
            value,
            is_relaxed,
        } => {
            let kind = WRITE[usize::from(word.is_wide)];
            [kind, word.address, value, u64::from(is_relaxed), 0, 0]
        }
        MemoryOperation::Wait { word, value, until } => {
            let flags = match until {
                Until::AtLeast => 0,
                Until::Equal => 1,
                Until::And => 2,
                Until::Nor => 3,
            };
            let kind = WAIT[usize::from(word.is_wide)];
            [kind, word.address, value, flags, 0, 0]
        }
        // Its flags lie behind its kind.
        MemoryOperation::Barrier { is_local } => {
            [BARRIER | u64::from(is_local) << 32, 0, 0, 0, 0, 0]
        }
    };
    CUstreamBatchMemOpParams { pad }
}

/// A node's operations in the driver's format; the driver copies them.
pub(super) struct Records {
    records: Vec<CUstreamBatchMemOpParams>,
}

impl Records {
    pub(super) fn new(operations: &[MemoryOperation]) -> Self {
        Self {
            records: operations.iter().map(record).collect(),
        }
    }

    /// Valid as long as `self`.
    pub(super) fn node(&mut self, context: usize) -> CUDA_BATCH_MEM_OP_NODE_PARAMS {
        CUDA_BATCH_MEM_OP_NODE_PARAMS {
            ctx: ptr::without_provenance_mut(context),
            count: u32::try_from(self.records.len()).unwrap_or(u32::MAX),
            paramArray: self.records.as_mut_ptr(),
            flags: 0,
        }
    }
}

impl Context {
    /// cuStreamBatchMemOp, on words that the session can access.
    pub fn operate(&self, operations: &[MemoryOperation], stream: &Stream) -> Result<()> {
        let mut records: Vec<_> = operations.iter().map(record).collect();
        let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
        let first = records.as_mut_ptr();
        // SAFETY: complete records; the stream and the words are alive.
        check(unsafe { (self.driver.cuStreamBatchMemOp_v2)(stream.raw(), count, first, 0) })
    }
}
