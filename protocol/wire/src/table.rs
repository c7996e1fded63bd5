//! The call table: every call that crosses, declared once.
//!
//! A declaration gives the number (fixed for ever), the parameters with their
//! kinds, how the call crosses ([`Class`]), whether repeating it changes
//! nothing, what it needs ([`crate::call::Capability`]), what it does to the
//! session's objects ([`Effect`]), and the reply. Semantics are those of the
//! CUDA driver API function named first in each entry's documentation.
//!
//! Numbers: 0x00 session, 0x01 memory, 0x02 copies, 0x03 arrays and textures,
//! 0x04 modules, 0x05 launch, 0x06 streams, 0x07 events, 0x08 context,
//! 0x09 host functions, 0x0a graphs.

use crate::call::{CallInfo, Effect};
use crate::codec::{Bytes, DecodeError, Field, Text};
use crate::handle::{
    ArrayHandle, DeviceAddress, EventHandle, FunctionHandle, GraphExecHandle, ModuleHandle,
    ObjectKind, ShadowAddress, StreamHandle, SurfaceHandle, TextureHandle, WindowOffset,
};
use crate::types::{
    ArrayShape, CopyEnd, DeviceSnapshot, FunctionInfo, GlobalInfo, MemoryInfo, TextureSpec,
};

crate::calls! { 'a;
    /// Answers at once with the argument: the price of a round trip.
    0x0001 Ping [Synchronous, idempotent] {
        /// Returned as it came.
        value: u64,
    } -> u64

    /// cuDeviceGetAttribute, cuDeviceGetName, cuDeviceGetUuid, cuDeviceTotalMem: all that is constant about one device of the guest.
    0x0002 SnapshotDevice [Cached, idempotent] {
        /// The guest's device ordinal.
        ordinal: u32,
    } -> DeviceSnapshot<'r>

    /// cuMemAlloc: backs a range of the arena with device memory. Zeroed when new to the session.
    0x0101 MemMap [Synchronous; creates Memory(address)] {
        /// Multiple of 2 MiB inside the arena, overlapping no other mapping.
        address: DeviceAddress,
        /// Bytes; a multiple of 2 MiB, not 0.
        size: u64,
    } -> ()

    /// cuMemFree: takes the memory of a whole [`MemMap`] away once all work posted before is done.
    0x0102 MemUnmap [Posted; destroys Memory(address)] {
        /// As it was mapped.
        address: DeviceAddress,
    } -> ()

    /// cuMemGetInfo.
    0x0103 MemGetInfo [Synchronous, idempotent] {} -> MemoryInfo

    /// cuMemHostAlloc: registers a range of the window's bulk area as pinned memory, which kernels reach at window base + region offset.
    0x0104 HostMap [Synchronous, window; creates HostMemory(offset)] {
        /// Bytes from the start of the bulk area; a multiple of 4096.
        offset: WindowOffset,
        /// Bytes; a multiple of 4096, not 0.
        size: u64,
    } -> ()

    /// cuMemFreeHost: the range of a whole [`HostMap`] is pinned no longer, once all work posted before is done.
    0x0105 HostUnmap [Synchronous, window; destroys HostMemory(offset)] {
        /// As it was mapped.
        offset: WindowOffset,
    } -> ()

    /// cuMemHostRegister, and cuMemHostAlloc where there is no window: makes a copy of guest memory that kernels reach at `address`.
    0x0106 ShadowCreate [Synchronous; creates Shadow(address)] {
        /// Multiple of 4096 inside the shadow region, overlapping no other.
        address: ShadowAddress,
        /// Bytes; a multiple of 4096, not 0.
        size: u64,
    } -> ()

    /// cuMemHostUnregister: drops a whole [`ShadowCreate`], once all work posted before is done.
    0x0107 ShadowDestroy [Synchronous; destroys Shadow(address)] {
        /// As it was created.
        address: ShadowAddress,
    } -> ()

    /// Writes bytes of the guest into a shadow, in order with the session's other calls but not with the device's work.
    0x0108 ShadowWrite<'a> [Posted, idempotent] {
        /// First address to write.
        address: u64,
        /// The bytes.
        data: Bytes<'a>,
    } -> ()

    /// Sends back, as data frames with offsets from `address`, the 4096-byte pages of a shadow that changed since both sides last agreed.
    0x0109 ShadowRead [Synchronous] {
        /// First address; a multiple of 4096.
        address: u64,
        /// Bytes; a multiple of 4096.
        size: u64,
    } -> ()

    /// Writes several runs of bytes into a shadow, as [`ShadowWrite`] does one.
    0x010a ShadowPatch<'a> [Posted, idempotent] {
        /// Where the first run's gap begins.
        address: u64,
        /// Run after run: bytes left as they are since the last one (u32), bytes of the run (u32), the run.
        runs: Bytes<'a>,
    } -> ()

    /// cuMemcpyHtoDAsync of bytes that travel with the call.
    0x0201 CopyToDevice<'a> [Posted] {
        /// First device address.
        destination: u64,
        /// In whose order.
        stream: StreamHandle,
        /// The bytes, at most 256 KiB less this call's other fields.
        data: Bytes<'a>,
    } -> ()

    /// cuMemcpyDtoHAsync and a wait for it; the bytes come back as data frames before the reply.
    0x0202 CopyFromDevice [Synchronous, idempotent] {
        /// First device address.
        source: u64,
        /// Bytes.
        size: u64,
        /// In whose order.
        stream: StreamHandle,
    } -> ()

    /// cuMemcpyAsync between any two addresses that the device reaches: device memory, pinned window memory, shadows.
    0x0203 Copy [Posted] {
        /// First address to write.
        destination: u64,
        /// First address to read.
        source: u64,
        /// Bytes.
        size: u64,
        /// In whose order.
        stream: StreamHandle,
        /// Bulk token to clear when the copy is complete; 0 for none.
        token: u32,
    } -> ()

    /// cuMemcpy3DAsync between device memory, pinned memory and arrays.
    0x0204 CopyRect [Posted] {
        /// Where to write.
        destination: CopyEnd,
        /// Where to read.
        source: CopyEnd,
        /// Bytes in a row, rows in a slice, slices.
        extent: [u64; 3],
        /// In whose order.
        stream: StreamHandle,
        /// Bulk token to clear when the copy is complete; 0 for none.
        token: u32,
    } -> ()

    /// cuMemcpy3DAsync to the device of bytes that travel with the call, rows without gaps.
    0x0205 CopyRectToDevice<'a> [Posted] {
        /// Where to write.
        destination: CopyEnd,
        /// Bytes in a row, rows in a slice, slices.
        extent: [u64; 3],
        /// In whose order.
        stream: StreamHandle,
        /// The product of `extent` in bytes.
        data: Bytes<'a>,
    } -> ()

    /// cuMemcpy3DAsync from the device and a wait for it; the bytes come back as data frames, rows without gaps, before the reply.
    0x0206 CopyRectFromDevice [Synchronous, idempotent] {
        /// Where to read.
        source: CopyEnd,
        /// Bytes in a row, rows in a slice, slices.
        extent: [u64; 3],
        /// In whose order.
        stream: StreamHandle,
    } -> ()

    /// cuMemsetD8Async, D16, D32, and their 2D forms.
    0x0207 Memset [Posted] {
        /// First address to write.
        destination: u64,
        /// Bytes from one row to the next; ignored for one row.
        pitch: u64,
        /// The element's value in its low bytes.
        value: u32,
        /// Bytes of an element: 1, 2 or 4.
        element: u8,
        /// Elements in a row.
        width: u64,
        /// Rows.
        height: u64,
        /// In whose order.
        stream: StreamHandle,
    } -> ()

    /// Waits until a bulk token is cleared: where spinning on its word took too long.
    0x0208 WaitToken [Synchronous, window, idempotent] {
        /// The token, from 1.
        token: u32,
    } -> ()

    /// cuMemcpyHtoD of memory that the guest's kernel named in a page list of the session's channel; answered when the copy is complete. MAP_FAILED where the host does not reach that memory, or not any more, or did not see by a [`CheckPages`] that it does: the bytes must go another way.
    0x0209 CopyPagesToDevice [Synchronous] {
        /// First device address.
        destination: u64,
        /// Number of the list.
        list: u32,
        /// Bytes: all that the list names, from its begin.
        size: u64,
        /// In whose order.
        stream: StreamHandle,
    } -> ()

    /// cuMemcpyDtoH to such memory.
    0x020a CopyPagesFromDevice [Synchronous] {
        /// First device address.
        source: u64,
        /// Number of the list.
        list: u32,
        /// As of [`CopyPagesToDevice`].
        size: u64,
        /// In whose order.
        stream: StreamHandle,
    } -> ()

    /// Does the host see what the guest writes, and the guest what the host writes? A hypervisor may map the memory that it hands out for itself alone. Reads 8 bytes through a page list, and writes their complement behind them if they are `value`; MAP_FAILED otherwise.
    0x020b CheckPages [Synchronous, idempotent] {
        /// Number of a list that names 16 bytes, a multiple of 16 into a page.
        list: u32,
        /// What the first 8 of them hold.
        value: u64,
    } -> ()

    /// cuArray3DCreate, cuMipmappedArrayCreate.
    0x0301 ArrayCreate [Synchronous; creates Array(array)] {
        /// Its name from now on.
        array: ArrayHandle,
        /// Extent, format, flags, levels.
        shape: ArrayShape,
    } -> ()

    /// cuArrayDestroy, cuMipmappedArrayDestroy.
    0x0302 ArrayDestroy [Posted; destroys Array(array)] {
        /// The array.
        array: ArrayHandle,
    } -> ()

    /// cuTexObjectCreate. The reply is the value that kernels are given.
    0x0303 TextureCreate [Synchronous; creates Texture(texture)] {
        /// Its name from now on.
        texture: TextureHandle,
        /// What it reads and how.
        spec: TextureSpec,
    } -> u64

    /// cuTexObjectDestroy.
    0x0304 TextureDestroy [Posted; destroys Texture(texture)] {
        /// The texture object.
        texture: TextureHandle,
    } -> ()

    /// cuSurfObjectCreate. The reply is the value that kernels are given.
    0x0305 SurfaceCreate [Synchronous; creates Surface(surface)] {
        /// Its name from now on.
        surface: SurfaceHandle,
        /// The array behind it.
        array: ArrayHandle,
    } -> u64

    /// cuSurfObjectDestroy.
    0x0306 SurfaceDestroy [Posted; destroys Surface(surface)] {
        /// The surface object.
        surface: SurfaceHandle,
    } -> ()

    /// Does the host already hold the image with this BLAKE3 hash?
    0x0401 ImageQuery [Synchronous, idempotent] {
        /// BLAKE3 of the whole image.
        hash: [u8; 32],
        /// Bytes of the image, at most 1 GiB.
        size: u64,
    } -> bool

    /// Part of an image that the host did not hold; parts come in order.
    0x0402 ImageWrite<'a> [Posted] {
        /// BLAKE3 of the whole image.
        hash: [u8; 32],
        /// Bytes of the whole image.
        size: u64,
        /// Where this part belongs.
        offset: u64,
        /// The part.
        data: Bytes<'a>,
    } -> ()

    /// cuModuleLoadData, cuLibraryLoadData of an image that the host holds.
    0x0403 ModuleLoad<'a> [Synchronous; creates Module(module)] {
        /// Its name from now on.
        module: ModuleHandle,
        /// BLAKE3 of the image.
        hash: [u8; 32],
        /// Pairs of `u32` CUjit_option and `u32` value, for the options that are numbers.
        options: Bytes<'a>,
    } -> Text<'r>

    /// cuModuleUnload, cuLibraryUnload.
    0x0404 ModuleUnload [Posted; destroys Module(module)] {
        /// The module.
        module: ModuleHandle,
    } -> ()

    /// cuModuleGetFunction, cuLibraryGetKernel, cuFuncGetAttribute, cuFuncGetParamInfo: all that is constant about a kernel.
    0x0405 FunctionGet<'a> [Cached; creates Function(function)] {
        /// Its name from now on.
        function: FunctionHandle,
        /// The module it is in.
        module: ModuleHandle,
        /// Its mangled name.
        name: Text<'a>,
    } -> FunctionInfo<'r>

    /// cuFuncSetAttribute.
    0x0406 FunctionSetAttribute [Synchronous, idempotent; changes Function(function)] {
        /// The kernel.
        function: FunctionHandle,
        /// A CUfunction_attribute.
        attribute: u32,
        /// Its new value.
        value: i32,
    } -> ()

    /// cuFuncSetCacheConfig.
    0x0407 FunctionSetCacheConfig [Posted, idempotent; changes Function(function)] {
        /// The kernel.
        function: FunctionHandle,
        /// A CUfunc_cache.
        config: u32,
    } -> ()

    /// cuModuleGetGlobal, cuLibraryGetGlobal.
    0x0408 GlobalGet<'a> [Cached, idempotent] {
        /// The module.
        module: ModuleHandle,
        /// The variable's mangled name.
        name: Text<'a>,
    } -> GlobalInfo

    /// cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags.
    0x0409 OccupancyBlocks [Cached, idempotent] {
        /// The kernel.
        function: FunctionHandle,
        /// Threads in a block.
        block_size: i32,
        /// Bytes of dynamic shared memory.
        dynamic_shared: u64,
        /// CUoccupancy_flags.
        flags: u32,
    } -> i32

    /// cuOccupancyAvailableDynamicSMemPerBlock.
    0x040a OccupancyDynamicShared [Cached, idempotent] {
        /// The kernel.
        function: FunctionHandle,
        /// Blocks to fit on a multiprocessor.
        blocks: i32,
        /// Threads in a block.
        block_size: i32,
    } -> u64

    /// cuLaunchKernel, cuLaunchCooperativeKernel, cuLaunchKernelEx.
    0x0501 Launch<'a> [Posted] {
        /// The kernel.
        function: FunctionHandle,
        /// In whose order.
        stream: StreamHandle,
        /// Blocks.
        grid: [u32; 3],
        /// Threads in a block.
        block: [u32; 3],
        /// Bytes of dynamic shared memory.
        dynamic_shared: u32,
        /// Bit 0: cooperative.
        flags: u32,
        /// Thread blocks of a cluster; zeros for none.
        cluster: [u32; 3],
        /// The kernel's parameter bytes, laid out as [`FunctionInfo::parameters`] says.
        parameters: Bytes<'a>,
    } -> ()

    /// cuStreamCreateWithPriority.
    0x0601 StreamCreate [Posted; creates Stream(stream)] {
        /// Its name from now on.
        stream: StreamHandle,
        /// CUstream_flags: 1 does not wait for the legacy default stream.
        flags: u32,
        /// Lower numbers go first.
        priority: i32,
    } -> ()

    /// cuStreamDestroy: work already in it still runs.
    0x0602 StreamDestroy [Posted; destroys Stream(stream)] {
        /// The stream.
        stream: StreamHandle,
    } -> ()

    /// cuStreamSynchronize.
    0x0603 StreamSynchronize [Synchronous, idempotent] {
        /// The stream.
        stream: StreamHandle,
    } -> ()

    /// cuStreamQuery: success or CUDA_ERROR_NOT_READY.
    0x0604 StreamQuery [Synchronous, idempotent] {
        /// The stream.
        stream: StreamHandle,
    } -> ()

    /// cuStreamWaitEvent.
    0x0605 StreamWaitEvent [Posted] {
        /// The stream that waits.
        stream: StreamHandle,
        /// For what.
        event: EventHandle,
    } -> ()

    /// cuEventCreate.
    0x0701 EventCreate [Posted; creates Event(event)] {
        /// Its name from now on.
        event: EventHandle,
        /// CUevent_flags.
        flags: u32,
    } -> ()

    /// cuEventDestroy.
    0x0702 EventDestroy [Posted; destroys Event(event)] {
        /// The event.
        event: EventHandle,
    } -> ()

    /// cuEventRecord.
    0x0703 EventRecord [Posted; changes Event(event)] {
        /// The event.
        event: EventHandle,
        /// The stream whose work so far it stands for.
        stream: StreamHandle,
    } -> ()

    /// cuEventSynchronize.
    0x0704 EventSynchronize [Synchronous, idempotent] {
        /// The event.
        event: EventHandle,
    } -> ()

    /// cuEventQuery: success or CUDA_ERROR_NOT_READY.
    0x0705 EventQuery [Synchronous, idempotent] {
        /// The event.
        event: EventHandle,
    } -> ()

    /// cuEventElapsedTime, in milliseconds.
    0x0706 EventElapsed [Synchronous, idempotent] {
        /// Where the time starts.
        start: EventHandle,
        /// Where it ends.
        end: EventHandle,
    } -> f32

    /// cuCtxSynchronize.
    0x0801 ContextSynchronize [Synchronous, idempotent] {} -> ()

    /// cuCtxSetLimit.
    0x0802 ContextSetLimit [Synchronous, idempotent] {
        /// A CUlimit.
        limit: u32,
        /// Its new value.
        value: u64,
    } -> ()

    /// cuCtxGetLimit.
    0x0803 ContextGetLimit [Synchronous, idempotent] {
        /// A CUlimit.
        limit: u32,
    } -> u64

    /// cuLaunchHostFunc, cuStreamAddCallback: when the stream gets here, the host sends a host-function frame and the stream waits for [`HostFuncDone`].
    0x0901 HostFuncLaunch [Posted] {
        /// In whose order.
        stream: StreamHandle,
        /// The guest's name for the function and its argument.
        id: u64,
    } -> ()

    /// The guest has run the host function.
    0x0902 HostFuncDone [Posted] {
        /// As it was asked for.
        id: u64,
    } -> ()

    /// cuGraphInstantiate, first part: an executable graph without nodes.
    0x0a01 GraphBegin [Posted; creates GraphExec(graph)] {
        /// Its name from now on.
        graph: GraphExecHandle,
    } -> ()

    /// cuGraphInstantiate, second part: further nodes, each of which comes after those that it depends on.
    0x0a02 GraphNodes<'a> [Posted; changes GraphExec(graph)] {
        /// The graph.
        graph: GraphExecHandle,
        /// Number of the first of these nodes; nodes count from 0, without gaps.
        first: u32,
        /// The nodes, one after the other: each a [`crate::types::GraphNode`].
        nodes: Bytes<'a>,
    } -> ()

    /// cuGraphInstantiate, last part: from now on the graph can be launched.
    0x0a03 GraphInstantiate [Synchronous; changes GraphExec(graph)] {
        /// The graph.
        graph: GraphExecHandle,
        /// How many nodes it was given.
        nodes: u32,
    } -> ()

    /// cuGraphLaunch. Launches of one graph follow each other.
    0x0a04 GraphLaunch [Posted] {
        /// The graph.
        graph: GraphExecHandle,
        /// In whose order.
        stream: StreamHandle,
    } -> ()

    /// cuGraphExecUpdate, cuGraphExecKernelNodeSetParams and its kin: from the next launch on a node does something else of the same kind.
    0x0a05 GraphNodeUpdate<'a> [Posted, idempotent; changes GraphExec(graph)] {
        /// The graph.
        graph: GraphExecHandle,
        /// The node's number.
        node: u32,
        /// As [`crate::types::GraphNode::call`].
        call: u16,
        /// As [`crate::types::GraphNode::work`].
        work: Bytes<'a>,
    } -> ()

    /// cuGraphNodeSetEnabled: from the next launch on a kernel, copy or memset does nothing, or something again.
    0x0a06 GraphNodeEnable [Posted, idempotent; changes GraphExec(graph)] {
        /// The graph.
        graph: GraphExecHandle,
        /// The node's number.
        node: u32,
        /// Does it do anything?
        enabled: bool,
    } -> ()

    /// cuGraphExecDestroy: launches made before still run.
    0x0a07 GraphDestroy [Posted; destroys GraphExec(graph)] {
        /// The graph.
        graph: GraphExecHandle,
    } -> ()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let call = Call::Launch(Launch {
            function: FunctionHandle(9),
            stream: StreamHandle(17),
            grid: [1, 2, 3],
            block: [4, 5, 6],
            dynamic_shared: 7,
            flags: 1,
            cluster: [0; 3],
            parameters: Bytes(&[1, 2, 3]),
        });
        let mut head = Vec::new();
        let tail = call.encode(&mut head);
        assert_eq!(tail, [1, 2, 3], "parameters are sent from where they lie");
        let payload = [&head, tail].concat();
        assert_eq!(Call::decode(0x0501, &payload), Ok(call));
        for cut in 0..payload.len() {
            assert!(Call::decode(0x0501, &payload[..cut]).is_err());
        }
        let longer = [payload.as_slice(), &[0]].concat();
        assert_eq!(Call::decode(0x0501, &longer), Err(DecodeError::Trailing(1)));
    }

    #[test]
    fn effects_name_the_handle() {
        let call = Call::StreamCreate(StreamCreate {
            stream: StreamHandle(40),
            flags: 0,
            priority: 0,
        });
        assert_eq!(call.effect(), Effect::Creates(ObjectKind::Stream, 40));
        assert_eq!(Call::Ping(Ping { value: 1 }).effect(), Effect::None);
    }
}
