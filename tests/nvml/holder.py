"""A program that holds memory of the GPU while NVML's users look."""

import contextlib
import subprocess
import sys

MIB = 64
# Takes the memory, says so, and keeps it until its input ends.
PROGRAM = (
    "import ctypes, sys; cuda = ctypes.CDLL('libcuda.so.1'); context = ctypes.c_void_p(); place = ctypes.c_uint64();"
    "assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0);"
    "assert not cuda.cuCtxSetCurrent(context);"
    f"assert not cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t({MIB} << 20));"
    "print('holds', flush=True); sys.stdin.read()"
)


@contextlib.contextmanager
def holding(environment):
    """Runs it: its process number."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            said = program.stdout.readline()
            if said != "holds\n":
                raise RuntimeError(f"the holder says {said!r}")
            yield program.pid
        finally:
            program.stdin.close()
