"""Rates at which a session of random data is written to a file and restored from it.

usage: bench_checkpoint.py [--device cuda] [--gib N] [--folder FOLDER] [--rounds N] [--cold]

Prints GB/s of the file, by the worker's own time and by that of the command. FOLDER is on
the file system to measure, /dev/shm by default. With --cold the file is dropped from the
page cache before each restore, and `dd` reads it past the page cache before that.
With an NVIDIA GPU, prints first at what rate a native program copies to the GPU from
pinned memory.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

GUEST = {"--hold", "--native"} & set(sys.argv)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
if not GUEST:
    # A guest has not the environment that this needs.
    import gpu
    from measure import harness, say

PART = 64 << 20


def must(cuda, name, *arguments):
    """A call of the driver that succeeds."""
    status = getattr(cuda, name)(*arguments)
    if status:
        raise SystemExit(f"{name}: {status}")


def begun():
    """The driver, with a context."""
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    must(cuda, "cuInit", 0)
    must(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    must(cuda, "cuCtxSetCurrent", context)
    return cuda


def hold(size):
    """The guest: memory of which no two chunks are equal. Waits for its input to close."""
    cuda, base = begun(), ctypes.c_uint64()
    must(cuda, "cuMemAlloc_v2", ctypes.byref(base), ctypes.c_size_t(size))
    must(cuda, "cuMemcpyHtoD_v2", base, os.urandom(PART), ctypes.c_size_t(PART))
    for at in range(PART, size, PART):
        part = ctypes.c_uint64(base.value + at)
        must(cuda, "cuMemcpyDtoD_v2", part, base, ctypes.c_size_t(PART))
        for chunk in range(at, at + PART, 1 << 20):
            must(cuda, "cuMemsetD32_v2", ctypes.c_uint64(base.value + chunk), chunk >> 20, ctypes.c_size_t(1024))
    must(cuda, "cuCtxSynchronize")
    print("ready", flush=True)
    sys.stdin.read()


def native():
    """The rate of copies from pinned memory."""
    cuda, base, pinned = begun(), ctypes.c_uint64(), ctypes.c_void_p()
    must(cuda, "cuMemAlloc_v2", ctypes.byref(base), ctypes.c_size_t(PART))
    must(cuda, "cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(PART), 0)
    for _ in range(2):
        start = time.monotonic()
        for _ in range(64):
            must(cuda, "cuMemcpyHtoDAsync_v2", base, pinned, ctypes.c_size_t(PART), None)
        must(cuda, "cuCtxSynchronize")
        rate = 64 * PART / (time.monotonic() - start) / 1e9
    print(f"native copies to the GPU: {rate:.1f} GB/s", flush=True)


def drop(path):
    """Drops a file from the page cache."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def dd(path):
    """GB/s at which `dd` reads a file past the page cache."""
    start = time.monotonic()
    command = ["dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return os.path.getsize(path) / (time.monotonic() - start) / 1e9


def ordered(daemon, *order):
    """Rates of an order: by its report, and by the time of the command."""
    start = time.monotonic()
    command = [harness.binary("paragpu"), "--control", daemon.control, *order, "-o", "json"]
    report = json.loads(subprocess.check_output(command, timeout=600))
    wall = time.monotonic() - start
    return report["bytes"] / report["total_ms"] / 1e6, report["bytes"] / wall / 1e9


def measure(options, daemon, folder):
    """Writes and restores one session."""
    guest = subprocess.Popen(
        [sys.executable, __file__, "--hold", str(options.gib << 30)],
        env=daemon.guest_environment("unix"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with guest:
        guest.stdout.readline()
        session = str(daemon.sessions()[0]["id"])
        written = [ordered(daemon, "checkpoint", session, folder)[0] for _ in range(2)]
        say(f"written at {', '.join(f'{rate:.2f}' for rate in written)} GB/s")
        guest.kill()
    gpu.until(lambda: daemon.sessions() == [], "the session is over")
    state = os.path.join(folder, "session.paragpu")
    rows = []
    for _ in range(options.rounds):
        gpu.await_warm(daemon, 1)
        disk = 0.0
        if options.cold:
            drop(state)
            disk = dd(state)
            drop(state)
        rows.append((*ordered(daemon, "restore", folder), disk))
        say("restored at {:.2f} GB/s, by the command {:.2f}; dd {:.2f}".format(*rows[-1]))
        command = [harness.binary("paragpu"), "--control", daemon.control, "end", str(daemon.sessions()[0]["id"])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        gpu.until(lambda: daemon.sessions() == [], "the session is over")
    say("medians: {:.2f}, {:.2f}; {:.2f}".format(*map(statistics.median, zip(*rows))))


def main():
    """Follows the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="software", choices=["software", "cuda"])
    parser.add_argument("--gib", type=int, default=1)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--native", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        return hold(options.hold)
    if options.native:
        return native()
    if options.device == "cuda":
        subprocess.run([sys.executable, __file__, "--native"], env=gpu.native_environment(), check=True)
    memory = f"--set=software.memory={options.gib + 1}GiB"
    with (
        harness.Daemon("--warm=1", memory, device=options.device) as daemon,
        tempfile.TemporaryDirectory(prefix="paragpu-state-", dir=options.folder) as folder,
    ):
        measure(options, daemon, folder)
    return None


if __name__ == "__main__":
    main()
