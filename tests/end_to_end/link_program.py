"""A guest that takes training steps over a slow link.

usage: link_program.py

A step copies a batch to the device, from pageable and from pinned memory, launches a
kernel a thousand times with small copies, fills and events in between, and waits once. The
kernel has the address of pinned memory, which it does not write. Prints "ready"; for each
line of standard input takes a step, and prints "issued" before it waits and "done" after it:

  wait    waits for the context
  event   waits for an event
  item    waits by copying the result back
  pinned  copies the result back into pinned memory, and waits for the stream
"""

import ctypes
import sys
from ctypes import byref

from driver import begin, must, say

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 to, .param .u64 pinned)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [to];
    ld.global.u32 %r1, [%d1];
    add.u32 %r1, %r1, 1;
    st.global.u32 [%d1], %r1;
    ret;
}
"""
LAUNCHES, BATCH = 1000, 256 << 10
MAPPED = 2


class Training:
    """Memory, kernel and stream of the steps."""

    def __init__(self):
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        must("cuModuleLoadData", byref(module), PTX)
        must("cuModuleGetFunction", byref(self.kernel), module, b"count")
        self.stream, self.event = ctypes.c_void_p(), ctypes.c_void_p()
        must("cuStreamCreate", byref(self.stream), 0)
        must("cuEventCreate", byref(self.event), 2)
        self.device = ctypes.c_uint64()
        must("cuMemAlloc_v2", byref(self.device), BATCH)
        must("cuMemsetD8_v2", self.device, 0, BATCH)
        self.pageable = ctypes.create_string_buffer(BATCH)
        self.pinned = [ctypes.c_void_p() for _ in range(2)]
        for memory in self.pinned:
            must("cuMemHostAlloc", byref(memory), BATCH, MAPPED)
        self.result = ctypes.c_void_p()
        must("cuMemHostAlloc", byref(self.result), 1 << 20, MAPPED)
        self.steps = 0

    def launch(self):
        """The kernel, with the address of pinned memory."""
        to, pinned = ctypes.c_uint64(self.device.value), ctypes.c_uint64(self.pinned[0].value)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(to), ctypes.addressof(pinned))
        must("cuLaunchKernel", self.kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, parameters, None)

    def issue(self):
        """All of a step but the wait."""
        rest = ctypes.c_uint64(self.device.value + 4096)
        for source in (self.pageable, self.pinned[1]):
            must("cuMemcpyHtoDAsync_v2", rest, source, ctypes.c_size_t(BATCH - 4096), self.stream)
        for number in range(LAUNCHES):
            self.launch()
            if number % 50 == 0:
                must("cuMemsetD8Async", rest, 1, ctypes.c_size_t(300), self.stream)
            if number % 100 == 0:
                must("cuEventRecord", self.event, self.stream)
                must("cuStreamWaitEvent", self.stream, self.event, 0)
        must("cuEventRecord", self.event, self.stream)
        self.steps += 1

    def wait(self, how):
        """Waits for a step."""
        if how == "wait":
            must("cuCtxSynchronize")
        elif how == "event":
            must("cuEventSynchronize", self.event)
        else:
            count = ctypes.c_uint32()
            if how == "pinned":
                # Elsewhere in each step.
                place = ctypes.c_void_p(self.result.value + self.steps * 5000)
                count = ctypes.c_uint32.from_address(place.value)
            else:
                place = byref(count)
            must("cuMemcpyDtoHAsync_v2", place, self.device, ctypes.c_size_t(4), self.stream)
            if how == "pinned":
                must("cuStreamSynchronize", self.stream)
            if count.value != self.steps * LAUNCHES:
                raise SystemExit(f"wrong: {count.value} launches of {self.steps * LAUNCHES}")


def main():
    """The steps."""
    begin()
    training = Training()
    say("ready")
    for line in sys.stdin:
        training.issue()
        say("issued")
        training.wait(line.strip())
        say("done")


if __name__ == "__main__":
    main()
