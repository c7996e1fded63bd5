/*
 * old-interface: what the driver under it answers to functions that CUDA
 * deprecated, and to questions that its manual leaves open.
 *
 *   cc -o old-interface tests/tools/old-interface.c -I.cache/cuda-13.0/include -ldl
 *
 * It prints one line a call, so that answers of two drivers can be compared.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include <cuda.h>

#define TEXT(name) #name
#define SYMBOL(name) TEXT(name)
#define CALL(name, ...) ((__typeof__(&name))find(SYMBOL(name)))(__VA_ARGS__)
#define ASK(name, ...) \
	printf("%-40s %d\n", #name "(" #__VA_ARGS__ ")", (int)CALL(name, __VA_ARGS__))

static void *library;

static void *find(const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return found;
}

static const char kernel_text[] =
	".version 7.0\n.target sm_75\n.address_size 64\n"
	".visible .global .texref picture;\n"
	".visible .entry run(.param .u64 to, .param .u32 value) {\n"
	".reg .b64 %rd<3>; .reg .b32 %r<2>;\n"
	"ld.param.u64 %rd1, [to]; cvta.to.global.u64 %rd2, %rd1;\n"
	"ld.param.u32 %r1, [value]; st.global.u32 [%rd2], %r1; ret;\n}\n";

static void ask_texture_references(CUmodule module)
{
	CUtexref made = NULL, found = NULL;
	CUsurfref surface = NULL;
	CUdeviceptr address = 0;
	CUarray array = NULL;
	CUaddress_mode mode = 99;
	CUfilter_mode filter = 99;
	CUarray_format format = 99;
	unsigned flags = 99;
	int number = 99;
	float low = -9, high = -9, border[4] = {-9, -9, -9, -9};
	size_t offset = 99;

	ASK(cuTexRefCreate, &made);
	ASK(cuModuleGetTexRef, &found, module, "picture");
	ASK(cuModuleGetTexRef, &found, module, "nothing");
	ASK(cuModuleGetSurfRef, &surface, module, "nothing");
	ASK(cuTexRefGetAddressMode, &mode, made, 0);
	ASK(cuTexRefGetFilterMode, &filter, made);
	ASK(cuTexRefGetFlags, &flags, made);
	ASK(cuTexRefGetFormat, &format, &number, made);
	printf("mode %d, filter %d, flags %u, format %d of %d\n", mode, filter, flags, format, number);
	ASK(cuTexRefGetAddress, &address, made);
	ASK(cuTexRefGetArray, &array, made);
	ASK(cuTexRefGetMaxAnisotropy, &number, made);
	ASK(cuTexRefGetMipmapFilterMode, &filter, made);
	ASK(cuTexRefGetMipmapLevelBias, &low, made);
	ASK(cuTexRefGetMipmapLevelClamp, &low, &high, made);
	ASK(cuTexRefGetBorderColor, border, made);
	printf("anisotropy %d, filter %d, levels %g to %g, border %g\n", number, filter, low, high, border[0]);
	ASK(cuTexRefSetFormat, made, CU_AD_FORMAT_FLOAT, 1);
	ASK(cuTexRefSetFlags, made, CU_TRSF_NORMALIZED_COORDINATES);
	ASK(cuTexRefSetFilterMode, made, CU_TR_FILTER_MODE_LINEAR);
	ASK(cuTexRefSetAddressMode, made, 0, CU_TR_ADDRESS_MODE_CLAMP);
	ASK(cuTexRefSetAddressMode, made, 3, CU_TR_ADDRESS_MODE_CLAMP);
	CALL(cuMemAlloc, &address, 4096);
	ASK(cuTexRefSetAddress, &offset, made, address, 4096);
	ASK(cuTexRefGetAddress, &address, made);
	ASK(cuTexRefDestroy, made);
	ASK(cuTexRefDestroy, NULL);
}

static void ask_prepared_launches(CUmodule module)
{
	CUfunction function = NULL;
	CUdeviceptr to = 0;
	unsigned got = 0;

	CALL(cuModuleGetFunction, &function, module, "run");
	CALL(cuMemAlloc, &to, 4);
	ASK(cuLaunch, function);
	ASK(cuFuncSetBlockShape, function, 1, 1, 1);
	ASK(cuFuncSetBlockShape, function, 0, 1, 1);
	ASK(cuFuncSetBlockShape, function, 4096, 1, 1);
	ASK(cuFuncSetBlockShape, function, 1, 1, 1);
	ASK(cuFuncSetSharedSize, function, 0);
	ASK(cuParamSetv, function, 0, &to, sizeof to);
	ASK(cuParamSeti, function, 8, 42);
	ASK(cuParamSetSize, function, 8);
	ASK(cuLaunch, function);
	ASK(cuParamSetSize, function, 12);
	ASK(cuParamSetSize, function, 1 << 20);
	ASK(cuParamSeti, function, -4, 42);
	ASK(cuParamSetSize, function, 12);
	ASK(cuLaunch, function);
	ASK(cuLaunchGrid, function, 0, 1);
	ASK(cuLaunchGridAsync, function, 1, 1, NULL);
	ASK(cuMemcpyDtoH, &got, to, sizeof got);
	printf("the kernel wrote %u\n", got);
}

static void notified(CUasyncNotificationInfo *info, void *data, CUasyncCallbackHandle callback)
{
	(void)data;
	(void)callback;
	printf("notification %d\n", (int)info->type);
}

static void ask_limits_and_links(CUdevice device)
{
	CUexecAffinityParam affinity = {0};
	CUasyncCallbackHandle handle = NULL;
	CUlinkState link = NULL;
	void *image = NULL;
	size_t value = 0, size = 0;
	char log[2048] = "";
	CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)sizeof log};
	char undefined[] =
		".version 7.0\n.target sm_75\n.address_size 64\n"
		".extern .func nowhere();\n.visible .entry run() { call nowhere; ret; }\n";
	char twice[] =
		".version 7.0\n.target sm_75\n.address_size 64\n.visible .global .u32 x;\n";

	for (int limit = 0; limit < 12; ++limit)
		printf("cuCtxGetLimit(%d) %d\n", limit, CALL(cuCtxGetLimit, &value, (CUlimit)limit));
	ASK(cuCtxGetExecAffinity, &affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT);
	ASK(cuDeviceRegisterAsyncNotification, device, notified, NULL, &handle);
	ASK(cuDeviceRegisterAsyncNotification, device, NULL, NULL, &handle);

	ASK(cuLinkCreate, 2, options, values, &link);
	ASK(cuLinkAddData, link, CU_JIT_INPUT_PTX, undefined, sizeof undefined, "undefined", 0, NULL, NULL);
	ASK(cuLinkComplete, link, &image, &size);
	printf("log: %s\n", log);
	CALL(cuLinkDestroy, link);
	*log = 0;
	ASK(cuLinkCreate, 2, options, values, &link);
	ASK(cuLinkAddData, link, CU_JIT_INPUT_PTX, twice, sizeof twice, "one", 0, NULL, NULL);
	ASK(cuLinkAddData, link, CU_JIT_INPUT_PTX, twice, sizeof twice, "two", 0, NULL, NULL);
	ASK(cuLinkComplete, link, &image, &size);
	printf("log: %s\n", log);
	CALL(cuLinkDestroy, link);
	ASK(cuLinkCreate, 0, NULL, NULL, &link);
	ASK(cuLinkComplete, link, &image, &size);
	CALL(cuLinkDestroy, link);
}

static void hear(void *data, CUlogLevel level, char *message, size_t length)
{
	(void)data;
	printf("log, level %d: %.*s\n", level, (int)length, message);
}

static void ask_attributes(void)
{
	CUlogsCallbackHandle handle = NULL;
	char path[2048];
	size_t size;

	for (int attribute = 0; attribute <= CU_COREDUMP_MAX; ++attribute) {
		size = 0;
		int asked = CALL(cuCoredumpGetAttribute, (CUcoredumpSettings)attribute, NULL, &size);
		size_t needed = size;

		size = sizeof path;
		int got = CALL(cuCoredumpGetAttribute, (CUcoredumpSettings)attribute, path, &size);
		printf("core dump attribute %d: %d needs %zu, %d has %zu\n", attribute, asked, needed, got, size);
	}
	ASK(cuLogsRegisterCallback, hear, NULL, &handle);
	ASK(cuMemFree, 0x7fffdead0000ull);
	ASK(cuModuleLoadData, (CUmodule *)path, ".version 7.0\n.target sm_75\n.address_size 64\n.entry {");
	ASK(cuLogsUnregisterCallback, handle);
}

int main(void)
{
	CUdevice device;
	CUcontext context;
	CUmodule module;

	setvbuf(stdout, NULL, _IOLBF, 0);
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	if (CALL(cuInit, 0) || CALL(cuDeviceGet, &device, 0) ||
	    CALL(cuDevicePrimaryCtxRetain, &context, device) || CALL(cuCtxSetCurrent, context)) {
		fprintf(stderr, "no device\n");
		return 1;
	}
	ask_attributes();
	ask_limits_and_links(device);
	int loaded = CALL(cuModuleLoadData, &module, kernel_text);
	printf("a module with a texture reference: %d\n", loaded);
	if (loaded) {
		/* The same without the reference. */
		char *text = strdup(kernel_text);
		memset(strstr(text, ".visible .global"), ' ', strlen(".visible .global .texref picture;"));
		if (CALL(cuModuleLoadData, &module, text))
			return 1;
	}
	ask_texture_references(module);
	ask_prepared_launches(module);
	return 0;
}
