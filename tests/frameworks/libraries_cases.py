"""NVIDIA's libraries through PyTorch: products, convolutions, transforms, solvers, NCCL.

Seeds are fixed, and the algorithms asked for are deterministic, so that two runs
on one GPU have the same digests.
"""

import ctypes
import os
import time
from functools import partial

BEGAN = time.perf_counter()

# pylint: disable=wrong-import-position
from common import CASES, case, main, repeat_products, trained

repeat_products()

import torch


def random(*shape, dtype=torch.float32):
    """Random numbers that do not depend on the device."""
    generator = torch.Generator().manual_seed(sum(shape) * 7919 + len(shape))
    numbers = torch.randn(*shape, generator=generator)
    return numbers.to(dtype).cuda() if dtype.is_floating_point else (numbers * 8).to(dtype).cuda()


def product(size, dtype):
    """A square product."""
    left, right = random(size, size, dtype=dtype), random(size, size, dtype=dtype).t().contiguous()
    return lambda: left @ right


def in_tf32(run):
    """A step that may round to TF32."""

    def once():
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return run()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return once


def integers(size):
    """A square product of bytes."""
    left, right = random(size, size, dtype=torch.int8), random(size, size, dtype=torch.int8)
    return lambda: torch._int_mm(left, right)  # pylint: disable=protected-access


def eights(size):
    """A square product of eight-bit floating-point numbers."""
    one = torch.ones((), device="cuda")
    left = random(size, size).to(torch.float8_e4m3fn)
    right = random(size, size).to(torch.float8_e4m3fn).t()
    return lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # pylint: disable=protected-access


# By type: how a product is made, and the size of the small one.
PRODUCTS = {
    "fp32": (partial(product, dtype=torch.float32), 512),
    "fp64": (partial(product, dtype=torch.float64), 256),
    "fp16": (partial(product, dtype=torch.float16), 512),
    "bf16": (partial(product, dtype=torch.bfloat16), 512),
    "tf32": (lambda size: in_tf32(product(size, torch.float32)), 512),
    "int8": (integers, 256),
    "fp8": (eights, 256),
}
for kind, (make, small) in PRODUCTS.items():
    CASES[f"gemm_{kind}"] = partial(make, small)
    CASES[f"gemm_4096_{kind}"] = partial(make, 4096)
CASES["gemm_64_fp32"] = partial(product, 64, torch.float32)


@case
def gemm_complex():
    left = torch.complex(random(192, 192), random(192, 193)[:, :192].contiguous())
    return lambda: left @ left


@case
def batched():
    left, right = random(32, 64, 96), random(32, 96, 48)
    return lambda: torch.bmm(left, right)


@case
def strided():
    left, right = random(4, 8, 64, 32)[:, ::2], random(4, 8, 32, 64)[:, ::2]
    return lambda: left @ right


@case
def epilogue():
    weight, bias, data = random(256, 128, dtype=torch.float16), random(256, dtype=torch.float16), random(64, 128, dtype=torch.float16)
    return lambda: torch.nn.functional.gelu(torch.nn.functional.linear(data, weight, bias))


@case
def captured():
    left, right = random(256, 256, dtype=torch.bfloat16), random(256, 256, dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            left @ right
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (left @ right).relu()

    def replay():
        graph.replay()
        return result

    return replay


@case
def convolution():
    torch.backends.cudnn.deterministic = True
    data, weight = random(4, 16, 32, 32), random(32, 16, 3, 3)
    return lambda: torch.nn.functional.conv2d(data, weight, padding=1)


@case
def convolution_backward():
    torch.backends.cudnn.deterministic = True
    data, weight = random(4, 16, 32, 32).requires_grad_(), random(32, 16, 3, 3).requires_grad_()

    def step():
        data.grad = weight.grad = None
        torch.nn.functional.conv2d(data, weight, padding=1).square().sum().backward()
        return data.grad, weight.grad

    return step


@case
def convolution_half():
    torch.backends.cudnn.deterministic = True
    data = random(8, 32, 28, 28, dtype=torch.float16).contiguous(memory_format=torch.channels_last)
    weight = random(64, 32, 3, 3, dtype=torch.float16)
    return lambda: torch.nn.functional.conv2d(data, weight, padding=1)


@case
def batch_norm():
    data, scale, shift = random(8, 16, 14, 14), random(16), random(16, 1)[:, 0]
    return lambda: torch.nn.functional.batch_norm(data, None, None, scale, shift, training=True)


@case
def recurrent():
    torch.manual_seed(1)
    network, data = torch.nn.LSTM(32, 48, 2).cuda(), random(12, 4, 32)
    return lambda: network(data)[0].detach()


@case
def attention():
    query, key, value = (random(2, 8, 128, 64, dtype=torch.bfloat16) for _ in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value)


@case
def fft_1d():
    data = random(64, 1024)
    return lambda: torch.fft.rfft(data)


@case
def fft_2d():
    data = random(8, 96, 120)
    return lambda: torch.fft.fft2(data)


@case
def fft_3d():
    data = random(2, 32, 30, 28)
    return lambda: torch.fft.ifftn(torch.fft.fftn(data, dim=(1, 2, 3)), dim=(1, 2, 3))


@case
def fft_small():
    data = random(4, 64)
    return lambda: torch.fft.rfft(data)


@case
def solve():
    matrix, right = random(96, 96) + 96 * torch.eye(96, device="cuda"), random(96, 4)
    return lambda: torch.linalg.solve(matrix, right)


@case
def decompositions():
    matrix = random(64, 64)
    square = matrix @ matrix.t() + 64 * torch.eye(64, device="cuda")
    return lambda: (torch.linalg.svdvals(matrix), torch.linalg.cholesky(square), torch.linalg.eigvalsh(square), torch.linalg.qr(matrix)[1])


@case
def sparse():
    dense = random(256, 256) * (random(256, 256) > 1)
    matrix, right = dense.to_sparse_csr(), random(256, 32)
    return lambda: matrix @ right


@case
def generators():
    def draw():
        torch.manual_seed(20)
        return torch.randn(4096, device="cuda"), torch.rand(4096, device="cuda"), torch.randperm(1000, device="cuda")

    return draw


@case
def sorting():
    data = random(65536)
    return lambda: (torch.sort(data)[0], torch.cumsum(data.double(), 0), torch.topk(data, 100)[0])


def communicate(run):
    """Runs with one rank of NCCL."""
    import torch.distributed as distributed  # pylint: disable=import-outside-toplevel

    if not distributed.is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")
        store = distributed.HashStore()
        distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    return run(distributed)


@case
def all_reduce():
    data = random(100_000)

    def reduce():
        copy = data.clone()
        communicate(lambda distributed: distributed.all_reduce(copy))
        return copy

    return reduce


@case
def training():
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)).cuda()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    data, target = random(256, 64), torch.arange(256, device="cuda") % 10
    return trained(optimizer, lambda: torch.nn.functional.cross_entropy(network(data), target))


@case
def convolution_small():
    torch.backends.cudnn.deterministic = True
    data, weight = random(1, 8, 16, 16), random(8, 8, 3, 3)
    return lambda: torch.nn.functional.conv2d(data, weight, padding=1)


@case
def handles():
    """Handles of cuBLAS, cuDNN and cuFFT, and a captured graph of calls of all three."""
    torch.backends.cudnn.deterministic = True
    data, weight = random(2, 4, 64, 64), random(4, 4, 3, 3)
    state = random(2, 4, 64, 64)

    def once():
        seen = torch.nn.functional.conv2d(state, weight, padding=1)
        spectrum = torch.fft.fft2(torch.tanh(seen))
        state.copy_(torch.tanh(torch.matmul(torch.fft.ifft2(spectrum).real, data)) + 0.5 * data)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()

    def step():
        once()
        graph.replay()
        return state.clone()

    return step


def asked(status):
    """Ends the case unless a function of cuBLAS returned success."""
    if status:
        raise RuntimeError(f"cuBLAS said {status}")


def cublas(name):
    """A library of cuBLAS, as the process has loaded it."""
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    with open("/proc/self/maps", encoding="utf-8") as maps:
        path = next(line.split()[-1] for line in maps if f"/{name}.so" in line)
    return ctypes.CDLL(path)


@case
def cublas_handle():
    """Creates and destroys a handle of cuBLAS."""
    library, handle = cublas("libcublas"), ctypes.c_void_p()

    def step():
        asked(library.cublasCreate_v2(ctypes.byref(handle)))
        asked(library.cublasDestroy_v2(handle))
        return torch.zeros(0)

    return step


@case
def cublas_heuristics():
    """cuBLASLt says which algorithm it would take for a product."""
    library = cublas("libcublasLt")
    handle, product_of, preference = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    layouts = [ctypes.c_void_p() for _ in range(3)]
    fp32, compute_fp32, size = 0, 68, 1024
    asked(library.cublasLtCreate(ctypes.byref(handle)))
    asked(library.cublasLtMatmulDescCreate(ctypes.byref(product_of), compute_fp32, fp32))
    for layout in layouts:
        asked(library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), fp32, *[ctypes.c_uint64(size)] * 2, ctypes.c_int64(size)))
    asked(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
    left, right, result = layouts
    # A result holds the algorithm's 64 bytes, its workspace, a status and more: 96 bytes.
    best, count = ctypes.create_string_buffer(96), ctypes.c_int()

    def step():
        asked(
            library.cublasLtMatmulAlgoGetHeuristic(
                handle, product_of, left, right, result, result, preference, 1, best, ctypes.byref(count)
            )
        )
        return torch.frombuffer(bytearray(best.raw[:64]), dtype=torch.uint8)

    return step


if __name__ == "__main__":
    main(torch.cuda.synchronize, BEGAN)
