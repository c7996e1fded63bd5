"""Calls the driver without a current context, and with objects that outlived their context;
prints the status of each call as JSON."""

import ctypes
import json
from ctypes import byref

from driver import call, must

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 variable;
.visible .entry nothing(.param .u64 unused) { ret; }
"""


class Objects:
    """Some of everything, made in the current context."""

    def __init__(self):
        self.memory, self.pinned = ctypes.c_uint64(), ctypes.c_void_p()
        self.stream, self.event, self.other_event = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.graph, self.instance = ctypes.c_void_p(), ctypes.c_void_p()
        must("cuMemAlloc_v2", byref(self.memory), ctypes.c_size_t(4096))
        must("cuMemHostAlloc", byref(self.pinned), ctypes.c_size_t(4096), 0)
        must("cuStreamCreate", byref(self.stream), 1)
        must("cuEventCreate", byref(self.event), 0)
        must("cuEventCreate", byref(self.other_event), 0)
        must("cuModuleLoadData", byref(self.module), PTX)
        must("cuModuleGetFunction", byref(self.kernel), self.module, b"nothing")
        must("cuGraphCreate", byref(self.graph), 0)
        must("cuGraphInstantiateWithFlags", byref(self.instance), self.graph, ctypes.c_uint64(0))

    def calls(self):
        """Each call by a name, in an order in which objects are ended last."""
        none, number, count = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_size_t()
        made, address = ctypes.c_void_p(), ctypes.c_uint64()
        size = ctypes.c_size_t(64)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self.memory))
        one = (1, 1, 1, 1, 1, 1, 0)
        return {
            "get device": ("cuCtxGetDevice", byref(number)),
            "wait for the context": ("cuCtxSynchronize",),
            "allocate": ("cuMemAlloc_v2", byref(address), size),
            "pin": ("cuMemHostAlloc", byref(made), size, 0),
            "create a stream": ("cuStreamCreate", byref(made), 1),
            "set in a stream": ("cuMemsetD8Async", self.memory, 1, size, self.stream),
            "set in the legacy stream": ("cuMemsetD8Async", self.memory, 1, size, none),
            "query a stream": ("cuStreamQuery", self.stream),
            "wait for a stream": ("cuStreamSynchronize", self.stream),
            "record": ("cuEventRecord", self.event, self.stream),
            "record in the legacy stream": ("cuEventRecord", self.other_event, none),
            "wait for an event": ("cuEventSynchronize", self.event),
            "launch": ("cuLaunchKernel", self.kernel, *one, self.stream, parameters, None),
            "launch in the legacy stream": ("cuLaunchKernel", self.kernel, *one, none, parameters, None),
            "launch a graph": ("cuGraphLaunch", self.instance, self.stream),
            "launch a graph in the legacy stream": ("cuGraphLaunch", self.instance, none),
            "find a kernel": ("cuModuleGetFunction", byref(made), self.module, b"nothing"),
            "ask a kernel": ("cuFuncGetAttribute", byref(number), 0, self.kernel),
            "ask for occupancy": ("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(number), self.kernel, 32, ctypes.c_size_t()),
            "ask an address": ("cuPointerGetAttribute", byref(number), 2, self.memory),
            "ask for free memory": ("cuMemGetInfo_v2", byref(count), byref(count)),
            "end an event": ("cuEventDestroy_v2", self.event),
            "end a stream": ("cuStreamDestroy_v2", self.stream),
            "free": ("cuMemFree_v2", self.memory),
            "free nothing": ("cuMemFree_v2", ctypes.c_uint64()),
            "free what is not there": ("cuMemFree_v2", ctypes.c_uint64(0x1234)),
            "unpin": ("cuMemFreeHost", self.pinned),
            "unload": ("cuModuleUnload", self.module),
        }

    def statuses(self):
        """The status of each call."""
        return {name: call(*arguments) for name, arguments in self.calls().items()}


def kept_when_another_context_ends():
    """Memory of one context at the address of memory that another one freed: whether it
    outlives the other, and whether what the other did not free goes with it."""
    device, number, host = ctypes.c_int(0), ctypes.c_uint32(), ctypes.c_size_t(4)
    primary, other = ctypes.c_void_p(), ctypes.c_void_p()
    freed, left, again = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    size = ctypes.c_size_t(4 << 20)
    must("cuDevicePrimaryCtxRetain", byref(primary), device)
    must("cuCtxCreate_v2", byref(other), 0, device)
    must("cuMemAlloc_v2", byref(left), size)
    must("cuMemAlloc_v2", byref(freed), size)
    must("cuMemFree_v2", freed)
    must("cuCtxSetCurrent", primary)
    must("cuMemAlloc_v2", byref(again), size)
    owners = [ctypes.c_void_p(), ctypes.c_void_p()]
    for owner, memory in zip(owners, (left, again), strict=True):
        must("cuPointerGetAttribute", byref(owner), 1, memory)
    must("cuMemsetD32_v2", again, 7, ctypes.c_size_t(1))
    must("cuCtxDestroy_v2", other)
    status = call("cuMemcpyDtoH_v2", byref(number), again, host)
    must("cuMemFree_v2", again)
    told = {
        "same address": again.value == freed.value,
        "context of each": [owner.value for owner in owners] == [other.value, primary.value],
        "kept": status == 0 and number.value == 7,
        "free what went with its context": call("cuMemFree_v2", left),
    }
    must("cuCtxPopCurrent_v2", byref(other))
    must("cuDevicePrimaryCtxRelease_v2", device)
    return told


def kept_when_the_primary_context_ends():
    """Memory of a context, as the primary context ends and then it itself: whether it is kept
    first, the statuses of freeing it in the end, and whether other memory is kept then."""
    device, number, flags = ctypes.c_int(0), ctypes.c_uint32(), ctypes.c_uint()
    primary, other = ctypes.c_void_p(), ctypes.c_void_p()
    own, pooled, again = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    pinned, registered = ctypes.c_void_p(), (ctypes.c_uint8 * 8192)()
    size, one, host = ctypes.c_size_t(4 << 20), ctypes.c_size_t(1), ctypes.c_size_t(4)

    def read(memory):
        must("cuMemcpyDtoH_v2", byref(number), memory, host)
        return number.value

    must("cuCtxCreate_v2", byref(other), 0, device)
    must("cuMemAlloc_v2", byref(own), size)
    must("cuMemsetD32_v2", own, 7, one)
    must("cuMemAllocAsync", byref(pooled), size, None)
    must("cuMemsetD32_v2", pooled, 8, one)
    must("cuMemHostAlloc", byref(pinned), ctypes.c_size_t(4096), 0)
    must("cuMemHostRegister_v2", registered, ctypes.c_size_t(8192), 0)
    must("cuDevicePrimaryCtxRetain", byref(primary), device)
    must("cuDevicePrimaryCtxRelease_v2", device)
    kept = [read(own), read(pooled)]
    kept += [call("cuMemHostGetFlags", byref(flags), memory) for memory in (pinned, registered)]
    # No memory comes to an address that the context's end frees.
    must("cuDevicePrimaryCtxRetain", byref(primary), device)
    must("cuCtxSetCurrent", primary)
    must("cuMemAlloc_v2", byref(again), size)
    must("cuMemsetD32_v2", again, 9, one)
    must("cuCtxDestroy_v2", other)
    told = {
        "kept": kept,
        "free": [call("cuMemFree_v2", own), call("cuMemFree_v2", pooled)],
        "unpin": [call("cuMemFreeHost", pinned), call("cuMemHostUnregister", registered)],
        "of the primary context": read(again),
    }
    must("cuMemFree_v2", again)
    must("cuDevicePrimaryCtxRelease_v2", device)
    must("cuCtxPopCurrent_v2", byref(primary))
    return told


def released(context):
    """The reported state of a primary context that was released while it is current."""
    number, address = ctypes.c_int(-1), ctypes.c_uint64()
    return {
        "get device": call("cuCtxGetDevice", byref(number)),
        "device": number.value,
        "get its device": call("cuCtxGetDevice_v2", byref(number), context),
        "get flags": call("cuCtxGetFlags", byref(number)),
        "wait": call("cuCtxSynchronize"),
        "allocate": call("cuMemAlloc_v2", byref(address), ctypes.c_size_t(64)),
    }


def main():
    """Without a current context, and after the context's end."""
    context = ctypes.c_void_p()
    must("cuInit", 0)
    told = {"without the primary context": kept_when_the_primary_context_ends()}
    must("cuDevicePrimaryCtxRetain", byref(context), 0)
    told["another context"] = kept_when_another_context_ends()
    for when in ("without", "after"):
        must("cuCtxPushCurrent_v2", context)
        objects = Objects()
        must("cuCtxPopCurrent_v2", byref(context))
        if when == "after":
            must("cuDevicePrimaryCtxRelease_v2", 0)
            told["wait for the ended context"] = call("cuCtxSynchronize_v2", context)
        told[when] = objects.statuses()
    must("cuCtxPushCurrent_v2", context)
    told["current and released"] = released(context)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
