// interprocess: two processes of one program that share device memory and events.
//
// The parent starts itself again (fork and exec, before any CUDA call). It passes
// memory, an event, a pool and memory of that pool to the child; the child passes an
// event back. Both then alternate in kernels on the same memory, ordered by the
// events. Forged handles and the process's own handles must be refused.

#include "common/check.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

constexpr unsigned turns = 100;
constexpr int channel_of_child = 20;

__global__ void fill(unsigned *values, unsigned seed, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = (static_cast<unsigned>(at) + seed) * 2654435761u;
    }
}

__global__ void turn(unsigned *values, unsigned factor, unsigned number, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = values[at] * factor + number;
    }
}

static unsigned on_cpu(size_t at, unsigned seed) {
    unsigned value = (static_cast<unsigned>(at) + seed) * 2654435761u;
    for (unsigned number = 0; number < turns; ++number) {
        value = value * 3 + number;
        value = value * 5 + number;
    }
    return value;
}

/// Sends bytes, and a descriptor if there is one.
static void send_message(Program &program, int channel, const void *data, size_t bytes, int descriptor = -1) {
    iovec part = {const_cast<void *>(data), bytes};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
        message.msg_control = space;
        message.msg_controllen = sizeof space;
        cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    if (sendmsg(channel, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) {
        program.die("sendmsg: %s", std::strerror(errno));
    }
}

/// Receives the message; returns its descriptor, or -1.
static int receive_message(Program &program, int channel, void *data, size_t bytes) {
    iovec part = {data, bytes};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    if (recvmsg(channel, &message, 0) != static_cast<ssize_t>(bytes)) {
        program.die("the other process went away");
    }
    int descriptor = -1;
    if (cmsghdr *header = CMSG_FIRSTHDR(&message)) {
        std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    }
    return descriptor;
}

struct Greeting {
    size_t count;
    cudaIpcMemHandle_t memory;
    cudaIpcMemHandle_t small;
    cudaIpcEventHandle_t done;
    cudaMemPoolPtrExportData of_pool;
};

static int run_child() {
    Program program("interprocess child", "one of two", "elements", 1, 1, 1);
    Greeting greeting;
    int descriptor = receive_message(program, channel_of_child, &greeting, sizeof greeting);
    unsigned *values = nullptr, *again = nullptr, *small = nullptr;
    CUDA_CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&values), greeting.memory, cudaIpcMemLazyEnablePeerAccess));
    CUDA_CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&again), greeting.memory, cudaIpcMemLazyEnablePeerAccess));
    program.expect(values == again, "memory that was opened twice has two addresses");
    CUDA_CHECK(cudaIpcCloseMemHandle(again));
    CUDA_CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&small), greeting.small, cudaIpcMemLazyEnablePeerAccess));
    cudaPointerAttributes attributes;
    CUDA_CHECK(cudaPointerGetAttributes(&attributes, values));
    program.expect(attributes.type == cudaMemoryTypeDevice, "memory of another process is not device memory");

    cudaEvent_t parents = nullptr, own = nullptr;
    CUDA_CHECK(cudaIpcOpenEventHandle(&parents, greeting.done));
    CUDA_CHECK(cudaEventCreateWithFlags(&own, cudaEventDisableTiming | cudaEventInterprocess));
    cudaIpcEventHandle_t handle;
    program.expect(cudaIpcGetEventHandle(&handle, parents) == cudaErrorInvalidResourceHandle,
                   "an event of another process could be shared");
    CUDA_CHECK(cudaIpcGetEventHandle(&handle, own));
    send_message(program, channel_of_child, &handle, sizeof handle);

    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (unsigned number = 0; number < turns; ++number) {
        char word = 0;
        receive_message(program, channel_of_child, &word, 1);
        CUDA_CHECK(wait_event(stream, parents));
        turn<<<blocks_for(greeting.count, 256), 256, 0, stream>>>(values, 5, number, greeting.count);
        CUDA_CHECK(cudaEventRecord(own, stream));
        send_message(program, channel_of_child, &word, 1);
    }
    CUDA_CHECK(cudaEventSynchronize(own));
    program.expect(cudaEventQuery(own) == cudaSuccess, "an event is not complete after it was waited for");
    unsigned mark = 0;
    CUDA_CHECK(cudaMemcpy(&mark, small, sizeof mark, cudaMemcpyDeviceToHost));
    program.expect_equal("the mark", mark, 4711u);

    cudaMemPool_t pool = nullptr;
    CUDA_CHECK(cudaMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void *>(static_cast<intptr_t>(descriptor)),
                                                    cudaMemHandleTypePosixFileDescriptor, 0));
    close(descriptor);
    unsigned *of_pool = nullptr;
    CUDA_CHECK(cudaMemPoolImportPointer(reinterpret_cast<void **>(&of_pool), pool, &greeting.of_pool));
    CUDA_CHECK(cudaMemcpy(&mark, of_pool, sizeof mark, cudaMemcpyDeviceToHost));
    program.expect_equal("the pool's mark", mark, 4712u);
    CUDA_CHECK(cudaFreeAsync(of_pool, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaMemPoolDestroy(pool));

    CUDA_CHECK(cudaIpcCloseMemHandle(values));
    CUDA_CHECK(cudaIpcCloseMemHandle(small));
    program.expect(cudaIpcCloseMemHandle(small) != cudaSuccess, "closed memory could be closed again");
    cudaGetLastError();
    CUDA_CHECK(cudaEventDestroy(parents));
    CUDA_CHECK(cudaEventDestroy(own));
    CUDA_CHECK(cudaStreamDestroy(stream));
    char word = program.failed() ? 1 : 0;
    send_message(program, channel_of_child, &word, 1);
    // The parent frees the shared memory once it has received this.
    receive_message(program, channel_of_child, &word, 1);
    return program.failed() ? 1 : 0;
}

static pid_t start_child(int channel) {
    pid_t pid = fork();
    if (pid == 0) {
        dup2(channel, channel_of_child);
        execl("/proc/self/exe", "interprocess", "--child", static_cast<char *>(nullptr));
        _exit(127);
    }
    return pid;
}

static void refusals(Program &program, const Greeting &greeting, void *memory) {
    void *place = nullptr;
    cudaIpcMemHandle_t forged = {};
    program.expect(cudaIpcOpenMemHandle(&place, forged, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess,
                   "a forged handle was accepted");
    program.expect(cudaIpcOpenMemHandle(&place, greeting.memory, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess,
                   "a process could open its own memory");
    program.expect(cudaIpcCloseMemHandle(memory) != cudaSuccess, "a process could close its own memory");
    cudaEvent_t timed = nullptr;
    CUDA_CHECK(cudaEventCreate(&timed));
    cudaIpcEventHandle_t handle;
    program.expect(cudaIpcGetEventHandle(&handle, timed) != cudaSuccess, "an event without the interprocess flag could be shared");
    CUDA_CHECK(cudaEventDestroy(timed));
    program.expect(cudaEventCreateWithFlags(&timed, cudaEventInterprocess) == cudaErrorInvalidValue,
                   "a shared event with timing could be created");
    int host = 0;
    cudaIpcMemHandle_t none;
    program.expect(cudaIpcGetMemHandle(&none, &host) != cudaSuccess, "host memory has a handle");
    cudaGetLastError();
}

static void run_parent(Program &program, int channel) {
    size_t count = static_cast<size_t>(program.size());
    Greeting greeting = {};
    greeting.count = count;
    unsigned *values = nullptr, *small = nullptr, *of_pool = nullptr;
    CUDA_CHECK(cudaMalloc(&values, count * sizeof *values));
    CUDA_CHECK(cudaMalloc(&small, sizeof *small));
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    fill<<<blocks_for(count, 256), 256, 0, stream>>>(values, static_cast<unsigned>(program.seed()), count);
    unsigned mark = 4711;
    CUDA_CHECK(cudaMemcpy(small, &mark, sizeof mark, cudaMemcpyHostToDevice));
    cudaEvent_t own = nullptr, childs = nullptr;
    CUDA_CHECK(cudaEventCreateWithFlags(&own, cudaEventDisableTiming | cudaEventInterprocess));
    // Recorded before the event is shared.
    CUDA_CHECK(cudaEventRecord(own, stream));
    CUDA_CHECK(cudaIpcGetMemHandle(&greeting.memory, values));
    CUDA_CHECK(cudaIpcGetMemHandle(&greeting.small, small));
    CUDA_CHECK(cudaIpcGetEventHandle(&greeting.done, own));

    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool = nullptr;
    CUDA_CHECK(cudaMemPoolCreate(&pool, &properties));
    CUDA_CHECK(cudaMallocFromPoolAsync(reinterpret_cast<void **>(&of_pool), sizeof *of_pool, pool, stream));
    mark = 4712;
    CUDA_CHECK(cudaMemcpyAsync(of_pool, &mark, sizeof mark, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    int descriptor = -1;
    CUDA_CHECK(cudaMemPoolExportToShareableHandle(&descriptor, pool, cudaMemHandleTypePosixFileDescriptor, 0));
    CUDA_CHECK(cudaMemPoolExportPointer(&greeting.of_pool, of_pool));
    refusals(program, greeting, values);
    send_message(program, channel, &greeting, sizeof greeting, descriptor);
    close(descriptor);

    cudaIpcEventHandle_t handle;
    receive_message(program, channel, &handle, sizeof handle);
    CUDA_CHECK(cudaIpcOpenEventHandle(&childs, handle));
    for (unsigned number = 0; number < turns; ++number) {
        char word = 0;
        turn<<<blocks_for(count, 256), 256, 0, stream>>>(values, 3, number, count);
        CUDA_CHECK(cudaEventRecord(own, stream));
        send_message(program, channel, &word, 1);
        receive_message(program, channel, &word, 1);
        CUDA_CHECK(wait_event(stream, childs));
    }
    std::vector<unsigned> got(count), want(count);
    CUDA_CHECK(cudaMemcpyAsync(got.data(), values, count * sizeof *values, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    for (size_t at = 0; at < count; ++at) {
        want[at] = on_cpu(at, static_cast<unsigned>(program.seed()));
    }
    program.digest(got.data(), count * sizeof(unsigned));
    program.expect_equal("values", got.data(), want.data(), count);
    char word = 1;
    receive_message(program, channel, &word, 1);
    program.expect(word == 0, "the child found an error");
    CUDA_CHECK(cudaEventDestroy(childs));
    send_message(program, channel, &word, 1);
    CUDA_CHECK(cudaEventDestroy(own));
    CUDA_CHECK(cudaFree(values));
    CUDA_CHECK(cudaFree(small));
    CUDA_CHECK(cudaFreeAsync(of_pool, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaMemPoolDestroy(pool));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    if (argc == 2 && !std::strcmp(argv[1], "--child")) {
        return run_child();
    }
    Program program("interprocess", "shares memory and events with another process", "elements", 100000, 1, 1L << 28);
    program.parse(argc, argv);
    // Forked before CUDA is used: a later child would inherit this process's CUDA state.
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
        program.die("socketpair: %s", std::strerror(errno));
    }
    pid_t pid = start_child(ends[1]);
    close(ends[1]);
    if (program.next_round()) {
        run_parent(program, ends[0]);
    }
    close(ends[0]);
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    program.expect(status == 0, "the child failed");
    return program.finish();
}
