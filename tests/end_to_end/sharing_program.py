"""A guest that shares device memory with another process.

usage: sharing_program.py own | take HANDLE | export SOCKET | import SOCKET | pool SOCKET | pooled SOCKET
  own     allocates memory and prints "handle HEX", as which others open it
  take    opens it and prints "ready"
  export  creates memory, maps it, and gives its descriptor to each that connects
  import  takes a descriptor there, maps its memory and prints "ready"
  pool    allocates memory from a pool, and gives the pool's descriptor and the memory's
          name to each that connects
  pooled  takes both there and prints "ready"
Then, for each line of input:
  busy      adds 1 to each word of the memory again and again; prints "busy"
  stop      stops that; prints "added N"
  check N   prints "right" if each word is N, else "wrong: what it is"
  handle    prints the handle again
  open HEX  opens other memory at another address, and checks that instead
  free      frees or closes the memory; prints "freed"
"""

import ctypes
import socket
import sys
import threading

from driver import CudaError, Guest, pointer, say
from kinds_program import Allocation

COUNT, BLOCKS = 1 << 20, 1 << 13
SIZE = COUNT * 4
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 data)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [data];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mul.wide.u32 %d2, %r5, 4;
    add.s64 %d3, %d1, %d2;
    red.global.add.u32 [%d3], 1;
    ret;
}
"""


class Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("place", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int)]


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = [(name, ctypes.c_int) for name in ("kind", "handles", "place", "device")] + [
        ("security", ctypes.c_void_p),
        ("most", ctypes.c_size_t),
        ("rest", ctypes.c_ubyte * 56),
    ]


def serve(path, file, name=b"!"):
    """Gives a descriptor and a name to each that connects to a socket."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def give():
        while True:
            other, _ = listener.accept()
            with other:
                socket.send_fds(other, [name], [file])

    threading.Thread(target=give, daemon=True).start()


def received(path):
    """A name and a descriptor from a socket."""
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(path)
        name, (file,), _, _ = socket.recv_fds(other, 64, 1)
    return name, file


class Sharer:
    """One of the processes."""

    def __init__(self, how, name):
        self.guest = Guest()
        self.cuda = self.guest.cuda
        self.add = self.guest.function(self.guest.load(PTX), b"add")
        self.taken = how in ("take", "import", "pooled")
        makes = {"own": lambda: self.guest.allocate(SIZE), "take": lambda: self.open(name)}
        makes |= {"export": lambda: self.create(name), "import": lambda: self.map(self.imported(name))}
        makes |= {"pool": lambda: self.allocate_from_pool(name), "pooled": lambda: self.import_from_pool(name)}
        # Memory that nobody else has, as most programs do.
        self.guest.allocate(SIZE)
        self.data = makes[how]()
        if not self.taken:
            self.cuda.cuMemsetD32_v2(pointer(self.data), ctypes.c_uint(0), ctypes.c_size_t(COUNT))
            # Before others may add to it.
            self.cuda.cuCtxSynchronize()
        self.added, self.busy, self.thread, self.error = 0, False, None, None

    def create(self, path):
        """Returns the address of memory, and sends its descriptor to each peer that connects to a socket."""
        created, file = ctypes.c_uint64(), ctypes.c_int()
        asked = Allocation(kind=1, handles=1, place=1, device=0)
        self.cuda.cuMemCreate(ctypes.byref(created), ctypes.c_size_t(SIZE), ctypes.byref(asked), ctypes.c_uint64(0))
        self.cuda.cuMemExportToShareableHandle(ctypes.byref(file), created, 1, ctypes.c_uint64(0))
        serve(path, file.value)
        return self.map(created)

    def imported(self, path):
        """An object that another process created."""
        found = ctypes.c_uint64()
        _, file = received(path)
        self.cuda.cuMemImportFromShareableHandle(ctypes.byref(found), ctypes.c_void_p(file), 1)
        return found

    def allocate_from_pool(self, path):
        """The address of memory of a pool that others can import."""
        pool, file, address = ctypes.c_uint64(), ctypes.c_int(), ctypes.c_uint64()
        asked = PoolProperties(kind=1, handles=1, place=1, device=0)
        name = (ctypes.c_ubyte * 64)()
        self.cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(asked))
        self.cuda.cuMemAllocFromPoolAsync(ctypes.byref(address), ctypes.c_size_t(SIZE), pool, None)
        self.cuda.cuCtxSynchronize()
        self.cuda.cuMemPoolExportToShareableHandle(ctypes.byref(file), pool, 1, ctypes.c_uint64(0))
        self.cuda.cuMemPoolExportPointer(name, address)
        serve(path, file.value, bytes(name))
        return address.value

    def import_from_pool(self, path):
        """The address of memory of another process's pool."""
        pool, address = ctypes.c_uint64(), ctypes.c_uint64()
        name, file = received(path)
        self.cuda.cuMemPoolImportFromShareableHandle(
            ctypes.byref(pool), ctypes.c_void_p(file), 1, ctypes.c_uint64(0)
        )
        self.cuda.cuMemPoolImportPointer(ctypes.byref(address), pool, (ctypes.c_ubyte * 64)(*name))
        return address.value

    def map(self, memory):
        """Maps memory that was created or imported."""
        address, access = ctypes.c_uint64(), Access(1, 0, 3)
        size, zero = ctypes.c_size_t(SIZE), ctypes.c_uint64(0)
        self.cuda.cuMemAddressReserve(ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero)
        self.cuda.cuMemMap(address, size, ctypes.c_size_t(0), memory, zero)
        self.cuda.cuMemSetAccess(address, size, ctypes.byref(access), ctypes.c_size_t(1))
        return address.value

    def open(self, handle):
        """The address of another process's memory."""
        address = ctypes.c_uint64()
        named = Handle.from_buffer_copy(bytes.fromhex(handle))
        self.cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), named, 1)
        return address.value

    def handle(self):
        """The name of the own memory."""
        handle = Handle()
        self.cuda.cuIpcGetMemHandle(ctypes.byref(handle), pointer(self.data))
        return bytes(handle.bytes).hex()

    def work(self):
        """Adds until it is stopped."""
        try:
            self.guest.use()
            while self.busy:
                self.guest.launch(self.add, BLOCKS, COUNT // BLOCKS, ctypes.c_uint64(self.data))
                self.cuda.cuCtxSynchronize()
                self.added += 1
        except CudaError as error:
            self.error = error

    def obey(self, line):
        """Executes the command in a line."""
        what, _, argument = line.partition(" ")
        if what == "busy":
            self.added, self.busy = 0, True
            self.thread = threading.Thread(target=self.work)
            self.thread.start()
            return "busy"
        if what == "stop":
            self.busy = False
            self.thread.join()
            if self.error:
                raise self.error
            return f"added {self.added}"
        if what == "check":
            found = (ctypes.c_uint32 * COUNT)()
            self.cuda.cuMemcpyDtoH_v2(found, pointer(self.data), ctypes.c_size_t(SIZE))
            wrong = sorted(set(found) - {int(argument)})
            return f"wrong: {wrong[:4]}" if wrong else "right"
        if what == "handle":
            return f"handle {self.handle()}"
        if what == "open":
            self.data = self.open(argument)
            return "opened"
        if self.taken:
            self.cuda.cuIpcCloseMemHandle(pointer(self.data))
        else:
            self.cuda.cuMemFree_v2(pointer(self.data))
            # The host may execute it after the call has returned, but before it replies to a later one.
            word = ctypes.c_uint32()
            self.cuda.cuMemcpyDtoH_v2(ctypes.byref(word), pointer(self.guest.allocate(4)), ctypes.c_size_t(4))
        return "freed"


def main():
    """The program."""
    try:
        how, name = (*sys.argv[1:], None)[:2]
        sharer = Sharer(how, name)
        say(f"handle {sharer.handle()}" if how == "own" else "ready")
        for line in sys.stdin:
            say(sharer.obey(line.strip()))
    except CudaError as error:
        say(str(error))
        sys.exit(3)


if __name__ == "__main__":
    main()
