"""Calls of the driver, for programs of the tests."""

import ctypes
from ctypes import byref

CUDA = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    """A function of the driver's; its status."""
    return getattr(CUDA, name)(*arguments)


def must(name, *arguments):
    """A call that succeeds."""
    status = call(name, *arguments)
    if status:
        raise SystemExit(f"{name}: {status}")


def begin():
    """Initializes the driver; the primary context of the first device is current then."""
    must("cuInit", 0)
    context = ctypes.c_void_p()
    must("cuDevicePrimaryCtxRetain", byref(context), 0)
    must("cuCtxSetCurrent", context)
