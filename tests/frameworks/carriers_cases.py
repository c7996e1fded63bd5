"""Wheels that carry a CUDA runtime of their own, from folders that TEST_CARRIERS names.

Each wheel is installed into a folder of its own in that one (`pip install --no-deps --target`):
any number of desilofhe-cu121 to -cu134, which carry the static runtime of each release, and of
which each is a case; kedm-cuda13x, which carries the shared one; custatevec-cu13.
"""

import ctypes
import functools
import glob
import json
import os
import subprocess
import sys
import time

BEGAN = time.perf_counter()

# pylint: disable=wrong-import-position,import-outside-toplevel
import numpy

from common import CASES, case, main

# Products of encrypted numbers. The noise of encryption is far below the printed digits.
ENCRYPTED = """
import json
from desilofhe import Engine
engine = Engine(mode="gpu", max_level=3)
secret = engine.create_secret_key()
public, relinearization = engine.create_public_key(secret), engine.create_relinearization_key(secret)
left, right = engine.encrypt([1, 2, 3.5], public), engine.encrypt([4, 5, 6], public)
product = engine.decrypt(engine.multiply(left, right, relinearization), secret)[:3]
print(json.dumps([round(float(number), 3) for number in product]))
"""
# CUDA_C_64F, and the layout of a matrix by rows.
COMPLEX, BY_ROWS = 5, 0
QUBITS = 12


def folders(pattern):
    """Folders in which a file of a pattern is installed."""
    base = os.environ.get("TEST_CARRIERS", "")
    return sorted(path for path in glob.glob(os.path.join(base, "*")) if glob.glob(os.path.join(path, pattern)))


def installed(pattern):
    """The first of them."""
    found = folders(pattern)
    if not found:
        raise FileNotFoundError(f"TEST_CARRIERS has no folder with {pattern}")
    return found[0]


def encrypted_product(folder):
    """DESILO FHE: a product of encrypted numbers by the wheel in a folder, in a process of its own."""

    def step():
        environment = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run([sys.executable, "-c", ENCRYPTED], env=environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-200:])
        return numpy.array(json.loads(done.stdout))

    return step


for wheel in folders("desilofhe.*.so"):
    CASES[f"encrypted_product_{os.path.basename(wheel)}"] = functools.partial(encrypted_product, wheel)


@case
def dynamic_models():
    """kEDM, written with Kokkos: projections and cross mappings of two coupled series."""
    sys.path.insert(0, installed("kedm"))
    import torch

    torch.cuda.init()  # cuBLAS of its installation
    import kedm

    first, second = numpy.zeros(300, numpy.float32), numpy.zeros(300, numpy.float32)
    first[0], second[0] = 0.4, 0.2
    for at in range(299):
        x, y = first[at], second[at]
        first[at + 1], second[at + 1] = x * (3.8 - 3.8 * x - 0.02 * y), y * (3.5 - 3.5 * y - 0.1 * x)
    series = numpy.stack([first, second], 1)
    return lambda: (
        numpy.asarray(kedm.simplex(first[:200], first[200:], E=3)),
        numpy.asarray(kedm.edim(first, E_max=8)),
        numpy.asarray(kedm.xmap(series, [3, 3])),
        numpy.asarray(kedm.ccm(first, second, E=3, lib_sizes=[20, 60, 100], sample=5, seed=42)),
    )


@case
def state_vector():
    """cuStateVec: Hadamard gates on all qubits, and controlled phases between neighbours."""
    import torch

    library = ctypes.CDLL(os.path.join(installed("cuquantum/lib"), "cuquantum", "lib", "libcustatevec.so.1"))
    handle = ctypes.c_void_p()
    if status := library.custatevecCreate(ctypes.byref(handle)):
        raise RuntimeError(f"custatevecCreate: {status}")
    hadamard = numpy.array([[1, 1], [1, -1]], numpy.complex128) / 2**0.5
    phase = numpy.diag([1, 1j]).astype(numpy.complex128)

    def apply(state, matrix, target, controls):
        """Applies the matrix of a gate to the target qubit."""
        wide, several = ctypes.c_void_p, ctypes.c_uint32
        control = (ctypes.c_int32 * max(1, len(controls)))(*controls)
        status = library.custatevecApplyMatrix(
            handle, wide(state.data_ptr()), COMPLEX, several(QUBITS), wide(matrix.ctypes.data), COMPLEX, BY_ROWS, 0,
            (ctypes.c_int32 * 1)(target), several(1), control, None, several(len(controls)), 16, None, ctypes.c_size_t(0),
        )  # fmt: skip
        if status:
            raise RuntimeError(f"custatevecApplyMatrix: {status}")

    def step():
        state = torch.zeros(2**QUBITS, dtype=torch.complex128, device="cuda")
        state[0] = 1
        torch.cuda.synchronize()
        for qubit in range(QUBITS):
            apply(state, hadamard, qubit, [])
        for qubit in range(QUBITS - 1):
            apply(state, phase, qubit + 1, [qubit])
        torch.cuda.synchronize()
        return torch.view_as_real(state)

    return step


if __name__ == "__main__":
    main(lambda: None, BEGAN)
