"""A program that times every call it makes, for bench_migrate.py.

usage: timed_guest.py MODULES BYTES MEMORY
Loads MODULES modules from images of BYTES bytes each, fills MEMORY bytes of device
memory, prints "ready", and from then on launches a kernel of each module by turns,
rewrites a hundredth of its memory and reads a number back. For each line of
input it answers with a line of JSON: "figures" gives the longest call and wait
since the last time, "check" compares memory and the modules' variables with what
they must hold. On the end of its input it ends.
"""

import ctypes
import gc
import json
import os
import select
import struct
import sys
import time
from ctypes import byref

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "end_to_end"))
# pylint: disable=wrong-import-position
from driver import Guest, pointer, say

REGION = 16 << 20
ADD = """
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 total = %(begin)d;
.visible .entry add(.param .u64 sum)
{
    .reg .b32 %%r<4>;
    .reg .b64 %%d<3>;
    ld.param.u64 %%d1, [sum];
    ld.global.u32 %%r1, [total];
    add.s32 %%r2, %%r1, 1;
    st.global.u32 [total], %%r2;
    st.global.u32 [%%d1], %%r2;
    ret;
}
"""
OTHER = """.visible .entry other%(number)d(.param .u64 places)
{
    .reg .b64 %%d<2>;
    ld.param.u64 %%d1, [places];
%(body)s    ret;
}
"""
STORE = "    st.global.u32 [%%d1+%d], %d;\n"
# Bytes of machine code that become of a store, and stores of a kernel.
CODE, STORES = 48, 500
# CU_JIT_INPUT_PTX, and what the variable is at first where it is replaced later.
PTX, BEGIN = 1, 0x5EED1E55


def text(begin, others):
    """PTX of a short kernel, a variable that is `begin` at first, and so many long kernels."""
    body = "".join(STORE % (4 * at, at * 7919) for at in range(STORES))
    return ADD % {"begin": begin} + "".join(OTHER % {"number": number, "body": body} for number in range(others))


def linked(guest, source):
    """What the driver's linker makes of PTX."""
    state, image, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    guest.cuda.cuLinkCreate_v2(0, None, None, byref(state))
    guest.cuda.cuLinkAddData_v2(state, PTX, source, ctypes.c_size_t(len(source)), b"modules", 0, None, None)
    guest.cuda.cuLinkComplete(state, byref(image), byref(size))
    code = ctypes.string_at(image, size.value)
    guest.cuda.cuLinkDestroy(state)
    return code


def images(guest, count, size):
    """As many images of this size; no two are alike. They are machine code, as those of frameworks
    are, if the driver makes it of PTX. To load PTX would be to compile it."""
    code, place = linked(guest, text(BEGIN, max(1, size // (STORES * CODE))).encode() + b"\0"), struct.pack("<I", BEGIN)
    is_machine_code = code.startswith(b"\x7fELF") and code.count(place) == 1
    for number in range(count):
        begin = 1000 * number
        if is_machine_code:
            yield code.replace(place, struct.pack("<I", begin))
            continue
        source = text(begin, 1)
        # Nothing is short of what compilers write for a debugger.
        notes = "".join(f"// {number} {at} {number * at}\n" for at in range(max(0, size - len(source)) // 16))
        source = (source + notes)[:size]
        yield source[: source.rindex("\n") + 1].encode() + b"\0"


class Clock:
    """What each call took."""

    def __init__(self, library):
        self.library = library
        self.reset()

    def reset(self):
        """Forgets what calls took."""
        self.taken = []
        self.longest = (0, "")

    def __call__(self, name, *arguments):
        function = getattr(self.library, name)
        began = time.perf_counter_ns()
        code = function(*arguments)
        took = time.perf_counter_ns() - began
        if code != 0:
            raise SystemExit(f"CUDA error {code} in {name}")
        self.taken.append(took)
        if took > self.longest[0]:
            self.longest = (took, name)

    def figures(self):
        """What calls took since the last time: milliseconds."""
        taken = sorted(self.taken)
        longest, name = self.longest
        answer = {
            "calls": len(taken),
            "longest_ms": longest / 1e6,
            "longest_call": name,
            "median_ms": taken[len(taken) // 2] / 1e6 if taken else None,
            "slow": [took / 1e6 for took in reversed(taken[-5:])],
        }
        self.reset()
        return answer


class Program:
    """Modules and memory, and what must be in them."""

    def __init__(self, modules, size, memory):
        guest = Guest()
        self.cuda = guest.cuda
        self.clock = Clock(guest.cuda.library)
        self.kernels = []
        for image in images(guest, modules, size):
            module = guest.load(image)
            self.kernels.append(guest.function(module, b"add"))
        self.content = os.urandom(REGION)
        self.regions = [guest.allocate(REGION) for _ in range(max(1, memory // REGION))]
        for address in self.regions:
            self.cuda.cuMemcpyHtoD_v2(pointer(address), self.content, ctypes.c_size_t(REGION))
        self.sum = guest.allocate(4)
        self.number = ctypes.c_uint32()
        self.turns = 0
        self.value = None

    def turn(self):
        """One round of calls; every answer is compared."""
        module = self.turns % len(self.kernels)
        self.value = self.turns % 256
        region = pointer(self.regions[self.turns % len(self.regions)])
        argument = ctypes.c_uint64(self.sum)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(byref(argument), ctypes.c_void_p))
        self.clock("cuMemsetD8Async", region, ctypes.c_ubyte(self.value), ctypes.c_size_t(REGION // 100), None)
        self.clock("cuLaunchKernel", self.kernels[module], 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        self.clock("cuMemcpyDtoH_v2", byref(self.number), pointer(self.sum), ctypes.c_size_t(4))
        self.turns += 1
        expected = 1000 * module + (self.turns - 1) // len(self.kernels) + 1
        if self.number.value != expected:
            raise SystemExit(f"module {module} counted {self.number.value}, not {expected}")

    def exact(self):
        """Whether the memory has the expected contents."""
        host = ctypes.create_string_buffer(REGION)
        for place, address in enumerate(self.regions):
            self.cuda.cuMemcpyDtoH_v2(host, pointer(address), ctypes.c_size_t(REGION))
            last = (self.turns - 1 - place) // len(self.regions) * len(self.regions) + place
            begin = bytes([last % 256]) * (REGION // 100) if last >= 0 else b""
            if host.raw != begin + self.content[len(begin) :]:
                return False
        return True


def main():
    """The program."""
    program = Program(*map(int, sys.argv[1:4]))
    gc.disable()
    for _ in program.kernels:
        program.turn()
    program.clock.reset()
    say("ready")
    while True:
        program.turn()
        if select.select([sys.stdin], [], [], 0)[0]:
            order = sys.stdin.readline().strip()
            if not order:
                return
            say(json.dumps(program.clock.figures() if order == "figures" else program.exact()))
            program.clock.reset()


if __name__ == "__main__":
    main()
