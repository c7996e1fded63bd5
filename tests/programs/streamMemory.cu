// streamMemory: streams that write words and wait for words.
//
// Two streams that alternate by words in device memory, every condition, batches,
// captures into graphs, graph nodes and their updates; and refused calls.

#include "common/driver.h"

#include <vector>

__global__ void append(unsigned *log, unsigned *count, unsigned value) {
    log[*count] = value;
    *count += 1;
}

static CUdeviceptr address(unsigned *word) { return reinterpret_cast<CUdeviceptr>(word); }

static CUstreamBatchMemOpParams wait(unsigned *word, unsigned value, unsigned flags) {
    CUstreamBatchMemOpParams params = {};
    params.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    params.waitValue.address = address(word);
    params.waitValue.value = value;
    params.waitValue.flags = flags;
    return params;
}

static CUstreamBatchMemOpParams write(unsigned *word, unsigned value) {
    CUstreamBatchMemOpParams params = {};
    params.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    params.writeValue.address = address(word);
    params.writeValue.value = value;
    params.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    return params;
}

// Two streams, each of which waits for the other's last word.
static void run_turns(Program &program, unsigned turns, cudaStream_t streams[2]) {
    unsigned *words, *log, *count;
    CUDA_CHECK(cudaMalloc(&words, 2 * sizeof(unsigned)));
    CUDA_CHECK(cudaMalloc(&log, 2 * turns * sizeof(unsigned)));
    CUDA_CHECK(cudaMalloc(&count, sizeof(unsigned)));
    CUDA_CHECK(cudaMemset(words, 0, 2 * sizeof(unsigned)));
    CUDA_CHECK(cudaMemset(count, 0, sizeof(unsigned)));
    CUDA_CHECK(cudaDeviceSynchronize());
    for (unsigned turn = 1; turn <= turns; ++turn) {
        append<<<1, 1, 0, streams[0]>>>(log, count, turn * 2);
        LAUNCH_CHECK();
        DRIVER_CHECK(cuStreamWriteValue32, streams[0], address(words), turn, 0);
        DRIVER_CHECK(cuStreamWaitValue32, streams[0], address(words + 1), turn, CU_STREAM_WAIT_VALUE_GEQ);
        DRIVER_CHECK(cuStreamWaitValue32, streams[1], address(words), turn, CU_STREAM_WAIT_VALUE_GEQ);
        append<<<1, 1, 0, streams[1]>>>(log, count, turn * 2 + 1);
        LAUNCH_CHECK();
        DRIVER_CHECK(cuStreamWriteValue32, streams[1], address(words + 1), turn, 0);
    }
    CUDA_CHECK(cudaStreamSynchronize(streams[0]));
    CUDA_CHECK(cudaStreamSynchronize(streams[1]));
    std::vector<unsigned> got(2 * turns), want;
    for (unsigned at = 0; at < 2 * turns; ++at) {
        want.push_back(at + 2);
    }
    CUDA_CHECK(cudaMemcpy(got.data(), log, got.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect_equal("turns of two streams", got.data(), want.data(), got.size());
    program.digest(got.data(), got.size() * sizeof(unsigned));
    CUDA_CHECK(cudaFree(words));
    CUDA_CHECK(cudaFree(log));
    CUDA_CHECK(cudaFree(count));
}

// Conditions in a batch, all of them already met.
static void run_conditions(Program &program, cudaStream_t stream) {
    unsigned *words;
    CUDA_CHECK(cudaMalloc(&words, 64));
    CUDA_CHECK(cudaMemset(words, 0, 64));
    CUDA_CHECK(cudaDeviceSynchronize());
    CUstreamBatchMemOpParams batch[] = {
        write(words, 0xfffffff0u),
        // Numbers wrap around: the word is not below the value.
        wait(words, 0xffffff00u, CU_STREAM_WAIT_VALUE_GEQ),
        wait(words, 0xfffffff0u, CU_STREAM_WAIT_VALUE_EQ),
        wait(words, 0x10u, CU_STREAM_WAIT_VALUE_AND),
        write(words + 1, 7),
    };
    DRIVER_CHECK(cuStreamBatchMemOp, stream, 5, batch, 0);
    int nor = 0, wide = 0, device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    DRIVER_CHECK(cuDeviceGetAttribute, &nor, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, device);
    DRIVER_CHECK(cuDeviceGetAttribute, &wide, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device);
    if (nor) {
        DRIVER_CHECK(cuStreamWaitValue32, stream, address(words + 1), 0xfu, CU_STREAM_WAIT_VALUE_NOR);
    }
    if (wide) {
        DRIVER_CHECK(cuStreamWriteValue64, stream, address(words + 4), 0x1234567890ull, 0);
        DRIVER_CHECK(cuStreamWaitValue64, stream, address(words + 4), 0x1234567890ull, CU_STREAM_WAIT_VALUE_EQ);
    }
    unsigned got[8] = {}, want[8] = {0xfffffff0u, 7, 0, 0, 0x34567890u, 0x12};
    if (!wide) {
        want[4] = want[5] = 0;
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaMemcpy(got, words, sizeof got, cudaMemcpyDeviceToHost));
    program.expect_equal("words that were written", got, want, 8);
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32, stream, address(words) + 2, 1, 0);
    DRIVER_CHECK(cuStreamBatchMemOp, stream, 0, batch, 0);
    CUDA_CHECK(cudaFree(words));
}

// Captured once, launched often; then as a node that is updated.
static void run_graphs(Program &program, cudaStream_t stream) {
    unsigned *words;
    CUDA_CHECK(cudaMalloc(&words, 64));
    CUDA_CHECK(cudaMemset(words, 0, 64));
    CUDA_CHECK(cudaDeviceSynchronize());
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    DRIVER_CHECK(cuStreamWriteValue32, stream, address(words), 5, 0);
    DRIVER_CHECK(cuStreamWaitValue32, stream, address(words), 5, CU_STREAM_WAIT_VALUE_EQ);
    append<<<1, 1, 0, stream>>>(words + 2, words + 1, 9);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int launch = 0; launch < 3; ++launch) {
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    unsigned got[5] = {}, want[5] = {5, 3, 9, 9, 9};
    CUDA_CHECK(cudaMemcpy(got, words, sizeof got, cudaMemcpyDeviceToHost));
    program.expect_equal("a captured batch", got, want, 5);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));

    CUstreamBatchMemOpParams batch[] = {write(words, 11), wait(words, 11, CU_STREAM_WAIT_VALUE_EQ)};
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {};
    DRIVER_CHECK(cuCtxGetCurrent, &params.ctx);
    params.count = 2;
    params.paramArray = batch;
    CUgraphNode node;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    DRIVER_CHECK(cuGraphAddBatchMemOpNode, &node, graph, nullptr, 0, &params);
    CUDA_BATCH_MEM_OP_NODE_PARAMS had = {};
    DRIVER_CHECK(cuGraphBatchMemOpNodeGetParams, node, &had);
    if (had.count != 2 || had.paramArray[0].writeValue.value != 11 ||
        had.paramArray[1].operation != CU_STREAM_MEM_OP_WAIT_VALUE_32) {
        program.fail("a node has other operations than it was given");
    }
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaMemcpy(got, words, sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect(got[0] == 11u, "a node wrote a different word");
    batch[0].writeValue.value = batch[1].waitValue.value = 13;
    DRIVER_CHECK(cuGraphExecBatchMemOpNodeSetParams, exec, node, &params);
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaMemcpy(got, words, sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect(got[0] == 13u, "a changed node wrote a different word");
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFree(words));
}

int main(int argc, char **argv) {
    Program program("streamMemory", "streams write words and wait for words", "turns of two streams", 100, 1, 100000);
    program.parse(argc, argv);
    CUDA_CHECK(cudaFree(nullptr));
    cudaStream_t streams[2];
    for (cudaStream_t &stream : streams) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    while (program.next_round()) {
        run_turns(program, static_cast<unsigned>(program.size()), streams);
        run_conditions(program, streams[0]);
        run_graphs(program, streams[1]);
    }
    return program.finish();
}
