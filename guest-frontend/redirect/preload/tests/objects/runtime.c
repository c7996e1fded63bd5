// Stands for paragpu's runtime: a few functions, each with the caller's
// carrier, and what the redirector asks for.
#include <stddef.h>

static __thread __attribute__((tls_model("initial-exec"))) unsigned carrier;
static __thread struct { unsigned carrier; int code; } last[64];

static unsigned take(void) {
    unsigned number = carrier;
    carrier = 0;
    return number;
}

static void fail(unsigned number, int code) {
    last[number % 64].carrier = number;
    last[number % 64].code = code;
}

struct table {
    unsigned version;
    void (*fail)(unsigned, int);
    long slot;
};

const struct table *paragpu_runtime_interface(void) {
    static struct table table = {1, fail, 0};
    table.slot = (char *)&carrier - (char *)__builtin_thread_pointer();
    return &table;
}

void **__cudaRegisterFatBinary(void *wrapper) {
    (void)wrapper;
    return (void **)0x1234;
}

// Fails with the number of bytes that it is asked for.
int cudaMalloc(void **place, size_t bytes) {
    unsigned number = take();
    *place = NULL;
    if (bytes) {
        fail(number, (int)bytes);
    }
    return (int)bytes;
}

int cudaGetLastError(void) {
    unsigned number = take();
    int code = last[number % 64].carrier == number ? last[number % 64].code : 0;
    last[number % 64].code = 0;
    return code;
}

const char *cudaGetErrorName(int code) {
    (void)code;
    return "redirected";
}

// Its arguments fill all registers, and two lie on the stack.
int cudaMemcpy2D(void *to, size_t pitch, const void *from, size_t other, size_t width, size_t height, int kind) {
    unsigned number = take();
    long sum = (long)to + pitch * 2 + (long)from * 3 + other * 4 + width * 5 + height * 6 + kind * 7;
    (void)number;
    return (int)sum;
}
