"""A guest that registers a shared mapping of a file, as processes do that talk to each
other through it.

usage: shared_file_program.py KIND [FILE]

KIND: `file` maps FILE; `memfd` maps a file without a name that the process has open;
`anonymous` maps shared memory without either, which only privileged processes can pass.

Words of the mapping: 0 is what a kernel waits for, 1 what it answers, 2 what every
kernel adds to. It begins past the first page and not at a page's begin. Prints "ready",
then serves lines of input until there are no more, each with an answer:
  wait     a kernel waits while word 0 is zero, then copies it to word 1: "waiting"
  finish   waits for that kernel: "finished"
  add      a kernel adds 1 to word 2, and the program waits for it: "added"
  copy     writes words 16 to 31 through copies in both directions: "right" or "wrong"
  release  unregisters: "released"
"""

import ctypes
import mmap
import os
import sys

from driver import CudaError, Guest, call, pointer, say
from guest_program import PTX

ADD = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 word)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [word];
    atom.global.add.u32 %r1, [%d1], 1;
    ret;
}
"""

OFFSET = mmap.PAGESIZE + 256
WORDS = 2048
BYTES = 4 * mmap.PAGESIZE


def mapping(kind, path):
    """The program's shared memory."""
    if kind == "anonymous":
        return mmap.mmap(-1, BYTES, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    file = os.memfd_create("guest") if kind == "memfd" else os.open(path, os.O_RDWR)
    if kind == "memfd":
        os.ftruncate(file, BYTES)
    shared = mmap.mmap(file, BYTES, mmap.MAP_SHARED)
    if kind == "file":
        os.close(file)
    return shared


def copied(guest, words, device):
    """The data after a round trip through device memory, by either address of the memory."""
    size, beside = ctypes.c_size_t(32), guest.allocate(64)
    words[16:24] = range(100, 108)
    source = ctypes.byref(words, 64)
    guest.cuda.cuMemcpyHtoD_v2(pointer(beside), source, size)
    guest.cuda.cuMemcpyDtoD_v2(pointer(beside + 32), pointer(device + 64), size)
    guest.cuda.cuMemcpyDtoH_v2(ctypes.byref(words, 96), pointer(beside), size)
    return words[16:24] == words[24:32] == list(range(100, 108))


def main():
    """Serves."""
    shared = mapping(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    guest = Guest()
    wait, add = guest.function(guest.load(PTX), b"await"), guest.function(guest.load(ADD), b"add")
    words = (ctypes.c_uint32 * WORDS).from_buffer(shared, OFFSET)
    guest.cuda.cuMemHostRegister_v2(words, ctypes.c_size_t(ctypes.sizeof(words)), 2)
    place = ctypes.c_uint64()
    guest.cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(place), words, 0)
    device = place.value
    say("ready")
    for line in sys.stdin:
        match line.strip():
            case "wait":
                guest.launch(wait, 1, 1, ctypes.c_uint64(device), ctypes.c_uint64(device + 4))
                busy = call("cuStreamQuery", None) == 600
                say("waiting" if busy else "it did not wait")
            case "finish":
                guest.cuda.cuCtxSynchronize()
                say("finished")
            case "add":
                guest.launch(add, 1, 1, ctypes.c_uint64(device + 8))
                guest.cuda.cuCtxSynchronize()
                say("added")
            case "copy":
                say("right" if copied(guest, words, device) else "wrong")
            case "release":
                guest.cuda.cuMemHostUnregister(words)
                say("released")


if __name__ == "__main__":
    try:
        main()
    except CudaError as error:
        say(error)
        sys.exit(3)
