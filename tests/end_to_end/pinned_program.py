"""A guest whose threads concurrently use pinned memory in every way, and compare
every byte.

usage: pinned_program.py [THREADS]

Each thread, in a stream of its own, again and again: writes new bytes into
pinned memory, copies them to the device, lets a kernel read them where they
are and write into memory of the program that is registered, copies all back into
other pinned memory, and sends pageable memory to and
fro, large enough for staging; now and then it frees what it has pinned and
pins again. Prints "round N" when every thread has come so far, "wrong: WHAT"
where a byte is not what it must be.
"""

import ctypes
import mmap
import sys
import threading

from driver import CudaError, Guest, pointer, say

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 from, .param .u64 to, .param .u32 value)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [from];
    ld.param.u64 %d2, [to];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    mul.wide.u32 %d3, %r5, 4;
    add.s64 %d4, %d1, %d3;
    ld.global.u32 %r6, [%d4];
    add.s32 %r6, %r6, %r1;
    add.s64 %d5, %d2, %d3;
    st.global.u32 [%d5], %r6;
    ret;
}
"""

WORDS = 2048
SMALL = WORDS * 4
LARGE = 1 << 20
# Bytes next to registered memory, less than a page.
EDGE = 1024
AGAIN = 7


class Thread:
    """One of the threads."""

    def __init__(self, guest, kernel, number):
        self.guest, self.cuda, self.kernel, self.number = guest, guest.cuda, kernel, number
        self.round = 0
        guest.use()
        self.stream = ctypes.c_void_p()
        self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1)
        self.device, self.large = guest.allocate(SMALL), guest.allocate(LARGE)
        self.pin()

    def pin(self):
        """Memory that holds other bytes than before."""
        self.pinned = []
        for flags in (0, 0):
            address = ctypes.c_void_p()
            self.cuda.cuMemHostAlloc(ctypes.byref(address), ctypes.c_size_t(SMALL), flags)
            self.pinned.append((ctypes.c_uint32 * WORDS).from_address(address.value))
        # Its first and last pages hold other bytes, too.
        self.own = mmap.mmap(-1, SMALL + 2 * EDGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.own[:EDGE] = self.own[-EDGE:] = b"x" * EDGE
        seen = (ctypes.c_uint32 * WORDS).from_buffer(self.own, EDGE)
        self.cuda.cuMemHostRegister_v2(seen, ctypes.c_size_t(SMALL), 2)
        device = ctypes.c_uint64()
        self.cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(device), seen, 0)
        self.seen = seen, device.value

    def unpin(self):
        """Frees it; returns the first mismatch, or None."""
        for pinned in self.pinned:
            self.cuda.cuMemFreeHost(ctypes.c_void_p(ctypes.addressof(pinned)))
        seen, _ = self.seen
        before = bytes(seen)
        self.cuda.cuMemHostUnregister(seen)
        if self.own[:] != b"x" * EDGE + before + b"x" * EDGE:
            return "memory that was registered"
        return None

    def launch(self, source, to, value):
        """One kernel in the stream."""
        arguments = [ctypes.c_uint64(source), ctypes.c_uint64(to), ctypes.c_uint32(value)]
        addresses = (ctypes.c_void_p * 3)(*[ctypes.addressof(argument) for argument in arguments])
        self.cuda.cuLaunchKernel(self.kernel, WORDS // 128, 1, 1, 128, 1, 1, 0, self.stream, addresses, None)

    def once(self):
        """One round: returns the first mismatch, or None."""
        self.round += 1
        seed = (self.number * 1000003 + self.round * 7919) % 2**31
        given, back = self.pinned
        seen, device = self.seen
        given[:] = [(seed + at) % 2**32 for at in range(WORDS)]
        size = ctypes.c_size_t(SMALL)
        self.cuda.cuMemcpyHtoDAsync_v2(pointer(self.device), given, size, self.stream)
        self.launch(self.device, self.device, 5)
        self.launch(ctypes.addressof(given), device, 11)
        self.cuda.cuMemcpyDtoHAsync_v2(back, pointer(self.device), size, self.stream)
        pattern = bytes((seed + at) % 251 for at in range(4096)) * (LARGE // 4096)
        self.cuda.cuMemcpyHtoD_v2(pointer(self.large), pattern, ctypes.c_size_t(LARGE))
        out = ctypes.create_string_buffer(LARGE)
        self.cuda.cuMemcpyDtoH_v2(out, pointer(self.large), ctypes.c_size_t(LARGE))
        if out.raw != pattern:
            return "pageable memory"
        self.cuda.cuStreamSynchronize(self.stream)
        if list(back) != [(seed + at + 5) % 2**32 for at in range(WORDS)]:
            return "what was copied back"
        if list(seen) != [(seed + at + 11) % 2**32 for at in range(WORDS)]:
            return "what the kernel wrote into registered memory"
        if self.round % AGAIN == 0:
            wrong = self.unpin()
            self.pin()
            return wrong
        return None

    def run(self, wait):
        """Rounds for ever."""
        self.guest.use()
        wrong = None
        try:
            while wrong is None:
                wrong = self.once()
                wait()
        except CudaError as error:
            wrong = str(error)
        except threading.BrokenBarrierError:
            return
        say(f"wrong: {wrong} of thread {self.number} in round {self.round}")
        wait.__self__.abort()


def main():
    """The program."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    guest = Guest()
    kernel = guest.function(guest.load(PTX), b"add")
    rounds = iter(range(1, 1 << 62))
    barrier = threading.Barrier(count, action=lambda: say(f"round {next(rounds)}"))
    workers = [Thread(guest, kernel, number) for number in range(count)]
    threads = [threading.Thread(target=worker.run, args=(barrier.wait,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(3)


if __name__ == "__main__":
    main()
