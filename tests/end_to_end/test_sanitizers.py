"""Programs that are built with a sanitizer: it finds nothing in what paragpu does for them."""

import subprocess
import tempfile

import harness

from .guests import OneDaemon
from .test_programs import compiled

# Threads, a child, and registered memory that neither begins nor ends with a page.
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
__device__ int total;
__global__ void add(int *values, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) values[i] += 1;
    if (threadIdx.x == 0) total += 1;
}
static bool work(int *values, int count) {
    cudaStream_t stream;
    int *memory, bytes = count * sizeof *values;
    bool fine = !cudaStreamCreate(&stream) && !cudaMallocAsync(&memory, bytes, stream);
    fine = fine && !cudaMemcpyAsync(memory, values, bytes, cudaMemcpyHostToDevice, stream);
    add<<<1, 32, 0, stream>>>(memory, count);
    fine = fine && !cudaMemcpyAsync(values, memory, bytes, cudaMemcpyDeviceToHost, stream);
    return fine && !cudaFreeAsync(memory, stream) && !cudaStreamSynchronize(stream) && !cudaStreamDestroy(stream);
}
int main() {
    const int count = 100001;
    int *values = new int[count], *mapped, counted = 0, status = 1;
    for (int i = 0; i < count; ++i) values[i] = i;
    bool fine = work(values, count);
    fine = fine && !cudaHostRegister(values, count * sizeof *values, cudaHostRegisterMapped);
    fine = fine && !cudaHostGetDevicePointer(&mapped, values, 0);
    add<<<1, 32>>>(mapped, count);
    fine = fine && !cudaDeviceSynchronize();
    pid_t child = fork();
    if (child == 0) _exit(values[1] != 3);
    fine = fine && waitpid(child, &status, 0) == child && status == 0;
    fine = fine && !cudaHostUnregister(values);
    bool elsewhere = false;
    std::thread([&] { elsewhere = work(values, count); }).join();
    fine = fine && elsewhere && !cudaMemcpyFromSymbol(&counted, total, sizeof counted);
    for (int i = 0; i < count; ++i) fine = fine && values[i] == i + 3;
    delete[] values;
    std::printf("%s %d\\n", fine ? "fine" : cudaGetErrorName(cudaGetLastError()), counted);
}
"""


def has(sanitizer):
    """Whether programs with a sanitizer can be built and run here."""
    with tempfile.TemporaryDirectory() as folder:
        build = ["c++", f"-fsanitize={sanitizer}", "-x", "c++", "-", "-o", f"{folder}/program"]
        built = subprocess.run(build, input="int main() {}", capture_output=True, text=True, timeout=60)
        return built.returncode == 0 and subprocess.run(f"{folder}/program", timeout=60).returncode == 0


class Sanitizers(OneDaemon):
    """A sanitizer ends a program in which it found something with an exit status."""

    def test_the_address_sanitizer_finds_neither_errors_nor_leaks(self):
        if not has("address"):
            self.skipTest("the compiler has no address sanitizer")
        program = compiled(PROGRAM, "-Xcompiler=-fsanitize=address", "-Xcompiler=-fsanitize=undefined")
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                run = self.daemon.run(program, communicator)
                self.assertEqual(run.errors, "")
                self.assertEqual((run.code, run.output), (0, "fine 3\n"))
