// Kernels that the example `rates` times: see rates.rs.

#define TILE 64
#define DEPTH 16

// c = a b, all of n × n: tiles of 64 × 64 in shared memory, 4 × 4 a thread.
extern "C" __global__ void __launch_bounds__(256) gemm(const float *a, const float *b, float *c, int n)
{
	__shared__ float left[DEPTH][TILE + 4], right[DEPTH][TILE];
	int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
	int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
	float sum[4][4] = {};
	for (int k = 0; k < n; k += DEPTH) {
		for (int at = threadIdx.x; at < TILE * DEPTH; at += 256) {
			left[at % DEPTH][at / DEPTH] = a[(row + at / DEPTH) * n + k + at % DEPTH];
			right[at / TILE][at % TILE] = b[(k + at / TILE) * n + column + at % TILE];
		}
		__syncthreads();
		for (int depth = 0; depth < DEPTH; depth++) {
			float x[4], y[4];
			for (int i = 0; i < 4; i++) {
				x[i] = left[depth][ty * 4 + i];
				y[i] = right[depth][tx * 4 + i];
			}
			for (int i = 0; i < 4; i++)
				for (int j = 0; j < 4; j++)
					sum[i][j] += x[i] * y[j];
		}
		__syncthreads();
	}
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 4; j++)
			c[(row + ty * 4 + i) * n + column + tx * 4 + j] = sum[i][j];
}

// 3 × 3 convolution with zeros around, channels first.
extern "C" __global__ void convolution(const float *in, const float *weights, float *out, int channels, int filters, int size)
{
	int at = blockIdx.x * blockDim.x + threadIdx.x;
	if (at >= filters * size * size)
		return;
	int x = at % size, y = at / size % size, filter = at / size / size;
	float sum = 0;
	for (int channel = 0; channel < channels; channel++)
		for (int dy = -1; dy <= 1; dy++)
			for (int dx = -1; dx <= 1; dx++)
				if (y + dy >= 0 && y + dy < size && x + dx >= 0 && x + dx < size)
					sum += in[(channel * size + y + dy) * size + x + dx] *
					       weights[(filter * channels + channel) * 9 + dy * 3 + dx + 4];
	out[at] = sum;
}

// Four elements a thread, as frameworks do it: scaled sum and the tanh form of GELU.
extern "C" __global__ void elementwise(const float4 *a, const float4 *b, float4 *out, int n)
{
	int at = blockIdx.x * blockDim.x + threadIdx.x;
	if (at >= n)
		return;
	float4 x = a[at], y = b[at], z;
	float *p = &x.x, *q = &y.x, *r = &z.x;
	for (int i = 0; i < 4; i++) {
		float v = p[i] + 0.5f * q[i];
		float inner = 0.79788456f * (v + 0.044715f * v * v * v);
		float e = __expf(2 * inner);
		r[i] = v * e / (e + 1);
	}
	out[at] = z;
}

// Sums of rows: strided loads, shuffles, shared memory.
extern "C" __global__ void reduction(const float *in, float *out, int width)
{
	__shared__ float parts[32];
	const float *row = in + (long)blockIdx.x * width;
	float sum = 0;
	for (int at = threadIdx.x; at < width; at += blockDim.x)
		sum += row[at];
	for (int distance = 16; distance; distance /= 2)
		sum += __shfl_down_sync(~0u, sum, distance);
	if (threadIdx.x % 32 == 0)
		parts[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x < 32) {
		sum = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
		for (int distance = 16; distance; distance /= 2)
			sum += __shfl_down_sync(~0u, sum, distance);
		if (threadIdx.x == 0)
			out[blockIdx.x] = sum;
	}
}
