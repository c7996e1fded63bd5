"""CuPy and Numba: arrays, libraries, kernels compiled at run time."""

import time

BEGAN = time.perf_counter()

# pylint: disable=wrong-import-position,import-outside-toplevel
import cupy
import numpy

from common import case, main


def numbers(*shape):
    """Numbers that depend on the shape alone."""
    return cupy.asarray(numpy.random.default_rng(sum(shape)).standard_normal(shape, dtype=numpy.float32))


@case
def fft_and_sort():
    """A pipeline of FFT, magnitude and sort."""
    signal = numbers(64, 16384)
    return lambda: cupy.sort(cupy.abs(cupy.fft.rfft(signal)), axis=1)[:, ::64]


@case
def reductions():
    """Sums and scans, with and without CUB."""
    table = numbers(1000, 1000)
    return lambda: (table.sum(), table.max(0), cupy.cumsum(table[0]), table.argmin(1))


@case
def products():
    """Products and a solution."""
    matrix = numbers(512, 512)
    return lambda: (matrix @ matrix, cupy.linalg.solve(matrix + 512 * cupy.eye(512, dtype=cupy.float32), matrix[0]))


@case
def raw_kernel():
    """A kernel from source, through NVRTC."""
    source = r"""extern "C" __global__ void wave(const float *x, float *y, int n) {
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        if (i < n) y[i] = __sinf(x[i]) * x[(i + 1) % n];
    }"""
    kernel = cupy.RawKernel(source, "wave")
    values = numbers(1 << 20)

    def step():
        out = cupy.empty_like(values)
        kernel((4096,), (256,), (values, out, numpy.int32(values.size)))
        return out

    return step


@case
def sparse_product():
    """A sparse matrix by a dense one."""
    from cupyx.scipy import sparse

    dense = numbers(512, 512)
    matrix = sparse.csr_matrix(dense * (dense > 1))
    return lambda: matrix @ dense


@case
def numba_kernel():
    """A kernel that Numba compiles."""
    from numba import cuda

    @cuda.jit
    def add(left, right, out):
        at = cuda.grid(1)
        if at < out.size:
            out[at] = left[at] + 2 * right[at]

    values = numpy.arange(100_000, dtype=numpy.float32)

    def step():
        out = cuda.device_array_like(values)
        add[400, 256](cuda.to_device(values), cuda.to_device(values[::-1].copy()), out)
        return out.copy_to_host()

    return step


if __name__ == "__main__":
    main(cupy.cuda.runtime.deviceSynchronize, BEGAN)
