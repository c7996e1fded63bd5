"""Cases of NVIDIA's libraries through PyTorch, run in the process that is judged.

usage: cases.py [--time] [CASE...]

Prints one line of JSON for each case: its name, a digest of its results, and
with --time the median microseconds of one repetition. Seeds are fixed, and the
algorithms asked for are deterministic, so that two runs on one GPU have the same
digests. A case that fails prints its error instead.
"""

import hashlib
import json
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# pylint: disable=wrong-import-position
import torch

CASES = {}
# Repetitions in one timed batch, and batches.
REPEAT, BATCHES = 20, 9


def case(function):
    """Registers a case: a function that returns tensors, or (prepare, run)."""
    CASES[function.__name__] = function
    return function


def random(*shape, dtype=torch.float32):
    """Random numbers that do not depend on the device."""
    generator = torch.Generator().manual_seed(sum(shape) * 7919 + len(shape))
    numbers = torch.randn(*shape, generator=generator)
    return numbers.to(dtype).cuda() if dtype.is_floating_point else (numbers * 8).to(dtype).cuda()


def product(size, dtype):
    """A square product."""
    left, right = random(size, size, dtype=dtype), random(size, size, dtype=dtype).t().contiguous()
    return lambda: left @ right


@case
def gemm_fp32():
    return product(512, torch.float32)


@case
def gemm_fp64():
    return product(256, torch.float64)


@case
def gemm_fp16():
    return product(512, torch.float16)


@case
def gemm_bf16():
    return product(512, torch.bfloat16)


@case
def gemm_tf32():
    torch.backends.cuda.matmul.allow_tf32 = True
    run = product(512, torch.float32)

    def once():
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return run()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return once


@case
def gemm_int8():
    left, right = random(256, 256, dtype=torch.int8), random(256, 256, dtype=torch.int8)
    return lambda: torch._int_mm(left, right)  # pylint: disable=protected-access


@case
def gemm_fp8():
    one = torch.ones((), device="cuda")
    left = random(256, 256).to(torch.float8_e4m3fn)
    right = random(256, 256).to(torch.float8_e4m3fn).t()
    return lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # pylint: disable=protected-access


@case
def gemm_complex():
    left = torch.complex(random(192, 192), random(192, 193)[:, :192].contiguous())
    return lambda: left @ left


@case
def gemm_4096_fp32():
    return product(4096, torch.float32)


@case
def gemm_4096_fp16():
    return product(4096, torch.float16)


@case
def gemm_4096_bf16():
    return product(4096, torch.bfloat16)


@case
def gemm_64_fp32():
    return product(64, torch.float32)


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

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(data), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def digest(results):
    """A digest of tensors."""
    total = hashlib.blake2b(digest_size=12)
    for tensor in results if isinstance(results, tuple) else (results,):
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def seconds_of(run):
    """The median seconds of one repetition, each batch ended by a wait."""
    batches = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(REPEAT):
            run()
        torch.cuda.synchronize()
        batches.append((time.perf_counter() - start) / REPEAT)
    return sorted(batches)[BATCHES // 2]


def main():
    """Runs the named cases, or all."""
    arguments = sys.argv[1:]
    timed = "--time" in arguments
    names = [name for name in arguments if name != "--time"] or list(CASES)
    for name in names:
        line = {"case": name}
        start = time.perf_counter()
        try:
            run = CASES[name]()
            line["digest"] = digest(run())
            line["first_ms"] = round((time.perf_counter() - start) * 1e3, 2)
            if timed:
                for _ in range(3):
                    run()
                line["us"] = round(seconds_of(run) * 1e6, 2)
        except Exception as error:  # pylint: disable=broad-except
            line["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
