#!/usr/bin/env python3
"""What NVIDIA's driver needs from the system: it is opened under each confinement in turn.

usage: gpu_namespaces.py [--strace PROGRAM]

Root, and a machine with an NVIDIA GPU. Each line tells a confinement of those that
workers of VMs' own users have (confine.cuda_users), and at which call the driver
failed under it, if it did. With strace the last system calls that failed there are
shown, too.
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile

# A number of no user of the host.
USER = "77000"
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
SPACE = ["unshare", "--user", "--map-root-user"]
APART = [*SPACE, "--net", "--ipc", "--mount", "--pid", "--fork"]
CASES = {
    "nothing": [],
    "another user": AS_USER,
    "not dumpable": ["hidden"],
    "another user, not dumpable": [*AS_USER, "hidden"],
    "network namespace": ["unshare", "--net"],
    "IPC namespace": ["unshare", "--ipc"],
    "mount namespace": ["unshare", "--mount"],
    "PID namespace": ["unshare", "--pid", "--fork"],
    "PID namespace, its own /proc": ["unshare", "--pid", "--fork", "--mount-proc"],
    "user namespace": SPACE,
    "user and network namespaces": [*SPACE, "--net"],
    "user and PID namespaces": [*SPACE, "--pid", "--fork"],
    "user and PID namespaces, its own /proc": [*SPACE, "--pid", "--fork", "--mount-proc"],
    "all namespaces": APART,
    "all namespaces, its own /proc": [*APART, "--mount-proc"],
    "all namespaces, its own /proc, not dumpable": [*APART, "--mount-proc", "hidden"],
}
PATIENCE = 60


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("meta", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


def probe():
    """Opens the GPU and takes memory that can be shared; says which call failed first."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, handle, descriptor, module = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_int(-1), ctypes.c_void_p()
    properties = Properties(type=1, handles=1, location_type=1)
    text = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n"
    calls = (
        ("cuInit", lambda: cuda.cuInit(0)),
        ("cuDevicePrimaryCtxRetain", lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)),
        ("cuCtxSetCurrent", lambda: cuda.cuCtxSetCurrent(context)),
        ("cuModuleLoadData", lambda: cuda.cuModuleLoadData(ctypes.byref(module), text)),
        ("cuMemCreate", lambda: cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(2 << 20), ctypes.byref(properties), ctypes.c_ulonglong(0))),
        ("cuMemExportToShareableHandle", lambda: cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, 1, ctypes.c_ulonglong(0))),
    )
    for name, call in calls:
        if status := call():
            return f"{name} returned {status}"
    return "opens"


def hidden(command):
    """Runs a command that others do not look into."""
    prctl = ctypes.CDLL(None).prctl
    prctl(4, 0, 0, 0, 0)
    if command:
        raise SystemExit("nothing follows 'hidden'")
    print(probe())


def failed_calls(path):
    """The last system calls of a trace that failed, without the usual ones."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        failed = [line.strip() for line in lines if re.search(r"= -1 E(?!NOENT|AGAIN|XIST|INTR)", line)]
    return failed[-8:]


def main():
    """Opens the GPU under every confinement."""
    if sys.argv[1:2] == ["--probe"]:
        hidden([]) if "hidden" in sys.argv else print(probe())
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strace", help="a strace, for what failed")
    options = parser.parse_args()
    own = [sys.executable, os.path.abspath(__file__), "--probe"]
    for name, words in CASES.items():
        command = [*[word for word in words if word != "hidden"], *own, *(["hidden"] if "hidden" in words else [])]
        said = run(command)
        print(f"{name:48} {said}", flush=True)
        if options.strace and said != "opens":
            with tempfile.TemporaryDirectory() as folder:
                trace = os.path.join(folder, "trace")
                run([options.strace, "-f", "-o", trace, *command])
                for line in failed_calls(trace):
                    print(f"    {line[:180]}")
    return 0


def run(command):
    """The last line that a command says."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {PATIENCE} s"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else f"status {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
