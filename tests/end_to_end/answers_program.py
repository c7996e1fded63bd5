"""Calls the driver where its answer is documented; prints the answers as JSON."""

import ctypes
import functools
import json
import tempfile
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


def of_images():
    """A library's image is the library's own copy, or the program's own if it is kept. A file's is
    no program's."""
    found = {}
    preserved, yes = ctypes.c_int(1), ctypes.c_void_p(1)
    for name, options in (("copied", (None, None, 0)), ("kept", (byref(preserved), byref(yes), 1))):
        library, context, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        image = ctypes.create_string_buffer(PTX)
        must("cuLibraryLoadData", byref(library), image, None, None, 0, *options)
        if name == "copied":
            ctypes.memset(image, ord("x"), len(PTX))
        # It is loaded into a further context at its first use there.
        must("cuCtxCreate_v2", byref(context), 0, 0)
        must("cuLibraryGetKernel", byref(kernel), library, b"nothing")
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(ctypes.c_uint64()))
        found[name] = call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, NONE, arguments, None)
        must("cuCtxDestroy_v2", context)
        must("cuLibraryUnload", library)
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(PTX)
        file.flush()
        load = functools.partial(call, "cuLibraryLoadFromFile", byref(library), file.name.encode(), None, None, 0)
        found["file"], found["kept file"] = load(None, None, 0), load(byref(preserved), byref(yes), 1)
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


def made(name, *arguments):
    """The handle or address that a function returns in its first argument."""
    value = ctypes.c_uint64()
    must(name, byref(value), *arguments)
    return value


def size(number):
    """A number of bytes."""
    return ctypes.c_size_t(number)


def copy_record(destination, source, extent, **fields):
    """CUDA_MEMCPY3D between memory of the device without gaps, as words."""
    width, height, depth = extent
    places = {"y": 1, "kind": 4, "address": 6, "pitch": 9, "rows": 10, "to_kind": 15, "to": 17, "to_pitch": 20, "to_rows": 21}
    values = {"kind": 2, "address": source, "to_kind": 2, "to": destination, "pitch": width, "rows": height, "to_pitch": width, "to_rows": height}
    record = (ctypes.c_uint64 * 25)()
    record[22:25] = width, height, depth
    for name, value in {**values, **fields}.items():
        record[places[name]] = value
    return record


def set_record(destination, width, height=1, element=4, pitch=256):
    """CUDA_MEMSET_NODE_PARAMS as words."""
    return (ctypes.c_uint64 * 5)(destination, pitch, element << 32 | 5, width, height)


def of_nodes():
    """The status of adding a copy, of setting a node to it, of setting an executable graph's, and of
    the copy itself; then of adding memsets."""
    context, graph = ctypes.c_uint64(), made("cuGraphCreate", 0)
    must("cuCtxGetCurrent", byref(context))
    to, source, freed = (made("cuMemAlloc_v2", BLOCK).value for _ in range(3))
    must("cuMemFree_v2", ctypes.c_uint64(freed))
    pageable = ctypes.create_string_buffer(4096)
    node = made("cuGraphAddMemcpyNode", graph, None, size(0), copy_record(to, source, (64, 1, 1)), context)
    instance = made("cuGraphInstantiateWithFlags", graph, ZERO)
    copies = {
        "fits": copy_record(to, source, (64, 1, 1)),
        "freed": copy_record(freed, source, (64, 1, 1)),
        "past the end": copy_record(to + BLOCK.value - 32, source, (64, 1, 1)),
        "pageable": copy_record(to, ctypes.addressof(pageable), (64, 1, 1)),
        "no bytes": copy_record(to, source, (0, 1, 1)),
        "no rows": copy_record(to, source, (64, 0, 1)),
        "rows": copy_record(to, source, (64, 4, 1)),
        "row past the slice": copy_record(to, source, (64, 2, 2), y=1),
        "no array": copy_record(to, source, (64, 1, 1), to_kind=3),
    }
    found = {}
    for name, record in copies.items():
        added = call("cuGraphAddMemcpyNode", byref(ctypes.c_uint64()), made("cuGraphCreate", 0), None, size(0), record, context)
        changed = call("cuGraphExecMemcpyNodeSetParams", instance, node, record, context)
        must("cuGraphMemcpyNodeSetParams", node, copies["fits"])
        found[name] = [added, call("cuGraphMemcpyNodeSetParams", node, record), changed, call("cuMemcpy3D_v2", record)]
    sets = {
        "set": set_record(to, 16),
        "set none": set_record(to, 0),
        "set no rows": set_record(to, 16, 0),
        "set past the pitch": set_record(to, 128, 2),
        "set past the end": set_record(to + BLOCK.value - 32, 16),
        "set off": set_record(to + 1, 16),
        "set pageable": set_record(ctypes.addressof(pageable), 16),
    }
    for name, record in sets.items():
        found[name] = call("cuGraphAddMemsetNode", byref(ctypes.c_uint64()), graph, None, size(0), record, context)
    return found


def of_updates():
    """The status and the reason of an update, and whether it names the new graph's node."""
    context, module, kernel = ctypes.c_uint64(), made("cuModuleLoadData", PTX), ctypes.c_uint64()
    must("cuCtxGetCurrent", byref(context))
    must("cuModuleGetFunction", byref(kernel), module, b"nothing")
    memory, argument = made("cuMemAlloc_v2", BLOCK).value, ctypes.c_uint64()
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))

    def launches(attribute=None, value=0):
        graph, one = made("cuGraphCreate", 0), 1 << 32 | 1
        record = (ctypes.c_uint64 * 9)(kernel.value, one, one, one, 0, ctypes.addressof(arguments))
        node = made("cuGraphAddKernelNode_v2", graph, None, size(0), record)
        if attribute:
            must("cuGraphKernelNodeSetAttribute", node, attribute, (ctypes.c_int64 * 8)(value & 0xFFFFFFFF))
        return graph, node.value

    def sets(*extent):
        graph = made("cuGraphCreate", 0)
        return graph, made("cuGraphAddMemsetNode", graph, None, size(0), set_record(memory, *extent), context).value

    def update(old, new, flags=0):
        instance = made("cuGraphInstantiateWithFlags", old[0], ctypes.c_uint64(flags))
        result = (ctypes.c_uint64 * 3)()
        status = call("cuGraphExecUpdate_v2", instance, new[0], result)
        return [status, result[0] & 0xFF, result[1] == new[1]]

    plain, cooperative, urgent = launches(), launches(2, 1), launches(8, -1)
    return {
        "cooperative": update(plain, cooperative),
        "no longer": update(cooperative, plain),
        "priority": update(plain, urgent)[:2],
        "priority in use": update(plain, urgent, 8),
        "width": update(sets(64), sets(32))[:2],
        "rows": update(sets(16, 4), sets(16, 8)),
        "width of rows": update(sets(16, 4), sets(8, 4)),
        "same rows": update(sets(16, 4), sets(16, 4))[:2],
    }


def of_captures():
    """The status of a call during a capture, and of the capture's end: in each mode."""
    stream, other, module = made("cuStreamCreate", 1), made("cuStreamCreate", 1), made("cuModuleLoadData", PTX)
    kernel, event, graph = ctypes.c_uint64(), made("cuEventCreate", 0), made("cuGraphCreate", 0)
    must("cuModuleGetFunction", byref(kernel), module, b"nothing")
    memory = made("cuMemAlloc_v2", BLOCK)
    line = (ctypes.c_uint64 * 3)(16, 0, 1 << 32 | FLOAT)
    calls = {
        "query another": lambda: call("cuStreamQuery", other),
        "wait for another": lambda: call("cuStreamSynchronize", other),
        "create an array": lambda: call("cuArrayCreate_v2", byref(ctypes.c_uint64()), line),
        "set a limit": lambda: call("cuCtxSetLimit", 1, size(1 << 20)),
        "instantiate": lambda: call("cuGraphInstantiateWithFlags", byref(ctypes.c_uint64()), graph, ZERO),
        "set": lambda: call("cuMemsetD8_v2", memory, 0, size(4)),
        "launch nothing": lambda: call("cuLaunchKernel", kernel, 0, 1, 1, 1, 1, 1, 0, stream, None, None),
        "copy past the end": lambda: call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(memory.value + BLOCK.value), memory, size(4), stream),
    }
    found = {}
    for name, make in calls.items():
        found[name] = []
        for mode in range(3):
            must("cuStreamBeginCapture_v2", stream, mode)
            found[name] += [make(), call("cuStreamEndCapture", stream, byref(ctypes.c_uint64()))]
    must("cuStreamBeginCapture_v2", stream, 2)
    must("cuEventRecord", event, stream)
    inside, status = ctypes.c_uint64(), ctypes.c_int()
    must("cuStreamGetCaptureInfo_v2", stream, byref(status), None, byref(inside), None, None)
    found["destroy its graph"] = call("cuGraphDestroy", inside)
    must("cuStreamEndCapture", stream, byref(inside))
    found["destroy it then"] = call("cuGraphDestroy", inside)
    found["wait for its event"] = call("cuStreamWaitEvent", other, event, 0)
    return found


def of_launches():
    """A launch without its parameters, an attribute that cannot be set, and how many blocks run at
    once with more dynamic shared memory than the kernel may have."""
    module, kernel, blocks = made("cuModuleLoadData", PTX), ctypes.c_uint64(), ctypes.c_int(-1)
    must("cuModuleGetFunction", byref(kernel), module, b"nothing")
    end = ctypes.c_uint64()
    must("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), kernel, 32, size(49 << 10))
    return {
        "without parameters": call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, NONE, None, byref(end)),
        "must have a cluster": call("cuFuncSetAttribute", kernel, 10, 0),
        "blocks": blocks.value,
    }


def of_entry_points():
    """The symbol status of functions, by the version and the flags of the program: those of
    per-thread streams came with 7.0."""

    symbols = ("cuInit", "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuMemAlloc_v2")
    names = {ctypes.cast(getattr(driver().library, symbol), ctypes.c_void_p).value: symbol for symbol in symbols}

    def look(name, version, flags):
        address, status = ctypes.c_uint64(), ctypes.c_int(-1)
        code = call("cuGetProcAddress_v2", name, byref(address), version, ctypes.c_uint64(flags), byref(status))
        return code or names.get(address.value, {"status": status.value})

    return {
        "legacy": look(b"cuLaunchKernel", 4000, 1),
        "too early": look(b"cuLaunchKernel", 4000, 2),
        "per thread": look(b"cuLaunchKernel", 7000, 2),
        "both": look(b"cuLaunchKernel", 7000, 3),
        "without streams": look(b"cuInit", 2000, 2),
        "unknown flag": look(b"cuInit", 2000, 4),
        "newest": look(b"cuMemAlloc", -1, 0),
    }


class Rectangle(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        (f"{end}_{name}", kind)
        for end in ("source", "destination")
        for name, kind in (
            *(("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("type", ctypes.c_int), ("host", ctypes.c_void_p)),
            *(("device", ctypes.c_uint64), ("array", ctypes.c_void_p), ("pitch", ctypes.c_size_t)),
        )
    ] + [("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]


def of_odd_widths():
    """Copies of two rows of 7 bytes to and from an array of words, and what they left."""
    array, line = ctypes.c_void_p(), Descriptor(4, 2, 0, FLOAT, 1, 0)
    must("cuArray3DCreate_v2", byref(array), byref(line))
    host, kind = (ctypes.c_ubyte * 32)(*range(32)), {"host": 1, "array": 3}

    def copy(source, destination, width, place=host):
        ends = {"source_type": kind[source], "destination_type": kind[destination], "width": width, "height": 2}
        for end, name in (("source", source), ("destination", destination)):
            ends |= {f"{end}_host": ctypes.addressof(place), f"{end}_pitch": 16} if name == "host" else {f"{end}_array": array}
        return call("cuMemcpy2D_v2", byref(Rectangle(**ends)))

    found = {"whole": copy("host", "array", 16), "to": copy("host", "array", 7, (ctypes.c_ubyte * 32)(*[99] * 32))}
    back = (ctypes.c_ubyte * 32)()
    found |= {"from": copy("array", "host", 5, back), "part": list(back)[:6]}
    found |= {"back": copy("array", "host", 16, back), "contents": list(back)}
    must("cuArrayDestroy", array)
    return found


def main():
    """Every answer by its subject."""
    driver()
    begin()
    subjects = (of_a_librarys_module, of_images, of_bus_ids, of_preferred_locations, of_arrays, of_shared_memory, of_access, of_uploads)
    subjects += (of_odd_widths, of_nodes, of_updates, of_captures, of_entry_points, of_launches)
    print(json.dumps({subject.__name__: subject() for subject in subjects}), flush=True)


main()
