// A library (or, with MAIN, a program) that carries NVIDIA's runtime. With PLAIN, the program
// also survives if it is not redirected, and prints the code of a failed call.
#include <stddef.h>
#include <stdio.h>
#include <string.h>

int cudaMalloc(void **place, size_t bytes);
int cudaGetLastError(void);
int cudaDeviceSynchronize(void);
const char *cudaGetErrorName(int code);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
void **__cudaRegisterFatBinary(void *wrapper);

static void **handle;

#ifndef PLAIN
// NVIDIA's runtime would not survive a null pointer here.
__attribute__((constructor)) static void early(void) {
    handle = __cudaRegisterFatBinary(NULL);
}
#endif

int carrier_fail(int code) {
    void *place;
    return cudaMalloc(&place, (size_t)code);
}

int carrier_last(void) {
    return cudaGetLastError();
}

// A function that the stand-in lacks.
int carrier_unserved(void) {
    return cudaDeviceSynchronize();
}

// Whether all is as it should be; what is not, as a sentence.
const char *carrier_check(void) {
    if (handle != (void **)0x1234) {
        return "the constructor came too early";
    }
    if (carrier_fail(2) != 2 || carrier_last() != 2 || carrier_last() != 0) {
        return "the last error is wrong";
    }
    if (strcmp(cudaGetErrorName(1), "redirected") != 0) {
        return "a function that returns text is not redirected";
    }
    if (cudaMemcpy2D((void *)1, 10, (void *)100, 1000, 10000, 100000, 3) != 1 + 20 + 300 + 4000 + 50000 + 600000 + 21) {
        return "arguments are lost";
    }
    return NULL;
}

#ifdef PLAIN
int main(void) {
    printf("%d\n", carrier_fail(2));
    return 0;
}
#elif defined(MAIN)
int main(void) {
    const char *wrong = carrier_check();
    puts(wrong ? wrong : "good");
    return wrong != NULL;
}
#endif
