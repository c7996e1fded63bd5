"""A program that keeps rewriting a part of its device memory, for bench_migrate.py.

usage: moving_guest.py REGIONS BYTES PERCENT
Allocates REGIONS times BYTES, fills them with bytes that do not repeat, prints
"ready", and rewrites the first PERCENT of each region again and again. On
"check" it prints "exact" where the device holds what it must, else "wrong";
on the end of its input it ends.
"""

import ctypes
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "end_to_end"))
# pylint: disable=wrong-import-position
from driver import Guest, pointer, say


class Regions:
    """Device memory, and what must be in it."""

    def __init__(self, guest, count, size, percent):
        self.cuda = guest.cuda
        self.size = size
        self.written = size * percent // 100 // 4096 * 4096
        self.content = os.urandom(size)
        self.addresses = [guest.allocate(size) for _ in range(count)]
        for address in self.addresses:
            self.cuda.cuMemcpyHtoD_v2(pointer(address), self.content, ctypes.c_size_t(size))
        self.value = None

    def rewrite(self, value):
        """The next value to write."""
        self.value = value
        for address in self.addresses:
            self.cuda.cuMemsetD8Async(pointer(address), ctypes.c_ubyte(value), ctypes.c_size_t(self.written), None)
        self.cuda.cuCtxSynchronize()

    def exact(self):
        """Whether device memory has the expected contents."""
        begin = b"" if self.value is None else bytes([self.value]) * self.written
        expected = begin + self.content[len(begin) :]
        host = ctypes.create_string_buffer(self.size)
        for address in self.addresses:
            self.cuda.cuMemcpyDtoH_v2(host, pointer(address), ctypes.c_size_t(self.size))
            if host.raw != expected:
                return False
        return True


def main():
    """The program."""
    count, size, percent = map(int, sys.argv[1:4])
    guest = Guest()
    regions = Regions(guest, count, size, percent)
    asked, over = threading.Event(), threading.Event()

    def listen():
        for _ in sys.stdin:
            asked.set()
        over.set()
        asked.set()

    threading.Thread(target=listen, daemon=True).start()
    say("ready")
    value = 0
    while not over.is_set():
        if regions.written:
            value = (value + 1) % 256
            regions.rewrite(value)
        else:
            guest.cuda.cuCtxSynchronize()
            asked.wait(0.01)
        if asked.is_set() and not over.is_set():
            asked.clear()
            say("exact" if regions.exact() else "wrong")


if __name__ == "__main__":
    main()
