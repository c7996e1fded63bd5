// printf: formatted output and assert from kernels.
//
// Standard output is a pipe while the kernels run, so that the device's text is
// compared character by character with the output of the host's snprintf for the
// same formats. Lines of one thread are in order; those of different blocks may
// not be, so they are sorted first. With --assert a kernel's assertion fails on
// purpose: the next synchronization must return cudaErrorAssert, and the message
// must name the expression.

#include "common/check.h"

#include <algorithm>
#include <cassert>
#include <cinttypes>
#include <string>
#include <unistd.h>
#include <vector>

__global__ void print_formats(const char *text) {
    printf("plain text, 100%%\n");
    printf("[%d] [%5d] [%-5d] [%05d] [%+d] [% d] [%i]\n", -42, -42, -42, -42, 42, 42, 2147483647);
    printf("[%u] [%x] [%X] [%#x] [%o] [%#o]\n", 4294967295u, 48879u, 48879u, 48879u, 511u, 511u);
    printf("[%ld] [%lu] [%lld] [%llu] [%llx] [%#llX]\n", -9000000000L, 9000000000UL, -9223372036854775807LL,
           18446744073709551615ULL, 0x123456789abcdefULL, 0xfeedULL);
    printf("[%hd] [%hu] [%hx]\n", (short)-7, (unsigned short)65535, (unsigned short)0xabc);
    printf("[%f] [%.3f] [%10.2f] [%-10.2f] [%+.1f] [%010.3f]\n", 3.14159265358979, 2.71828, 1.5, 1.5, 0.25, -1.125);
    printf("[%e] [%.2E] [%g] [%G] [%g] [%.10g] [%#g]\n", 12345.678, 0.00012, 0.0001, 1e-10, 1e20, 0.1, 2.0);
    printf("[%a] [%f] [%f] [%f]\n", 1.5, (double)INFINITY, -(double)INFINITY, 0.0);
    printf("[%c%c%c] [%s] [%10s] [%-10s] [%.3s]\n", 'a', 'b', 'c', "literal", "right", "left", "truncated");
    printf("[%*d] [%-*d]\n", 6, 17, 6, 17);
    printf("from memory: [%s]\n", text);
    printf("ten: %d %d %d %d %d %d %d %d %d %d\n", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
}

__global__ void print_threads() {
    if (threadIdx.x % 3 == 0) {
        printf("block %u,%u thread %02u\n", blockIdx.x, blockIdx.y, threadIdx.x);
    }
}

// printf returns the number of its arguments; see "Formatted output" in the CUDA
// C++ programming guide.
__global__ void print_counts(int *counts) {
    counts[0] = printf("none\n");
    counts[1] = printf("three: %d %f %s\n", 1, 2.0, "x");
    printf("%p\n", counts);
}

__global__ void assert_small(const int *values) { assert(values[threadIdx.x] < 10); }

static void append(std::string &text, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    text += line;
}

static std::string expected_formats(const char *text) {
    std::string want;
    append(want, "plain text, 100%%\n");
    append(want, "[%d] [%5d] [%-5d] [%05d] [%+d] [% d] [%i]\n", -42, -42, -42, -42, 42, 42, 2147483647);
    append(want, "[%u] [%x] [%X] [%#x] [%o] [%#o]\n", 4294967295u, 48879u, 48879u, 48879u, 511u, 511u);
    append(want, "[%ld] [%lu] [%lld] [%llu] [%llx] [%#llX]\n", -9000000000L, 9000000000UL, -9223372036854775807LL,
           18446744073709551615ULL, 0x123456789abcdefULL, 0xfeedULL);
    append(want, "[%hd] [%hu] [%hx]\n", (short)-7, (unsigned short)65535, (unsigned short)0xabc);
    append(want, "[%f] [%.3f] [%10.2f] [%-10.2f] [%+.1f] [%010.3f]\n", 3.14159265358979, 2.71828, 1.5, 1.5, 0.25,
           -1.125);
    append(want, "[%e] [%.2E] [%g] [%G] [%g] [%.10g] [%#g]\n", 12345.678, 0.00012, 0.0001, 1e-10, 1e20, 0.1, 2.0);
    append(want, "[%a] [%f] [%f] [%f]\n", 1.5, (double)INFINITY, -(double)INFINITY, 0.0);
    append(want, "[%c%c%c] [%s] [%10s] [%-10s] [%.3s]\n", 'a', 'b', 'c', "literal", "right", "left", "truncated");
    append(want, "[%*d] [%-*d]\n", 6, 17, 6, 17);
    append(want, "from memory: [%s]\n", text);
    append(want, "ten: %d %d %d %d %d %d %d %d %d %d\n", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    return want;
}

static std::string expected_threads(int columns, int rows, int threads) {
    std::string want;
    for (int column = 0; column < columns; ++column) {
        for (int row = 0; row < rows; ++row) {
            for (int thread = 0; thread < threads; thread += 3) {
                append(want, "block %d,%d thread %02d\n", column, row, thread);
            }
        }
    }
    return want;
}

static std::string sorted_lines(const std::string &text) {
    std::vector<std::string> lines;
    for (size_t start = 0; start < text.size();) {
        size_t end = std::min(text.find('\n', start), text.size() - 1) + 1;
        lines.push_back(text.substr(start, end - start));
        start = end;
    }
    std::sort(lines.begin(), lines.end());
    std::string sorted;
    for (const std::string &line : lines) {
        sorted += line;
    }
    return sorted;
}

// While it lives, output to a file descriptor goes to an unnamed file; `take` ends
// that and returns the text.
class Capture {
public:
    explicit Capture(int descriptor) : descriptor_(descriptor), file_(std::tmpfile()) {
        if (!file_) {
            Program::current()->die("no temporary file: %s", std::strerror(errno));
        }
        std::fflush(stdout);
        saved_ = dup(descriptor_);
        dup2(fileno(file_), descriptor_);
    }

    std::string take() {
        std::fflush(stdout);
        std::fflush(stderr);
        dup2(saved_, descriptor_);
        close(saved_);
        std::rewind(file_);
        std::string text;
        char part[4096];
        for (size_t got; (got = std::fread(part, 1, sizeof part, file_)) > 0;) {
            text.append(part, got);
        }
        std::fclose(file_);
        return text;
    }

private:
    int descriptor_;
    int saved_;
    FILE *file_;
};

static void expect_text(Program &program, const char *what, const std::string &got, const std::string &want) {
    if (got == want) {
        return;
    }
    size_t at = 0;
    while (at < got.size() && at < want.size() && got[at] == want[at]) {
        ++at;
    }
    size_t line = want.rfind('\n', at ? at - 1 : 0);
    line = line == std::string::npos ? 0 : line + 1;
    program.fail("%s: %zu bytes, expected %zu; differs at byte %zu: got '%.60s', expected '%.60s'", what, got.size(),
                 want.size(), at, line < got.size() ? got.substr(line, got.find('\n', line) - line).c_str() : "",
                 want.substr(line, want.find('\n', line) - line).c_str());
}

static void run_prints(Program &program) {
    const char text[] = "a string in device memory";
    DeviceArray<char> device_text(text, sizeof text);
    DeviceArray<int> device_counts(2);
    int columns = static_cast<int>(program.size()), rows = 2, threads = 40;

    while (program.next_round()) {
        Capture capture(STDOUT_FILENO);
        print_formats<<<1, 1>>>(device_text.get());
        cudaError_t launched = cudaDeviceSynchronize();
        std::string formats = capture.take();
        CUDA_CHECK(launched);
        expect_text(program, "formats", formats, expected_formats(text));

        Capture capture_threads(STDOUT_FILENO);
        print_threads<<<dim3(columns, rows), threads>>>();
        launched = cudaDeviceSynchronize();
        std::string lines = sorted_lines(capture_threads.take());
        CUDA_CHECK(launched);
        expect_text(program, "lines of many threads", lines, sorted_lines(expected_threads(columns, rows, threads)));

        Capture capture_counts(STDOUT_FILENO);
        print_counts<<<1, 1>>>(device_counts.get());
        int counts[2] = {-2, -2};
        device_counts.download(counts);
        launched = cudaDeviceSynchronize();
        std::string counted = capture_counts.take();
        CUDA_CHECK(launched);
        std::string want = "none\nthree: 1 2.000000 x\n";
        append(want, "%p\n", static_cast<void *>(device_counts.get()));
        expect_text(program, "counted lines", counted, want);
        program.expect_equal("printf without arguments", counts[0], 0);
        program.expect_equal("printf with three arguments", counts[1], 3);

        program.digest(formats.data(), formats.size());
        program.digest(lines.data(), lines.size());
    }
}

// The failing assertion ends this process's context, so this run does nothing
// else.
static void run_assert(Program &program) {
    std::vector<int> values(64, 3);
    values[37] = 12;
    int *device_values = nullptr;
    CUDA_CHECK(cudaMalloc(&device_values, values.size() * sizeof(int)));
    CUDA_CHECK(cudaMemcpy(device_values, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice));
    program.next_round();
    Capture capture(STDERR_FILENO);
    assert_small<<<1, 64>>>(device_values);
    cudaError_t status = cudaDeviceSynchronize();
    std::string message = capture.take();
    if (status != cudaErrorAssert) {
        program.fail("a failing assert gave %s, expected cudaErrorAssert", cudaGetErrorName(status));
    }
    for (const char *part : {"printf.cu", "assert_small", "[0,0,0]", "[37,0,0]", "values[threadIdx.x] < 10"}) {
        if (message.find(part) == std::string::npos) {
            program.fail("the message of the failing assert lacks '%s': '%s'", part, message.c_str());
        }
    }
    if (std::count(message.begin(), message.end(), '\n') != 1) {
        program.fail("one thread asserts, one line is expected: '%s'", message.c_str());
    }
    status = cudaFree(device_values);
    if (status != cudaErrorAssert) {
        program.fail("after the assert cudaFree gave %s, expected cudaErrorAssert", cudaGetErrorName(status));
    }
    program.note("assert reported");
}

int main(int argc, char **argv) {
    bool with_assert = false;
    Program program("printf", "prints from kernels with every format", "blocks in a row", 3, 1, 1000);
    program.add_flag("--assert", &with_assert, "run the kernel whose assertion fails, instead");
    program.parse(argc, argv);
    if (with_assert) {
        run_assert(program);
    } else {
        run_prints(program);
    }
    return program.finish();
}
