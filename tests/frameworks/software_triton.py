"""Triton's kernels on the software GPU, compared with PyTorch's results on the CPU.

usage: software_triton.py CASE...
"""

import torch

# Before Triton asks: it knows no architecture above 12.1.
torch.cuda.get_device_capability = lambda device=None: (12, 1)

# pylint: disable=wrong-import-position
import triton_kernels
from software_torch import CASES, case, close, here, main, there

CASES.clear()


@case
def softmax():
    """A row each program."""
    rows = torch.randn(16, 100).half()
    close(here(triton_kernels.softmax(there(rows))).float(), rows.float().softmax(1), 1e-3)
    return {}


@case
def product():
    """`tl.dot`: matrix instructions."""
    left, right = torch.randn(128, 128).half(), torch.randn(128, 128).half()
    close(here(triton_kernels.product(there(left), there(right))).float(), left.float() @ right.float(), 2e-2)
    return {}


@case
def described_product():
    """Descriptors of tensors: copies by tensor maps, partly outside."""
    left, right = torch.randn(96, 72).half(), torch.randn(72, 80).half()
    product = triton_kernels.described_product(there(left), there(right))
    close(here(product).float(), left.float() @ right.float(), 2e-2)
    return {}


def scaled(values, factors):
    """Rows of values, with a factor for each 32."""
    return values * (2.0 ** (factors.float() - 127)).repeat_interleave(32, 1)


@case
def scaled_product():
    """`tl.dot_scaled` of e4m3, and of e2m1."""
    factors = [torch.randint(124, 130, (128, 4), dtype=torch.uint8) for _ in range(2)]
    left, right = (torch.randn(128, 128).to(torch.float8_e4m3fn) for _ in range(2))
    product = triton_kernels.scaled_product(
        there(left), there(factors[0]), there(right), there(factors[1]), "e4m3"
    )
    close(here(product), scaled(left.float(), factors[0]) @ scaled(right.float().T, factors[1]).T, 1e-2)
    e2m1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    left, right = (torch.randint(0, 256, shape, dtype=torch.uint8) for shape in [(128, 64), (64, 128)])
    pairs = [torch.stack([e2m1[(each & 15).long()], e2m1[(each >> 4).long()]], 1) for each in (left.T, right)]
    product = triton_kernels.scaled_product(
        there(left), there(factors[0]), there(right), there(factors[1]), "e2m1"
    )
    left, right = (each.reshape(128, 128).T for each in pairs)
    close(here(product), scaled(left, factors[0]) @ scaled(right, factors[1]).T, 1e-2)
    return {}


@case
def attention():
    """Fused attention."""
    parts = [torch.randn(1, 2, 128, 64).half() for _ in range(3)]
    expected = torch.nn.functional.scaled_dot_product_attention(*(part.float() for part in parts))
    close(here(triton_kernels.attention(*map(there, parts))).float(), expected, 2e-3)
    return {}


if __name__ == "__main__":
    main()
