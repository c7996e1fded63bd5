"""System calls that a process makes against its will: what a compromised thread would do. Root, x86-64."""

import ctypes
import os
import platform

ATTACH, DETACH, POKE, STEP, GET_REGISTERS, SET_REGISTERS, PEEK = 16, 17, 5, 9, 12, 13, 2
OPENAT, AT_FDCWD = 257, -100
WALL = 0x40000000
NAMES = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs"
).split()


class Registers(ctypes.Structure):
    """struct user_regs_struct of <sys/user.h>."""

    _fields_ = [(name, ctypes.c_ulong) for name in NAMES]


def possible():
    """Can this machine inject system calls?"""
    return platform.machine() == "x86_64" and os.geteuid() == 0


def ptrace(request, thread, address=0, data=0):
    """ptrace(2)."""
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.restype = ctypes.c_long
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    ctypes.set_errno(0)
    result = library.ptrace(request, thread, address, data)
    if ctypes.get_errno() and result == -1:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")
    return result


def opens(thread, path):
    """The error with which a thread, which waits in a system call, opens a file for reading; 0 if it can."""
    ptrace(ATTACH, thread)
    try:
        os.waitpid(thread, WALL)
        before, now = Registers(), Registers()
        ptrace(GET_REGISTERS, thread, 0, ctypes.addressof(before))
        # Below the red zone, in words; the thread stopped behind its `syscall`.
        text = path.encode() + bytes(8 - len(path) % 8)
        at = (before.rsp - 256 - len(text)) & ~7
        kept = [ptrace(PEEK, thread, at + offset) for offset in range(0, len(text), 8)]
        for offset in range(0, len(text), 8):
            ptrace(POKE, thread, at + offset, int.from_bytes(text[offset : offset + 8], "little"))
        ctypes.memmove(ctypes.addressof(now), ctypes.addressof(before), ctypes.sizeof(before))
        now.rax, now.rdi, now.rsi, now.rdx, now.r10 = OPENAT, AT_FDCWD & 0xFFFFFFFFFFFFFFFF, at, os.O_CLOEXEC, 0
        now.orig_rax, now.rip = 0xFFFFFFFFFFFFFFFF, before.rip - 2
        ptrace(SET_REGISTERS, thread, 0, ctypes.addressof(now))
        ptrace(STEP, thread)
        os.waitpid(thread, WALL)
        ptrace(GET_REGISTERS, thread, 0, ctypes.addressof(now))
        for offset, word in zip(range(0, len(text), 8), kept, strict=True):
            ptrace(POKE, thread, at + offset, word & 0xFFFFFFFFFFFFFFFF)
        ptrace(SET_REGISTERS, thread, 0, ctypes.addressof(before))
        result = ctypes.c_long(now.rax).value
        return max(-result, 0)
    finally:
        ptrace(DETACH, thread)
