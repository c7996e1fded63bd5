"""Runs a program and logs each call that it makes of the CUDA driver's interface.

usage: driver_trace.py [--remote] --output FILE PROGRAM [ARGUMENT...]
       driver_trace.py --compare FILE FILE

Natively NVIDIA's driver answers the calls. With --remote paragpu's library does,
over a daemon of its own for the machine's GPU. --compare says where two logs
part: for each function, in the order of first use, the calls that only one of
them has. It finds the question whose answer made a library of NVIDIA's behave
otherwise through paragpu.
"""

import argparse
import collections
import ctypes
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
# pylint: disable=wrong-import-position
import harness


def native_driver():
    """Path of the driver library that this machine's loader finds."""
    ctypes.CDLL("libcuda.so.1")
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return next(line.split()[-1] for line in maps if "/libcuda.so" in line)


def symbols(library):
    """Names that a library exports."""
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    lines = (line.split() for line in listed.stdout.splitlines())
    return sorted({line[-1].split("@")[0] for line in lines if len(line) == 3 and line[1] in "TW"})


def build(driver, folder):
    """Builds a libcuda.so.1 in `folder` that stands in for `driver`."""
    names = [name for name in symbols(driver) if name.isidentifier()]
    with open(os.path.join(folder, "entries.inc"), "w", encoding="utf-8") as file:
        file.writelines(f"SYMBOL({name})\n" for name in names)
    with open(os.path.join(folder, "entries.s"), "w", encoding="utf-8") as file:
        for slot, name in enumerate(names):
            file.write(f".globl {name}\n.type {name}, @function\n.set {name}, trace_slots + {16 * slot}\n")
        file.write('.section .note.GNU-stack,"",@progbits\n')
    with open(os.path.join(HERE, "trace.c"), encoding="utf-8") as file:
        source = file.read()
    with open(os.path.join(folder, "trace.s"), "w", encoding="utf-8") as file:
        command = ["gcc", "-O1", "-fPIC", "-I", folder, "-S", "-x", "c", "-", "-o", "-"]
        file.write(subprocess.run(command, input=source, check=True, capture_output=True, text=True).stdout)
        with open(os.path.join(folder, "entries.s"), encoding="utf-8") as entries:
            file.write(entries.read())
    command = ["gcc", "-shared", "-Wl,-soname,libcuda.so.1", os.path.join(folder, "trace.s"), "-o", os.path.join(folder, "libcuda.so.1")]
    subprocess.run([*command, "-ldl"], check=True)


def trace(driver, output, command, environment):
    """Runs `command` with the stand-in before its libraries; returns its status."""
    with tempfile.TemporaryDirectory(prefix="paragpu-trace-") as folder:
        build(driver, folder)
        path = os.pathsep.join(part for part in (folder, environment.get("LD_LIBRARY_PATH", "")) if part)
        environment = {**environment, "LD_LIBRARY_PATH": path}
        environment.update(CUDA_TRACE_DRIVER=driver, CUDA_TRACE_OUTPUT=output)
        return subprocess.run(command, env=environment, check=False).returncode


def calls(path):
    """Calls of a log by function, in order; and the functions as first used."""
    found = collections.OrderedDict()
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            name, separator, rest = line.strip().partition(" = ")
            if separator:
                found.setdefault(name, collections.Counter())[rest] += 1
    return found


def compare(first, second):
    """Prints what only one of two logs has; returns whether there was any."""
    one, other = calls(first), calls(second)
    parted = False
    for name in dict.fromkeys([*one, *other]):
        left, right = one.get(name, collections.Counter()), other.get(name, collections.Counter())
        for sign, only in (("<", left - right), (">", right - left)):
            for rest, count in list(only.items())[:20]:
                parted = True
                print(f"{sign} {count:6} {name} = {rest}")
    return parted


def main():
    """Traces or compares, as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--remote", action="store_true", help="trace paragpu's library instead of NVIDIA's")
    parser.add_argument("--device", default="cuda", choices=("cuda", "software"), help="the daemon's device")
    parser.add_argument("--output", help="file that the log is appended to")
    parser.add_argument("--compare", nargs=2, metavar="FILE", help="compare two logs")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.compare:
        return int(compare(*options.compare))
    if not (options.output and options.command):
        parser.error("--output and a program are needed")
    if not options.remote:
        return trace(native_driver(), options.output, options.command, dict(os.environ))
    with harness.Daemon(device=options.device) as daemon:
        driver = os.path.join(harness.LIBRARIES, "libcuda.so.1")
        return trace(driver, options.output, options.command, daemon.guest_environment("shm"))


if __name__ == "__main__":
    sys.exit(main())
