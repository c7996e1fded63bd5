/*
 * A CUDA program that uses every way of copying, without an end of its own: the
 * VM, its device or its GPU moves meanwhile. Each round is compared exactly.
 *
 * usage: guest-mover NAME KIND STOP
 *   KIND  pageable: copies of the program's own memory, small and large
 *         pinned: copies from and to pinned memory, which a kernel writes too
 *   STOP  file whose existence ends it after the round
 * Prints "NAME round N" after each round that was right, and "NAME done N".
 * Exit status: 0; 1 a wrong number; 3 a CUDA error.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Adds to each number its place. */
static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry advance(.param .u64 data, .param .u32 count)\n{\n"
	".reg .pred %p<2>;\n.reg .b32 %r<8>;\n.reg .b64 %d<4>;\n"
	"ld.param.u64 %d1, [data];\nld.param.u32 %r1, [count];\n"
	"mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmov.u32 %r4, %tid.x;\n"
	"mad.lo.s32 %r5, %r2, %r3, %r4;\nsetp.ge.u32 %p1, %r5, %r1;\n@%p1 bra END;\n"
	"mul.wide.u32 %d2, %r5, 4;\nadd.s64 %d3, %d1, %d2;\n"
	"ld.global.u32 %r6, [%d3];\nadd.s32 %r7, %r6, %r5;\nst.global.u32 [%d3], %r7;\n"
	"END:\nret;\n}\n";

/* Large enough to go through the window's staging slots, where there is one. */
#define COUNT	(256 * 1024)
#define BYTES	(COUNT * sizeof(uint32_t))
/* Small enough to travel in a call. */
#define FEW	1024

static void *library;

static void check(const char *name, int error)
{
	if (!error)
		return;
	printf("CUDA error %d in %s\n", error, name);
	exit(3);
}

static void *function(const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		printf("%s is missing\n", name);
		exit(3);
	}
	return found;
}

/* Calls a function of the driver by its name. */
#define CUDA(name, types, ...) \
	check(#name, ((int (*) types)function(#name))(__VA_ARGS__))

static void launch(void *kernel, uint64_t data)
{
	uint32_t count = COUNT;
	void *parameters[] = { &data, &count };

	CUDA(cuLaunchKernel,
	     (void *, unsigned, unsigned, unsigned, unsigned, unsigned,
	      unsigned, unsigned, void *, void **, void **),
	     kernel, COUNT / 256, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL);
}

static void to_device(uint64_t to, const void *from, size_t bytes)
{
	CUDA(cuMemcpyHtoD_v2, (uint64_t, const void *, size_t), to, from, bytes);
}

static void from_device(void *to, uint64_t from, size_t bytes)
{
	CUDA(cuMemcpyDtoH_v2, (void *, uint64_t, size_t), to, from, bytes);
}

static void synchronize(void)
{
	CUDA(cuCtxSynchronize, (void));
}

static void compare(const char *what, const uint32_t *got, const uint32_t *want)
{
	for (size_t i = 0; i < COUNT; i++) {
		if (got[i] == want[i])
			continue;
		printf("%s: number %zu is %u, not %u\n", what, i, got[i], want[i]);
		exit(1);
	}
}

static void advance(uint32_t *numbers)
{
	for (size_t i = 0; i < COUNT; i++)
		numbers[i] += i;
}

static void pageable(void *kernel, uint64_t data, uint32_t *want, uint32_t *got,
		     unsigned long round)
{
	/* What is there stays from round to round; a few numbers are new. */
	for (size_t i = 0; i < FEW; i++)
		want[i] = round * 2654435761u + i;
	if (round % 2)
		to_device(data, want, FEW * sizeof(*want));
	else
		to_device(data, want, BYTES);
	launch(kernel, data);
	advance(want);
	from_device(got, data, BYTES);
	compare("from the device", got, want);
}

static void pinned(void *kernel, uint64_t data, uint32_t *want, uint32_t *pin,
		   unsigned long round)
{
	for (size_t i = 0; i < COUNT; i += 64)
		pin[i] = want[i] = round * 2654435761u + i;
	/* The kernel reaches the program's memory ... */
	launch(kernel, (uint64_t)pin);
	advance(want);
	synchronize();
	compare("pinned, by a kernel", pin, want);
	/* ... and copies do. */
	CUDA(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *),
	     data, pin, BYTES, NULL);
	launch(kernel, data);
	advance(want);
	CUDA(cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, void *), pin,
	     data, BYTES, NULL);
	synchronize();
	compare("pinned, by copies", pin, want);
}

int main(int argc, char **argv)
{
	void *context, *module, *kernel;
	uint32_t *want, *got;
	unsigned long round;
	uint64_t data;
	int device, pins;

	if (argc != 4)
		return 2;
	pins = !strcmp(argv[2], "pinned");
	setvbuf(stdout, NULL, _IOLBF, 0);
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		printf("%s\n", dlerror());
		return 3;
	}
	CUDA(cuInit, (unsigned), 0);
	CUDA(cuDeviceGet, (int *, int), &device, 0);
	CUDA(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
	CUDA(cuCtxSetCurrent, (void *), context);
	CUDA(cuModuleLoadData, (void **, const void *), &module, ptx);
	CUDA(cuModuleGetFunction, (void **, void *, const char *), &kernel,
	     module, "advance");
	CUDA(cuMemAlloc_v2, (uint64_t *, size_t), &data, BYTES);
	want = calloc(COUNT, sizeof(*want));
	if (pins)
		CUDA(cuMemHostAlloc, (void **, size_t, unsigned),
		     (void **)&got, BYTES, 0);
	else
		got = malloc(BYTES);
	if (!want || !got)
		return 3;
	if (pins)
		memset(got, 0, BYTES);
	for (round = 0; access(argv[3], F_OK); round++) {
		if (pins)
			pinned(kernel, data, want, got, round);
		else
			pageable(kernel, data, want, got, round);
		printf("%s round %lu\n", argv[1], round);
	}
	printf("%s done %lu\n", argv[1], round);
	return 0;
}
