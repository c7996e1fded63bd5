"""Prints when the result of PyTorch's first kernel is there, on the clock that all
processes of the machine share, as `overheads first_result` does.
"""

import json
import time

import torch

numbers = torch.arange(1000, device="cuda")
total = (numbers + numbers).sum().item()
now = time.monotonic()
if total != 999000:
    raise SystemExit(f"the first kernels computed {total}, not 999000")
print(json.dumps({"name": "first_kernel", "unit": "s", "value": now}))
