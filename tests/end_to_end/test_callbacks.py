"""Functions of the program in threads of the library: their ends, signals, stacks, and a limit of threads;
cancelled threads of the program."""

import signal
import sys

import harness

from .guests import OneDaemon
from .test_programs import compiled

# Ends while a callback runs, and while it wakes the program: before Python 3.14 the interpreter
# ends threads that come back to it then.
PYTHON = """
import asyncio, ctypes, sys, threading, time
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
errors = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context)
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
async def wake():
    global callback
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    callback = function(lambda _: loop.call_soon_threadsafe(woken.set))
    errors = cuda.cuLaunchHostFunc(None, callback, None)
    await woken.wait()
    return errors
begun = threading.Event()
def sleep(_):
    begun.set()
    # Each time it comes back to the interpreter.
    for _ in range(1000):
        time.sleep(0.001)
if sys.argv[1] == "wakes":
    errors = errors or max(asyncio.run(wake()) for _ in range(50))
else:
    callback = function(sleep)
    errors = errors or cuda.cuLaunchHostFunc(None, callback, None) or cuda.cuLaunchHostFunc(None, callback, None)
    begun.wait()
print("errors:", errors, flush=True)
"""

# Callbacks of each kind end their thread, throw, handle faults, use their stack, cannot start a
# thread, or have more work behind them than the host queues.
CALLBACKS = """
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <grp.h>
#include <pthread.h>
#include <stdexcept>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>
static std::atomic<int> called{0}, handled{0}, ended{0};
static pthread_key_t key;
static thread_local sigjmp_buf back;
static void ends(void *) {
    ++called;
    // The destructor runs after those of thread-local objects.
    pthread_setspecific(key, &key);
    pthread_exit(nullptr);
}
static void ends_callback(cudaStream_t, cudaError_t, void *) { ends(nullptr); }
static void throws(void *) { throw std::runtime_error("thrown by the callback"); }
static void counts(void *) { ++called; }
static void counts_callback(cudaStream_t, cudaError_t error, void *) { called += error ? 0 : 1; }
__global__ void spins(unsigned *word, int steps) {
    unsigned value = *word;
    for (int step = 0; step < steps; ++step) value = value * 3 + 1;
    *word = value;
}
static void handler(int) {
    ++handled;
    siglongjmp(back, 1);
}
static void faults(void *) {
    if (!sigsetjmp(back, 1)) *reinterpret_cast<volatile int *>(8) = 1;
    if (!sigsetjmp(back, 1)) asm volatile("ud2");
    ++called;
}
static void fills_stack(void *) {
    volatile char bytes[3 << 20];
    for (size_t at = 0; at < sizeof bytes; at += 4096) bytes[sizeof bytes - 1 - at] = 1;
    called += bytes[sizeof bytes - 1];
}
static void await_ended(int number) {
    while (ended < number) usleep(1000);
}
static int limited() {
    // The superuser has no limit of threads.
    rlimit one{1, 1};
    if (geteuid() == 0 && (setgroups(0, nullptr) || setgid(65533) || setuid(64321))) return 77;
    pthread_t thread;
    if (setrlimit(RLIMIT_NPROC, &one)) return 77;
    if (!pthread_create(&thread, nullptr, [](void *) -> void * { return nullptr; }, nullptr)) return 77;
    std::printf("launch: %d\\n", cudaLaunchHostFunc(nullptr, counts, nullptr));
    cudaUserObject_t object;
    std::printf("object: %d\\n", cudaUserObjectCreate(&object, nullptr, counts, 1, cudaUserObjectNoDestructorSync));
    size_t size = 64 << 20;
    std::vector<char> from(size, 1), to(size);
    char *device = nullptr;
    bool fine = !cudaMalloc(&device, size) && !cudaMemcpy(device, from.data(), size, cudaMemcpyHostToDevice);
    fine = fine && !cudaMemcpy(to.data(), device, size, cudaMemcpyDeviceToHost) && from == to;
    std::printf("copies: %s\\nwait: %d\\n", fine ? "fine" : "wrong", cudaDeviceSynchronize());
    return 0;
}
// The guest asks while the callback waits for the kernel. The host's answer is behind the work.
static int behind(cudaStream_t stream) {
    unsigned *word;
    if (cudaMalloc(&word, sizeof *word) || cudaMemset(word, 0, sizeof *word)) return 1;
    spins<<<1, 1, 0, stream>>>(word, 20000000);
    if (cudaStreamAddCallback(stream, counts_callback, nullptr, 0)) return 1;
    for (int number = 0; number < 1000; ++number) {
        if (cudaMemsetAsync(word, 0, sizeof *word, stream)) return 1;
    }
    int error = cudaStreamSynchronize(stream);
    std::printf("%d %d\\n", error, called.load());
    return 0;
}
int main(int, char **words) {
    cudaStream_t stream;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) return 1;
    if (!std::strcmp(words[1], "limited")) return limited();
    if (!std::strcmp(words[1], "behind")) return behind(stream);
    if (!std::strcmp(words[1], "throws")) {
        cudaLaunchHostFunc(stream, throws, nullptr);
        pause();
    }
    if (!std::strcmp(words[1], "ends")) {
        pthread_key_create(&key, [](void *) { ++ended; });
        cudaLaunchHostFunc(stream, ends, nullptr);
        await_ended(1);
        cudaStreamAddCallback(stream, ends_callback, nullptr, 0);
        await_ended(2);
        cudaLaunchHostFunc(stream, counts, nullptr);
        int error = cudaStreamSynchronize(stream);
        std::printf("%d %d\\n", error, called.load());
        return 0;
    }
    for (int which : {SIGSEGV, SIGILL}) std::signal(which, handler);
    cudaLaunchHostFunc(stream, faults, nullptr);
    cudaLaunchHostFunc(stream, fills_stack, nullptr);
    int error = cudaStreamSynchronize(stream);
    std::printf("%d %d %d\\n", error, called.load(), handled.load());
}
"""

# Threads that launch and copy at the same time are cancelled in turn; each ends in its own
# cancellation point.
CANCELLED = """
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <unistd.h>
static std::atomic<int> begun{0};
__global__ void add(int *values) { values[threadIdx.x] += 1; }
static void *launches(void *values) {
    for (++begun;; pthread_testcancel()) add<<<1, 32>>>(static_cast<int *>(values));
}
static void *copies(void *values) {
    void *bytes = calloc(1, 16 << 20);
    for (++begun;; pthread_testcancel()) cudaMemcpy(values, bytes, 16 << 20, cudaMemcpyHostToDevice);
}
int main() {
    void *values = nullptr, *result = nullptr;
    int errors = cudaMalloc(&values, 16 << 20), cancelled = 0;
    for (int turn = 0; turn < 8; ++turn) {
        pthread_t threads[3];
        begun = 0;
        for (int at = 0; at < 3; ++at) errors |= pthread_create(&threads[at], nullptr, at ? launches : copies, values);
        while (begun < 3) usleep(100);
        usleep(turn * 2000);
        for (pthread_t thread : threads) errors |= pthread_cancel(thread);
        for (pthread_t thread : threads) {
            errors |= pthread_join(thread, &result);
            cancelled += result == PTHREAD_CANCELED;
        }
    }
    errors |= cudaDeviceSynchronize();
    std::printf("%d %d\\n", errors, cancelled);
}
"""


class Callbacks(OneDaemon):
    """Over every communicator of a host."""

    def check(self, program, arguments, code, output):
        """Runs a program over each communicator."""
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                run = self.daemon.run(program, communicator, arguments, timeout=60)
                if run.code == 77:
                    self.skipTest("threads cannot be limited here")
                self.assertEqual((run.code, run.output), (code, output), run.errors)
        return run

    def test_python_ends_while_a_callback_runs(self):
        self.check(sys.executable, ["-c", PYTHON, "sleeps"], 0, "errors: 0\n")
        self.check(sys.executable, ["-c", PYTHON, "wakes"], 0, "errors: 0\n")
        self.assertEqual(self.daemon.left(), [])

    def test_a_callback_that_ends_its_thread_is_over_at_the_next_launch(self):
        self.check(compiled(CALLBACKS), ["ends"], 0, "0 3\n")

    def test_an_exception_that_nothing_catches_is_reported(self):
        run = self.check(compiled(CALLBACKS), ["throws"], -signal.SIGABRT, "")
        self.assertIn("thrown by the callback", run.errors)

    def test_callbacks_handle_faults_and_have_the_stack_of_a_thread(self):
        self.check(compiled(CALLBACKS), ["faults"], 0, "0 2 2\n")

    def test_a_callback_runs_with_much_work_behind_it(self):
        self.check(compiled(CALLBACKS), ["behind"], 0, "0 1\n")

    def test_a_limit_of_threads_fails_launches_but_no_copies(self):
        self.check(compiled(CALLBACKS), ["limited"], 0, "launch: 304\nobject: 304\ncopies: fine\nwait: 0\n")

    def test_threads_are_cancelled_after_their_call(self):
        self.check(compiled(CANCELLED), [], 0, "0 24\n")
