"""Calls functions of CUDA libraries with valid, boundary and invalid arguments.

usage: probe.py PROTOTYPES GPU all|devices FIRST LIBRARY/FUNCTION...

The valid device is number GPU. "devices" are the rows whose arguments are valid, or wrong
where they name a device. Prints one line of JSON for each row of arguments, of the
first function from row FIRST on, before the call and after it: the status, what the call wrote, the
runtime's last error and the status of a wait for the context. Addresses and
handles show as "p", so that two drivers compare, and so do readings of NVML. NVML's
functions are called once more before all rows, while the library is not initialised. A row that ends the process
leaves its first line only; the caller goes on behind it. The process ends itself
where a function left a state behind in which others could not be judged.
"""

import contextlib
import ctypes
import json
import re
import sys

# Size of the memory at each pointer in bytes, and its contents before a call that writes.
ROOM, FILL = 4096, 0xA5
SIZES = (4096, 0, 1, 3, 1 << 62)
NUMBERS = (0, 1, 2, 7, 0xFFFFFFFF)
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counter = 5;
.visible .entry add(.param .u64 place, .param .u32 value) {
    .reg .b64 %p;
    .reg .b32 %v, %w;
    ld.param.u64 %p, [place];
    ld.param.u32 %v, [value];
    cvta.to.global.u64 %p, %p;
    ld.global.u32 %w, [%p];
    add.u32 %w, %w, %v;
    st.global.u32 [%p], %w;
    ret;
}
"""
NOTHING = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(lambda _: 0)


def words(count, kind=ctypes.c_size_t):
    """A structure by value of so many words."""
    return type("Words", (ctypes.Structure,), {"_fields_": [("words", kind * count)]})


BY_VALUE = {
    "dim3": (words(3, ctypes.c_uint), ((1, 1, 1), (0, 1, 1), (1 << 20, 1 << 20, 1 << 20))),
    "cudaExtent": (words(3), ((64, 4, 2), (0, 0, 0), (1 << 40, 1 << 40, 1 << 40))),
    "cudaPitchedPtr": (words(4), ((0, 0, 0, 0),)),
    "cudaMemLocation": (words(2, ctypes.c_int), ((1, 0), (0, 0), (1, 99), (77, 0))),
    "CUmemLocation": (words(2, ctypes.c_int), ((1, 0), (0, 0), (1, 99), (77, 0))),
    "CUipcMemHandle": (words(8), ((0,) * 8,)),
    "cudaIpcMemHandle_t": (words(8), ((0,) * 8,)),
    "cudaIpcEventHandle_t": (words(8), ((0,) * 8,)),
}
INTEGERS = {
    "c_int": (ctypes.c_int, NUMBERS),
    "c_uint": (ctypes.c_uint, NUMBERS),
    "u32": (ctypes.c_uint, NUMBERS),
    "CUresult": (ctypes.c_int, (0, 1, 700, 999, -1)),
    "cudaError_t": (ctypes.c_int, (0, 1, 700, 999, -1)),
    "CUdevice": (ctypes.c_int, (0, 99, -1)),
    "usize": (ctypes.c_size_t, SIZES),
    "u64": (ctypes.c_uint64, (0, 1, 4096, (1 << 64) - 1)),
    "u16": (ctypes.c_ushort, (0, 1, 0xFFFF)),
    "c_ushort": (ctypes.c_ushort, (0, 1, 0xFFFF)),
    "u8": (ctypes.c_ubyte, (0, 1, 0xFF)),
    "c_uchar": (ctypes.c_ubyte, (0, 1, 0xFF)),
    "c_ulonglong": (ctypes.c_uint64, (0, 1, 4096, (1 << 64) - 1)),
}
# Parameters that name a device, or what belongs to one.
OF_DEVICES = ("CUdevice", "CUcontext", "cudaMemLocation", "CUmemLocation", "CUmemoryPool", "nvmlDevice_t")
# What is printed for a row that is not called.
SKIPPED = {"skipped": True}
# NVML's functions that begin or end its initialisation. The rows of another share one, because one takes some tenths of a second.
OF_INITIALISATION = re.compile("nvmlInit|nvmlShutdown")
# NVML's structures that begin with their version: bytes and version.
VERSIONED = {"nvmlMemory_v2_t": (40, 2), "nvmlTemperature_t": (12, 1), "nvmlPciInfoExt_t": (64, 1), "nvmlUUID_t": (52, 1)}
# NVML's functions whose values change from call to call.
READINGS = re.compile("Clock|Power|Temp|Energy|Util|Throughput|Memory|Process|Sample|Fan|PerformanceState|Throttle|Violation|BAR1|Field|Replay")


class World:
    """A context and one object of each kind, recreated for each row."""

    def __init__(self, cuda, nvml, ordinal):
        self.cuda, self.nvml, self.ordinal = cuda, nvml, ordinal
        self.kept = []
        self.check("cuInit", 0)
        self.device = ctypes.c_int()
        self.check("cuDeviceGet", ctypes.byref(self.device), ordinal)
        self.context = self.made("cuDevicePrimaryCtxRetain", self.device)
        self.check("cuCtxSetCurrent", self.context)
        self.gpu, self.uuid, self.bus = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(16 + 32 + 20)
        with self.initialised():
            nvml.nvmlDeviceGetUUID(self.gpu, self.uuid, 96)
            nvml.nvmlDeviceGetPciInfo_v3(self.gpu, self.bus)

    @contextlib.contextmanager
    def initialised(self, wanted=True):
        """NVML is initialised meanwhile. Handles of a GPU end with that."""
        if wanted:
            self.nvml.nvmlInit_v2()
            self.nvml.nvmlDeviceGetHandleByIndex_v2(self.ordinal, ctypes.byref(self.gpu))
        yield
        if wanted:
            self.nvml.nvmlShutdown()

    def is_usable(self):
        """Whether the next row finds a context that works and no capture that a row left open."""
        memory = ctypes.c_void_p()
        return (
            self.cuda.cuCtxSetCurrent(self.context) == 0
            and self.cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(ROOM)) == 0
            and self.cuda.cuMemFree_v2(memory) == 0
            and self.cuda.cuCtxSynchronize() == 0
        )

    def check(self, name, *arguments):
        """Calls a function that must succeed."""
        status = getattr(self.cuda, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} gave {status}")

    def made(self, name, *arguments):
        """A handle that a function makes in its first argument."""
        handle = ctypes.c_void_p()
        self.check(name, ctypes.byref(handle), *arguments)
        return handle

    def handle(self, kind):
        """A fresh object of a kind of handle, or None where there is none."""
        size = ctypes.c_size_t
        if kind == "CUcontext":
            return self.context
        if kind == "CUstream":
            return self.made("cuStreamCreate", 1)
        if kind == "CUevent":
            return self.made("cuEventCreate", 0)
        if kind == "CUdeviceptr":
            return self.made("cuMemAlloc_v2", size(ROOM))
        if kind == "CUmodule":
            return self.made("cuModuleLoadData", PTX)
        if kind == "CUfunction":
            return self.made("cuModuleGetFunction", self.handle("CUmodule"), b"add")
        if kind == "CUlibrary":
            return self.made("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
        if kind == "CUkernel":
            return self.made("cuLibraryGetKernel", self.handle("CUlibrary"), b"add")
        if kind == "CUgraph":
            graph = self.made("cuGraphCreate", 0)
            self.made("cuGraphAddEmptyNode", graph, None, size(0))
            return graph
        if kind == "CUgraphNode":
            return self.made("cuGraphAddEmptyNode", self.handle("CUgraph"), None, size(0))
        if kind == "CUgraphExec":
            return self.made("cuGraphInstantiateWithFlags", self.handle("CUgraph"), ctypes.c_ulonglong(0))
        if kind == "CUarray":
            descriptor = (ctypes.c_size_t * 3)(16, 16, 1 << 32 | 0x20)
            return self.made("cuArrayCreate_v2", descriptor)
        if kind == "CUlinkState":
            link = ctypes.c_void_p()
            self.check("cuLinkCreate_v2", 0, None, None, ctypes.byref(link))
            return link
        if kind == "CUmemoryPool":
            return self.made("cuDeviceGetDefaultMemPool", self.device)
        if kind == "nvmlDevice_t":
            return self.gpu
        if kind == "nvmlEventSet_t":
            events = ctypes.c_void_p()
            self.nvml.nvmlEventSetCreate(ctypes.byref(events))
            return events
        return None

    def values(self, kind, name):
        """Values of a parameter, the valid one first, each a function that makes it."""
        if kind in INTEGERS:
            make, numbers = INTEGERS[kind]
            if kind == "CUdevice":
                numbers = (self.ordinal, *numbers[1:])
            return [lambda n=n: make(n) for n in numbers]
        if kind in BY_VALUE:
            make, rows = BY_VALUE[kind]
            if kind.endswith("MemLocation"):
                rows = ((1, self.ordinal), *rows[1:])
            return [lambda row=row: make(tuple(row)) for row in rows]
        if kind == "f32":
            return [lambda: ctypes.c_float(1.0)]
        if kind == "DefaultStream":
            return [lambda: self.handle("CUstream"), lambda: ctypes.c_void_p(0), lambda: ctypes.c_void_p(1), lambda: ctypes.c_void_p(2)]
        if kind == "Text" and name in ("uuid", "pci_bus_id"):
            right = self.uuid.value if name == "uuid" else self.bus.raw[36:].split(b"\0")[0]
            return [lambda: right, lambda: b"", lambda: b"GPU-0", lambda: right + b"0", lambda: None]
        if kind == "Text" or kind == "*constc_char":
            return [lambda: b"add", lambda: b"cuInit", lambda: b"nothing of this name", lambda: None]
        if kind in ("CUhostFn", "CUstreamCallback", "CUoccupancyB2DSize", "CUlogsCallback", "CUasyncCallback"):
            return [lambda: NOTHING, lambda: None]
        if kind.startswith(("Out<", "*mut", "In<", "*const")):
            fill = FILL if kind.startswith(("Out<", "*mut")) else 0
            there = [lambda: self.room(fill), lambda: ctypes.c_void_p(0)]
            if kind in ("*mutc_void", "*constc_void"):
                there.insert(1, lambda: self.handle("CUdeviceptr"))
            if "image" in name:
                there.insert(0, lambda: PTX)
            versioned = kind.removeprefix("*mut").removeprefix("In<").removeprefix("Out<").removesuffix(">")
            if versioned in VERSIONED:
                there.insert(0, lambda: self.structure(*VERSIONED[versioned]))
            return there
        return [lambda: self.handle(kind) or ctypes.c_void_p(0), lambda: ctypes.c_void_p(0)]

    def structure(self, size, version):
        """A structure of zeros that begins with its version."""
        room = self.room(0)
        ctypes.memmove(room, (size | version << 24).to_bytes(4, "little"), 4)
        return room

    def room(self, fill):
        """Memory of the host, filled."""
        room = (ctypes.c_ubyte * ROOM)(*([fill] * ROOM))
        self.kept.append(room)
        return room


def names_device(parameter):
    """Whether a parameter names a device, or what belongs to one."""
    return parameter["kind"] in OF_DEVICES or "device" in parameter["name"].lower()


def rows(values):
    """The valid row, then each other value of one parameter: which one (None), and the row."""
    yield None, [choices[0] for choices in values]
    for at, choices in enumerate(values):
        for other in choices[1:]:
            yield at, [other if place == at else choices[0] for place, choices in enumerate(values)]


def word(value):
    """A word as two drivers can be compared by."""
    high = value >> 32
    if high == 0 or value == (1 << 64) - 1:
        return value if value < 1 << 20 or value > 0xFFFFF000 else "p"
    # Addresses, and handles of objects and of nodes of graphs.
    return "p" if 0 < high < 1 << 25 or high >> 16 in (0x7067, 0x7080) else [word(value & 0xFFFFFFFF), word(high)]


def written(arguments, kinds):
    """What a call changed behind its pointers: {argument: {word: value}}."""
    found = {}
    for at, (argument, kind) in enumerate(zip(arguments, kinds)):
        if not isinstance(argument, ctypes.Array):
            continue
        fill = FILL if kind.startswith(("Out<", "*mut")) else 0
        data = bytes(argument)
        untouched = bytes([fill]) * 8
        changed = {}
        for place in range(0, 512, 8):
            if data[place : place + 8] != untouched:
                value = int.from_bytes(data[place : place + 8], "little")
                if data[place + 4 : place + 8] == untouched[:4]:
                    value &= 0xFFFFFFFF
                changed[str(place)] = word(value)
        if "*mut" in kind[1:] or any(f"<{handle}" in kind for handle in ("CUe", "CUs", "CUg", "CUc", "CUf", "CUm", "CUl", "CUk", "CUt", "nvml")):
            # A handle: whether it is there.
            changed = {place: "p" if value else 0 for place, value in changed.items()}
        if changed:
            found[str(at)] = changed
    return found


def call_rows(world, runtime, prototypes, function, which, first):
    """Calls a function's rows from `first` on and prints the results; returns whether others can follow."""
    library, name = function.split("/")
    parameters = prototypes[library][name]["parameters"]
    kinds = [parameter["kind"] for parameter in parameters]
    values = [world.values(parameter["kind"], parameter["name"]) for parameter in parameters]
    try:
        call = getattr({"runtime": runtime, "driver": world.cuda, "nvml": world.nvml}[library], name)
    except AttributeError:
        print(json.dumps({"function": function, "row": 0, "status": "no such symbol"}), flush=True)
        return True
    if name == "nvmlErrorString":
        call.restype = ctypes.c_char_p
    all_rows = list(rows(values))
    if library == "nvml":
        all_rows.insert(0, all_rows[0])
    with contextlib.ExitStack() as initialised:
        for number, (varied, row) in enumerate(all_rows):
            if number < first:
                continue
            line = {"function": function, "row": number}
            if number == max(first, 1) and library == "nvml" and not OF_INITIALISATION.match(name):
                initialised.enter_context(world.initialised())
            if which == "devices" and varied is not None and not names_device(parameters[varied]):
                print(json.dumps(line | SKIPPED), flush=True)
                continue
            with world.initialised(library == "nvml" and number > 0):
                arguments = [make() for make in row]
                print(json.dumps(line), flush=True)
                status = call(*arguments)
                if name.startswith("nvmlInit") and status == 0:
                    world.nvml.nvmlShutdown()
            wrote = written(arguments, kinds)
            if library == "nvml" and READINGS.search(name):
                wrote = {argument: {place: "p" for place in places} for argument, places in wrote.items()}
            if isinstance(status, bytes):
                status = status.decode()
            line |= {"status": status, "wrote": wrote}
            if library == "runtime":
                line["last"] = runtime.cudaGetLastError()
            line["wait"] = world.cuda.cuCtxSynchronize()
            print(json.dumps(line), flush=True)
            if not world.is_usable():
                return False
    return True


def main():
    """Calls each function's rows and prints the results."""
    prototypes, ordinal, which, first, *functions = sys.argv[1:]
    ordinal, first = int(ordinal), int(first)
    with open(prototypes, encoding="utf-8") as file:
        prototypes = json.load(file)
    world = World(ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1"), ordinal)
    runtime = ctypes.CDLL("libcudart.so.13")
    for function in functions:
        if not call_rows(world, runtime, prototypes, function, which, first):
            sys.exit(3)
        first = 0


if __name__ == "__main__":
    main()
