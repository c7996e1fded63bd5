"""The driver API for programs of the tests, through ctypes as any program may use it."""

import ctypes
import functools
from ctypes import byref


class CudaError(Exception):
    """A call that did not succeed."""

    def __init__(self, function, code):
        super().__init__(f"CUDA error {code} in {function}")
        self.code = code


class Cuda:
    """The driver API, each function checked; `library` has those that are not."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def checked(*arguments):
            code = function(*arguments)
            if code != 0:
                raise CudaError(name, code)

        return checked


@functools.cache
def driver():
    """The driver API of this process, loaded at the first use."""
    return Cuda()


def call(name, *arguments):
    """A function of the driver's; its status."""
    return getattr(driver().library, name)(*arguments)


def must(name, *arguments):
    """A call that succeeds."""
    getattr(driver(), name)(*arguments)


def begin():
    """Initializes the driver; the primary context of the first device is current then."""
    Guest()


def pointer(value):
    """A device address or handle as an argument."""
    return ctypes.c_uint64(value)


def say(text):
    """Prints and flushes."""
    print(text, flush=True)


class Guest:
    """The primary context of a device."""

    def __init__(self, device=0):
        self.cuda = driver()
        self.cuda.cuInit(0)
        self.context = ctypes.c_void_p()
        self.cuda.cuDevicePrimaryCtxRetain(byref(self.context), device)
        self.use()

    def use(self):
        """Makes this device the one that calls are for."""
        self.cuda.cuCtxSetCurrent(self.context)

    def load(self, image):
        """Loads a module."""
        module = ctypes.c_void_p()
        self.cuda.cuModuleLoadData(byref(module), image)
        return module

    def function(self, module, name):
        """Finds a kernel."""
        function = ctypes.c_void_p()
        self.cuda.cuModuleGetFunction(byref(function), module, name)
        return function

    def launch(self, function, blocks, threads, *arguments, stream=None):
        """Launches, into the default stream where none is given."""
        addresses = (ctypes.c_void_p * len(arguments))(
            *[ctypes.cast(byref(argument), ctypes.c_void_p) for argument in arguments]
        )
        self.cuda.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, addresses, None)

    def allocate(self, size):
        """Device memory."""
        address = ctypes.c_uint64()
        self.cuda.cuMemAlloc_v2(byref(address), ctypes.c_size_t(size))
        return address.value
