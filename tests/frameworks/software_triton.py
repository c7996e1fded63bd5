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
def attention():
    """Fused attention."""
    parts = [torch.randn(1, 2, 128, 64).half() for _ in range(3)]
    expected = torch.nn.functional.scaled_dot_product_attention(*(part.float() for part in parts))
    close(here(triton_kernels.attention(*map(there, parts))).float(), expected, 2e-3)
    return {}


if __name__ == "__main__":
    main()
