"""The NVIDIA GPU of this machine, and the two ways to run a program on it."""

import ctypes
import functools
import glob
import itertools
import json
import os
import socket

from measure import harness

# How long the daemon may take to have its workers ready, or a GPU to have its
# memory back, in seconds.
PATIENCE = 20


class NoGpu(Exception):
    """Why nothing can run on a GPU here."""


def probe():
    """Name, number of devices and driver version; raises NoGpu where there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoGpu(f"NVIDIA's driver is not here ({error})") from error
    if nvml.nvmlInit_v2():
        raise NoGpu("NVIDIA's driver finds no GPU")
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    if not count.value:
        raise NoGpu("NVIDIA's driver finds no GPU")
    handle, name, driver = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    nvml.nvmlDeviceGetName(handle, name, len(name))
    nvml.nvmlSystemGetDriverVersion(driver, len(driver))
    return {"name": name.value.decode(), "count": count.value, "driver": driver.value.decode(), "nvml": nvml, "handle": handle}


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def memory_used(gpu):
    """Bytes in use on the first GPU, by whomever."""
    memory = Memory()
    status = gpu["nvml"].nvmlDeviceGetMemoryInfo(gpu["handle"], ctypes.byref(memory))
    if status:
        raise RuntimeError(f"NVML does not report the GPU's memory (status {status})")
    return memory.used


def until(condition, what):
    """Looks until the condition holds; raises after PATIENCE."""
    harness.eventually(condition, what, PATIENCE, RuntimeError)


@functools.cache
def folder_of(library, variable, *more):
    """The folder of a library of NVIDIA's: the one that the environment names, or one of `more` or the usual ones; "" for none."""
    places = (os.environ.get(variable, ""), *more, "/usr/local/cuda-13.0/lib64", "/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu")
    # Looked for last, because it takes a while.
    wheels = glob.iglob("/opt/**/nvidia/cu13/lib", recursive=True)
    has = lambda place: place and os.path.exists(os.path.join(place, library))
    return next(filter(has, itertools.chain(places, wheels)), "")


def runtime_folder():
    """The folder of NVIDIA's own libcudart.so.13."""
    place = folder_of("libcudart.so.13", "PARAGPU_TEST_NATIVE", os.path.join(harness.ROOT, ".cache/cuda-13.0/lib"))
    if not place:
        raise NoGpu("NVIDIA's libcudart.so.13 is not here: run `make cuda`, or name its folder in PARAGPU_TEST_NATIVE")
    return place


def native_environment():
    """Environment in which a program uses NVIDIA's own runtime."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARAGPU_")}
    folders = [runtime_folder(), environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
    return environment


def cublas_folder():
    """The folder of NVIDIA's libcublas.so.13, or nothing."""
    return folder_of("libcublas.so.13", "PARAGPU_TEST_CUBLAS")


def with_cublas(environment):
    """The same environment, in which a program finds cuBLAS, too."""
    # Behind the guest's libraries: NVIDIA's runtime, of the same name as the guest's, may lie beside it.
    folders = [environment["LD_LIBRARY_PATH"], cublas_folder()]
    return {**environment, "LD_LIBRARY_PATH": ":".join(filter(None, folders))}


def ask(daemon, command):
    """One answer of the daemon's control socket."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(daemon.control)
        control.sendall(json.dumps({"command": command}).encode() + b"\n")
        return json.loads(control.makefile(encoding="utf-8").readline())


def await_warm(daemon, workers, sessions=0):
    """Returns when so many sessions are left and `workers` wait for the next on the first device."""

    def warm():
        stats = ask(daemon, "stats")
        return stats["sessions"] == sessions and any(
            device["ordinal"] == 0 and device["idle"] >= workers and not device["starting"] for device in stats["devices"]
        )

    until(warm, f"{workers} waiting workers")
