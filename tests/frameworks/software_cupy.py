"""Stock CuPy and Numba on the software GPU, compared with numpy.

usage: software_cupy.py CASE...

CuPy compiles to PTX with CUPY_COMPILE_WITH_PTX=1. Prints a line of JSON for each
case.
"""

import json
import re
import sys
import tempfile
import time

import cupy
import numpy

CASES = {}


def case(function):
    """Registers a case."""
    CASES[function.__name__] = function
    return function


def numbers(*shape):
    """Numbers on the CPU and the same on the GPU."""
    values = numpy.random.default_rng(sum(shape)).standard_normal(shape, dtype=numpy.float32)
    return values, cupy.asarray(values)


def close(found, expected, tolerance=1e-4):
    """Fails where results differ."""
    numpy.testing.assert_allclose(cupy.asnumpy(found), expected, rtol=tolerance, atol=tolerance)


@case
def elementwise():
    """Creation, arithmetic, indices."""
    here, there = numbers(64, 100)
    close(there + there * 2, here + here * 2)
    close(cupy.exp(there), numpy.exp(here))
    close(cupy.where(there > 0, there, -there), abs(here), 0)
    close(there[cupy.asarray([3, 1])], here[[3, 1]], 0)
    close(cupy.arange(7) * 2 - cupy.ones(7), numpy.arange(7) * 2 - numpy.ones(7), 0)


@case
def reductions():
    """With CUB."""
    here, there = numbers(64, 100)
    close(there.sum(), here.sum(), 1e-3)
    close(there.sum(0), here.sum(0), 1e-3)
    close(there.max(1), here.max(1), 0)
    close(there.argmin(1), here.argmin(1), 0)
    close(cupy.cumsum(there[0]), numpy.cumsum(here[0]), 1e-3)


@case
def sorting():
    """Sorts, orders, finds unique elements."""
    here, there = numbers(16, 200)
    close(cupy.sort(there, axis=1), numpy.sort(here, axis=1), 0)
    close(cupy.argsort(there[0]), numpy.argsort(here[0]), 0)
    close(cupy.unique(cupy.asarray([3, 1, 3, 2])), [1, 2, 3], 0)


@case
def products():
    """cuBLAS."""
    here, there = numbers(60, 90)
    close(there @ there.T, here @ here.T, 1e-3)
    close(cupy.einsum("ij,kj->ik", there, there), here @ here.T, 1e-3)


@case
def transforms():
    """cuFFT."""
    here, there = numbers(8, 96)
    close(cupy.fft.fft(there), numpy.fft.fft(here), 1e-3)


@case
def algebra():
    """cuSOLVER."""
    here, there = numbers(32, 32)
    close(
        cupy.linalg.solve(there + 32 * cupy.eye(32, dtype="f"), there[0]),
        numpy.linalg.solve(here + 32 * numpy.eye(32, dtype="f"), here[0]),
    )
    close(cupy.linalg.svd(there, compute_uv=False), numpy.linalg.svd(here, compute_uv=False), 1e-3)


@case
def sparse():
    """cuSPARSE."""
    from cupyx.scipy import sparse as matrices  # pylint: disable=import-outside-toplevel

    here, there = numbers(32, 40)
    close(matrices.csr_matrix(there * (there > 1)) @ there.T, (here * (here > 1)) @ here.T, 1e-3)


@case
def raw_kernel():
    """A kernel from source, through NVRTC."""
    source = r"""extern "C" __global__ void wave(const float *x, float *y, int n) {
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        if (i < n) y[i] = sinf(x[i]) * x[(i + 1) % n];
    }"""
    here, there = numbers(1000)
    out = cupy.empty_like(there)
    cupy.RawKernel(source, "wave")((4,), (256,), (there, out, numpy.int32(1000)))
    close(out, numpy.sin(here) * numpy.roll(here, -1))


@case
def numba_kernel():
    """Numba's compiler makes PTX, which is loaded as such; its linker makes machine code."""
    from numba import cuda, types  # pylint: disable=import-outside-toplevel

    def add(left, right, out, count):
        at = cuda.grid(1)  # pylint: disable=no-value-for-parameter
        if at < count:
            out[at] = left[at] + 2 * right[at]

    floats = types.CPointer(types.float32)
    ptx, _ = cuda.compile_ptx(add, (floats, floats, floats, types.int32), cc=(8, 0))
    here, there = numbers(1000)
    out = cupy.empty_like(there)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        kernel = cupy.RawModule(path=file.name).get_function(re.search(r"\.entry (\w+)", ptx)[1])
        kernel((4,), (256,), (there, there[::-1].copy(), out, numpy.int32(1000)))
    close(out, here + 2 * here[::-1])


def main():
    """Runs the named cases, or all."""
    for name in sys.argv[1:] or CASES:
        begin = time.monotonic()
        line = {"case": name}
        try:
            CASES[name]()
        except Exception as error:  # pylint: disable=broad-except
            line["error_of_case"] = f"{type(error).__name__}: {str(error).strip()[:600]}"
        line["seconds"] = round(time.monotonic() - begin, 1)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
