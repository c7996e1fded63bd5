"""A guest with green contexts, which says at each line of its input whether all
of them are as they must be.

A first part of the device's multiprocessors, a second one with what is left, and
a part of the second, which itself is gone; streams of them with work in flight,
a context that has the first one's resources, and an event of all its work.
Prints "ready", then for each line "right" or "wrong: WHAT", with new work in
flight behind it.
"""

import ctypes
import sys

from driver import CudaError, Guest, pointer, say

LAUNCHES = 100
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 place)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [place];
    ld.global.u32 %r1, [%d1];
    add.u32 %r2, %r1, 1;
    st.global.u32 [%d1], %r2;
    ret;
}
"""


class Resource(ctypes.Structure):
    """CUdevResource."""

    _fields_ = [("kind", ctypes.c_int), ("inside", ctypes.c_ubyte * 92), ("count", ctypes.c_uint), ("rest", ctypes.c_uint * 11)]


class Part:
    """A green context, one of its streams, and the stream's counter."""

    def __init__(self, guest, resources):
        self.guest, self.cuda = guest, guest.cuda
        listed = (Resource * len(resources))(*resources)
        description = ctypes.c_void_p()
        self.cuda.cuDevResourceGenerateDesc(ctypes.byref(description), listed, len(resources))
        self.green = ctypes.c_void_p()
        self.cuda.cuGreenCtxCreate(ctypes.byref(self.green), description, 0, 1)
        self.stream = ctypes.c_void_p()
        self.cuda.cuGreenCtxStreamCreate(ctypes.byref(self.stream), self.green, 1, 0)
        self.number, self.counted = ctypes.c_uint64(), 0
        self.cuda.cuGreenCtxGetId(self.green, ctypes.byref(self.number))
        self.size = sum(resource.count for resource in resources)
        self.place = guest.allocate(4)
        self.cuda.cuMemsetD32_v2(pointer(self.place), ctypes.c_uint(0), ctypes.c_size_t(1))

    def resource(self):
        """Its multiprocessors."""
        found = Resource()
        self.cuda.cuGreenCtxGetDevResource(self.green, ctypes.byref(found), 1)
        return found

    def end(self):
        """Ends it."""
        self.cuda.cuStreamDestroy_v2(self.stream)
        self.cuda.cuGreenCtxDestroy(self.green)

    def work(self, count):
        """Work in its stream; waits for none."""
        for _ in range(LAUNCHES):
            self.guest.launch(count, 1, 1, ctypes.c_uint64(self.place), stream=self.stream)
        self.counted += LAUNCHES

    def wrong(self):
        """The first mismatch, or None."""
        number, word = ctypes.c_uint64(), ctypes.c_uint32()
        green = ctypes.c_void_p()
        self.cuda.cuStreamGetGreenCtx(self.stream, ctypes.byref(green))
        self.cuda.cuGreenCtxGetId(self.green, ctypes.byref(number))
        if (green.value, number.value) != (self.green.value, self.number.value):
            return "the stream's green context"
        if self.resource().count != self.size:
            return f"multiprocessors: {self.resource().count}, were {self.size}"
        self.cuda.cuStreamSynchronize(self.stream)
        self.cuda.cuMemcpyDtoH_v2(ctypes.byref(word), pointer(self.place), ctypes.c_size_t(4))
        if word.value != self.counted:
            return f"counted {word.value} of {self.counted}"
        return None


def split(guest, resource, groups, least):
    """The groups and the remainder of a resource."""
    made, number, rest = (Resource * groups)(), ctypes.c_uint(groups), Resource()
    guest.cuda.cuDevSmResourceSplitByCount(made, ctypes.byref(number), ctypes.byref(resource), ctypes.byref(rest), 0, least)
    return list(made[: number.value]), rest


class Parts:
    """All of them."""

    def __init__(self, guest):
        self.guest, self.cuda = guest, guest.cuda
        self.count = guest.function(guest.load(PTX), b"count")
        whole = Resource()
        self.cuda.cuDeviceGetDevResource(0, ctypes.byref(whole), 1)
        (one, two), rest = split(guest, whole, 2, 1)
        first, second = Part(guest, [one]), Part(guest, [two, rest])
        (inner,), _ = split(guest, second.resource(), 1, 2)
        third = Part(guest, [inner])
        second.end()
        self.parts = [first, third]
        self.context = ctypes.c_void_p()
        self.cuda.cuCtxFromGreenCtx(ctypes.byref(self.context), first.green)
        self.event = ctypes.c_void_p()
        self.cuda.cuEventCreate(ctypes.byref(self.event), 2)

    def work(self):
        """Work in all streams, in the context's default stream, and an event after it."""
        for part in self.parts:
            part.work(self.count)
        first, third = self.parts
        self.cuda.cuGreenCtxRecordEvent(first.green, self.event)
        self.cuda.cuGreenCtxWaitEvent(third.green, self.event)
        self.cuda.cuCtxSetCurrent(self.context)
        self.cuda.cuStreamWaitEvent(None, self.event, 0)
        self.guest.launch(self.count, 1, 1, ctypes.c_uint64(first.place))
        first.counted += 1
        self.guest.use()

    def wrong(self):
        """The first mismatch, or None."""
        self.cuda.cuCtxSynchronize()
        self.cuda.cuEventSynchronize(self.event)
        return next(filter(None, (part.wrong() for part in self.parts)), None)


def main():
    """The program."""
    try:
        parts = Parts(Guest())
        parts.work()
        say("ready")
        for _ in sys.stdin:
            wrong = parts.wrong()
            say("right" if wrong is None else f"wrong: {wrong}")
            parts.work()
        parts.cuda.cuCtxSynchronize()
    except CudaError as error:
        say(f"wrong: {error}")
        sys.exit(3)


if __name__ == "__main__":
    main()
