"""A guest that has something of every kind that a session carries, and says at
each line of its input whether all of it is as it must be.

Device memory, memory at two addresses that the program reserved and memory
that a handle alone holds, pinned memory that a kernel writes, memory of a pool in the host and
memory in the host that the program mapped, an array, a texture object, a texture
and a surface of one level of a mipmapped array, a module's variable and its address, events and the time between them, a stream
with work in flight, host functions, a graph, and one that runs a part of itself in
a loop. Prints "ready", then for each
line "right" or "wrong: WHAT", with new work in flight behind it.
"""

import ctypes
import sys

from driver import CudaError, Guest, pointer, say

WIDTH = 64
LAUNCHES = 200
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .b32 tally[64] = {5, 6, 7};
.visible .entry count(.param .u64 device, .param .u64 pinned)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [device];
    ld.param.u64 %d2, [pinned];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d4, %d1, %d3;
    ld.global.u32 %r2, [%d4];
    add.s32 %r2, %r2, %r1;
    st.global.u32 [%d4], %r2;
    add.s64 %d5, %d2, %d3;
    st.global.u32 [%d5], %r2;
    mov.u64 %d6, tally;
    add.s64 %d7, %d6, %d3;
    ld.global.u32 %r3, [%d7];
    add.s32 %r3, %r3, 1;
    st.global.u32 [%d7], %r3;
    ret;
}
.visible .entry more(.param .u64 memory)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [memory];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.u32 %r2, [%d3];
    add.s32 %r2, %r2, %r1;
    st.global.u32 [%d3], %r2;
    ret;
}
.extern .func cudaGraphSetConditional(.param .b64 condition, .param .b32 value);
.visible .entry loop(.param .u64 condition, .param .u64 place)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [condition];
    ld.param.u64 %d2, [place];
    ld.global.u32 %r1, [%d2];
    add.u32 %r1, %r1, 1;
    st.global.u32 [%d2], %r1;
    rem.u32 %r2, %r1, 5;
    setp.ne.u32 %p1, %r2, 0;
    selp.u32 %r3, 1, 0, %p1;
    {
    .param .b64 first;
    st.param.b64 [first], %d1;
    .param .b32 second;
    st.param.b32 [second], %r3;
    call.uni cudaGraphSetConditional, (first, second);
    }
    ret;
}
.visible .entry look(.param .u64 texture, .param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [texture];
    ld.param.u64 %d2, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, 0;
    tex.2d.v4.u32.s32 {%r4, %r5, %r6, %r7}, [%d1, {%r1, %r2}];
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d4, %d2, %d3;
    st.global.u32 [%d4], %r4;
    ret;
}
.visible .entry stamp(.param .u64 surface)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [surface];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, 0;
    shl.b32 %r3, %r1, 2;
    suld.b.2d.b32.trap %r4, [%d1, {%r3, %r2}];
    add.u32 %r4, %r4, 1;
    sust.b.2d.b32.trap [%d1, {%r3, %r2}], %r4;
    ret;
}
"""


class ArrayShape(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_uint), ("channels", ctypes.c_uint)]


class MipmappedShape(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t),
                ("format", ctypes.c_uint), ("channels", ctypes.c_uint), ("flags", ctypes.c_uint)]


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        ("source_x", ctypes.c_size_t), ("source_y", ctypes.c_size_t), ("source_kind", ctypes.c_uint),
        ("source_host", ctypes.c_void_p), ("source_device", ctypes.c_uint64), ("source_array", ctypes.c_void_p),
        ("source_pitch", ctypes.c_size_t),
        ("to_x", ctypes.c_size_t), ("to_y", ctypes.c_size_t), ("to_kind", ctypes.c_uint),
        ("to_host", ctypes.c_void_p), ("to_device", ctypes.c_uint64), ("to_array", ctypes.c_void_p),
        ("to_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]


class Allocation(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [("kind", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("device", ctypes.c_int),
                ("none", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


HOST, ARRAY = 1, 3
GRAIN = 2 << 20
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Kinds:
    """One object of every kind, and its expected state."""

    def __init__(self, guest):
        self.guest, self.cuda = guest, guest.cuda
        module = guest.load(PTX)
        self.module = module
        self.count, self.look = guest.function(module, b"count"), guest.function(module, b"look")
        self.device = guest.allocate(WIDTH * 4)
        self.out = guest.allocate(WIDTH * 4)
        zeros = (ctypes.c_uint32 * WIDTH)()
        self.cuda.cuMemcpyHtoD_v2(pointer(self.device), zeros, ctypes.c_size_t(WIDTH * 4))
        pinned = ctypes.c_void_p()
        self.cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(WIDTH * 4), 2)
        self.pinned = (ctypes.c_uint32 * WIDTH).from_address(pinned.value)
        reached = ctypes.c_uint64()
        self.cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(reached), pinned, 0)
        self.mapped = reached.value
        self.stream = ctypes.c_void_p()
        self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1)
        self.events = [ctypes.c_void_p() for _ in range(3)]
        for event in self.events:
            self.cuda.cuEventCreate(ctypes.byref(event), 0)
        self.tally = self.where()
        self.more = guest.function(module, b"more")
        self.virtual_memory()
        self.host_memory()
        self.array_and_texture()
        self.mipmap_level()
        self.called = 0
        self.callback = CALLBACK(self.was_called)
        self.launches, self.calls = 0, 0
        self.graph()
        self.loop()
        self.cuda.cuEventRecord(self.events[0], self.stream)
        self.work()
        self.cuda.cuEventRecord(self.events[1], self.stream)
        self.cuda.cuStreamSynchronize(self.stream)
        self.elapsed = self.time()

    def create(self, place=1):
        """Physical memory of the device (1) or in the host (2): its handle."""
        handle, asked = ctypes.c_uint64(), Allocation(kind=1, place=place, device=0)
        self.cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(GRAIN), ctypes.byref(asked), ctypes.c_uint64(0))
        return handle

    def map(self, handle, address, places=(1,)):
        """Lets memory appear at an address, for the device (1), the program (2) or both."""
        size, access = ctypes.c_size_t(GRAIN), [(place, 0, 3) for place in places]
        self.cuda.cuMemMap(pointer(address), size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        access = (ctypes.c_int * (3 * len(places)))(*(word for one in access for word in one))
        self.cuda.cuMemSetAccess(pointer(address), size, access, ctypes.c_size_t(len(places)))

    def host_memory(self):
        """Memory in the host: mapped at the end of the reservation, and of a pool."""
        handle, place = self.create(2), self.reserved + 4 * GRAIN
        self.map(handle, place, (1, 2))
        self.cuda.cuMemRelease(handle)
        # CUmemPoolProps: pinned, no handles, in the host.
        pool, pooled, asked = ctypes.c_void_p(), ctypes.c_uint64(), (ctypes.c_int * 22)(1, 0, 2)
        self.cuda.cuMemPoolCreate(ctypes.byref(pool), asked)
        self.cuda.cuMemPoolSetAccess(pool, (ctypes.c_int * 3)(1, 0, 3), ctypes.c_size_t(1))
        self.cuda.cuMemAllocFromPoolAsync(ctypes.byref(pooled), ctypes.c_size_t(WIDTH * 4), pool, self.stream)
        self.cuda.cuStreamSynchronize(self.stream)
        self.in_host = {name: (ctypes.c_uint32 * WIDTH).from_address(at) for name, at in (("mapped", place), ("of a pool", pooled.value))}
        self.turns_in_host = 0
        for memory in self.in_host.values():
            ctypes.memset(memory, 0, WIDTH * 4)

    def virtual_memory(self):
        """Memory at two addresses, and memory at none."""
        self.reserved = ctypes.c_uint64()
        zero = ctypes.c_size_t(0)
        size = ctypes.c_size_t(5 * GRAIN)
        self.cuda.cuMemAddressReserve(ctypes.byref(self.reserved), size, zero, pointer(0), ctypes.c_uint64(0))
        self.reserved = self.reserved.value
        twice, self.held = self.create(), self.create()
        self.map(twice, self.reserved)
        self.map(twice, self.reserved + GRAIN)
        self.cuda.cuMemRelease(twice)
        self.cuda.cuMemsetD8_v2(pointer(self.reserved), ctypes.c_ubyte(0), ctypes.c_size_t(GRAIN))
        self.kept = (ctypes.c_uint32 * WIDTH)(*(at * 97 + 5 for at in range(WIDTH)))
        self.map(self.held, self.reserved + 2 * GRAIN)
        self.cuda.cuMemcpyHtoD_v2(pointer(self.reserved + 2 * GRAIN), self.kept, ctypes.c_size_t(WIDTH * 4))
        self.cuda.cuMemUnmap(pointer(self.reserved + 2 * GRAIN), ctypes.c_size_t(GRAIN))

    def was_called(self, _):
        """The host function."""
        self.called += 1

    def where(self):
        """Address of the module's variable."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.cuda.cuModuleGetGlobal_v2(ctypes.byref(address), ctypes.byref(size), self.module, b"tally")
        return address.value

    def time(self):
        """Milliseconds between the two events."""
        elapsed = ctypes.c_float()
        self.cuda.cuEventElapsedTime(ctypes.byref(elapsed), self.events[0], self.events[1])
        return elapsed.value

    def array_and_texture(self):
        """An array with contents, and a texture object that reads it."""
        self.array = ctypes.c_void_p()
        self.cuda.cuArrayCreate_v2(ctypes.byref(self.array), ctypes.byref(ArrayShape(WIDTH, 4, 3, 1)))
        self.picture = (ctypes.c_uint32 * (WIDTH * 4))(*(at * 2654435761 % 2**32 for at in range(WIDTH * 4)))
        copy = Copy2D(source_kind=HOST, source_host=ctypes.addressof(self.picture), source_pitch=WIDTH * 4,
                      to_kind=ARRAY, to_array=self.array, width=WIDTH * 4, height=4)
        self.cuda.cuMemcpy2D_v2(ctypes.byref(copy))
        self.texture = self.texture_of(self.array)

    def texture_of(self, array):
        """A texture object that reads an array's integers."""
        resource = (ctypes.c_uint64 * 18)()
        resource[1] = array.value
        sampling = (ctypes.c_uint32 * 26)()
        sampling[4] = 1  # read as integers
        texture = ctypes.c_uint64()
        self.cuda.cuTexObjectCreate(ctypes.byref(texture), resource, sampling, None)
        return texture.value

    def mipmap_level(self):
        """A texture object and a surface object of the second level of a mipmapped array."""
        pyramid, level, surface = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        shape = MipmappedShape(2 * WIDTH, 8, 0, 3, 1, 2)
        self.cuda.cuMipmappedArrayCreate(ctypes.byref(pyramid), ctypes.byref(shape), 2)
        self.cuda.cuMipmappedArrayGetLevel(ctypes.byref(level), pyramid, 1)
        copy = Copy2D(source_kind=HOST, source_host=ctypes.addressof(self.picture), source_pitch=WIDTH * 4,
                      to_kind=ARRAY, to_array=level, width=WIDTH * 4, height=4)
        self.cuda.cuMemcpy2D_v2(ctypes.byref(copy))
        resource = (ctypes.c_uint64 * 18)()
        resource[1] = level.value
        self.cuda.cuSurfObjectCreate(ctypes.byref(surface), resource)
        self.surface, self.stamped = surface.value, 0
        self.level = self.texture_of(level)
        self.stamp = self.guest.function(self.module, b"stamp")

    def graph(self):
        """A graph of two launches, with a copy to pinned memory and one back between them."""
        graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        between, size = ctypes.c_void_p(), ctypes.c_size_t(WIDTH * 4)
        self.cuda.cuMemHostAlloc(ctypes.byref(between), size, 2)
        self.word = self.guest.allocate(4)
        self.cuda.cuMemsetD32_v2(pointer(self.word), ctypes.c_uint(0), ctypes.c_size_t(1))
        self.cuda.cuStreamBeginCapture_v2(self.stream, 0)
        self.launch()
        self.cuda.cuMemcpyDtoHAsync_v2(between, pointer(self.device), size, self.stream)
        self.cuda.cuMemsetD8Async(pointer(self.device), ctypes.c_ubyte(0xAA), size, self.stream)
        self.cuda.cuMemcpyHtoDAsync_v2(pointer(self.device), between, size, self.stream)
        self.launch()
        self.cuda.cuStreamWriteValue32(self.stream, pointer(self.word), ctypes.c_uint32(7), 0)
        self.cuda.cuStreamWaitValue32(self.stream, pointer(self.word), ctypes.c_uint32(7), 1)
        self.cuda.cuStreamEndCapture(self.stream, ctypes.byref(graph))
        self.launches = 0
        self.cuda.cuGraphInstantiateWithFlags(ctypes.byref(self.executable), graph, ctypes.c_ulonglong(0))

    def loop(self):
        """A graph with a loop: each launch counts to the next multiple of five."""
        graph, self.looping, node = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        condition = ctypes.c_uint64()
        self.turns = self.guest.allocate(4)
        self.cuda.cuMemsetD32_v2(pointer(self.turns), ctypes.c_uint(0), ctypes.c_size_t(1))
        self.cuda.cuGraphCreate(ctypes.byref(graph), 0)
        context = ctypes.c_void_p()
        self.cuda.cuCtxGetCurrent(ctypes.byref(context))
        self.cuda.cuGraphConditionalHandleCreate(ctypes.byref(condition), graph, context, 1, 1)
        # Of type 13: a value, a loop (1) with one body, where its graph is told, the context.
        record = (ctypes.c_uint64 * 32)(13, 0, condition.value, 1 | 1 << 32)
        none = ctypes.c_size_t(0)
        self.cuda.cuGraphAddNode_v2(ctypes.byref(node), graph, None, None, none, record)
        body = ctypes.c_void_p(ctypes.cast(record[4], ctypes.POINTER(ctypes.c_uint64))[0])
        arguments = [condition, ctypes.c_uint64(self.turns)]
        addresses = (ctypes.c_void_p * 2)(*[ctypes.addressof(argument) for argument in arguments])
        kernel = (ctypes.c_uint64 * 9)(self.guest.function(self.module, b"loop").value, 1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32)
        kernel[5] = ctypes.addressof(addresses)
        self.cuda.cuGraphAddKernelNode_v2(ctypes.byref(node), body, None, none, kernel)
        self.cuda.cuGraphInstantiateWithFlags(ctypes.byref(self.looping), graph, ctypes.c_ulonglong(0))
        self.counted = 0

    def launch(self):
        """One kernel in the stream."""
        arguments = [ctypes.c_uint64(self.device), ctypes.c_uint64(self.mapped)]
        addresses = (ctypes.c_void_p * 2)(*[ctypes.addressof(argument) for argument in arguments])
        self.cuda.cuLaunchKernel(self.count, 1, 1, 1, WIDTH, 1, 1, 0, self.stream, addresses, None)
        self.launch_more(self.reserved)
        self.launches += 1

    def launch_more(self, memory):
        """The kernel that adds to memory."""
        argument = ctypes.c_uint64(memory)
        addresses = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        self.cuda.cuLaunchKernel(self.more, 1, 1, 1, WIDTH, 1, 1, 0, self.stream, addresses, None)

    def work(self):
        """Kernels, host functions and graphs in the stream; waits for none."""
        for at in range(LAUNCHES):
            self.launch()
            if at % 10 == 0:
                for memory in self.in_host.values():
                    self.launch_more(ctypes.addressof(memory))
                self.turns_in_host += 1
            if at % 50 == 0:
                self.cuda.cuLaunchHostFunc(self.stream, self.callback, None)
                self.calls += 1
                self.cuda.cuGraphLaunch(self.executable, self.stream)
                self.launches += 2
                self.cuda.cuGraphLaunch(self.looping, self.stream)
                self.counted += 5

    def wrong(self):
        """The first mismatch, or None."""
        self.cuda.cuStreamSynchronize(self.stream)
        host = (ctypes.c_uint32 * WIDTH)()
        size = ctypes.c_size_t(WIDTH * 4)
        expected = [at * self.launches % 2**32 for at in range(WIDTH)]
        self.cuda.cuMemcpyDtoH_v2(host, pointer(self.device), size)
        if list(host) != expected:
            return "device memory"
        self.cuda.cuMemcpyDtoH_v2(host, pointer(self.reserved + GRAIN), size)
        if list(host) != expected:
            return "memory at two addresses"
        for name, memory in self.in_host.items():
            if list(memory) != [at * self.turns_in_host % 2**32 for at in range(WIDTH)]:
                return f"memory in the host, {name}"
        place = self.reserved + 3 * GRAIN
        self.map(self.held, place)
        self.cuda.cuMemcpyDtoH_v2(host, pointer(place), size)
        self.cuda.cuMemUnmap(pointer(place), ctypes.c_size_t(GRAIN))
        if list(host) != list(self.kept):
            return "memory that a handle holds"
        word = ctypes.c_uint32()
        self.cuda.cuMemcpyDtoH_v2(ctypes.byref(word), pointer(self.word), ctypes.c_size_t(4))
        self.cuda.cuMemsetD32_v2(pointer(self.word), ctypes.c_uint(0), ctypes.c_size_t(1))
        if word.value != 7:
            return "the word that a graph writes"
        self.cuda.cuMemcpyDtoH_v2(ctypes.byref(word), pointer(self.turns), ctypes.c_size_t(4))
        if word.value != self.counted:
            return f"turns of a graph's loop: {word.value} of {self.counted}"
        if list(self.pinned) != expected:
            return "pinned memory"
        if self.where() != self.tally:
            return "the variable's address"
        self.cuda.cuMemcpyDtoH_v2(host, pointer(self.tally), size)
        if list(host) != [begin + self.launches for begin in [5, 6, 7] + [0] * (WIDTH - 3)]:
            return "the module's variable"
        if self.called != self.calls:
            return f"host functions: {self.called} of {self.calls}"
        if abs(self.time() - self.elapsed) > 0.05:
            return f"the time between events: {self.time()} ms, was {self.elapsed} ms"
        self.cuda.cuEventQuery(self.events[2])  # never recorded: success
        back = (ctypes.c_uint32 * (WIDTH * 4))()
        copy = Copy2D(source_kind=ARRAY, source_array=self.array, to_kind=HOST, to_host=ctypes.addressof(back),
                      to_pitch=WIDTH * 4, width=WIDTH * 4, height=4)
        self.cuda.cuMemcpy2D_v2(ctypes.byref(copy))
        if list(back) != list(self.picture):
            return "the array"
        self.guest.launch(self.look, 1, WIDTH, ctypes.c_uint64(self.texture), ctypes.c_uint64(self.out))
        self.cuda.cuMemcpyDtoH_v2(host, pointer(self.out), size)
        if list(host) != list(self.picture)[:WIDTH]:
            return "the texture"
        self.guest.launch(self.stamp, 1, WIDTH, ctypes.c_uint64(self.surface))
        self.stamped += 1
        self.guest.launch(self.look, 1, WIDTH, ctypes.c_uint64(self.level), ctypes.c_uint64(self.out))
        self.cuda.cuMemcpyDtoH_v2(host, pointer(self.out), size)
        if list(host) != [(value + self.stamped) % 2**32 for value in list(self.picture)[:WIDTH]]:
            return "the level of a mipmapped array"
        return None


def main():
    """The program."""
    try:
        kinds = Kinds(Guest())
        kinds.work()
        say("ready")
        for _ in sys.stdin:
            wrong = kinds.wrong()
            say("right" if wrong is None else f"wrong: {wrong}")
            kinds.work()
        # No host function may find the interpreter gone.
        kinds.cuda.cuStreamSynchronize(kinds.stream)
    except CudaError as error:
        say(f"wrong: {error}")
        sys.exit(3)


if __name__ == "__main__":
    main()
