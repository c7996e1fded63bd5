"""A guest that pins memory whenever it is told to, and says whether all of it, of whatever age,
is the same for program and device.

Each line of its input is one of:

  allocate   allocates pinned memory
  register   registers memory of its own
  free       frees the oldest of each kind
  check      a kernel reads what the program wrote into all pinned memory and writes there what
             the program reads; "right" or "wrong: WHAT"
  graph      instantiates a graph whose kernel does so with the memory allocated last; the later
             checks launch it
  wait N     N times: launches and waits
  fetch N    N times: copies 1 MiB from the device to pageable memory
  work       launches kernels that are still in flight at the answer, into the memory allocated last

Answers each line with one, "done" unless said otherwise.
"""

import ctypes
import mmap
import sys

from driver import CudaError, Guest, pointer, say
from pinned_program import PTX

WORDS = 64
# Some pages, the last of which is not whole.
BYTES = 2 * mmap.PAGESIZE + 4 * WORDS
LARGE = 1 << 20
LAUNCHES = 100


class Memory:
    """Pinned memory: the words at its end, its first word, and the device's address of the former."""

    def __init__(self, program, device, own=None):
        at = BYTES - 4 * WORDS
        self.words = (ctypes.c_uint32 * WORDS).from_address(program + at)
        self.first = ctypes.c_uint32.from_address(program)
        self.program, self.device, self.own = program, device + at, own
        self.words[:] = range(WORDS)
        self.first.value = program % 2**32
        self.expected = list(self.words)

    def add(self, value):
        """What a kernel does."""
        self.expected = [(word + value) % 2**32 for word in self.expected]

    def change(self, value):
        """What the program does."""
        self.words[:] = self.expected = [(word * 3 + value) % 2**32 for word in self.expected]

    def is_right(self):
        """Whether all bytes are as expected."""
        return list(self.words) == self.expected and self.first.value == self.program % 2**32


class Home:
    """The program."""

    def __init__(self):
        self.guest = Guest()
        self.cuda = self.guest.cuda
        self.kernel = self.guest.function(self.guest.load(PTX), b"add")
        self.large = self.guest.allocate(LARGE)
        self.allocated, self.registered, self.graphs = [], [], []
        self.turn = 0

    def device(self, program):
        """The device's address of pinned memory."""
        address = ctypes.c_uint64()
        self.cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(address), ctypes.c_void_p(program), 0)
        return address.value

    def allocate(self):
        """Of the driver."""
        address = ctypes.c_void_p()
        self.cuda.cuMemHostAlloc(ctypes.byref(address), ctypes.c_size_t(BYTES), 2)
        self.allocated.append(Memory(address.value, self.device(address.value)))

    def register(self):
        """Of the program."""
        own = mmap.mmap(-1, BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(own))
        self.cuda.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(BYTES), 2)
        self.registered.append(Memory(address, self.device(address), own))

    def free(self):
        """The oldest."""
        for memory, function in (
            (self.allocated.pop(0), self.cuda.cuMemFreeHost),
            (self.registered.pop(0), self.cuda.cuMemHostUnregister),
        ):
            function(ctypes.c_void_p(memory.program))
            if memory.own and not memory.is_right():
                say("wrong: memory that was registered")

    def launch(self, device, value, stream=None):
        """One kernel."""
        words = pointer(device)
        self.guest.launch(self.kernel, 1, WORDS, words, words, ctypes.c_uint32(value), stream=stream)

    def graph(self):
        """Its kernel adds 1."""
        memory, stream, graph, launched = self.allocated[-1], ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.cuda.cuStreamCreate(ctypes.byref(stream), 1)
        self.cuda.cuStreamBeginCapture_v2(stream, 0)
        self.launch(memory.device, 1, stream)
        self.cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
        self.cuda.cuGraphInstantiateWithFlags(ctypes.byref(launched), graph, ctypes.c_uint64(0))
        self.graphs.append((memory, launched))

    def work(self):
        """Some."""
        memory = self.allocated[-1]
        for value in range(LAUNCHES):
            self.launch(memory.device, value)
            memory.add(value)

    def check(self):
        """All pinned memory."""
        self.turn += 1
        self.cuda.cuCtxSynchronize()
        everything = self.allocated + self.registered
        for memory in everything:
            if not memory.is_right():
                return "wrong: after the work in flight"
            memory.change(self.turn)
            self.launch(memory.device, self.turn * 7)
            memory.add(self.turn * 7)
        for memory, graph in self.graphs:
            self.cuda.cuGraphLaunch(graph, None)
            memory.add(1)
        self.cuda.cuCtxSynchronize()
        wrong = [at for at, memory in enumerate(everything) if not memory.is_right()]
        return f"wrong: {wrong} of {len(self.allocated)} and {len(self.registered)}" if wrong else "right"

    def wait(self, count):
        """For short work."""
        for _ in range(int(count)):
            self.launch(self.large, 0)
            self.cuda.cuStreamSynchronize(None)

    def fetch(self, count):
        """Pageable memory."""
        for turn in range(int(count)):
            self.cuda.cuMemsetD8_v2(pointer(self.large), ctypes.c_ubyte(turn % 256), ctypes.c_size_t(LARGE))
            out = ctypes.create_string_buffer(LARGE)
            self.cuda.cuMemcpyDtoH_v2(out, pointer(self.large), ctypes.c_size_t(LARGE))
            if out.raw != bytes([turn % 256]) * LARGE:
                return "wrong: pageable memory"
        return "done"


def main():
    """Line by line."""
    home = Home()
    for line in sys.stdin:
        order, *arguments = line.split()
        try:
            said = getattr(home, order)(*arguments)
        except CudaError as error:
            said = f"wrong: {error}"
        say(said or "done")


if __name__ == "__main__":
    main()
