// gVirtuS's product over a cluster: C = A B, the rows of A scattered over the ranks,
// each of which multiplies its rows on its GPU.
//
//   mpirun -np RANKS mpiMatrixMul SIZE ROUNDS
//
// Rank 0 prints a line of JSON for each round: seconds from the first byte sent to the
// last one back, those of the slowest rank's GPU part in it, and a digest of C. Inputs
// are multiples of 1/16 below 1, so every sum is exact and C is compared bit for bit.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <mpi.h>

constexpr int tile = 16;

#define CHECK(call)                                                                    \
    do {                                                                               \
        cudaError_t result = (call);                                                   \
        if (result != cudaSuccess) {                                                   \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(result));            \
            MPI_Abort(MPI_COMM_WORLD, 1);                                              \
        }                                                                              \
    } while (false)

__global__ void multiply(const float *a, const float *b, float *c, int rows, int size) {
    __shared__ float tile_a[tile][tile], tile_b[tile][tile];
    int row = blockIdx.y * tile + threadIdx.y, column = blockIdx.x * tile + threadIdx.x;
    float sum = 0;
    for (int start = 0; start < size; start += tile) {
        int across = start + threadIdx.x, down = start + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < rows && across < size ? a[static_cast<size_t>(row) * size + across] : 0;
        tile_b[threadIdx.y][threadIdx.x] = down < size && column < size ? b[static_cast<size_t>(down) * size + column] : 0;
        __syncthreads();
        for (int k = 0; k < tile; ++k) {
            sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        }
        __syncthreads();
    }
    if (row < rows && column < size) {
        c[static_cast<size_t>(row) * size + column] = sum;
    }
}

// One rank's rows on its GPU; returns its seconds.
static double product(const std::vector<float> &a, const std::vector<float> &b, std::vector<float> &c, int rows, int size) {
    double begin = MPI_Wtime();
    float *device[3];
    const size_t bytes[] = {a.size() * sizeof(float), b.size() * sizeof(float), c.size() * sizeof(float)};
    for (int at = 0; at < 3; ++at) {
        CHECK(cudaMalloc(&device[at], std::max<size_t>(bytes[at], 1)));
    }
    CHECK(cudaMemcpy(device[0], a.data(), bytes[0], cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(device[1], b.data(), bytes[1], cudaMemcpyHostToDevice));
    if (rows > 0) {
        dim3 grid((size + tile - 1) / tile, (rows + tile - 1) / tile), block(tile, tile);
        multiply<<<grid, block>>>(device[0], device[1], device[2], rows, size);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaMemcpy(c.data(), device[2], bytes[2], cudaMemcpyDeviceToHost));
    for (float *memory : device) {
        CHECK(cudaFree(memory));
    }
    return MPI_Wtime() - begin;
}

static float sixteenth(uint32_t &state) {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 28) / 16;
}

// FNV-1a.
static uint64_t digest(const std::vector<float> &values) {
    uint64_t hash = 0xcbf29ce484222325u;
    auto bytes = reinterpret_cast<const unsigned char *>(values.data());
    for (size_t at = 0; at < values.size() * sizeof(float); ++at) {
        hash = (hash ^ bytes[at]) * 0x100000001b3u;
    }
    return hash;
}

// Three rows against the CPU.
static bool right(const std::vector<float> &a, const std::vector<float> &b, const std::vector<float> &c, int size) {
    for (int row : {0, size / 2, size - 1}) {
        for (int column = 0; column < size; ++column) {
            float sum = 0;
            for (int k = 0; k < size; ++k) {
                sum += a[static_cast<size_t>(row) * size + k] * b[static_cast<size_t>(k) * size + column];
            }
            if (sum != c[static_cast<size_t>(row) * size + column]) {
                return false;
            }
        }
    }
    return true;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks, size = argc > 1 ? atoi(argv[1]) : 256, rounds = argc > 2 ? atoi(argv[2]) : 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (size < 1 || size > 16384 || rounds < 1) {
        fprintf(stderr, "usage: mpiMatrixMul SIZE ROUNDS, a size of at most 16384\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }

    std::vector<int> counts(ranks), starts(ranks);
    for (int at = 0, row = 0; at < ranks; ++at) {
        int rows = size / ranks + (at < size % ranks);
        counts[at] = rows * size;
        starts[at] = row * size;
        row += rows;
    }
    const size_t whole = static_cast<size_t>(size) * size;
    std::vector<float> a(rank == 0 ? whole : 0), b(whole), c(rank == 0 ? whole : 0);
    std::vector<float> part_a(counts[rank]), part_c(counts[rank]);
    uint32_t state = 1;
    if (rank == 0) {
        std::generate(a.begin(), a.end(), [&] { return sixteenth(state); });
        std::generate(b.begin(), b.end(), [&] { return sixteenth(state); });
    }
    // A context takes longer than a small product.
    CHECK(cudaFree(nullptr));

    bool well = true;
    for (int round = 0; round < rounds; ++round) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        MPI_Scatterv(a.data(), counts.data(), starts.data(), MPI_FLOAT, part_a.data(), counts[rank], MPI_FLOAT, 0, MPI_COMM_WORLD);
        MPI_Bcast(b.data(), static_cast<int>(whole), MPI_FLOAT, 0, MPI_COMM_WORLD);
        double mine = product(part_a, b, part_c, counts[rank] / size, size), slowest = 0;
        MPI_Gatherv(part_c.data(), counts[rank], MPI_FLOAT, c.data(), counts.data(), starts.data(), MPI_FLOAT, 0, MPI_COMM_WORLD);
        double seconds = MPI_Wtime() - begin;
        MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            well = well && right(a, b, c, size);
            printf("{\"ranks\":%d,\"size\":%d,\"seconds\":%.6f,\"gpu\":%.6f,\"digest\":\"%016llx\",\"right\":%s}\n", ranks, size,
                   seconds, slowest, static_cast<unsigned long long>(digest(c)), well ? "true" : "false");
        }
    }
    MPI_Finalize();
    return well ? 0 : 1;
}
