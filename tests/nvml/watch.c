// Watches what a native program asks of NVML's tables of functions without names.
//
//     cc -O1 -shared -fPIC -o watch.so watch.c
//     WATCH=FILE LD_PRELOAD=./watch.so nvidia-smi -L
//
// A line of FILE for every table that nvmlInternalGetExportTable gives, and for
// every call of its slots: arguments, result, the text that arguments point to,
// and all that the call changed there, up to two records of processes. Only
// arguments and results are looked at; everything is passed on as it is. x86-64,
// glibc.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { TABLES = 16, SLOTS = 512, ARGUMENTS = 6, LOOK = 8448, GLANCE = 48 };

struct table {
    unsigned char uuid[16];
    size_t slots;
    void *functions[SLOTS];
    // What the program is given: the size, then thunks.
    void *given[SLOTS];
};

// What the assembly below saves of a call.
struct call {
    uint64_t arguments[ARGUMENTS];
    uint64_t slot;
    uint64_t result;
};

static struct table tables[TABLES];
static int known;
static FILE *out;
static __thread unsigned char before[ARGUMENTS][LOOK];
static __thread size_t readable[ARGUMENTS];

__attribute__((visibility("hidden"))) void watched(void);

// Passes on six arguments in registers and eight on the stack.
__asm__(
    ".globl watched\n.hidden watched\nwatched:\n"
    "  push %rbp\n  mov %rsp, %rbp\n  push %rbx\n  push %r12\n"
    "  sub $64, %rsp\n"
    "  mov %rdi, 0(%rsp)\n  mov %rsi, 8(%rsp)\n  mov %rdx, 16(%rsp)\n"
    "  mov %rcx, 24(%rsp)\n  mov %r8, 32(%rsp)\n  mov %r9, 40(%rsp)\n"
    "  mov %r11, 48(%rsp)\n  mov %rsp, %rbx\n"
    "  mov %rsp, %rdi\n  call watch_begins\n  mov %rax, %r12\n"
    "  push 72(%rbp)\n  push 64(%rbp)\n  push 56(%rbp)\n  push 48(%rbp)\n"
    "  push 40(%rbp)\n  push 32(%rbp)\n  push 24(%rbp)\n  push 16(%rbp)\n"
    "  mov 0(%rbx), %rdi\n  mov 8(%rbx), %rsi\n  mov 16(%rbx), %rdx\n"
    "  mov 24(%rbx), %rcx\n  mov 32(%rbx), %r8\n  mov 40(%rbx), %r9\n"
    "  xor %eax, %eax\n  call *%r12\n  add $64, %rsp\n"
    "  mov %rax, 56(%rbx)\n  mov %rbx, %rdi\n  call watch_ends\n"
    "  mov 56(%rbx), %rax\n  add $64, %rsp\n"
    "  pop %r12\n  pop %rbx\n  pop %rbp\n  ret\n");

// Reads of this process what may not be there; how much was.
static size_t look(uint64_t address, void *into) {
    for (size_t size = LOOK; size >= 8; size /= 2) {
        struct iovec here = {into, size}, there = {(void *)address, size};
        if (address > 4096 && process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)size) {
            return size;
        }
    }
    return 0;
}

static int is_text(const unsigned char *bytes) {
    for (int at = 0; at < 4; ++at) {
        if (bytes[at] < 32 || bytes[at] > 126) {
            return 0;
        }
    }
    return 1;
}

static void hex(const unsigned char *bytes, size_t size) {
    for (size_t at = 0; at < size; ++at) {
        fprintf(out, "%02x%s", bytes[at], at % 8 == 7 && at + 1 < size ? " " : "");
    }
}

__attribute__((visibility("hidden"))) void *watch_begins(struct call *call) {
    for (int at = 0; at < ARGUMENTS; ++at) {
        readable[at] = look(call->arguments[at], before[at]);
    }
    return tables[call->slot / SLOTS].functions[call->slot % SLOTS];
}

__attribute__((visibility("hidden"))) void watch_ends(struct call *call) {
    const struct table *table = &tables[call->slot / SLOTS];
    fprintf(out, "call ");
    hex(table->uuid, 4);
    fprintf(out, "[%d] = %d (%#lx)", (int)(call->slot % SLOTS), (int)call->result, call->result);
    for (int at = 0; at < ARGUMENTS; ++at) {
        fprintf(out, " %#lx", call->arguments[at]);
    }
    fprintf(out, "\n");
    for (int at = 0; at < ARGUMENTS; ++at) {
        unsigned char after[LOOK];
        if (!readable[at] || look(call->arguments[at], after) != readable[at]) {
            continue;
        }
        // Up to the last byte that changed.
        size_t changed = readable[at];
        while (changed > 0 && before[at][changed - 1] == after[changed - 1]) {
            --changed;
        }
        // What registers hold by chance, code among it, is not looked at.
        if (!changed && !is_text(before[at])) {
            continue;
        }
        size_t shown = readable[at] < GLANCE ? readable[at] : GLANCE;
        shown = changed > shown ? changed : shown;
        fprintf(out, "  argument %d %s ", at, changed ? "was      " : "points to");
        hex(before[at], shown);
        if (changed) {
            fprintf(out, "\n  argument %d is        ", at);
            hex(after, shown);
        }
        fprintf(out, "\n");
    }
    fflush(out);
}

static int (*get_table)(const void **, const void *);

// nvmlInternalGetExportTable.
static int watching_table(const void **table, const void *uuid) {
    int result = get_table(table, uuid);
    fprintf(out, "table ");
    hex(uuid, 16);
    fprintf(out, " = %d", result);
    if (result || !table || !*table || known == TABLES) {
        fprintf(out, "\n");
        return result;
    }
    void *const *theirs = *table;
    struct table *own = &tables[known];
    memcpy(own->uuid, uuid, 16);
    own->slots = (size_t)theirs[0] / sizeof(void *);
    fprintf(out, ", %zu slots\n", own->slots);
    fflush(out);
    if (own->slots == 0 || own->slots > SLOTS) {
        return result;
    }
    size_t bytes = SLOTS * 32;
    unsigned char *thunks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    own->given[0] = theirs[0];
    for (size_t slot = 1; slot < own->slots; ++slot) {
        own->functions[slot] = theirs[slot];
        if (!theirs[slot]) {
            continue;
        }
        // movabs $number, %r11; jmp *(%rip) to `watched`.
        unsigned char *thunk = thunks + slot * 32;
        uint64_t number = (uint64_t)known * SLOTS + slot, target = (uint64_t)watched;
        memcpy(thunk, "\x49\xbb", 2);
        memcpy(thunk + 2, &number, 8);
        memcpy(thunk + 10, "\xff\x25\x00\x00\x00\x00", 6);
        memcpy(thunk + 16, &target, 8);
        own->given[slot] = thunk;
    }
    mprotect(thunks, bytes, PROT_READ | PROT_EXEC);
    ++known;
    *table = own->given;
    return result;
}

static void *(*real_dlsym)(void *, const char *);

void *dlsym(void *handle, const char *name) {
    if (!real_dlsym) {
        real_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        const char *path = getenv("WATCH");
        out = fopen(path ? path : "/dev/stderr", "a");
    }
    void *found = real_dlsym(handle, name);
    if (found && !strcmp(name, "nvmlInternalGetExportTable")) {
        get_table = found;
        return watching_table;
    }
    if (!strncmp(name, "nvml", 4)) {
        fprintf(out, "symbol %s %s\n", name, found ? "there" : "absent");
    }
    return found;
}
