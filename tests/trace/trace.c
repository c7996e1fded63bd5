// A stand-in for libcuda.so.1 that logs every call of the driver's interface
// and passes it on to the library that CUDA_TRACE_DRIVER names: NVIDIA's or
// paragpu's. One line a call on the file CUDA_TRACE_OUTPUT: name, status,
// arguments, and what the call changed in memory behind its pointers. Addresses
// and handles are shown as a letter, so that logs of two drivers compare.
//
// driver_trace.py writes entries.inc, the exported symbols, and gives each the
// slot of its place in the list.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SLOTS = 8192, DEPTH = 64, ARGUMENTS = 6, NAME = 64 };

#define SYMBOL(name) #name,
static const char *const exported[] = {
#include "entries.inc"
};
#undef SYMBOL
enum { EXPORTED = sizeof exported / sizeof *exported };

struct frame {
    uint64_t slot, back, arguments[ARGUMENTS], behind[ARGUMENTS];
    unsigned char readable[ARGUMENTS];
};
static void *targets[SLOTS];
static char names[SLOTS][NAME];
static int used = EXPORTED;
static FILE *output;
static _Thread_local struct frame frames[DEPTH];
static _Thread_local int depth;
extern char trace_slots[];

static int peek(uint64_t address, uint64_t *value) {
    if (address < 0x10000 || address >> 47) return 0;
    struct iovec here = {value, 8}, there = {(void *)address, 8};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 8;
}

static void show(uint64_t value) {
    if (value < 1u << 31 || value > -1024ull) fprintf(output, "%ld", (long)value);
    else if (value >> 47 == 0 && value >> 32) fprintf(output, "p");
    else fprintf(output, "0x%lx", value);
}

static void *thunk(int slot) { return trace_slots + 16 * slot; }

static void load(void) {
    const char *path = getenv("CUDA_TRACE_OUTPUT");
    output = path ? fopen(path, "a") : stderr;
    if (!output) output = stderr;
    setvbuf(output, NULL, _IOLBF, 0);
    const char *driver = getenv("CUDA_TRACE_DRIVER");
    void *library = driver ? dlopen(driver, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "trace: CUDA_TRACE_DRIVER must name a driver library: %s\n", driver ? dlerror() : "it is not set");
        _exit(2);
    }
    for (int i = 0; i < EXPORTED; i++) {
        targets[i] = dlsym(library, exported[i]);
        snprintf(names[i], NAME, "%s", exported[i]);
    }
}

__attribute__((visibility("hidden"))) void *trace_enter(uint64_t slot, uint64_t *arguments, uint64_t back) {
    static int loaded;
    static int lock;
    if (!__atomic_load_n(&loaded, __ATOMIC_ACQUIRE)) {
        while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) usleep(100);
        if (!loaded) {
            load();
            __atomic_store_n(&loaded, 1, __ATOMIC_RELEASE);
        }
        __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    }
    struct frame *frame = &frames[depth++];
    frame->slot = slot;
    frame->back = back;
    for (int i = 0; i < ARGUMENTS; i++) {
        frame->arguments[i] = arguments[i];
        frame->readable[i] = peek(arguments[i], &frame->behind[i]);
    }
    if (!targets[slot]) {
        fprintf(stderr, "trace: the driver has no %s\n", names[slot]);
        _exit(2);
    }
    return targets[slot];
}

__attribute__((visibility("hidden"))) uint64_t trace_leave(uint64_t status) {
    struct frame *frame = &frames[--depth];
    const char *name = names[frame->slot];
    int asks = !strncmp(name, "cuGetProcAddress", 16);
    flockfile(output);
    fprintf(output, "%*s%s = %d (", depth * 2, "", name, (int)status);
    for (int i = 0; i < ARGUMENTS; i++) {
        if (i) fprintf(output, ", ");
        if (asks && i == 0) fprintf(output, "%s", (char *)frame->arguments[0]);
        else show(frame->arguments[i]);
        uint64_t now;
        if (!(asks && i < 2) && frame->readable[i] && peek(frame->arguments[i], &now) && now != frame->behind[i]) {
            fprintf(output, " -> ");
            show(now);
        }
    }
    fprintf(output, ")\n");
    funlockfile(output);
    if (asks && status == 0 && frame->arguments[1]) {
        void **found = (void **)frame->arguments[1];
        if (*found) {
            int slot = __atomic_fetch_add(&used, 1, __ATOMIC_RELAXED);
            if (slot < SLOTS) {
                targets[slot] = *found;
                snprintf(names[slot], NAME, "%s", (char *)frame->arguments[0]);
                *found = thunk(slot);
            }
        }
    }
    return frame->back;
}

// trace_slots holds one entry of 16 bytes for each slot: its number to r11, and
// on to trace_common, which logs, calls the target with the caller's own stack
// arguments in place, logs again and returns to the caller.
__asm__(".text\n.p2align 4\n.globl trace_slots\n.hidden trace_slots\ntrace_slots:\n"
        ".set slot, 0\n.rept 8192\n.p2align 4\nmov $slot, %r11d\njmp trace_common\n.set slot, slot + 1\n.endr\n"
        "trace_common:\n"
        "push %rbp\nmov %rsp, %rbp\nsub $192, %rsp\nand $-16, %rsp\n"
        "mov %rdi, (%rsp)\nmov %rsi, 8(%rsp)\nmov %rdx, 16(%rsp)\nmov %rcx, 24(%rsp)\nmov %r8, 32(%rsp)\nmov %r9, 40(%rsp)\n"
        "movups %xmm0, 64(%rsp)\nmovups %xmm1, 80(%rsp)\nmovups %xmm2, 96(%rsp)\nmov %rax, 112(%rsp)\n"
        "mov %r11, %rdi\nmov %rsp, %rsi\nmov 8(%rbp), %rdx\ncall trace_enter\nmov %rax, %r11\n"
        "mov (%rsp), %rdi\nmov 8(%rsp), %rsi\nmov 16(%rsp), %rdx\nmov 24(%rsp), %rcx\nmov 32(%rsp), %r8\nmov 40(%rsp), %r9\n"
        "movups 64(%rsp), %xmm0\nmovups 80(%rsp), %xmm1\nmovups 96(%rsp), %xmm2\nmov 112(%rsp), %rax\n"
        "leave\nadd $8, %rsp\ncall *%r11\n"
        "sub $8, %rsp\npush %rax\npush %rdx\nsub $8, %rsp\nmov %rax, %rdi\ncall trace_leave\n"
        "mov %rax, 24(%rsp)\nadd $8, %rsp\npop %rdx\npop %rax\nret\n");
