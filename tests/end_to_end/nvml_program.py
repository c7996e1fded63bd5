"""A program that asks NVML, through ctypes or NVIDIA's Python binding.

usage: nvml_program.py facts|use|utilization|visible|wrong|topology|texts|restart|both|cloned|beside|start|pynvml
       nvml_program.py over SECONDS
Prints one line of JSON; `over` the utilization by processes over so many seconds; `start` prints what nvmlInit and a call without it return.
"""

import ctypes
import json
import os
import platform
import select
import signal
import sys
import time

SUCCESS, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TOO_SMALL = 0, 1, 2, 3, 4, 6, 7
TIMEOUT, FUNCTION_NOT_FOUND, VERSION_MISMATCH = 10, 13, 25
NULL = ctypes.c_void_p()


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Memory2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [
        (name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")
    ]


class Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Sample(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("time", ctypes.c_ulonglong)] + [
        (name, ctypes.c_uint) for name in ("sm", "memory", "encoder", "decoder")
    ]


class Pci(ctypes.Structure):
    _fields_ = (
        [("legacy", ctypes.c_char * 16)]
        + [(name, ctypes.c_uint) for name in ("domain", "bus", "device", "id", "subsystem")]
        + [("place", ctypes.c_char * 32)]
    )


class Field(ctypes.Structure):
    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("time", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    ]


nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlErrorString.restype = ctypes.c_char_p


def call(name, *arguments, code=SUCCESS):
    got = getattr(nvml, name)(*arguments)
    if got != code:
        raise SystemExit(f"{name} returned {got} ({nvml.nvmlErrorString(got).decode()}), not {code}")


def word(name, *arguments):
    value = ctypes.c_uint()
    call(name, *arguments, ctypes.byref(value))
    return value.value


def text(name, *arguments):
    room = ctypes.create_string_buffer(96)
    call(name, *arguments, room, len(room))
    return room.value.decode()


def device(index=0):
    handle = ctypes.c_void_p()
    call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
    return handle


def facts():
    """Of each device, by NVML and by CUDA."""
    cuda = ctypes.CDLL("libcuda.so.1")
    seen = {"nvml": [], "cuda": []}
    assert cuda.cuInit(0) == 0
    for index in range(word("nvmlDeviceGetCount_v2")):
        handle, pci, again = device(index), Pci(), ctypes.c_void_p()
        call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        major, minor = ctypes.c_int(), ctypes.c_int()
        call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        uuid = text("nvmlDeviceGetUUID", handle)
        for by, value in (("UUID", uuid.encode()), ("PciBusId_v2", pci.place), ("PciBusId_v2", pci.legacy)):
            call(f"nvmlDeviceGetHandleBy{by}", value, ctypes.byref(again))
            assert again.value == handle.value, by
        assert word("nvmlDeviceGetIndex", handle) == word("nvmlDeviceGetMinorNumber", handle) == index
        name = text("nvmlDeviceGetName", handle)
        place = (pci.domain, pci.bus, pci.device)
        seen["nvml"].append([name, uuid, *place, major.value, minor.value])

        name, bus = ctypes.create_string_buffer(96), ctypes.create_string_buffer(32)
        raw = ctypes.create_string_buffer(16)
        assert cuda.cuDeviceGetName(name, 96, index) == 0
        assert cuda.cuDeviceGetPCIBusId(bus, 32, index) == 0
        assert cuda.cuDeviceGetUuid_v2(raw, index) == 0
        for value, attribute in ((major, 75), (minor, 76)):
            assert cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, index) == 0
        digits = raw.raw.hex()
        cuts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        place = (int(part, 16) for part in bus.value.decode().split(".")[0].split(":"))
        uuid = "-".join(("GPU", *cuts))
        seen["cuda"].append([name.value.decode(), uuid, *place, major.value, minor.value])
    assert text("nvmlSystemGetDriverVersion") and text("nvmlSystemGetNVMLVersion")
    assert word("nvmlSystemGetCudaDriverVersion_v2") >= 12000
    return seen


def visible():
    """UUIDs of all devices by NVML, and of those that the program sees by CUDA,
    with the result of cuInit."""
    cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    uuids = [text("nvmlDeviceGetUUID", device(index)) for index in range(word("nvmlDeviceGetCount_v2"))]
    code, seen = cuda.cuInit(0), []
    if code == 0:
        assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    for index in range(count.value):
        raw = ctypes.create_string_buffer(16)
        assert cuda.cuDeviceGetUuid_v2(raw, index) == 0
        digits = raw.raw.hex()
        seen.append("-".join(("GPU", digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))
    return {"nvml": uuids, "init": code, "cuda": seen}


def processes(handle):
    count = ctypes.c_uint(0)
    got = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), NULL)
    assert got == (TOO_SMALL if count.value else SUCCESS), got
    infos = (Process * max(1, count.value))()
    call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), infos)
    return [[info.pid, info.memory] for info in infos[: count.value]]


def use():
    """Memory and processes."""
    handle, memory = device(), Memory()
    call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    assert memory.free == memory.total - memory.used
    second = Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
    call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(second))
    assert (second.total, second.used) == (memory.total, memory.used)
    return {"total": memory.total, "used": memory.used, "processes": processes(handle)}


def utilization():
    """Of the GPU, and of processes."""
    handle, rates, count = device(), (ctypes.c_uint * 2)(), ctypes.c_uint(16)
    call("nvmlDeviceGetUtilizationRates", handle, rates)
    samples = (Sample * 16)()
    got = nvml.nvmlDeviceGetProcessUtilization(handle, samples, ctypes.byref(count), ctypes.c_ulonglong(0))
    assert got in (SUCCESS, NOT_FOUND), got
    found = samples[: count.value] if got == SUCCESS else []
    return {"gpu": rates[0], "processes": [[one.pid, one.sm] for one in found]}


def over(seconds):
    """Of processes, over some seconds: the first query begins the measurement."""
    utilization()
    time.sleep(seconds)
    return utilization()


def wrong():
    """Handles, pointers and sizes that are refused; nothing crashes."""
    handle, value, other = device(), ctypes.c_uint(), ctypes.c_void_p()
    place = ctypes.byref(value)
    guesses = [NULL, ctypes.c_void_p(1), ctypes.c_void_p(handle.value + 1), ctypes.c_void_p(handle.value - 1)]
    for guess in (*guesses, ctypes.c_void_p(2**64 - 1)):
        for name in ("Index", "PowerUsage", "MaxMigDeviceCount", "NumGpuCores"):
            call(f"nvmlDeviceGet{name}", guess, place, code=INVALID)
        call("nvmlDeviceGetMemoryInfo", guess, ctypes.byref(Memory()), code=INVALID)
    for name in ("Index", "Brand", "MemoryInfo", "UtilizationRates", "PciInfo_v3", "MemoryInfo_v2"):
        call(f"nvmlDeviceGet{name}", handle, NULL, code=INVALID)
    # nvidia-smi asks so for either of two values.
    call("nvmlDeviceGetGpuOperationMode", handle, NULL, place, code=NOT_SUPPORTED)
    call("nvmlDeviceGetCount_v2", NULL, code=INVALID)
    call("nvmlDeviceGetHandleByIndex_v2", 0, NULL, code=INVALID)
    call("nvmlDeviceGetHandleByIndex_v2", 99, ctypes.byref(other), code=INVALID)
    call("nvmlDeviceGetHandleByUUID", NULL, ctypes.byref(other), code=INVALID)
    call("nvmlDeviceGetHandleByUUID", b"GPU-0", ctypes.byref(other), code=NOT_FOUND)
    call("nvmlDeviceGetHandleByPciBusId_v2", b"nonsense", ctypes.byref(other), code=INVALID)
    call("nvmlDeviceGetHandleByPciBusId_v2", b"00ff:fe:1f.0", ctypes.byref(other), code=NOT_FOUND)
    for name in ("Name", "UUID"):
        room = ctypes.create_string_buffer(b"\xff" * 8, 8)
        for size in (0, 1, 4):
            call(f"nvmlDeviceGet{name}", handle, room, size, code=TOO_SMALL)
        assert room.raw == b"\xff" * 8, "nothing is written past the room"
        call(f"nvmlDeviceGet{name}", handle, NULL, 96, code=INVALID)
    call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(Memory2(version=1)), code=FUNCTION_NOT_FOUND)
    # It belongs to no fabric, in each version of the structure; nothing is written past it.
    for function, size, version in (("", 28, 0), ("V", 36, 2), ("V", 40, 3)):
        fabric = ctypes.create_string_buffer(b"\xff" * 64, 64)
        begin = (size | version << 24).to_bytes(4, "little") if version else b""
        fabric[: len(begin)] = begin
        call(f"nvmlDeviceGetGpuFabricInfo{function}", handle, fabric)
        state = len(begin) + 24
        assert (fabric.raw[:state], fabric.raw[state]) == (begin + bytes(24), 0), fabric.raw
        assert fabric.raw[size:] == b"\xff" * (64 - size), fabric.raw
    call("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(Memory2(version=1)), code=VERSION_MISMATCH)
    # Sensors and clocks that no GPU has, and those that this one has not.
    for argument, code in ((0, NOT_SUPPORTED), (4, INVALID), (2**32 - 1, INVALID)):
        call("nvmlDeviceGetClockInfo", handle, argument, place, code=code)
    call("nvmlDeviceGetPowerUsage", handle, place, code=NOT_SUPPORTED)
    call("nvmlDeviceGetNvLinkState", handle, 0, place, code=NOT_SUPPORTED)
    call("nvmlDeviceSetPowerManagementLimit", handle, 1, code=NO_PERMISSION)
    call("nvmlDeviceResetGpuLockedClocks", handle, code=NO_PERMISSION)
    call("nvmlDeviceGetComputeRunningProcesses_v3", handle, NULL, NULL, code=INVALID)
    call("nvmlDeviceGetP2PStatus", handle, handle, 9, place, code=INVALID)
    call("nvmlSystemGetProcessName", 2**32 - 1, ctypes.create_string_buffer(9), 9, code=NOT_FOUND)
    events, data = ctypes.c_void_p(), ctypes.create_string_buffer(64)
    call("nvmlEventSetCreate", ctypes.byref(events))
    call("nvmlDeviceRegisterEvents", handle, ctypes.c_ulonglong(8), events, code=NOT_SUPPORTED)
    call("nvmlEventSetWait_v2", events, data, 0, code=TIMEOUT)
    call("nvmlEventSetFree", events)
    for name, more in (("Free", ()), ("Wait_v2", (data, 0))):
        call(f"nvmlEventSet{name}", events, *more, code=INVALID)
    fields = (Field * 2)(Field(field=83), Field(field=99999))
    call("nvmlDeviceGetFieldValues", handle, 2, fields)
    assert [field.code for field in fields] == [NOT_SUPPORTED, NOT_SUPPORTED]
    for count in (0, -1, 2**31 - 1):
        call("nvmlDeviceGetFieldValues", handle, count, fields, code=INVALID)
    wrong_in_the_table(handle, guesses)
    return {}


def wrong_in_the_table(handle, guesses):
    """The same for the functions without names that nvidia-smi calls."""
    table, value = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint()
    one = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
    call("nvmlInternalGetExportTable", ctypes.byref(table), bytes(16), code=NOT_FOUND)
    call("nvmlInternalGetExportTable", NULL, one, code=INVALID)
    call("nvmlInternalGetExportTable", ctypes.byref(table), one)

    def slot(number, *arguments, code):
        got = ctypes.CFUNCTYPE(ctypes.c_uint)(table[number])(*arguments)
        assert got == code, f"slot {number} returned {got}, not {code}"

    places = [b"7067:00:00.0", b"00007067:00:00.0", b"7067:01:00.0", b"nonsense", None]
    for one, code in zip(places, (SUCCESS, SUCCESS, NOT_FOUND, INVALID, INVALID)):
        slot(23, places[0], one, ctypes.byref(value), code=code)
    slot(23, places[0], places[0], NULL, code=INVALID)
    assert value.value == 4, "a path over another memory node"
    slot(108, handle, ctypes.byref(value), code=NOT_SUPPORTED)
    slot(1, handle, code=NOT_SUPPORTED)
    for number in (72, 213, 214, 215):
        for guess in guesses:
            slot(number, guess, ctypes.byref(value), code=INVALID)
        slot(number, handle, NULL, code=INVALID)
        slot(number, handle, ctypes.byref(value), code=SUCCESS)
    room = ctypes.create_string_buffer(b"\xff" * 34, 34)
    slot(81, 0, NULL, 34, code=INVALID)
    slot(81, 99, room, 34, code=INVALID)
    slot(81, 0, room, -1, code=INVALID)
    for size in (0, 1, 12):
        slot(81, 0, room, size, code=TOO_SMALL)
    assert room.raw == b"\xff" * 34, "nothing is written past the room"
    slot(81, 0, room, 13, code=SUCCESS)
    assert room.raw[12:14] == b"\0\xff", "twelve letters and a zero"


def allocate(size):
    """Device memory of this process, over libcuda."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_ulonglong()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)) == 0


def beside():
    """NVML in a process that uses CUDA already. Waits for a line before it ends."""
    allocate(4 << 20)
    found = {**use(), "devices": word("nvmlDeviceGetCount_v2")}
    print("asked", flush=True)
    sys.stdin.readline()
    return found


def both():
    """NVML beside CUDA in one process, and in a child that forks."""
    before = device()
    use()
    allocate(4 << 20)
    own = [size for pid, size in use()["processes"] if pid == os.getpid()]
    child = os.fork()
    if child == 0:
        found = [size for pid, size in use()["processes"] if pid == os.getppid()]
        os._exit(0 if found == own and device().value == before.value else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for _ in range(3):
        call("nvmlShutdown")
        call("nvmlDeviceGetCount_v2", NULL, code=UNINITIALIZED)
        call("nvmlInit_v2")
        use()
    return {"sum": own[0] >> 20, "child": status, "again": word("nvmlDeviceGetCount_v2")}


def cloned():
    """NVML alone, beside a child of clone(2), for which no handler of the C library runs."""
    use()
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    child = ctypes.CDLL(None).syscall(number, ctypes.c_ulong(signal.SIGCHLD), None, None, None, None)
    for _ in range(20):
        use()
    if child == 0:
        os._exit(0)
    return {"child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def before():
    """NVML that is in use when the process begins to use CUDA, and stays so."""
    use()
    allocate(4 << 20)
    print("asked", flush=True)
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        use()
    return use()


def topology():
    """Of a VM with two GPUs: all CPUs are near each, and they are apart."""
    near, far = device(0), device(1)
    cpus = range(os.sysconf("SC_NPROCESSORS_CONF"))
    words = (ctypes.c_ulong * 3)(*[2**64 - 1] * 3)
    for name, more in (("CpuAffinity", ()), ("CpuAffinityWithinScope", (0,)), ("MemoryAffinity", (1,))):
        call(f"nvmlDeviceGet{name}", near, 2, words, *more)
        assert words[0] & 1 and words[2] == 2**64 - 1, "both words are written, no other"
        for wrong_size, place in ((0, words), (2, NULL)):
            call(f"nvmlDeviceGet{name}", near, wrong_size, place, *more, code=INVALID)
        if more:
            call(f"nvmlDeviceGet{name}", near, 2, words, 2, code=INVALID)
    words = (ctypes.c_ulong * 128)()
    call("nvmlDeviceGetCpuAffinity", near, len(words), words)
    found = {cpu for cpu in cpus if words[cpu // 64] >> cpu % 64 & 1}
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})
    call("nvmlDeviceSetCpuAffinity", near)
    assert everywhere <= os.sched_getaffinity(0) <= found
    call("nvmlDeviceClearCpuAffinity", near)
    for name in ("SetCpuAffinity", "ClearCpuAffinity"):
        for guess in (NULL, ctypes.c_void_p(1)):
            call(f"nvmlDevice{name}", guess, code=INVALID)
    call("nvmlDeviceGetNumaNodeId", near, ctypes.byref(ctypes.c_uint()), code=NOT_SUPPORTED)

    levels = [word("nvmlDeviceGetTopologyCommonAncestor", near, other) for other in (near, far)]
    counts = [word("nvmlDeviceGetTopologyNearestGpus", near, level) for level in range(0, 60, 10)]
    count, handles = ctypes.c_uint(2), (ctypes.c_void_p * 2)()
    call("nvmlDeviceGetTopologyNearestGpus", near, 50, ctypes.byref(count), handles)
    assert (count.value, handles[0], handles[1]) == (1, far.value, None)
    call("nvmlDeviceGetTopologyNearestGpus", near, 5, ctypes.byref(count), NULL, code=INVALID)
    for level, found in ((5, 0), (60, 1)):
        count.value = 2
        call("nvmlDeviceGetTopologyNearestGpus", near, level, ctypes.byref(count), handles)
        assert count.value == found, level
    call("nvmlDeviceGetTopologyNearestGpus", near, 50, ctypes.byref(ctypes.c_uint(1)), NULL, code=INVALID)
    count.value = 1
    call("nvmlSystemGetTopologyGpuSet", 0, ctypes.byref(count), handles)
    assert (count.value, handles[0], handles[1]) == (1, near.value, None), "no more than there is room for"
    call("nvmlSystemGetTopologyGpuSet", 99999, ctypes.byref(count), handles, code=INVALID)
    # Reading, writing, NVLink, atomics, properties: what CUDA says. Software GPUs have no links.
    reached = [[word("nvmlDeviceGetP2PStatus", near, other, index) for index in range(5)] for other in (far, near)]
    assert reached == [[0, 0, 5, 0, 5]] * 2, reached
    call("nvmlDeviceGetNvLinkState", near, 0, ctypes.byref(ctypes.c_uint()), code=NOT_SUPPORTED)
    call("nvmlDeviceGetNvLinkState", near, 0, NULL, code=INVALID)
    call("nvmlDeviceGetNvLinkState", near, 99, ctypes.byref(ctypes.c_uint()), code=INVALID)
    return {"levels": levels, "nearest": counts, "set": word("nvmlSystemGetTopologyGpuSet", 0)}


def texts():
    """The library's messages for codes."""
    return {code: nvml.nvmlErrorString(code).decode() for code in (0, 1, 2, 3, 4, 9, 15, 18, 999, 1000)}


def restart():
    """Queries before and after a restart of the host, and reports each to the test."""
    handle, memory = device(), Memory()
    call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    print("asked", flush=True)
    sys.stdin.readline()
    away = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    print("away", flush=True)
    sys.stdin.readline()
    return {"away": away, "again": nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)), "total": memory.total}


def binding():
    """NVIDIA's own binding."""
    import pynvml

    def caught(function, *arguments):
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            return type(error).__name__

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory, uuid = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetUUID(handle)
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    again = pynvml.nvmlDeviceGetHandleByPciBusId(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    said = {
        "count": pynvml.nvmlDeviceGetCount(),
        "name": pynvml.nvmlDeviceGetName(handle),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "uuid": uuid,
        "handle": pynvml.nvmlDeviceGetUUID(again),
        "memory": [memory.total, memory.used],
        "processes": [[process.pid, process.usedGpuMemory] for process in running],
        "utilization": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "power": caught(pynvml.nvmlDeviceGetPowerUsage, handle),
        "limit": caught(pynvml.nvmlDeviceSetPowerManagementLimit, handle, 1),
    }
    pynvml.nvmlShutdown()
    return said


def main(mode, *arguments):
    if mode == "start":
        place = ctypes.byref(ctypes.c_uint())
        print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(place))
        return
    if mode == "pynvml":
        print(json.dumps(binding()))
        return
    call("nvmlDeviceGetCount_v2", NULL, code=UNINITIALIZED)
    call("nvmlDeviceSetPowerManagementLimit", NULL, 1, code=UNINITIALIZED)
    call("nvmlShutdown", code=UNINITIALIZED)
    call("nvmlInitWithFlags", 0)
    call("nvmlInit_v2")
    call("nvmlShutdown")
    modes = (facts, use, utilization, over, wrong, topology, texts, restart, both, cloned, before, beside, visible)
    print(json.dumps({known.__name__: known for known in modes}[mode](*map(float, arguments))))
    call("nvmlShutdown")
    call("nvmlShutdown", code=UNINITIALIZED)


main(*sys.argv[1:])
