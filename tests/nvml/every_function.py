"""Calls every function of NVIDIA's Python binding with right and wrong arguments.

usage: every_function.py calls|storm
`calls` prints, as JSON, functions that ended a process, took too long or failed with
anything but an error of NVML or of Python's conversions. `storm` initializes 10,000
times, asks from threads and from children that they fork, and prints what failed.
"""

import ctypes
import inspect
import itertools
import json
import os
import re
import signal
import sys
import threading

import pynvml

PATIENCE = 60
# Parameters that the binding hands to the library as addresses.
STRUCTURES = r".*info|.*profiles|.*bwmodes?|setbwmodeasync|status|counts"
# The first words of such: without a version, and with that of each structure that is served.
VERSIONS = [0, pynvml.nvmlPciInfoExt_v1, pynvml.nvmlGpuFabricInfo_v2, pynvml.nvmlGpuFabricInfo_v3]
# Of the binding itself, and those that begin and end all.
OTHERS = {"nvmlInit", "nvmlInitWithFlags", "nvmlShutdown", "nvmlExceptionClass"}
OTHERS |= {"nvmlStructToFriendlyObject", "nvmlFriendlyObjectToStruct"}
REFUSALS = (pynvml.NVMLError, TypeError, ValueError, AttributeError, ctypes.ArgumentError)


def arguments(function):
    """Up to 300 lists of arguments."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    handles = [handle, None, ctypes.c_void_p(1)]
    texts = [pynvml.nvmlDeviceGetUUID(handle), "GPU-0", b"", b"\xff" * 400, None]
    # The binding makes lists of so many.
    sizes = [0, 1, 2, 1000, -1, None]
    numbers = [handle, 0, 1, -1, 2**31 - 1, 2**32 - 1, None, b"x", "GPU-0"]
    structures = [ctypes.create_string_buffer(version.to_bytes(4, "little"), 4096) for version in VERSIONS] + [None]
    kinds = [(r"handle|device\d?", handles), (r".*(uuid|serial|busid)", texts), (r".*size", sizes)]
    kinds += [(STRUCTURES, structures), (r".*", numbers)]
    choices = []
    for name in inspect.signature(function).parameters:
        choices.append(next(values for kind, values in kinds if re.fullmatch(kind, name.lower())))
    return itertools.islice(itertools.product(*choices), 300)


def in_child(work):
    """How a child that does it ends: its status."""
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        try:
            work()
        except BaseException as error:  # pylint: disable=broad-exception-caught
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def attempt(function):
    """Calls it with all of these; any other error ends the child."""
    # Some print their result.
    sys.stdout = open(os.devnull, "w", encoding="utf-8")
    for one in arguments(function):
        try:
            function(*one)
        except REFUSALS:
            pass


def calls():
    """The functions that fail."""
    pynvml.nvmlInit()
    functions = {name: each for name, each in vars(pynvml).items() if name.startswith("nvml") and inspect.isfunction(each)}
    chosen = sorted(set(functions) - OTHERS)
    ends = {name: in_child(lambda name=name: attempt(functions[name])) for name in chosen}
    return {"functions": len(chosen), "failed": {name: end for name, end in ends.items() if end}}


def ask():
    """Some questions about the first device."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == 1 << 30
    pynvml.nvmlDeviceGetUtilizationRates(handle)
    pynvml.nvmlDeviceGetComputeRunningProcesses(handle)


def storm():
    """What failed."""
    failed = []

    def user():
        try:
            for _ in range(20):
                pynvml.nvmlInit()
                ask()
                pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            failed.append(repr(error))

    def child():
        ask()
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        ask()

    for _ in range(10000):
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    files = len(os.listdir("/proc/self/fd"))
    # The users take turns at being the last, then one stays.
    for stays in (False, True):
        threads = [threading.Thread(target=user) for _ in range(32)]
        for thread in threads:
            thread.start()
        if stays:
            failed += [end for end in (in_child(child) for _ in range(10)) if end]
        for thread in threads:
            thread.join()
        if not stays:
            if len(os.listdir("/proc/self/fd")) != files:
                failed.append("files are left open")
            pynvml.nvmlInit()
    return failed


print(json.dumps({"calls": calls, "storm": storm}[sys.argv[1]]()))
