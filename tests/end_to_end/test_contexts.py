"""Calls of threads without a current context, and errors for objects that
outlived theirs: an H100's answers (driver 580.159). There a stream after its
context is CONTEXT_IS_DESTROYED in one run and INVALID_CONTEXT in another."""

import sys

from .guests import OneDaemon

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, CONTEXT_IS_DESTROYED = 1, 201, 400, 709
NOT_REGISTERED = 713

# Without a current context all else succeeds.
WITHOUT = {
    INVALID_CONTEXT: [
        "get device",
        "wait for the context",
        "allocate",
        "pin",
        "create a stream",
        "set in the legacy stream",
        "record in the legacy stream",
        "launch in the legacy stream",
        "launch a graph in the legacy stream",
        "ask for occupancy",
        "ask for free memory",
    ],
    INVALID_VALUE: ["free what is not there"],
}
# After the context's end, beside these.
AFTER = {
    CONTEXT_IS_DESTROYED: [
        "set in a stream",
        "query a stream",
        "wait for a stream",
        "record",
        "wait for an event",
        "launch",
        "launch a graph",
        "end an event",
        "end a stream",
    ],
    INVALID_HANDLE: ["find a kernel", "ask a kernel", "unload"],
    INVALID_VALUE: ["ask an address", "free", "unpin"],
}


def by_name(answers):
    """The status of each call."""
    return {name: status for status, names in answers.items() for name in names}

# Asks for a limit of its context so often, sets it, and asks as often again.
ASKS = """
import ctypes, sys
cuda, context, value = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_size_t()
def ask():
    for _ in range(int(sys.argv[1])):
        assert cuda.cuCtxGetLimit(ctypes.byref(value), 0) == 0
    return value.value
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
before = ask()
assert cuda.cuCtxSetLimit(0, ctypes.c_size_t(2 * before)) == 0
assert ask() == 2 * before
"""

# Threads set limits of their own contexts at once. Prints how many of a thread's limits became smaller.
LIMITS = """
import ctypes, threading
cuda, start = ctypes.CDLL("libcuda.so.1"), threading.Barrier(4)
smaller = []
def use(stack):
    context, value = ctypes.c_void_p(), ctypes.c_size_t()
    for _ in range(50):
        assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
        start.wait()
        assert cuda.cuCtxSetLimit(0, ctypes.c_size_t(stack)) == cuda.cuCtxGetLimit(ctypes.byref(value), 0) == 0
        if value.value < stack:
            smaller.append(value.value)
        start.wait()
        assert cuda.cuCtxDestroy_v2(context) == 0
assert cuda.cuInit(0) == 0
threads = [threading.Thread(target=use, args=(4096 << number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(smaller))
"""

# Resets a device through the driver, between calls of the runtime. Two threads use it.
RESETS = """
import ctypes, threading
cuda, runtime, memory = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
def use(end):
    assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64)) == 0
    assert end(0) == 0
    assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64)) == 0
    assert runtime.cudaMemset(memory, 1, ctypes.c_size_t(64)) == runtime.cudaDeviceSynchronize() == 0
for end in (cuda.cuDevicePrimaryCtxReset_v2, cuda.cuDevicePrimaryCtxRelease_v2, lambda _: runtime.cudaDeviceReset()):
    use(end)
    thread = threading.Thread(target=use, args=(end,))
    thread.start()
    thread.join()
    assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64)) == runtime.cudaFree(memory) == 0
"""
# Prints the flags of the primary context, and of one of the program's own.
FLAGS = """
import ctypes
cuda, context, flags = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuCtxGetFlags(ctypes.byref(flags)) == 0
primary = flags.value
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 4, 0) == cuda.cuCtxGetFlags(ctypes.byref(flags)) == 0
print(primary, flags.value)
"""
# Retains the primary context while a limit is set, and again after its end. Prints its number then.
RETAINS = """
import ctypes
cuda, context, value, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_ulonglong()
def retain():
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuCtxGetId(context, ctypes.byref(number)) == cuda.cuCtxGetLimit(ctypes.byref(value), 0) == 0
    return number.value, value.value
assert cuda.cuInit(0) == 0
first, stack = retain()
assert cuda.cuCtxSetLimit(0, ctypes.c_size_t(2 * stack)) == 0
assert retain() == (first, 2 * stack)
for end in (cuda.cuDevicePrimaryCtxReset_v2, cuda.cuDevicePrimaryCtxRelease_v2):
    assert end(0) == 0
    assert cuda.cuCtxGetId(context, ctypes.byref(number)) == 709
    print(retain()[0] != first)
"""

# Counts in a library's variable, twice in each of two contexts that follow each other. Prints the values.
COUNTS = """
import ctypes
from ctypes import byref
cuda, context, library, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
address, size, value, handle = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int(), ctypes.c_void_p()
PTX = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .global .u32 counter = 5;\\n"
PTX += b".visible .entry count() { .reg .b32 %old; atom.global.add.u32 %old, [counter], 1; ret; }"
def must(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)
must("cuInit", 0)
must("cuCtxCreate_v2", byref(context), 0, 0)
must("cuLibraryLoadData", byref(library), PTX, None, None, 0, None, None, 0)
must("cuLibraryGetKernel", byref(kernel), library, b"count")
for _ in range(2):
    for _ in range(2):
        must("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    must("cuLibraryGetGlobal", byref(address), byref(size), library, b"counter")
    must("cuMemcpyDtoH_v2", byref(value), address, size)
    print(value.value)
    must("cuCtxDestroy_v2", context)
    must("cuCtxCreate_v2", byref(context), 0, 0)
"""

# Uses a library in two contexts that are alive at once. Prints the variable in each, after how
# many launches in it, and the statuses of what one context may not do with the other's.
APART = """
import ctypes
from ctypes import byref
cuda, library, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
PTX = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .global .u32 counter = 5;\\n"
PTX += b".visible .global .attribute(.managed) .u32 shared = 5;\\n"
PTX += b".visible .entry count() { .reg .b32 %old; atom.global.add.u32 %old, [counter], 1; atom.global.add.u32 %old, [shared], 1; ret; }"
def must(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)
def launch(which, stream=None):
    return cuda.cuLaunchKernel(which, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
class Context:
    def __init__(self):
        self.handle, self.stream, self.function, self.module = (ctypes.c_void_p() for _ in range(4))
        self.variable, size, self.shared = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64()
        must("cuCtxCreate_v2", byref(self.handle), 0, 0)
        must("cuStreamCreate", byref(self.stream), 1)
        must("cuLibraryGetGlobal", byref(self.variable), byref(size), library, b"counter")
        must("cuLibraryGetManaged", byref(self.shared), byref(size), library, b"shared")
        must("cuLibraryGetModule", byref(self.module), library)
        must("cuKernelGetFunction", byref(self.function), kernel)
    def counted(self):
        must("cuCtxSetCurrent", self.handle)
        must("cuCtxSynchronize")
        value = ctypes.c_int()
        must("cuMemcpyDtoH_v2", byref(value), self.variable, ctypes.c_size_t(4))
        return value.value, ctypes.c_int.from_address(self.shared.value).value
def attribute(context):
    value = ctypes.c_int()
    must("cuFuncGetAttribute", byref(value), 8, context.function)
    return value.value
def of_kernel():
    value = ctypes.c_int()
    must("cuKernelGetAttribute", byref(value), 8, kernel, 0)
    return value.value
must("cuInit", 0)
must("cuLibraryLoadData", byref(library), PTX, None, None, 0, None, None, 0)
must("cuLibraryGetKernel", byref(kernel), library, b"count")
one, two = Context(), Context()
print(one.variable.value != two.variable.value, one.function.value != two.function.value, one.module.value != two.module.value, one.shared.value == two.shared.value)
for context, launches in ((one, 1), (two, 2)):
    must("cuCtxSetCurrent", context.handle)
    for _ in range(launches):
        assert launch(kernel) == 0
    must("cuCtxSynchronize")
print(one.counted(), two.counted())
# A kernel runs in the context of its stream, a function in its own.
must("cuCtxSetCurrent", one.handle)
print(launch(kernel, two.stream), launch(two.function, two.stream), launch(two.function), launch(one.function, two.stream))
print(one.counted(), two.counted())
found = ctypes.c_void_p()
must("cuFuncGetModule", byref(found), two.function)
print(found.value == two.module.value)
# For all contexts of the device; a function's attribute is its own.
must("cuKernelSetAttribute", 8, 50000, kernel, 0)
must("cuFuncSetAttribute", one.function, 8, 60000)
print(attribute(one), attribute(two), of_kernel(), attribute(Context()))
must("cuCtxSetCurrent", two.handle)
must("cuCtxDestroy_v2", one.handle)
print(launch(one.function), launch(kernel), two.counted())
"""

# Updates a graph's kernel to one of the same context, and of another one on the device. Prints the
# statuses, and the reason of the last.
UPDATES = """
import ctypes
from ctypes import byref
cuda = ctypes.CDLL("libcuda.so.1")
PTX = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry one() { ret; }\\n.visible .entry two() { ret; }"
class Parameters(ctypes.Structure):
    _fields_ = [("function", ctypes.c_void_p), ("shape", ctypes.c_uint * 7), ("kernel_parameters", ctypes.c_void_p)]
    _fields_ += [(name, ctypes.c_void_p) for name in ("extra", "kernel", "context")]
def must(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)
class Context:
    def __init__(self):
        self.handle, module, self.kernels = ctypes.c_void_p(), ctypes.c_void_p(), [ctypes.c_void_p(), ctypes.c_void_p()]
        must("cuCtxCreate_v2", byref(self.handle), 0, 0)
        must("cuModuleLoadData", byref(module), PTX)
        for kernel, name in zip(self.kernels, (b"one", b"two")):
            must("cuModuleGetFunction", byref(kernel), module, name)
    def parameters(self, kernel):
        return Parameters(self.kernels[kernel].value, (ctypes.c_uint * 7)(1, 1, 1, 1, 1, 1, 0))
    def graph(self, kernel):
        graph, node = ctypes.c_void_p(), ctypes.c_void_p()
        must("cuGraphCreate", byref(graph), 0)
        must("cuGraphAddKernelNode_v2", byref(node), graph, None, ctypes.c_size_t(), byref(self.parameters(kernel)))
        return graph, node
must("cuInit", 0)
other, own = Context(), Context()
(graph, node), ready = own.graph(0), ctypes.c_void_p()
must("cuGraphInstantiateWithFlags", byref(ready), graph, ctypes.c_uint64())
for context in (own, other, own):
    print(cuda.cuGraphExecKernelNodeSetParams_v2(ready, node, byref(context.parameters(1))), end=" ")
result = (ctypes.c_int * 8)()
for context in (own, other):
    print(cuda.cuGraphExecUpdate_v2(ready, context.graph(0)[0], byref(result)), result[0], end=" ")
print(cuda.cuGraphLaunch(ready, None), cuda.cuCtxSynchronize())
"""


class Contexts(OneDaemon):
    """The program over each communicator of one host."""

    def test_answers_are_the_drivers(self):
        for communicator in ("unix", "shm"):
            with self.subTest(communicator):
                told = self.said(communicator, "context_program.py")
                self.assertEqual(told["wait for the ended context"], CONTEXT_IS_DESTROYED)
                self.assertEqual(
                    told["another context"],
                    {
                        **{"same address": True, "context of each": True, "kept": True},
                        "free what went with its context": INVALID_VALUE,
                    },
                )
                self.assertEqual(
                    told["without the primary context"],
                    {
                        **{"kept": [7, 8, 0, 0], "free": [INVALID_VALUE, INVALID_VALUE]},
                        **{"unpin": [INVALID_VALUE, NOT_REGISTERED], "of the primary context": 9},
                    },
                )
                # nvCOMP releases the primary context, and asks for its device.
                self.assertEqual(
                    told["current and released"],
                    {
                        **{"get device": 0, "device": 0, "get its device": 0, "get flags": 0},
                        **{"wait": CONTEXT_IS_DESTROYED, "allocate": CONTEXT_IS_DESTROYED},
                    },
                )
                for when, expected in (("without", by_name(WITHOUT)), ("after", by_name(WITHOUT) | by_name(AFTER))):
                    self.assertEqual({name: status for name, status in told[when].items() if status}, expected, when)

    def test_the_runtime_survives_a_reset_through_the_driver(self):
        self.output("shm", "-c", RESETS)

    def test_threads_set_limits_of_contexts_at_once(self):
        self.assertEqual(self.output("shm", "-c", LIMITS), "0\n")

    def test_only_a_primary_context_shows_that_it_maps_host_memory(self):
        self.assertEqual(self.output("shm", "-c", FLAGS), "8 4\n")

    def test_a_primary_context_keeps_limits_and_number_until_it_ends(self):
        self.assertEqual(self.output("shm", "-c", RETAINS), "True\nTrue\n")

    def test_the_variables_of_a_library_begin_anew_in_the_next_context(self):
        self.assertEqual(self.output("shm", "-c", COUNTS), "7\n7\n")

    def test_contexts_alive_at_once_have_variables_and_functions_of_their_own(self):
        wanted = ["True True True True", "(6, 8) (7, 8)", "0 0 400 400", "(6, 10) (9, 10)", "True", "60000 50000 50000 50000"]
        self.assertEqual(self.output("shm", "-c", APART).splitlines(), [*wanted, "400 0 (10, 11)"])

    def test_a_node_keeps_the_context_of_its_kernel(self):
        self.assertEqual(self.output("shm", "-c", UPDATES), "0 910 0 0 0 910 7 0 0\n")

    def test_a_limit_crosses_once(self):
        crossed = []
        for count in (1, 100):
            run = self.daemon.run(sys.executable, "shm", ["-c", ASKS, str(count)])
            self.assertEqual(run.code, 0, run.errors)
            crossed.append(run.counters["synchronous"])
        self.assertEqual(crossed[0], crossed[1])
