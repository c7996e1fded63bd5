"""Every test program over every communicator of a host."""

import atexit
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import harness

from .guests import GUEST, OneDaemon

# Says whether a variable's memory is taken before or after its first use.
LARGE = """
#include <cstdio>
__device__ char large[64 << 20];
__global__ void touch() { large[0] = 1; }
int main() {
    size_t before = 0, after = 0, total = 0;
    bool fine = !cudaFree(0) && !cudaMemGetInfo(&before, &total);
    touch<<<1, 1>>>();
    fine = fine && !cudaDeviceSynchronize() && !cudaMemGetInfo(&after, &total);
    std::puts(before - after >= sizeof large ? "later" : "before");
    return !fine;
}
"""

# The first launch of a kernel behind a host function of another stream, which the program releases after it.
FIRST = """
#include <atomic>
#include <cstdio>
std::atomic<bool> released;
__global__ void first(int *value) { *value = 7; }
__global__ void second(int *value) { *value += 1; }
int main() {
    int *memory, value = 0;
    cudaStream_t held, other;
    bool fine = !cudaMalloc(&memory, sizeof value) && !cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking);
    fine = fine && !cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    fine = fine && !cudaLaunchHostFunc(held, [](void *) { while (!released) {} }, nullptr);
    first<<<1, 1, 0, other>>>(memory);
    second<<<1, 1, 0, other>>>(memory);
    fine = fine && !cudaStreamSynchronize(other);
    released = true;
    fine = fine && !cudaDeviceSynchronize() && !cudaMemcpy(&value, memory, sizeof value, cudaMemcpyDeviceToHost);
    std::printf("%d\\n", value);
    return !fine;
}
"""

# Kernels print or might print in several streams, and the program does after each kind of wait.
PRINTING = """
#include <cstdio>
__global__ void say(int what) { std::printf("kernel %d\\n", what); }
__global__ void may_say(float *sum, int what) {
    if (what < 0) std::printf("never\\n");
    for (int i = 0; i < 200; ++i) *sum += i;
}
int main() {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    cudaStream_t saying, other;
    float *sum, few[16] = {};
    cudaStreamCreate(&saying);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaMalloc(&sum, 4096);
    for (int i = 0; i < 60; ++i) {
        may_say<<<1, 1, 0, other>>>(sum, i);
        if (i % 3 == 0) say<<<1, 1, 0, saying>>>(i);
        cudaMemcpyAsync(sum + 64, few, sizeof few, cudaMemcpyHostToDevice, cudaStreamPerThread);
        cudaStreamSynchronize(cudaStreamPerThread);
        if (i % 4 < 2) {
            cudaStreamSynchronize(saying);
        } else if (i % 4 == 2) {
            cudaDeviceSynchronize();
        } else {
            cudaEvent_t event;
            cudaEventCreate(&event);
            cudaEventRecord(event, saying);
            cudaEventSynchronize(event);
            cudaEventDestroy(event);
        }
        std::printf("program %d\\n", i);
    }
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    cudaStreamBeginCapture(saying, cudaStreamCaptureModeRelaxed);
    say<<<1, 1, 0, saying>>>(100);
    may_say<<<1, 1, 0, saying>>>(sum, 1);
    cudaStreamEndCapture(saying, &graph);
    cudaGraphInstantiate(&instance, graph, nullptr, nullptr, 0);
    for (int i = 0; i < 5; ++i) {
        cudaGraphLaunch(instance, saying);
        cudaStreamSynchronize(saying);
        std::printf("graph %d\\n", i);
    }
    say<<<1, 1, 0, saying>>>(200);
    cudaStreamDestroy(saying);
    cudaDeviceSynchronize();
    std::printf("end: %s\\n", cudaGetErrorName(cudaGetLastError()));
}
"""

# Its objects use the thread's stream in their destructors: later than the thread, and
# before main() ends the process.
ENDING = """
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <thread>
__global__ void add(int *sum, int value) { *sum += value; }
static void work(const char *where) {
    int *sum = nullptr, got = 0;
    bool fine = !cudaMalloc(&sum, sizeof *sum) && !cudaMemsetAsync(sum, 0, sizeof *sum);
    add<<<1, 1>>>(sum, 7);
    fine = fine && !cudaMemcpyAsync(&got, sum, sizeof got, cudaMemcpyDeviceToHost);
    fine = fine && !cudaStreamSynchronize(cudaStreamPerThread) && !cudaFree(sum) && got == 7;
    std::printf("%s: %s\\n", where, fine ? "fine" : cudaGetErrorName(cudaGetLastError()));
}
struct Last {
    const char *where;
    ~Last() { work(where); }
};
static pthread_key_t key;
int main() {
    pthread_key_create(&key, [](void *) { work("thread-specific data"); });
    std::thread([] {
        static thread_local Last last{"thread-local object"};
        (void)last.where;
        pthread_setspecific(key, &key);
        work("thread");
    }).join();
    work("main");
    static Last last{"static object"};
    std::atexit([] { work("exit handler"); });
    return 0;
}
"""
ENDED = ("thread", "thread-local object", "thread-specific data", "main", "exit handler", "static object")

# A program that locks its memory, as real-time ones do: MCL_CURRENT | MCL_FUTURE.
LOCKED = """
import ctypes
locked = ctypes.CDLL(None).mlockall(3) == 0
cuda = ctypes.CDLL("libcuda.so.1")
context, memory, errors = ctypes.c_void_p(), ctypes.c_void_p(), cuda.cuInit(0)
errors |= cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) | cuda.cuCtxSetCurrent(context)
errors |= cuda.cuMemAllocHost_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20))
with open("/proc/self/status") as status:
    kibibytes = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
print(locked, errors, kibibytes < 1 << 20)
"""


# Children of clone(2) and _Fork, for which no handler for fork runs. They end, or first use CUDA.
CHILDREN = """
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
__global__ void add(int *sum, int value) { *sum += value; }
static int *sum, wanted;
static cudaError_t work() {
    int got = 0;
    add<<<1, 1>>>(sum, 7);
    cudaError_t error = cudaMemcpy(&got, sum, sizeof got, cudaMemcpyDeviceToHost);
    wanted += 7;
    return error ? error : got == wanted ? cudaSuccess : cudaErrorUnknown;
}
int main() {
    bool fine = !cudaMalloc(&sum, sizeof *sum) && !cudaMemset(sum, 0, sizeof *sum) && !work();
    for (int kind = 0; kind < 4; ++kind) {
        pid_t child = kind % 2 ? _Fork() : pid_t(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
        if (child == 0) std::exit(kind < 2 ? 0 : work());
        int status = -1;
        waitpid(child, &status, 0);
        fine = fine && !work();
        std::printf("%d: %d %s\\n", kind, WIFEXITED(status) ? WEXITSTATUS(status) : -1, fine ? "fine" : "not fine");
        std::fflush(stdout);
    }
}
"""

# Queries the driver's version, and then uses CUDA in children and in itself.
VERSION = """
import ctypes, os, sys
cuda, version, memory, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
queries = [cuda.cuDriverGetVersion, ctypes.CDLL("libcudart.so.13").cudaDriverGetVersion]
print(*(query(ctypes.byref(version)) or version.value > 12000 for query in queries), flush=True)
def use():
    errors = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    return errors or cuda.cuCtxSetCurrent(context) or cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096))
for _ in range(2):
    child = os.fork()
    if child == 0:
        os._exit(use())
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print("parent", use(), flush=True)
child = os.fork()
if child == 0:
    os._exit(cuda.cuInit(0))
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


# Fails an assertion in one thread, and sees the error in a call that waits.
ASSERTION = """
#include <cassert>
#include <cstdio>
__global__ void check(int limit) { std::printf("thread %d\\n", threadIdx.x); assert(threadIdx.x < limit); }
int main() {
    check<<<1, 4>>>(2);
    cudaError_t error = cudaDeviceSynchronize();
    std::printf("%s\\n", cudaGetErrorName(error));
}
"""


# Gives kernels registered memory by the device's address, then by the program's.
REGISTERED = """
#include <cstdio>
#include <cstdlib>
__global__ void write(int *value) { *value = 7; }
int main() {
    int *own = static_cast<int *>(std::aligned_alloc(4096, 4096)), *mapped, may;
    bool fine = !cudaHostRegister(own, 4096, cudaHostRegisterMapped) && !cudaHostGetDevicePointer((void **)&mapped, own, 0);
    write<<<1, 1>>>(mapped);
    fine = fine && !cudaDeviceSynchronize() && *own == 7;
    fine = fine && !cudaDeviceGetAttribute(&may, cudaDevAttrCanUseHostPointerForRegisteredMem, 0);
    write<<<1, 1>>>(own);
    std::printf("%d %d %s\\n", fine, may, cudaGetErrorName(cudaDeviceSynchronize()));
}
"""


def digest(run):
    """The digest of the results in a program's line."""
    return next(word for word in run.output.split() if word.startswith("digest="))


def another_build(program, folder):
    """A copy of a program in which one instruction that does nothing, in its runtime, has another operand: a build of no release."""
    nothing = bytes.fromhex("662e0f1f840000000000")
    with open(os.path.join(harness.PROGRAMS, program), "rb") as file:
        code = file.read()
    places = [found.start() for found in re.finditer(re.escape(nothing), code)]
    at = places[len(places) // 2] + len(nothing) - 1
    copy = os.path.join(folder, program)
    with open(copy, "wb") as file:
        file.write(code[:at] + b"\x01" + code[at + 1 :])
    os.chmod(copy, 0o755)
    return copy


@functools.cache
def compiled(text, *flags):
    """The path of a program compiled from its text, once in this process."""
    compiler = os.path.join(harness.ROOT, ".cache/cuda-13.0/bin/nvcc")
    # A machine with a GPU may have its own.
    compiler = compiler if os.path.exists(compiler) else "nvcc"
    folder = tempfile.mkdtemp(prefix="paragpu-compiled-")
    atexit.register(shutil.rmtree, folder)
    source, program = os.path.join(folder, "program.cu"), os.path.join(folder, "program")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    command = [compiler, "-arch=compute_75", *flags, source, "-o", program]
    subprocess.run(command, check=True, timeout=200, capture_output=True)
    return program


class Programs(OneDaemon):
    """The software GPU computes correctly over every communicator."""

    def test_every_program_over_every_communicator(self):
        for communicator in harness.HOST_COMMUNICATORS:
            for program in harness.program_names():
                with self.subTest(program=program, communicator=communicator):
                    run = self.daemon.run(program, communicator)
                    self.assertEqual(run.code, 0, run.output + run.errors)
                    self.assertGreater(run.counters["calls"], 0, "the program never reached the backend")
        self.assertEqual(self.daemon.left(), [])

    def test_programs_with_the_shared_runtime_of_cuda_12(self):
        """That of 12.9, under programs that use nothing in which it differs from 13's; NAME-static-12.9 carry the static one."""
        cache = os.path.join(harness.ROOT, ".cache")
        runtime = os.path.join(cache, "runtimes/12.9.79/libcudart.so.12")
        sources = os.path.join(harness.ROOT, "tests/programs")
        compiler = [os.path.join(cache, "cuda-13.0/bin/nvcc"), "-std=c++17", "-O1", "-arch=compute_75", "-cudart", "none"]
        for program in ("vectorAdd", "streamsAndEvents"):
            native = self.daemon.run(program, "shm")
            with self.subTest(program), tempfile.TemporaryDirectory() as folder:
                built = os.path.join(folder, program)
                linked = ["-Xlinker", runtime, "-lpthread", "-ldl", "-lrt"]
                subprocess.run([*compiler, f"{program}.cu", *linked, "-o", built], cwd=sources, check=True, timeout=200)
                run = self.daemon.run(built, "shm")
                self.assertEqual(run.code, 0, run.output + run.errors)
                self.assertEqual(digest(run), digest(native))
                self.assertGreater(run.counters["calls"], 0, "the program never reached the backend")

    def test_static_runtimes_without_a_fingerprint(self):
        environment = self.daemon.guest_environment("shm")
        for program in ("graphs-static", "graphs-static-12.9", "streamsAndEvents-static"):
            with self.subTest(program), tempfile.TemporaryDirectory() as folder:
                copy = another_build(program, folder)
                command = [harness.binary("paragpu"), "doctor", "-o", "json", copy]
                doctor = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
                runtimes = json.loads(doctor.stdout)["runtimes"]
                details = [(found["detail"], found["served_by"]) for found in runtimes]
                library = f"libcudart.so.{12 if program.endswith('12.9') else 13}"
                self.assertEqual(details, [("another build, by the names in its code", library)])
                run, known = self.daemon.run(copy, "shm"), self.daemon.run(program, "shm")
                self.assertEqual((run.code, run.errors), (0, ""), run.output)
                self.assertEqual(digest(run), digest(known))

    def test_modules_are_loaded_when_the_environment_says(self):
        """A variable of 64 MiB takes memory as soon as there is a context, or at its first use."""
        program = compiled(LARGE, "-cudart", "shared")
        for mode, want in ((None, "later"), ("LAZY", "later"), ("EAGER", "before")):
            with self.subTest(mode):
                environment = self.daemon.guest_environment("shm")
                environment.pop("CUDA_MODULE_LOADING", None)
                environment |= {"CUDA_MODULE_LOADING": mode} if mode else {}
                run = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60)
                self.assertEqual((run.returncode, run.stdout), (0, f"{want}\n"), run.stderr)

    def test_kernels_that_are_loaded_eagerly_do_not_wait_for_host_functions(self):
        program = compiled(FIRST, "-cudart", "shared")
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                environment = self.daemon.guest_environment(communicator) | {"CUDA_MODULE_LOADING": "EAGER"}
                run = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60)
                self.assertEqual((run.returncode, run.stdout), (0, "8\n"), run.stderr)

    def test_both_generations_are_opened_late_in_one_process(self):
        """Their thread-local storage is static, of which the C library has little left after the start."""
        names = [os.path.join(harness.LIBRARIES, f"libcudart.so.{number}") for number in (13, 12)]
        for order in (names, names[::-1]):
            with self.subTest(order):
                program = f"import ctypes\nfor name in {order}:\n    print(ctypes.CDLL(name).cudaFree(None))"
                run = self.daemon.run(sys.executable, "shm", ["-c", program])
                self.assertEqual((run.code, run.output), (0, "0\n0\n"), run.errors)

    def test_what_ends_with_a_thread_or_the_process_may_use_cuda(self):
        program = compiled(ENDING, "--default-stream", "per-thread")
        run = self.daemon.run(program, "shm")
        self.assertEqual((run.code, run.output), (0, "".join(f"{where}: fine\n" for where in ENDED)), run.errors)
        self.assertEqual(self.daemon.left(), [])

    def test_what_kernels_print_comes_before_what_the_program_says_after_its_wait(self):
        want = []
        for i in range(60):
            want += [f"kernel {i}"] if i % 3 == 0 else []
            want.append(f"program {i}")
        for i in range(5):
            want += ["kernel 100", f"graph {i}"]
        want += ["kernel 200", "end: cudaSuccess"]
        program = compiled(PRINTING)
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                run = self.daemon.run(program, communicator)
                self.assertEqual((run.code, run.output.splitlines()), (0, want), run.errors)

    def test_a_program_that_locks_its_memory_does_not_fill_the_window(self):
        run = self.daemon.run(sys.executable, "shm", ["-c", LOCKED])
        if run.output.startswith("False"):
            self.skipTest("memory cannot be locked here")
        self.assertEqual((run.code, run.output), (0, "True 0 True\n"), run.errors)

    def test_children_of_which_no_handler_learns(self):
        program = compiled(CHILDREN)
        want = "0: 0 fine\n1: 0 fine\n2: 3 fine\n3: 3 fine\n"
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                run = self.daemon.run(program, communicator)
                self.assertEqual((run.code, run.output), (0, want), run.errors)
        self.assertEqual(self.daemon.left(), [])

    def test_children_of_a_program_that_knows_the_version_only(self):
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                run = self.daemon.run(sys.executable, communicator, ["-c", VERSION])
                self.assertEqual((run.code, run.output), (0, "True True\nchild 0\nchild 0\nparent 0\nchild 3\n"), run.errors)

    def test_a_kernel_sees_what_the_processor_writes_to_registered_memory(self):
        run = self.daemon.run(sys.executable, "shm", [GUEST, "registered"])
        self.assertEqual((run.code, run.output), (0, "right\n"), run.errors + self.daemon.log())

    def test_the_address_of_registered_memory_is_explained(self):
        program = compiled(REGISTERED)
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                run = self.daemon.run(program, communicator)
                self.assertEqual(run.output, "1 0 cudaErrorIllegalAddress\n", run.errors)
                self.assertEqual(run.errors.count("the one that cudaHostGetDevicePointer returns"), 1, run.errors)

    def test_a_failed_assertion_is_told(self):
        program = compiled(ASSERTION)
        for communicator in ("shm", "unix"):
            with self.subTest(communicator):
                run = self.daemon.run(program, communicator)
                self.assertEqual(run.output.splitlines()[-1], "cudaErrorAssert", run.errors)
                self.assertEqual(sorted(run.output.splitlines())[1:], [f"thread {number}" for number in range(4)])
                failed = r"(?m)^\S*program\.cu:4: .*check.*: block: \[0,0,0\], thread: \[(\d),0,0\] Assertion `threadIdx.x < limit` failed\.\n"
                self.assertEqual(re.findall(failed, run.errors), ["2", "3"], run.errors)

    def test_registered_memory_of_a_program_that_forks(self):
        self.assert_right("forked")

    def test_registered_memory_of_huge_pages(self):
        self.assert_right("huge")

    def test_memory_beside_registered_memory(self):
        self.assert_right("beside")

    def assert_right(self, mode):
        """The guest program finds all right over each communicator."""
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                run = self.daemon.run(sys.executable, communicator, [GUEST, mode])
                if run.output == "no huge pages\n":
                    self.skipTest("the kernel has no free huge pages (sysctl vm.nr_hugepages)")
                self.assertEqual((run.code, run.output), (0, "right\n"), run.errors + self.daemon.log())
