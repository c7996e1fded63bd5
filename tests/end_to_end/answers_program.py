"""Calls the driver where its answer is documented; prints the answers as JSON."""

import ctypes
import json
import threading
from ctypes import byref

from driver import begin, call, driver, must
from kinds_program import Allocation
from sharing_program import Access, Handle

BLOCK = ctypes.c_size_t(2 << 20)
ZERO, NONE = ctypes.c_uint64(0), ctypes.c_void_p(0)
DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT = 1, 2, 3, 4
LAYERED, SURFACE, GATHER = 1, 2, 8
UPLOAD = 2
FLOAT = 0x20
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 unused) { ret; }
"""


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int)]


class Descriptor(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    ]


def of_a_librarys_module():
    """It cannot be unloaded, and the library's kernel still runs."""
    library, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    must("cuLibraryLoadData", byref(library), PTX, None, None, 0, None, None, 0)
    must("cuLibraryGetModule", byref(module), library)
    must("cuLibraryGetKernel", byref(kernel), library, b"nothing")
    argument = ctypes.c_uint64()
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    found = {"unload": call("cuModuleUnload", module)}
    found["find"] = call("cuModuleGetFunction", byref(ctypes.c_void_p()), module, b"nothing")
    found["launch"] = call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, NONE, arguments, None)
    must("cuCtxSynchronize")
    found["unload the library"] = call("cuLibraryUnload", library)
    found["unload again"] = call("cuModuleUnload", module)
    return found


def of_bus_ids():
    """The device by each form of its ID."""
    text = ctypes.create_string_buffer(32)
    must("cuDeviceGetPCIBusId", text, 32, 0)
    whole = text.value.decode()
    domain, rest = whole.split(":", 1)
    forms = {"whole": whole, "no function": whole.split(".", 1)[0], "no domain": rest, "no device": domain, "neither": rest.split(".", 1)[0]}
    found = {}
    for name, form in forms.items():
        device = ctypes.c_int(-1)
        found[name] = [call("cuDeviceGetByPCIBusId", byref(device), form.encode()), device.value]
    return found


def of_preferred_locations():
    """The kind of location that a range reports, by the one that was advised."""
    memory, kind = ctypes.c_uint64(), ctypes.c_int()
    must("cuMemAllocManaged", byref(memory), BLOCK, 1)
    found = {}
    for name, advised in (("host", HOST), ("node", HOST_NUMA), ("current node", HOST_NUMA_CURRENT), ("device", DEVICE)):
        must("cuMemAdvise_v2", memory, BLOCK, 3, Location(advised, 0))
        must("cuMemRangeGetAttribute", byref(kind), ctypes.c_size_t(4), 5, memory, BLOCK)
        found[name] = kind.value
    must("cuMemFree_v2", memory)
    return found


def of_arrays():
    """The status of the creation of arrays, by how their extent compares with the device's limits."""

    def limit(attribute):
        value = ctypes.c_int()
        must("cuDeviceGetAttribute", byref(value), attribute, 0)
        return value.value

    def create(width, height=0, depth=0, flags=0):
        array = ctypes.c_void_p()
        status = call("cuArray3DCreate_v2", byref(array), byref(Descriptor(width, height, depth, FLOAT, 1, flags)))
        if status == 0:
            must("cuArrayDestroy", array)
        return status

    width, height, deep, layers = limit(22), limit(23), limit(26), limit(29)
    return {
        "as wide": create(width, 1),
        "wider": create(width + 1, 1),
        "higher": create(1, height + 1),
        "deeper": create(1, 1, deep + 1),
        "more layers": create(1, 1, layers + 1, LAYERED),
        "gather": create(8, 8, 0, GATHER),
        "gather in a volume": create(8, 8, 8, GATHER),
        "a wider surface": create(limit(56) + 1, 1, 0, SURFACE),
    }


def of_shared_memory():
    """Memory is mapped and shared while a host function runs, and keeps its contents."""
    stream, own, memory, address = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    must("cuStreamCreate", byref(stream), 1)
    must("cuMemAlloc_v2", byref(own), BLOCK)
    must("cuMemsetD8_v2", own, 5, BLOCK)
    must("cuMemAddressReserve", byref(address), BLOCK, ctypes.c_size_t(0), ZERO, ZERO)
    must("cuCtxSynchronize")
    gate = threading.Event()
    wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(60))
    must("cuLaunchHostFunc", stream, wait, NONE)
    must("cuMemsetD8Async", own, 6, ctypes.c_size_t(1), stream)
    found = {"create": call("cuMemCreate", byref(memory), BLOCK, byref(Allocation(kind=1, handles=0, place=DEVICE, device=0)), ZERO)}
    found["map"] = call("cuMemMap", address, BLOCK, ctypes.c_size_t(0), memory, ZERO)
    found["give access"] = call("cuMemSetAccess", address, BLOCK, byref(Access(DEVICE, 0, 3)), ctypes.c_size_t(1))
    found["share"] = call("cuIpcGetMemHandle", byref(Handle()), own)
    gate.set()
    must("cuCtxSynchronize")
    found["set"] = call("cuMemsetD8_v2", address, 1, BLOCK)
    bytes_found = ctypes.create_string_buffer(2)
    must("cuMemcpyDtoH_v2", bytes_found, own, ctypes.c_size_t(2))
    found["contents"] = list(bytes_found.raw)
    return found


def of_access():
    """A device that cannot map memory read-only leaves the access as it was."""
    memory, address, value = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.create_string_buffer(1)
    must("cuMemAddressReserve", byref(address), BLOCK, ctypes.c_size_t(0), ZERO, ZERO)
    must("cuMemCreate", byref(memory), BLOCK, byref(Allocation(kind=1, handles=0, place=DEVICE, device=0)), ZERO)
    must("cuMemMap", address, BLOCK, ctypes.c_size_t(0), memory, ZERO)
    must("cuMemSetAccess", address, BLOCK, byref(Access(DEVICE, 0, 3)), ctypes.c_size_t(1))
    must("cuMemsetD8_v2", address, 7, BLOCK)
    refused = call("cuMemSetAccess", address, BLOCK, byref(Access(DEVICE, 0, 1)), ctypes.c_size_t(1)) != 0
    flags = ctypes.c_uint64()
    must("cuMemGetAccess", byref(flags), byref(Location(DEVICE, 0)), address)
    found = {"as set": flags.value == (3 if refused else 1)}
    found["read"] = call("cuMemcpyDtoH_v2", value, address, ctypes.c_size_t(1))
    found["contents"] = value.raw[0]
    return found


def of_uploads():
    """Only the function with parameters uploads an executable graph."""
    graph, instance = ctypes.c_void_p(), ctypes.c_void_p()
    must("cuGraphCreate", byref(graph), 0)
    # Flags, stream, node and result.
    parameters = (ctypes.c_uint64 * 4)(UPLOAD)
    return {
        "with flags": call("cuGraphInstantiateWithFlags", byref(instance), graph, ctypes.c_uint64(UPLOAD)),
        "with parameters": call("cuGraphInstantiateWithParams", byref(instance), graph, parameters),
    }


def main():
    """Every answer by its subject."""
    driver()
    begin()
    subjects = (of_a_librarys_module, of_bus_ids, of_preferred_locations, of_arrays, of_shared_memory, of_access, of_uploads)
    print(json.dumps({subject.__name__: subject() for subject in subjects}), flush=True)


main()
