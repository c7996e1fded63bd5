"""A guest that clones itself, as a snapshot of its VM that is started several times does.

usage: clones_program.py CLONES

Computes a state on the device and prints "ready". Reads lines:
  clone       makes CLONES copies of the process and prints "cloned"
  leave       replaces itself by a program that only tells the copies, and prints "left"
  go N        has the N-th copy go on, which prints "result N DIGEST" and waits
  alone N     goes on itself as the N-th copy would
The N-th copy does other work than the others. DIGEST is that of all memory of the device.

The copies are made by the system call, behind the back of the C library, and keep the pages that
the kernel wipes in children: in a child that fork() makes, CUDA does not work, as natively. No other thread may hold a lock meanwhile, so
all must sleep, as the vCPUs of a VM of which a snapshot is taken need not.
"""

import ctypes
import glob
import hashlib
import os
import platform
import signal
import sys

from driver import CudaError, Guest, pointer
from guest_program import COUNT, PTX

SIZE = 5 << 20
ATTEMPTS = 1000
# clone(SIGCHLD) is fork; arm64 has no other.
CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
KEEP_ON_FORK = 19


def say(text):
    """Prints a line at once: others print to the same pipe."""
    os.write(1, f"{text}\n".encode())


class State:
    """What is computed, and on what."""

    def __init__(self):
        self.guest = Guest()
        self.advance = self.guest.function(self.guest.load(PTX), b"advance")
        self.data = self.guest.allocate(SIZE)
        self.host = (ctypes.c_uint32 * (SIZE // 4))(*range(SIZE // 4))
        self.guest.cuda.cuMemcpyHtoD_v2(pointer(self.data), self.host, ctypes.c_size_t(SIZE))
        self.go_on(9)

    def go_on(self, number):
        """Work that depends on a number; the digest of all memory after it."""
        for _ in range(number + 3):
            self.guest.launch(self.advance, COUNT // 128, 128, ctypes.c_uint64(self.data), ctypes.c_uint32(COUNT))
        self.guest.cuda.cuMemcpyDtoH_v2(self.host, pointer(self.data), ctypes.c_size_t(SIZE))
        return hashlib.sha256(self.host).hexdigest()


def keep_all_pages():
    """Lets copies have all memory, as in a snapshot, also what the kernel wipes in children."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/smaps", encoding="utf-8") as file:
        lines = file.read().splitlines()
    start = end = 0
    for line in lines:
        words = line.split()
        if not words[0].endswith(":"):
            start, end = (int(address, 16) for address in words[0].split("-"))
        elif words[0] == "VmFlags:" and "wf" in words:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), KEEP_ON_FORK)


def sleeps():
    """How often each other thread has slept; nothing if one of them does not sleep."""
    counts = []
    for task in glob.glob("/proc/self/task/*"):
        if os.path.basename(task) == str(os.getpid()):
            continue
        with open(f"{task}/syscall", encoding="ascii") as call, open(f"{task}/status", encoding="ascii") as status:
            if call.read().startswith("running"):
                return None
            counts += [line for line in status if "ctxt_switches" in line]
    return counts


def clone(state):
    """Makes the copies while no other thread runs; the pipes on which each is told to go on."""
    keep_all_pages()
    for _ in range(ATTEMPTS):
        before = sleeps()
        pipes, children = attempt(state)
        if before is not None and before == sleeps():
            return pipes
        for child, pipe in zip(children, pipes):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(pipe)
    raise RuntimeError("the program's other threads never sleep")


def attempt(state):
    """Makes the copies: the pipes to them, and their process IDs."""
    children = []
    pipes = [os.pipe() for _ in range(int(sys.argv[1]))]
    libc = ctypes.CDLL(None, use_errno=True)
    for number, (told, _) in enumerate(pipes):
        child = libc.syscall(CLONE, ctypes.c_ulong(signal.SIGCHLD), None, None, None, None)
        if child < 0:
            raise OSError(ctypes.get_errno(), "clone")
        if child == 0:
            for _, tells in pipes:
                os.close(tells)
            try:
                while os.read(told, 1):
                    say(f"result {number} {state.go_on(number)}")
            except CudaError as error:
                say(f"result {number} {error.code}")
            os._exit(0)
        children.append(child)
    for told, _ in pipes:
        os.close(told)
    return [tells for _, tells in pipes], children


def main():
    """Follows the lines of the input."""
    state, pipes = State(), []
    say("ready")
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if word == "clone":
            pipes = clone(state)
            say("cloned")
        elif word == "leave":
            for pipe in pipes:
                os.set_inheritable(pipe, True)
            os.execv(sys.executable, [sys.executable, __file__, "tell", *map(str, pipes)])
        else:
            say(f"result {number} {state.go_on(int(number))}")
    os._exit(0)


def tell(pipes):
    """Tells the copies to go on."""
    say("left")
    for line in sys.stdin:
        os.write(pipes[int(line.split()[1])], b"x")


if __name__ == "__main__":
    if sys.argv[1] == "tell":
        tell([int(pipe) for pipe in sys.argv[2:]])
    else:
        main()
