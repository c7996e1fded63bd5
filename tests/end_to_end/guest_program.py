"""A guest for fault tests: uses libcuda.so.1 through ctypes, as any program may.

usage: guest_program.py MODE [ARGUMENT]
  steps       adds numbers in rounds: prints "round N" after each; never ends by itself
  rounds N    N such rounds, then "done"
  pair        the same on devices 0 and 1 by turns
  spin        launches a kernel that never ends, prints "spinning", waits for it
  await       launches a kernel that waits for a number and prints "waiting"; after a
              line of input copies it to the device and prints "answered", and does
              all that again after another line
  registered  the same through memory of its own, which it registers: the kernel sees
              what the processor writes meanwhile
  forked      computes in registered memory before, while and after there is a child
              that was forked: neither of the two sees what the other writes
  huge        computes in registered memory that consists of huge pages
  beside      copies from and to memory in the same page as registered memory: plain
              memory, then registered memory, then registered by two threads at once
  heap [BYTES] gives kernels a heap of so many bytes, of the default size where none are
              given, and prints "ready"; after each line of input their blocks go to
              other places of it, and "right" or "wrong" is printed
  load FILE   loads a module image: prints the CUresult
  hold BYTES  allocates, prints "holding", waits for standard input to close
  grow BYTES  allocates as much again and again: prints "has N" after each; when
              that is refused "refused", and goes on after a line of input
  churn       frees and allocates memory in rounds, often in the same places, and
              compares what all of it holds: prints "round N" after each
  memory      prints free and total bytes of device 0
  devices     computes on every device at once, prints "computed on N devices",
              waits for standard input to close
  device      prints the name of device 0
Exit status: 0 fine, 3 a CUDA error (printed as "CUDA error N in FUNCTION").
"""

import ctypes
import itertools
import mmap
import os
import random
import sys
import threading

from driver import CudaError, Guest, call, pointer, say

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry advance(.param .u64 data, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [data];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra END;
    mul.wide.u32 %d2, %r5, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.u32 %r6, [%d3];
    add.s32 %r7, %r6, %r5;
    st.global.u32 [%d3], %r7;
END:
    ret;
}
.visible .entry forever()
{
AGAIN:
    bra AGAIN;
}
.visible .entry await(.param .u64 number, .param .u64 answer)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [number];
    ld.param.u64 %d2, [answer];
AGAIN:
    ld.volatile.global.u32 %r1, [%d1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    st.global.u32 [%d2], %r1;
    ret;
}
"""

# Each thread adds its number to a block of the heap, which moves to another one.
HEAP_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 block) malloc(.param .b64 size);
.extern .func free(.param .b64 block);
.visible .entry advance(.param .u64 blocks, .param .u64 sums)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %d<7>;
    .param .b64 argument;
    .param .b64 block;
    .param .b64 earlier;
    ld.param.u64 %d1, [blocks];
    ld.param.u64 %d2, [sums];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %d1, %r1, 8, %d1;
    mad.wide.u32 %d2, %r1, 4, %d2;
    ld.global.u64 %d3, [%d1];
    mov.u32 %r2, 0;
    setp.eq.u64 %p1, %d3, 0;
    @!%p1 ld.u32 %r2, [%d3];
    add.u32 %r2, %r2, %r1;
    mov.u64 %d4, 4;
    st.param.b64 [argument], %d4;
    call.uni (block), malloc, (argument);
    ld.param.b64 %d5, [block];
    st.u32 [%d5], %r2;
    st.global.u64 [%d1], %d5;
    st.global.u32 [%d2], %r2;
    st.param.b64 [earlier], %d3;
    call.uni free, (earlier);
    ret;
}
"""

COUNT = 4096
# Bytes of two huge pages; Python 3.13 and later name the flag.
HUGE = 4 << 20
MAP_HUGETLB = 0x40000


def steps(guest, rounds):
    """Advances an array on the device and compares it with the expected values."""
    for done in advances(guest):
        say(f"round {done}")
        if done == rounds:
            return


def pair(guests):
    """Rounds on several devices by turns."""
    for done in zip(*map(advances, guests)):
        say(f"round {done[0]}")


def advances(guest):
    """The rounds: yields how many are done after each."""
    guest.use()
    advance = guest.function(guest.load(PTX), b"advance")
    size = COUNT * 4
    data = guest.allocate(size)
    host = (ctypes.c_uint32 * COUNT)()
    guest.cuda.cuMemcpyHtoD_v2(pointer(data), host, ctypes.c_size_t(size))
    done = 0
    while True:
        guest.use()
        for _ in range(10):
            guest.launch(advance, COUNT // 128, 128, ctypes.c_uint64(data), ctypes.c_uint32(COUNT))
        done += 1
        guest.cuda.cuMemcpyDtoH_v2(host, pointer(data), ctypes.c_size_t(size))
        wrong = [at for at in range(COUNT) if host[at] != at * 10 * done % 2**32]
        if wrong:
            say(f"wrong at {wrong[0]} in round {done}")
            sys.exit(1)
        yield done


def grow(guest, size):
    """Allocates for ever."""
    count = 0
    while True:
        try:
            guest.allocate(size)
            count += 1
            say(f"has {count * size}")
        except CudaError as error:
            if error.code != 2:
                raise
            say("refused")
            if not sys.stdin.readline():
                return


def heap(guest, size):
    """Kernels that allocate."""
    limit, threads = 2, 256  # CU_LIMIT_MALLOC_HEAP_SIZE
    if size is not None:
        guest.cuda.cuCtxSetLimit(limit, ctypes.c_size_t(size))
    advance = guest.function(guest.load(HEAP_PTX), b"advance")
    blocks, sums = guest.allocate(8 * threads), guest.allocate(4 * threads)
    guest.cuda.cuMemsetD32_v2(pointer(blocks), 0, ctypes.c_size_t(2 * threads))
    host = (ctypes.c_uint32 * threads)()
    for done in itertools.count(1):
        guest.launch(advance, 1, threads, ctypes.c_uint64(blocks), ctypes.c_uint64(sums))
        guest.cuda.cuMemcpyDtoH_v2(host, pointer(sums), ctypes.c_size_t(4 * threads))
        is_right = list(host) == [at * done for at in range(threads)]
        say("ready" if done == 1 and is_right else "right" if is_right else "wrong")
        if not sys.stdin.readline():
            return


def churn(guest):
    """Memory that is allocated and freed repeatedly."""
    chance = random.Random(7)
    edge = ctypes.create_string_buffer(4096)
    blocks = {}
    done = 0
    while True:
        for _ in range(3):
            slot, size, value = chance.randrange(6), chance.randrange(1, 4) << 21, chance.randrange(1, 256)
            if slot in blocks:
                guest.cuda.cuMemFree_v2(pointer(blocks.pop(slot)[0]))
            address = guest.allocate(size)
            guest.cuda.cuMemsetD8_v2(pointer(address), ctypes.c_ubyte(value), ctypes.c_size_t(size))
            blocks[slot] = (address, size, value)
        done += 1
        for address, size, value in blocks.values():
            for offset in (0, size // 2, size - len(edge)):
                guest.cuda.cuMemcpyDtoH_v2(edge, pointer(address + offset), ctypes.c_size_t(len(edge)))
                if edge.raw != bytes([value]) * len(edge):
                    say(f"wrong at {address + offset:#x} in round {done}")
                    sys.exit(1)
        say(f"round {done}")


def awaits(guest):
    """Kernels that wait for data that the program writes later."""
    kernel = guest.function(guest.load(PTX), b"await")
    beside, copies = ctypes.c_void_p(), ctypes.c_void_p()
    guest.cuda.cuStreamCreate(ctypes.byref(beside), 1)
    guest.cuda.cuStreamCreate(ctypes.byref(copies), 1)
    place, answer = guest.allocate(4), guest.allocate(4)
    value, size = ctypes.c_uint32(), ctypes.c_size_t(4)
    for number in itertools.count(1):
        guest.cuda.cuMemsetD32_v2(pointer(place), 0, ctypes.c_size_t(1))
        guest.cuda.cuCtxSynchronize()
        guest.launch(kernel, 1, 1, ctypes.c_uint64(place), ctypes.c_uint64(answer), stream=beside)
        # Answered behind the launch, which the host has then.
        guest.cuda.cuMemGetInfo_v2(ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_size_t()))
        say("waiting")
        sys.stdin.readline()
        value.value = number
        guest.cuda.cuMemcpyHtoDAsync_v2(pointer(place), ctypes.byref(value), size, copies)
        guest.cuda.cuStreamSynchronize(beside)
        guest.cuda.cuMemcpyDtoH_v2(ctypes.byref(value), pointer(answer), size)
        say("answered" if value.value == number else f"wrong: {value.value}, not {number}")
        if not sys.stdin.readline():
            return


def registered(guest):
    """A kernel that sees the CPU's writes while it runs."""
    kernel = guest.function(guest.load(PTX), b"await")
    own = mmap.mmap(-1, 16 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Not at a page's begin, and not all of it.
    words = (ctypes.c_uint32 * 4096).from_buffer(own, mmap.PAGESIZE + 256)
    words[:] = range(4096)
    guest.cuda.cuMemHostRegister_v2(words, ctypes.c_size_t(ctypes.sizeof(words)), 2)
    device = ctypes.c_uint64()
    guest.cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(device), words, 0)
    for number in range(1, 100):
        words[0] = 0
        guest.launch(kernel, 1, 1, device, ctypes.c_uint64(device.value + 4))
        if call("cuStreamQuery", None) != 600:
            say("the kernel did not wait")
            return
        words[0] = number
        while ctypes.c_uint32.from_buffer(words, 4).value != number:
            pass
        guest.cuda.cuCtxSynchronize()
    child = os.fork()
    if child == 0:
        words[2:4096] = [7] * 4094
        os._exit(0)
    os.waitpid(child, 0)
    guest.cuda.cuMemHostUnregister(words)
    right = list(words) == [99, 99, *range(2, 4096)] and not any(own[: mmap.PAGESIZE + 256])
    say("right" if right else "wrong")


class Words:
    """Registered memory, to the first words of which a kernel adds their numbers."""

    def __init__(self, guest, memory):
        self.guest = guest
        self.words = (ctypes.c_uint32 * COUNT).from_buffer(memory)
        self.device = ctypes.c_uint64()
        guest.cuda.cuMemHostRegister_v2(self.words, ctypes.c_size_t(len(memory)), 2)
        guest.cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(self.device), self.words, 0)
        self.advance = guest.function(guest.load(PTX), b"advance")

    def agree(self, first):
        """Whether the kernel reads what the program writes, and the reverse."""
        self.words[:] = range(first, first + COUNT)
        self.guest.launch(self.advance, COUNT // 128, 128, self.device, ctypes.c_uint32(COUNT))
        self.guest.cuda.cuCtxSynchronize()
        return self.hold(first)

    def hold(self, first):
        """Whether they are as the kernel left them."""
        return list(self.words) == [first + 2 * at for at in range(COUNT)]

    def end(self, first):
        """Whether they are so when the memory is the program's alone, and can be written."""
        self.guest.cuda.cuMemHostUnregister(self.words)
        is_right = self.hold(first)
        self.words[:] = [7] * COUNT
        return is_right and list(self.words) == [7] * COUNT


def forked(guest):
    """Registered memory in a program that forks."""
    words = Words(guest, mmap.mmap(-1, COUNT * 4, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    right = [words.agree(1)]
    (from_parent, to_child), (from_child, to_parent) = os.pipe(), os.pipe()
    child = os.fork()
    # Neither waits for one that has ended.
    os.close(to_parent if child else to_child)
    if child == 0:
        # What the parent and the GPU write meanwhile is not to be seen here.
        os.read(from_parent, 1)
        is_right = words.hold(1)
        words.words[:] = [9] * COUNT
        os.write(to_parent, b"w")
        os.read(from_parent, 1)
        os._exit(0 if is_right and list(words.words) == [9] * COUNT else 1)
    right.append(words.agree(1000))
    os.write(to_child, b"w")
    os.read(from_child, 1)
    right += [words.hold(1000), words.agree(2000)]
    os.write(to_child, b"w")
    right.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0)
    right += [words.hold(2000), words.agree(3000), words.end(3000)]
    say("right" if all(right) else f"wrong: {right}")


def huge(guest):
    """Registered memory of huge pages."""
    try:
        memory = mmap.mmap(-1, HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
    except OSError:
        say("no huge pages")
        return
    words = Words(guest, memory)
    right = [words.agree(1), words.agree(1000), words.end(1000)]
    # Again, but only the end of one page and the begin of the next.
    memory[:] = bytes([5]) * HUGE
    part = slice(HUGE // 2 - COUNT * 2, HUGE // 2 + COUNT * 2)
    words = Words(guest, memoryview(memory)[part])
    right += [words.agree(2000), words.end(2000)]
    right += [set(memory[: part.start]) | set(memory[part.stop :]) == {5}]
    say("right" if all(right) else f"wrong: {right}")


class Part:
    """A part of a page, and as much device memory."""

    SIZE = ctypes.c_size_t(1000)

    def __init__(self, guest, page, at):
        self.cuda = guest.cuda
        self.bytes = (ctypes.c_uint8 * self.SIZE.value).from_buffer(page, at)
        self.device = pointer(guest.allocate(self.SIZE.value))
        self.stream = ctypes.c_void_p()
        self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1)

    def register(self):
        """Pins it."""
        self.cuda.cuMemHostRegister_v2(self.bytes, self.SIZE, 0)

    def unregister(self):
        """Unpins it."""
        self.cuda.cuMemHostUnregister(self.bytes)

    def fill(self, value):
        """Writes it."""
        self.bytes[:] = [value] * self.SIZE.value

    def send(self):
        """Copies it to the device."""
        self.cuda.cuMemcpyHtoDAsync_v2(self.device, self.bytes, self.SIZE, self.stream)

    def holds(self, value):
        """Whether the device has this value, and copies another one back."""
        answer = (ctypes.c_uint8 * self.SIZE.value)()
        self.cuda.cuStreamSynchronize(self.stream)
        self.cuda.cuMemcpyDtoH_v2(answer, self.device, self.SIZE)
        self.cuda.cuMemsetD8Async(self.device, ctypes.c_uint8(value + 1), self.SIZE, self.stream)
        self.cuda.cuMemcpyDtoHAsync_v2(self.bytes, self.device, self.SIZE, self.stream)
        self.cuda.cuStreamSynchronize(self.stream)
        return (set(answer), set(self.bytes)) == ({value}, {value + 1})

    def agrees(self, value):
        """Whether copies in both directions are right."""
        self.fill(value)
        self.send()
        return self.holds(value)


def beside(guest):
    """Memory that shares its page with registered memory."""
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first, second = parts = [Part(guest, page, at) for at in (0, mmap.PAGESIZE // 2)]
    first.register()
    # A copy from plain memory takes what it holds at the time of the call, though work before
    # it is not complete.
    wait = guest.function(guest.load(PTX), b"await")
    number, answer = pointer(guest.allocate(4)), pointer(guest.allocate(4))
    guest.cuda.cuMemsetD32_v2(number, 0, ctypes.c_size_t(1))
    guest.cuda.cuCtxSynchronize()
    guest.launch(wait, 1, 1, number, answer, stream=second.stream)
    second.fill(7)
    second.send()
    second.fill(9)
    guest.cuda.cuMemsetD32Async(number, 1, ctypes.c_size_t(1), first.stream)
    right = [second.holds(7), first.agrees(20)]
    first.unregister()
    right.append(second.agrees(30))
    for order in (parts, parts[::-1]):
        for part in order:
            part.register()
        right += [part.agrees(40) for part in order]
        order[0].unregister()
        right += [part.agrees(50) for part in order]
        order[1].unregister()

    def alternate(part):
        guest.use()
        agreed = []
        for value in range(50):
            part.register()
            agreed.append(part.agrees(value))
            part.unregister()
        right.append(all(agreed) and len(agreed) == 50)

    threads = [threading.Thread(target=alternate, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("right" if all(right) and len(right) == 13 else f"wrong: {right}")


def main():
    """Runs one mode."""
    mode, argument = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    try:
        guest = Guest()
        if mode == "steps":
            steps(guest, None)
        elif mode == "pair":
            pair([guest, Guest(1)])
        elif mode == "rounds":
            steps(guest, int(argument))
            say("done")
        elif mode == "spin":
            guest.launch(guest.function(guest.load(PTX), b"forever"), 1, 1)
            say("spinning")
            guest.cuda.cuCtxSynchronize()
        elif mode == "await":
            awaits(guest)
        elif mode == "registered":
            registered(guest)
        elif mode == "forked":
            forked(guest)
        elif mode == "huge":
            huge(guest)
        elif mode == "beside":
            beside(guest)
        elif mode == "heap":
            heap(guest, int(argument) if argument else None)
        elif mode == "load":
            with open(argument, "rb") as file:
                image = file.read()
            module = ctypes.c_void_p()
            say(call("cuModuleLoadData", ctypes.byref(module), image + b"\0"))
        elif mode == "hold":
            guest.allocate(int(argument))
            say("holding")
            sys.stdin.read()
        elif mode == "grow":
            grow(guest, int(argument))
        elif mode == "churn":
            churn(guest)
        elif mode == "memory":
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            guest.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
            say(f"{free.value} {total.value}")
        elif mode == "devices":
            count = ctypes.c_int()
            guest.cuda.cuDeviceGetCount(ctypes.byref(count))
            for device in [guest, *map(Guest, range(1, count.value))]:
                device.use()
                steps(device, 1)
            say(f"computed on {count.value} devices")
            sys.stdin.read()
        elif mode == "device":
            name = ctypes.create_string_buffer(256)
            guest.cuda.cuDeviceGetName(name, 256, 0)
            say(name.value.decode())
        else:
            sys.exit(__doc__)
    except CudaError as error:
        say(error)
        sys.exit(3)


if __name__ == "__main__":
    main()
