"""A guest whose threads share pinned memory, word by word.

usage: shared_pinned_program.py THREADS ROUNDS

Every THREADSth word belongs to a thread, which in each round writes new words, lets a kernel in
its stream read them where they are and write others, copies one of the results back beside
them, and waits for its stream. Words of other threads, which lie between, change meanwhile.
Prints "done", or what is wrong.
"""

import ctypes
import sys
import threading

from driver import Guest, pointer, say

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 from, .param .u64 to, .param .u64 device, .param .u32 stride, .param .u32 value)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [from];
    ld.param.u64 %d2, [to];
    ld.param.u64 %d3, [device];
    ld.param.u32 %r1, [stride];
    ld.param.u32 %r2, [value];
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %d4, %r3, %r1;
    add.s64 %d5, %d1, %d4;
    ld.global.u32 %r4, [%d5];
    add.u32 %r4, %r4, %r2;
    add.s64 %d6, %d2, %d4;
    st.global.u32 [%d6], %r4;
    st.global.u32 [%d3], %r4;
    ret;
}
"""

WORDS = 32


class Thread:
    """A thread, and its words of the shared memory."""

    def __init__(self, guest, kernel, memory, threads, number):
        self.guest, self.kernel, self.number = guest, kernel, number
        self.stride = 4 * threads
        area = WORDS * self.stride
        self.places = [memory + area * part + 4 * number for part in range(3)]
        self.device = guest.allocate(4)
        self.stream = ctypes.c_void_p()
        guest.cuda.cuStreamCreate(ctypes.byref(self.stream), 1)
        self.wrong = None

    def word(self, part, index):
        """A word of what goes in, what comes out (the kernel's), or the copy of the last one."""
        return ctypes.c_uint32.from_address(self.places[part] + index * self.stride)

    def round(self, number):
        """A round; what is wrong."""
        value = number * 1000 + self.number
        for index in range(WORDS):
            self.word(0, index).value = value + index
        size = ctypes.c_uint32(self.stride)
        self.guest.launch(
            self.kernel, 1, WORDS, pointer(self.places[0]), pointer(self.places[1]), pointer(self.device), size,
            ctypes.c_uint32(7), stream=self.stream,
        )
        copy = ctypes.c_void_p(self.places[2])
        self.guest.cuda.cuMemcpyDtoHAsync_v2(copy, pointer(self.device), ctypes.c_size_t(4), self.stream)
        self.guest.cuda.cuStreamSynchronize(self.stream)
        out = [self.word(1, index).value for index in range(WORDS)]
        if out != [value + index + 7 for index in range(WORDS)]:
            return f"{out} of thread {self.number} in round {number}"
        if not value + 7 <= self.word(2, 0).value < value + 7 + WORDS:
            return f"a copy of {self.word(2, 0).value} in round {number}"
        return None

    def run(self, rounds):
        """All rounds, until something is wrong."""
        self.guest.use()
        for number in range(rounds):
            self.wrong = self.wrong or self.round(number)


def main():
    """Runs the threads."""
    count, rounds = map(int, sys.argv[1:])
    guest = Guest()
    kernel = guest.function(guest.load(PTX), b"add")
    memory = ctypes.c_void_p()
    guest.cuda.cuMemHostAlloc(ctypes.byref(memory), ctypes.c_size_t(1 << 20), 2)
    threads = [Thread(guest, kernel, memory.value, count, number) for number in range(count)]
    running = [threading.Thread(target=thread.run, args=(rounds,)) for thread in threads]
    for one in running:
        one.start()
    for one in running:
        one.join()
    say(next((thread.wrong for thread in threads if thread.wrong), "done"))


if __name__ == "__main__":
    main()
