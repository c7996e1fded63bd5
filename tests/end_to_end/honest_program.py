"""Prints, as one line of JSON, what the driver promises and what is behind it.

usage: honest_program.py attributes | limits | names NAME...
  attributes  device attributes by number; with those that promise a function, its status
  limits      of a context, before and after a second one of the device sets its own
  names       what cuGetProcAddress says of each name: its status, whether there is an
              address, and the symbol's status
"""

import ctypes
import json
import sys
from ctypes import byref

from bad_memory_program import GRAIN, HOST, HOST_NUMA, ZERO, created, made, mapped, pool, size
from driver import begin, call, must

LIMITS = (*range(9), 255)
PTX = b""".version 7.8
.target sm_90
.address_size 64
.visible .entry nothing(.param .u64 unused) { ret; }
"""


def names(*wanted):
    """Of each name."""
    found = {}
    for name in wanted:
        address, status = ctypes.c_void_p(), ctypes.c_int(-1)
        code = call("cuGetProcAddress_v2", name.encode(), byref(address), 13000, ctypes.c_uint64(0), byref(status))
        found[name] = [code, address.value is not None, status.value]
    return found


def limits():
    """[status, value] of each limit: of one context, of another that sets it, and of the first after that."""

    def read(limit):
        value = ctypes.c_size_t()
        return [call("cuCtxGetLimit", byref(value), limit), value.value]

    first, second = ctypes.c_void_p(), ctypes.c_void_p()
    must("cuCtxGetCurrent", byref(first))
    before = {limit: read(limit) for limit in LIMITS}
    must("cuCtxCreate_v2", byref(second), 0, 0)
    new = {limit: read(limit) for limit in LIMITS}
    was_set = {limit: call("cuCtxSetLimit", limit, size(2 * new[limit][1])) for limit in LIMITS}
    changed = {limit: read(limit) for limit in LIMITS}
    must("cuCtxSetCurrent", first)
    after = {limit: read(limit) for limit in LIMITS}
    must("cuCtxDestroy_v2", second)
    return {limit: [before[limit], new[limit], was_set[limit], changed[limit], after[limit]] for limit in LIMITS}


def behind():
    """The status of what an attribute promises, by its number."""
    handle, number, fill = ctypes.c_void_p, ctypes.c_int(), (ctypes.c_ubyte * 512)()
    stream, event = made("cuStreamCreate", 1, kind=handle), made("cuEventCreate", 6, kind=handle)
    memory = made("cuMemAlloc_v2", size(GRAIN))
    module = made("cuModuleLoadData", PTX, kind=handle)
    kernel = made("cuModuleGetFunction", module, b"nothing", kind=handle)
    parameters = (handle * 1)(ctypes.addressof(memory))
    address, name = ctypes.c_uint64(), (ctypes.c_ubyte * 64)()
    room = (ctypes.c_ubyte * 192)()
    aligned = ctypes.c_void_p(-ctypes.addressof(room) % 64 + ctypes.addressof(room))
    extent, stride, box, steps = (ctypes.c_uint64 * 2)(64, 64), (ctypes.c_uint64 * 1)(256), (ctypes.c_uint32 * 2)(8, 8), (ctypes.c_uint32 * 2)(1, 1)
    pages = ctypes.create_string_buffer(2 * 4096)
    start = -ctypes.addressof(pages) % 4096 + ctypes.addressof(pages)
    sparse = (ctypes.c_size_t * 5)(1024, 1024, 0, 1 << 32 | 0x20, 0x40)
    multicast = (ctypes.c_ubyte * 64)()
    return {
        19: call("cuMemHostGetDevicePointer_v2", byref(address), made("cuMemHostAlloc", size(4096), 2, kind=handle), 0),
        83: call("cuMemAllocManaged", byref(address), size(GRAIN), 1),
        95: call("cuLaunchCooperativeKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters),
        99: call("cuMemHostRegister_v2", ctypes.c_void_p(start), size(4096), 0),
        102: mapped(1)(),
        103: call("cuMemExportToShareableHandle", byref(number), created(), 1, ZERO),
        110: call("cuArray3DCreate_v2", byref(handle()), sparse),
        115: call("cuMemAllocFromPoolAsync", byref(address), size(GRAIN), pool(1), stream),
        122: call("cuStreamWaitValue64_v2", stream, memory, ctypes.c_uint64(0), 3),
        124: call("cuMemGetHandleForAddressRange", byref(number), memory, size(GRAIN), 1, ctypes.c_uint64(0)),
        125: call("cuIpcGetEventHandle", name, event),
        127: call("cuTensorMapEncodeTiled", aligned, 4, 2, memory, extent, stride, box, steps, 0, 0, 0, 0),
        132: call("cuMulticastCreate", byref(address), multicast),
        136: call("cuMemBatchDecompressAsync", fill, size(1), 0, byref(ctypes.c_size_t()), stream),
        141: mapped(HOST_NUMA)(),
        142: call("cuMemAllocFromPoolAsync", byref(address), size(GRAIN), pool(HOST_NUMA), stream),
        144: call("cuMemAllocFromPoolAsync", byref(address), size(GRAIN), pool(HOST), stream),
        145: mapped(HOST)(),
    }


def attributes():
    """All of them, and what is behind those that can be asked."""
    value, all_of = ctypes.c_int(), {}
    for number in range(1, 160):
        value.value = -1
        if call("cuDeviceGetAttribute", byref(value), number, 0) == 0:
            all_of[number] = value.value
    return {"attributes": all_of, "behind": behind()}


def main():
    """The program."""
    what, *more = sys.argv[1:]
    begin()
    print(json.dumps({"attributes": attributes, "limits": limits, "names": lambda: names(*more)}[what]()))


if __name__ == "__main__":
    main()
