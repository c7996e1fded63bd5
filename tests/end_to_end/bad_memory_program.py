"""Uses memory and objects of others, twice, or without end; prints the statuses.

usage: bad_memory_program.py open | exports | maps | contexts | take WAY MOST
  open      for each line of input, a handle in hexadecimal digits: opens and closes it
  exports   exports what is not the process's own memory, or not memory
  maps      maps where something is mapped, or where nothing is reserved
  contexts  uses objects of one context in another
  take      allocates blocks of 4 MiB in one WAY until that is refused, at most MOST: how many, the status,
            and the status of cuMemAlloc of a block after that
Without another word it prints one line of JSON.
"""

import ctypes
import json
import os
import sys
from ctypes import byref

from driver import begin, call, must
from kinds_program import Allocation
from sharing_program import Access, Handle, PoolProperties

GRAIN, BLOCK = 2 << 20, 4 << 20
DEVICE, HOST, HOST_NUMA, DESCRIPTOR = 1, 2, 3, 1
ZERO, NONE = ctypes.c_uint64(0), ctypes.c_void_p(0)
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 unused) { ret; }
"""


def made(name, *arguments, kind=ctypes.c_uint64):
    """What a function that succeeds makes in its first argument."""
    found = kind()
    must(name, byref(found), *arguments)
    return found


def size(count):
    """A size_t."""
    return ctypes.c_size_t(count)


def access(place=DEVICE):
    """Of a device, or of the host."""
    return byref(Access(place, 0, 3))


def created(blocks=1, handles=DESCRIPTOR, place=DEVICE):
    """cuMemCreate."""
    return made("cuMemCreate", size(blocks * GRAIN), byref(Allocation(kind=1, handles=handles, place=place, device=0)), ZERO)


def reserved(blocks):
    """cuMemAddressReserve."""
    return made("cuMemAddressReserve", size(blocks * GRAIN), size(0), ZERO, ZERO)


def opened(digits):
    """The status of opening a handle of memory. What is opened is closed."""
    address = ctypes.c_uint64()
    status = call("cuIpcOpenMemHandle_v2", byref(address), Handle.from_buffer_copy(bytes.fromhex(digits)), 1)
    if status == 0:
        must("cuIpcCloseMemHandle", address)
    return status


def exports():
    """Of what is no memory of this process's own, or was allocated in another way."""
    handle, file, pointer = Handle(), ctypes.c_int(-1), (ctypes.c_ubyte * 64)()
    own, freed = made("cuMemAlloc_v2", size(GRAIN)), made("cuMemAlloc_v2", size(GRAIN))
    must("cuMemFree_v2", freed)
    pinned = made("cuMemHostAlloc", size(GRAIN), 0, kind=ctypes.c_void_p)
    managed = made("cuMemAllocManaged", size(GRAIN), 1)
    pool = made("cuMemPoolCreate", byref(PoolProperties(kind=1, handles=0, place=DEVICE, device=0)), kind=ctypes.c_void_p)
    pooled = made("cuMemAllocFromPoolAsync", size(GRAIN), pool, None)
    mapped, private = created(), created(handles=0)
    address = reserved(1)
    must("cuMemMap", address, size(GRAIN), size(0), mapped, ZERO)
    must("cuMemSetAccess", address, size(GRAIN), access(), size(1))
    must("cuMemExportToShareableHandle", byref(file), mapped, DESCRIPTOR, ZERO)
    must("cuIpcGetMemHandle", byref(handle), own)
    found = {"the own handle": opened(bytes(handle.bytes).hex())}
    of_memory = {"freed": freed, "never allocated": ctypes.c_uint64(0x1234000), "pinned": ctypes.c_uint64(pinned.value), "managed": managed}
    of_memory |= {"pooled": pooled, "mapped": address, "null": ZERO}
    for what, one in of_memory.items():
        found[f"a name of {what} memory"] = call("cuIpcGetMemHandle", byref(handle), one)
        found[f"a pool's name of {what} memory"] = call("cuMemPoolExportPointer", pointer, one)
    for what, one in (("private", private), ("no", ZERO)):
        found[f"a descriptor of {what} memory"] = call("cuMemExportToShareableHandle", byref(file), one, DESCRIPTOR, ZERO)
    found["a descriptor of a private pool"] = call("cuMemPoolExportToShareableHandle", byref(file), pool, DESCRIPTOR, ZERO)
    reader, _ = os.pipe()
    for what, one in (("a pipe", reader), ("a device", os.open("/dev/zero", os.O_RDWR)), ("no descriptor", -1), ("a closed one", 999)):
        taken = ctypes.c_void_p(one & (1 << 64) - 1)
        found[f"memory from {what}"] = call("cuMemImportFromShareableHandle", byref(ctypes.c_uint64()), taken, DESCRIPTOR)
        found[f"a pool from {what}"] = call("cuMemPoolImportFromShareableHandle", byref(ctypes.c_void_p()), taken, DESCRIPTOR, ZERO)
    found["a pool's memory from a forged name"] = call("cuMemPoolImportPointer", byref(ctypes.c_uint64()), pool, (ctypes.c_ubyte * 64)(*range(64)))
    return found


def maps():
    """Two blocks are mapped in the middle of four that are reserved."""
    base, two, one = reserved(4).value, created(2), created()
    must("cuMemMap", ctypes.c_uint64(base + GRAIN), size(2 * GRAIN), size(0), two, ZERO)
    must("cuMemSetAccess", ctypes.c_uint64(base + GRAIN), size(2 * GRAIN), access(), size(1))
    must("cuMemsetD8_v2", ctypes.c_uint64(base + GRAIN), ctypes.c_ubyte(7), size(2 * GRAIN))

    def at(blocks, bytes_more=0):
        return ctypes.c_uint64(base + blocks * GRAIN + bytes_more)

    found = {
        "over the first": call("cuMemMap", at(1), size(GRAIN), size(0), one, ZERO),
        "over the second": call("cuMemMap", at(2), size(GRAIN), size(0), one, ZERO),
        "over a beginning": call("cuMemMap", at(0), size(2 * GRAIN), size(0), two, ZERO),
        "over an end": call("cuMemMap", at(2), size(2 * GRAIN), size(0), two, ZERO),
        "outside": call("cuMemMap", ctypes.c_uint64(0x1234000000), size(GRAIN), size(0), one, ZERO),
        "between grains": call("cuMemMap", at(0, 4096), size(GRAIN), size(0), one, ZERO),
        "of more than there is": call("cuMemMap", at(0), size(2 * GRAIN), size(0), one, ZERO),
        "of no memory": call("cuMemMap", at(0), size(GRAIN), size(0), ZERO, ZERO),
        "access where nothing is": call("cuMemSetAccess", at(0), size(GRAIN), access(), size(1)),
        "access past the end": call("cuMemSetAccess", at(2), size(2 * GRAIN), access(), size(1)),
        "half an unmap": call("cuMemUnmap", at(1), size(GRAIN)),
        "a free of what is mapped": call("cuMemFree_v2", at(1)),
        "a free of half of the reservation": call("cuMemAddressFree", at(0), size(2 * GRAIN)),
    }
    word = ctypes.c_uint64()
    found["a copy of the memory"] = call("cuMemcpyDtoH_v2", byref(word), at(3, -8), size(8))
    found["what was copied"] = hex(word.value)
    found["an unmap"] = call("cuMemUnmap", at(1), size(2 * GRAIN))
    found["a release"] = call("cuMemRelease", two)
    found["a second release"] = call("cuMemRelease", two)
    found["a map of what is released"] = call("cuMemMap", at(1), size(2 * GRAIN), size(0), two, ZERO)
    found["the end of the reservation"] = call("cuMemAddressFree", at(0), size(4 * GRAIN))
    found["a second end of the reservation"] = call("cuMemAddressFree", at(0), size(4 * GRAIN))
    found["a map where it was"] = call("cuMemMap", at(0), size(GRAIN), size(0), one, ZERO)
    return found


def contexts():
    """Objects of the primary context, while another one of the device is current."""
    word = ctypes.c_uint32()
    handle = ctypes.c_void_p
    stream, event = made("cuStreamCreate", 1, kind=handle), made("cuEventCreate", 0, kind=handle)
    module = made("cuModuleLoadData", PTX, kind=handle)
    kernel = made("cuModuleGetFunction", module, b"nothing", kind=handle)
    graph = made("cuGraphCreate", 0, kind=handle)
    instance = made("cuGraphInstantiateWithFlags", graph, ctypes.c_uint64(0), kind=handle)
    memory = made("cuMemAlloc_v2", size(4096))
    other = handle()
    must("cuCtxCreate_v2", byref(other), 0, 0)
    own, own_event = made("cuStreamCreate", 1, kind=handle), made("cuEventCreate", 0, kind=handle)
    own_module = made("cuModuleLoadData", PTX, kind=handle)
    own_kernel = made("cuModuleGetFunction", own_module, b"nothing", kind=handle)
    parameters = (handle * 1)(ctypes.addressof(memory))
    shape = (1, 1, 1, 1, 1, 1, 0)
    return {
        "a kernel in an own stream": call("cuLaunchKernel", kernel, *shape, own, parameters, None),
        "a kernel in its stream": call("cuLaunchKernel", kernel, *shape, stream, parameters, None),
        "an own kernel in its stream": call("cuLaunchKernel", own_kernel, *shape, stream, parameters, None),
        "a kernel in the legacy stream": call("cuLaunchKernel", kernel, *shape, NONE, parameters, None),
        "an event in an own stream": call("cuEventRecord", event, own),
        "an own event in its stream": call("cuEventRecord", own_event, stream),
        "a wait for an event": call("cuStreamWaitEvent", own, event, 0),
        "a wait for a stream": call("cuStreamSynchronize", stream),
        "a graph in an own stream": call("cuGraphLaunch", instance, own),
        "a fill": call("cuMemsetD8Async", memory, ctypes.c_ubyte(1), size(4096), own),
        "a wait for all": call("cuCtxSynchronize"),
        "a copy": call("cuMemcpyDtoH_v2", byref(word), memory, size(4)),
        "what was copied": word.value,
        "a free": call("cuMemFree_v2", memory),
        "an end of a stream": call("cuStreamDestroy_v2", stream),
        "an end of a module": call("cuModuleUnload", module),
    }


def pool(place):
    """A pool of a place, as cuMemPoolCreate makes it."""
    return made("cuMemPoolCreate", byref(PoolProperties(kind=1, handles=0, place=place, device=0)), kind=ctypes.c_void_p)


def from_pool(place):
    """Allocates from one pool of a place."""
    one = pool(place)
    return lambda: call("cuMemAllocFromPoolAsync", byref(ctypes.c_uint64()), size(BLOCK), one, None)


def in_graphs():
    """Graphs of a node that allocates, each launched."""

    class Node(ctypes.Structure):
        """CUDA_MEM_ALLOC_NODE_PARAMS."""

        _fields_ = [("pool", PoolProperties), ("access", ctypes.c_void_p), ("count", ctypes.c_size_t), ("bytes", ctypes.c_size_t), ("address", ctypes.c_uint64)]

    def allocate():
        graph, instance = made("cuGraphCreate", 0, kind=ctypes.c_void_p), ctypes.c_void_p()
        node = Node(pool=PoolProperties(kind=1, place=DEVICE), bytes=BLOCK)
        return (
            call("cuGraphAddMemAllocNode", byref(ctypes.c_void_p()), graph, None, size(0), byref(node))
            or call("cuGraphInstantiateWithFlags", byref(instance), graph, ctypes.c_uint64(0))
            or call("cuGraphLaunch", instance, None)
            or call("cuCtxSynchronize")
        )

    return allocate


def arrays(name, depth, *more):
    """Arrays of 1024 words a row. Some descriptions have a depth."""
    shape = (ctypes.c_size_t * 5)(1024, BLOCK // 4096, *depth, 1 << 32 | 0x20)
    return lambda: call(name, byref(ctypes.c_void_p()), shape, *more)


def mapped(place):
    """Creates memory and maps it for the device."""

    def allocate():
        memory, asked = ctypes.c_uint64(), Allocation(kind=1, handles=0, place=place, device=0)
        status = call("cuMemCreate", byref(memory), size(BLOCK), byref(asked), ZERO)
        if status:
            return status
        address = reserved(BLOCK // GRAIN)
        return call("cuMemMap", address, size(BLOCK), size(0), memory, ZERO) or call("cuMemSetAccess", address, size(BLOCK), access(), size(1))

    return allocate


def registered():
    """Registers pages of the program."""

    def allocate():
        pages = ctypes.create_string_buffer(BLOCK + 4096)
        KEPT.append(pages)
        start = -ctypes.addressof(pages) % 4096 + ctypes.addressof(pages)
        return call("cuMemHostRegister_v2", ctypes.c_void_p(start), size(BLOCK), 2)

    return allocate


KEPT = []
WAYS = {
    "cuMemAlloc": lambda: lambda: call("cuMemAlloc_v2", byref(ctypes.c_uint64()), size(BLOCK)),
    "cuMemAllocManaged": lambda: lambda: call("cuMemAllocManaged", byref(ctypes.c_uint64()), size(BLOCK), 1),
    "cuMemCreate": lambda: mapped(DEVICE),
    "cuMemCreate in the host": lambda: mapped(HOST),
    "cuMemCreate on a node": lambda: mapped(HOST_NUMA),
    "a pool": lambda: from_pool(DEVICE),
    "a pool in the host": lambda: from_pool(HOST),
    "a pool on a node": lambda: from_pool(HOST_NUMA),
    "graphs": in_graphs,
    "arrays": lambda: arrays("cuArrayCreate_v2", ()),
    "mipmapped arrays": lambda: arrays("cuMipmappedArrayCreate", (0,), 1),
    "cuMemHostAlloc": lambda: lambda: call("cuMemHostAlloc", byref(ctypes.c_void_p()), size(BLOCK), 2),
    "cuMemHostRegister": registered,
}


def take(way, most):
    """Allocates until it is refused, at most so often."""
    allocate, taken, status = WAYS[way](), 0, 0
    while taken < most and (status := allocate()) == 0:
        taken += 1
    return {"blocks": taken, "status": status, "cuMemAlloc": call("cuMemAlloc_v2", byref(ctypes.c_uint64()), size(BLOCK))}


def main():
    """The program."""
    what, *more = sys.argv[1:]
    begin()
    if what == "open":
        for line in sys.stdin:
            print(opened(line.strip()), flush=True)
        return
    found = {"exports": exports, "maps": maps, "contexts": contexts, "take": lambda: take(more[0], int(more[1]))}[what]()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
