// twoProcesses: two processes of one program that use each other's results.
//
// The parent starts itself twice (fork and exec, before any CUDA call) and calls
// no CUDA at all. Each child computes a half on the device, sends it to the other
// through a pipe, combines both halves on the device and sends the result to the
// parent, which checks both.

#include "common/check.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

__global__ void make_half(unsigned *values, unsigned child, unsigned seed, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = (static_cast<unsigned>(at) + seed) * 2654435761u + child * 40503u;
    }
}

__global__ void combine(unsigned *own, const unsigned *other, unsigned child, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        own[at] = own[at] * 3 + (other[at] ^ (child + 1));
    }
}

static unsigned half_on_cpu(size_t at, unsigned child, unsigned seed) {
    return (static_cast<unsigned>(at) + seed) * 2654435761u + child * 40503u;
}

static bool write_all(int descriptor, const void *data, size_t bytes) {
    const char *at = static_cast<const char *>(data);
    while (bytes) {
        ssize_t wrote = write(descriptor, at, bytes);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            return false;
        }
        at += wrote;
        bytes -= static_cast<size_t>(wrote);
    }
    return true;
}

static bool read_all(int descriptor, void *data, size_t bytes) {
    char *at = static_cast<char *>(data);
    while (bytes) {
        ssize_t got = read(descriptor, at, bytes);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        at += got;
        bytes -= static_cast<size_t>(got);
    }
    return true;
}

// The descriptors that are open in a child.
constexpr int from_other = 20;
constexpr int to_other = 21;
constexpr int to_parent = 22;

// twoProcesses --child NUMBER COUNT SEED
static int run_child(char **argv) {
    Program program("twoProcesses child", "one of two", "elements", 1, 1, 1);
    unsigned child = static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10));
    size_t count = std::strtoul(argv[3], nullptr, 10);
    unsigned seed = static_cast<unsigned>(std::strtoul(argv[4], nullptr, 10));

    DeviceArray<unsigned> own(count), other(count);
    std::vector<unsigned> values(count);
    make_half<<<blocks_for(count, 256), 256>>>(own.get(), child, seed, count);
    LAUNCH_CHECK();
    own.download(values.data());
    // One writes first and the other reads first: a pipe holds less than a half.
    bool exchanged = child == 0 ? write_all(to_other, values.data(), own.bytes()) : true;
    std::vector<unsigned> received(count);
    exchanged = exchanged && read_all(from_other, received.data(), own.bytes());
    exchanged = exchanged && (child == 0 || write_all(to_other, values.data(), own.bytes()));
    if (!exchanged) {
        program.die("the other process went away");
    }
    other.upload(received.data());
    combine<<<blocks_for(count, 256), 256>>>(own.get(), other.get(), child, count);
    LAUNCH_CHECK();
    own.download(values.data());
    return write_all(to_parent, values.data(), own.bytes()) ? 0 : 1;
}

static pid_t start_child(unsigned child, size_t count, unsigned seed, const int descriptors[3]) {
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    // Above the numbers that are assigned next, and closed on exec.
    int parked[3];
    for (int at = 0; at < 3; ++at) {
        parked[at] = fcntl(descriptors[at], F_DUPFD_CLOEXEC, 30);
        dup2(parked[at], from_other + at);
    }
    char number[16], elements[32], seed_text[16];
    std::snprintf(number, sizeof number, "%u", child);
    std::snprintf(elements, sizeof elements, "%zu", count);
    std::snprintf(seed_text, sizeof seed_text, "%u", seed);
    execl("/proc/self/exe", "twoProcesses", "--child", number, elements, seed_text, static_cast<char *>(nullptr));
    _exit(127);
}

static void make_pipe(Program &program, int ends[2]) {
    if (pipe2(ends, O_CLOEXEC)) {
        program.die("pipe2: %s", std::strerror(errno));
    }
}

static void run_pair(Program &program) {
    size_t count = static_cast<size_t>(program.size());
    unsigned seed = static_cast<unsigned>(program.seed());
    int zero_to_one[2], one_to_zero[2], result[2][2];
    make_pipe(program, zero_to_one);
    make_pipe(program, one_to_zero);
    make_pipe(program, result[0]);
    make_pipe(program, result[1]);
    const int of_zero[3] = {one_to_zero[0], zero_to_one[1], result[0][1]};
    const int of_one[3] = {zero_to_one[0], one_to_zero[1], result[1][1]};
    pid_t pids[2] = {start_child(0, count, seed, of_zero), start_child(1, count, seed, of_one)};
    for (int descriptor : {of_zero[0], of_zero[1], of_zero[2], of_one[0], of_one[1], of_one[2]}) {
        close(descriptor);
    }
    for (unsigned child = 0; child < 2; ++child) {
        std::vector<unsigned> got(count), want(count);
        bool arrived = pids[child] > 0 && read_all(result[child][0], got.data(), count * sizeof(unsigned));
        close(result[child][0]);
        int status = -1;
        if (pids[child] > 0) {
            while (waitpid(pids[child], &status, 0) < 0 && errno == EINTR) {
            }
        }
        if (!arrived || status != 0) {
            program.fail("process %u ended with status %#x %s its result", child, static_cast<unsigned>(status),
                         arrived ? "after" : "before");
            continue;
        }
        for (size_t at = 0; at < count; ++at) {
            want[at] = half_on_cpu(at, child, seed) * 3 + (half_on_cpu(at, 1 - child, seed) ^ (child + 1));
        }
        program.digest(got.data(), count * sizeof(unsigned));
        program.expect_equal("a process's values", got.data(), want.data(), count);
    }
}

int main(int argc, char **argv) {
    if (argc == 5 && !std::strcmp(argv[1], "--child")) {
        return run_child(argv);
    }
    Program program("twoProcesses", "computes in two processes for each other", "elements", 100000, 1, 1L << 28);
    program.parse(argc, argv);
    while (program.next_round()) {
        run_pair(program);
    }
    return program.finish();
}
