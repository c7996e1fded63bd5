"""Maps memory where device memory lies, as V8 and Java's ZGC do, before it uses CUDA. Prints what
calls say of that memory as JSON."""

import ctypes
import json
from ctypes import byref

from driver import Guest, call, must

ARENA, CHUNK, STRIDE = 1 << 44, 2 << 20, 1 << 40
PAGES = 64 << 10
# Where the first device's memory begins, behind that, and where another device would have its
# memory, its shadows and its window.
PLACES = (ARENA, ARENA + 16 * CHUNK + 4096, ARENA + 3 * STRIDE, 0x310000000000, 0x480000000000)
READ_WRITE, PRIVATE_ANONYMOUS, FIXED_NOREPLACE = 3, 0x22, 0x100000


def mapped(address):
    """Memory of the program at an address, with a byte of its own."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    arguments = (ctypes.c_size_t(PAGES), READ_WRITE, PRIVATE_ANONYMOUS | FIXED_NOREPLACE, -1, ctypes.c_long(0))
    assert libc.mmap(ctypes.c_void_p(address), *arguments) == address
    ctypes.memset(address, address >> 21 & 0xFF or 0xAA, PAGES)


def byte(address):
    """The first byte at an address."""
    return ctypes.string_at(address, 1)[0]


def copies(place, device):
    """Copies between memory of the program and of the device."""
    size, host = ctypes.c_size_t(PAGES), ctypes.c_void_p(place)
    to = [call("cuMemcpyHtoD_v2", ctypes.c_uint64(device), host, size)]
    back = ctypes.create_string_buffer(PAGES)
    must("cuMemcpyDtoH_v2", back, ctypes.c_uint64(device), size)
    to.append(back.raw == ctypes.string_at(place, PAGES))
    must("cuMemsetD8_v2", ctypes.c_uint64(device), 0x77, size)
    of = [call("cuMemcpyDtoH_v2", host, ctypes.c_uint64(device), size), byte(place)]
    must("cuMemsetD8_v2", ctypes.c_uint64(device), 0x78, size)
    any_way = [call("cuMemcpy", ctypes.c_uint64(place), ctypes.c_uint64(device), size), byte(place)]
    return {"to": to, "of": of, "any way": any_way}


def registration(place):
    """Whether memory of the program can be registered, and is the host's then."""
    kind, host = ctypes.c_int(), ctypes.c_void_p(place)
    question = ("cuPointerGetAttribute", byref(kind), 2, ctypes.c_uint64(place))
    said = [call(*question), call("cuMemHostRegister_v2", host, ctypes.c_size_t(PAGES), 0), call(*question)]
    return [*said, kind.value, call("cuMemHostUnregister", host), byte(place)]


def main():
    """Prints the answers."""
    for place in PLACES:
        mapped(place)
    guest = Guest()
    # From small blocks to one that no gap between the program's memory has room for.
    blocks = [(guest.allocate(size), size) for size in (512, PAGES, 3 << 20, 15 * CHUNK, 20 * CHUNK)]
    apart = all(address + size <= place or place + PAGES <= address for address, size in blocks for place in PLACES)
    said = {"apart": apart, "copies": [], "registration": []}
    for place in PLACES:
        said["copies"].append(copies(place, blocks[1][0]))
        said["registration"].append(registration(place))
    print(json.dumps(said))


main()
