// SPDX-License-Identifier: Apache-2.0
/*
 * Tests memory that the guest driver pins for the host, from inside a VM. Over
 * ivshmem, where the host does not reach the VM's memory, it is refused.
 * Prints one JSON line per test; fails if any does.
 */
#include "guest.h"

#include <sys/resource.h>

/* Pages pinned and let go since the start, by anybody. */
static int pages_pinned(void)
{
	char name[64];
	long value, pinned = 0;
	FILE *file;

	/* Processors keep counts to themselves until they are asked. */
	write_file("/proc/sys/vm/stat_refresh", "1");
	file = fopen("/proc/vmstat", "r");
	while (file && fscanf(file, "%63s %ld", name, &value) == 2) {
		if (!strcmp(name, "nr_foll_pin_acquired"))
			pinned += value;
		if (!strcmp(name, "nr_foll_pin_released"))
			pinned -= value;
	}
	if (file)
		fclose(file);
	return pinned;
}

#define PIN_SIZE (64 * 4096)

static int test_no_pins(void)
{
	struct channel channel;
	char byte;

	CHECK(channel_open(&channel) == 0);
	CHECK(pin(&channel, &byte, 1, 0) == -EOPNOTSUPP);
	CHECK(unpin(&channel, 0) == -EINVAL);
	channel_close(&channel);
	return 0;
}

static int test_pins(void)
{
	const unsigned int w = PARAGPU_LIST_WRITABLE;
	int i, before = pages_pinned();
	struct channel channel;
	char *memory, *constant;

	CHECK(channel_open(&channel) == 0);
	memory = mmap(NULL, PIN_SIZE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	constant = mmap(NULL, PIN_SIZE, PROT_READ,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && constant != MAP_FAILED);
	/* What cannot be. */
	CHECK(pin(&channel, memory, 0, 0) == -EINVAL);
	CHECK(pin(&channel, memory, PARAGPU_PIN_MAX + 1, 0) == -EINVAL);
	CHECK(pin(&channel, memory, 1, 2) == -EINVAL);
	CHECK(pin(&channel, (void *)4096, 1, w) == -EFAULT);
	CHECK(pin(&channel, (void *)-4096, 8192, w) == -EFAULT);
	CHECK(pin(&channel, memory, 2 * PIN_SIZE + (1 << 20), w) < 0);
	CHECK(pin(&channel, constant, PIN_SIZE, w) == -EFAULT);
	CHECK(pin(&channel, channel.header, 4096, w) == -EFAULT);
	CHECK(pin(&channel, (void *)0xffffffff81000000, 4096, 0) == -EFAULT);
	CHECK(pages_pinned() == before);
	/* Every list, then one more. */
	for (i = 0; i < PARAGPU_LISTS; i++)
		CHECK(pin(&channel, memory + 100, PIN_SIZE - 100, w) == i);
	CHECK(pages_pinned() == before + PARAGPU_LISTS * 64);
	CHECK(pin(&channel, memory, 1, w) == -EBUSY);
	CHECK(unpin(&channel, 2) == 0 && unpin(&channel, 2) == -EINVAL);
	CHECK(unpin(&channel, PARAGPU_LISTS) == -EINVAL);
	CHECK(unpin(&channel, -1) == -EINVAL);
	CHECK(pin(&channel, memory, 1, 0) == 2);
	/* Memory that the process gives back while it is pinned. */
	CHECK(munmap(memory, PIN_SIZE) == 0);
	CHECK(pages_pinned() > before);
	channel_close(&channel);
	CHECK(pages_pinned() == before);
	return 0;
}

/* Pins as much as a user may lock. */
static int locking(unsigned int user)
{
	struct rlimit limit = { 100 * 4096, 100 * 4096 };
	struct channel channel;
	char *memory;

	CHECK(channel_open(&channel) == 0);
	CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	CHECK(setgid(user) == 0 && setuid(user) == 0);
	memory = mmap(NULL, PIN_SIZE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pin(&channel, memory, PIN_SIZE, 1) == 0);
	CHECK(pin(&channel, memory, PIN_SIZE, 1) == -ENOMEM);
	CHECK(pin(&channel, memory, 36 * 4096, 1) == 1);
	CHECK(unpin(&channel, 0) == 0);
	CHECK(pin(&channel, memory, PIN_SIZE, 1) == 0);
	CHECK(ready(1) == 0);
	for (;;)
		pause();
}

/* Root may pin what it likes; others as much as they may lock. */
static int test_pins_are_limited(void)
{
	int before = pages_pinned();
	pid_t child;

	/* A killed process leaves nothing pinned. */
	child = start(locking, 65534, NULL);
	if (child < 0 || kill_child(child))
		return -1;
	CHECK(pages_pinned() == before);
	return 0;
}

int main(void)
{
	if (can_pin()) {
		run("pins", test_pins);
		run("pins-are-limited", test_pins_are_limited);
	} else {
		run("no-pins", test_no_pins);
	}
	return failures != 0;
}
