// The kernels of driverApi, which embeds their PTX as text.

struct Pair {
    int first;
    float second;
};

extern "C" {

__device__ int offset = 5;
__device__ unsigned history[16];
__constant__ float factor = 1.0f;

__global__ void scale_and_add(float *to, const float *from, float scale, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        to[at] = from[at] * scale * factor + static_cast<float>(offset);
    }
}

// Parameters of every size and alignment: 1, 2, 4, 8 bytes and a structure.
__global__ void gather_parameters(long long *to, char c, double d, short s, Pair pair, long long l, unsigned char u) {
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        to[0] = c;
        to[1] = static_cast<long long>(d * 8);
        to[2] = s;
        to[3] = pair.first;
        to[4] = static_cast<long long>(pair.second * 8);
        to[5] = l;
        to[6] = u;
    }
}

__global__ void where_am_i(unsigned *to) {
    extern __shared__ unsigned shared[];
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    shared[threads - 1 - thread] = block * threads + thread;
    __syncthreads();
    to[block * threads + thread] = shared[thread];
    if (thread == 0) {
        atomicAdd(&history[block % 16], 1u);
    }
}
}
