//! The call table: every call that crosses. A call that is a function of the driver is
//! described in `protocol/interface/driver`, any other in `protocol/interface/calls`.
//!
//! A description gives the number (fixed forever), the parameters with their
//! kinds, how the call crosses ([`Class`]), its properties ([`CallInfo`]), what
//! it does to the session's objects ([`Effect`](crate::call::Effect)), and the reply. Semantics are
//! those of the CUDA driver API function named first in each entry's
//! documentation.
//!
//! Numbers: 0x00 session, 0x01 memory, 0x02 copies, 0x03 arrays and textures,
//! 0x04 modules, 0x05 launch, 0x06 streams, 0x07 events, 0x08 context,
//! 0x09 host functions, 0x0a graphs.

use crate::call::{CallInfo, Capability, Class, WireCall};
use crate::codec::{Bytes, DecodeError, Field, Text};
use crate::handle::{
    AliasAddress, ArrayHandle, DeviceAddress, EventHandle, FunctionHandle, GraphExecHandle,
    GreenHandle, ModuleHandle, ShadowAddress, StreamHandle, SurfaceHandle, TextureHandle,
    WindowOffset,
};
use crate::layout::LAUNCHING_THREADS;
use crate::types::{
    ArrayShape, ChangedRuns, CopyEnd, DeviceAnswer, DeviceSnapshot, DeviceUsage, FunctionInfo,
    FunctionNames, GlobalInfo, LinkedImage, MemoryInfo, MemoryOffer, PeerAttributes, PeerName,
    SmGroups, SmResource, TensorMap, TextureSpec,
};

include!(concat!(env!("OUT_DIR"), "/table.rs"));

impl ShadowChanges<'_> {
    /// Maximum number of ranges in one question.
    pub const MOST_RANGES: usize = 64;
    /// Maximum number of bytes of the ranges in one question.
    pub const MOST_ASKED: u64 = 1 << 30;
    /// Maximum number of bytes of the runs in one answer.
    pub const MOST_BYTES: usize = 16 << 10;
}

impl StreamMemory<'_> {
    /// Maximum number of operations in one call, as in CUDA.
    pub const MAX_OPERATIONS: usize = 256;
}

impl GraphConditional<'_> {
    /// Maximum number of bodies of a node.
    pub const MAX_BODIES: usize = 1024;
}

impl GreenCreate<'_> {
    /// Maximum number of splits between the whole device and a green context.
    pub const MAX_STEPS: usize = 8;
}

impl Launch<'_> {
    /// In [`flags`](Self::flags): all blocks run at once and may synchronize with
    /// each other.
    pub const COOPERATIVE: u32 = 1;
    /// In [`flags`](Self::flags): the kernel may begin before the end of the one before
    /// it in its stream, which permits that (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).
    pub const PROGRAMMATIC: u32 = 2;
    /// In [`flags`](Self::flags): their upper half is the lower half of the position of the
    /// last call that this one [follows](Self::knows).
    pub const KNOWS: u32 = 4;
    /// In [`flags`](Self::flags): the first bit of [`thread`](Self::thread).
    const THREAD: u32 = 8;
    /// The bits of it.
    const THREADS: u32 = 31;
    /// CUlaunchAttributeIDs of the preferences: access policy window, scheduling of clusters,
    /// priority, memory synchronization domains, their map, shared memory carveout.
    pub const PREFERENCES: [u32; 6] = [1, 5, 8, 9, 10, 14];

    /// The flags of a launch.
    #[must_use]
    pub fn flags_of(cooperative: bool, programmatic: bool) -> u32 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        bit(cooperative, Self::COOPERATIVE) | bit(programmatic, Self::PROGRAMMATIC)
    }

    /// The flags that say which thread launches: 1 to [`LAUNCHING_THREADS`] - 1. The launch follows
    /// the others of this thread and of its stream, and the host stores in the thread's
    /// [launch word](crate::layout::launch_word) that it is submitted. 0 if the thread does not
    /// say who it is.
    #[must_use]
    pub fn by(thread: u32) -> u32 {
        (thread & Self::THREADS) << Self::THREAD
    }

    /// The number of that thread.
    #[must_use]
    pub fn thread(&self) -> u32 {
        match (self.flags >> Self::THREAD) & Self::THREADS {
            thread @ ..LAUNCHING_THREADS => thread,
            _ => 0,
        }
    }

    /// The flags that say which call is the last one that the launch follows. It follows all
    /// calls before that one, too. The functions of those behind it had not returned when the
    /// launch began, or they are launches of threads that [say who they are](Self::by).
    #[must_use]
    pub fn knows(last: u64) -> u32 {
        Self::KNOWS | ((last as u32) << 16)
    }

    /// The number of calls directly before this one, at `position`, that it does not follow:
    /// their functions had not returned when it began, so that the program has no order between
    /// them and this launch, or they are launches of threads that [say who they are](Self::by). If there are 65,536 or more, it is
    /// too low.
    #[must_use]
    pub fn concurrent(&self, position: u64) -> u64 {
        if self.flags & Self::KNOWS == 0 {
            return 0;
        }
        let last = (self.flags >> 16) as u16;
        u64::from((position as u16).wrapping_sub(1).wrapping_sub(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::decode_all;

    #[test]
    fn a_launch_says_which_calls_it_does_not_follow() {
        let launch = |flags| Launch {
            function: FunctionHandle(0),
            stream: StreamHandle(0),
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            flags,
            cluster: [0; 3],
            preferences: Bytes(&[]),
            parameters: Bytes(&[]),
        };
        for position in [1, 2, 0xffff, 0x1_0000, 0x1_0001, 0x7_0003_u64] {
            for between in [0, 1, 7, 0xfffe, 0xffff] {
                if let Some(last) = (position - 1).checked_sub(between) {
                    let flags = Launch::flags_of(true, true) | Launch::knows(last);
                    assert_eq!(launch(flags).concurrent(position), between);
                }
            }
            assert_eq!(launch(Launch::flags_of(true, true)).concurrent(position), 0);
        }
        for thread in [0, 1, 17, LAUNCHING_THREADS - 1] {
            let flags = Launch::flags_of(true, true) | Launch::knows(5) | Launch::by(thread);
            let launch = launch(flags);
            assert_eq!((launch.thread(), launch.concurrent(9)), (thread, 3));
        }
        // Too many to count: never more than there are.
        assert_eq!(launch(Launch::knows(0)).concurrent(0x1_0001), 0);
    }

    #[test]
    fn numbers_rise_and_stay_below_control() {
        for pair in CALLS.windows(2) {
            assert!(pair[0].number < pair[1].number, "{}", pair[1].name);
        }
        assert!(CALLS.iter().all(|call| call.number < crate::frame::CONTROL));
    }

    #[test]
    fn every_call_names_the_function_it_serves() {
        for call in CALLS {
            assert!(!call.doc.trim().is_empty(), "{} says nothing", call.name);
            assert_eq!(crate::call::info(call.number).unwrap().name, call.name);
        }
    }

    #[test]
    fn launch_round_trip() {
        let call = Launch {
            function: FunctionHandle(9),
            stream: StreamHandle(17),
            grid: [1, 2, 3],
            block: [4, 5, 6],
            dynamic_shared: 7,
            flags: 1,
            cluster: [0; 3],
            preferences: Bytes(&[]),
            parameters: Bytes(&[1, 2, 3]),
        };
        let mut head = Vec::new();
        let tail = call.encode(&mut head);
        assert_eq!(tail, [1, 2, 3], "parameters are sent from where they lie");
        let payload = [&head, tail].concat();
        assert_eq!(decode_all::<Launch<'_>>(&payload), Ok(call));
        for cut in 0..payload.len() {
            assert!(decode_all::<Launch<'_>>(&payload[..cut]).is_err());
        }
        let longer = [payload.as_slice(), &[0]].concat();
        assert_eq!(recode(0x0501, &longer), Err(DecodeError::Trailing(1)));
    }
}
