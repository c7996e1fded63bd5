// SPDX-License-Identifier: Apache-2.0
/*
 * Tests of the guest driver that need a kernel or a place of their own, from
 * inside a VM. The host's side is qemu-device with the example echo_daemon.
 *
 * usage: guest-debug failures PCI-ADDRESS   each allocation fails once; needs
 *                                           CONFIG_FAULT_INJECTION
 *        guest-debug account PCI-ADDRESS    memory counts as the opener's, and
 *                                           the host writes to no file; needs a
 *                                           cgroup2 with memory in /sys/fs/cgroup
 *        guest-debug hold FILE              has channels in use, makes FILE, and
 *                                           never ends
 *        guest-debug free PCI-ADDRESS       without the driver: all channels are
 *                                           free
 * Prints one JSON line per test; fails if any does.
 */
#include "guest.h"

#include <setjmp.h>
#include <sys/mount.h>
#include <sys/stat.h>

static const char *pci_address;
static int channels;

static int unbind(void)
{
	return write_file("/sys/bus/pci/drivers/paragpu/unbind", pci_address);
}

static int bind(void)
{
	return write_file("/sys/bus/pci/drivers/paragpu/bind", pci_address);
}

static int is_bound(void)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/bus/pci/drivers/paragpu/%s",
		 pci_address);
	return access(path, F_OK) == 0;
}

/* ------------------------------------------------ allocations that fail */

/* More than any of these operations makes. */
#define MAX_ALLOCATIONS 5000

static int fail_nth = -1;

/*
 * From now on the nth allocation of this thread fails, once. So does an access
 * to user memory, which may be this very one; the next cannot.
 */
static int fail_from_now(int nth)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%d", nth);

	if (pwrite(fail_nth, text, length, 0) != length)
		CHECK(pwrite(fail_nth, text, length, 0) == length);
	return 0;
}

/* No more; tells whether the nth had its turn, or a negative number. */
static int failed(void)
{
	char text[16] = "?";
	int error = pread(fail_nth, text, sizeof(text) - 1, 0) < 0 ? errno : 0;

	CHECK(fail_from_now(0) == 0);
	/* Had this access its turn, then there was none before. */
	CHECK(!error || error == EFAULT);
	return !error && atoi(text) == 0;
}

/*
 * Does `act` with its first allocation failing, then its second, and so on,
 * until it made fewer; `undo` follows each. How many, or a negative number.
 */
static int each_failing(int (*act)(void), int (*undo)(void))
{
	int nth, had_turn;

	for (nth = 1; nth < MAX_ALLOCATIONS; nth++) {
		CHECK(fail_from_now(nth) == 0);
		act();
		had_turn = failed();
		CHECK(had_turn >= 0);
		if (undo())
			return -1;
		if (!had_turn)
			return nth - 1;
	}
	return fail("no end after %d allocations", nth);
}

/* Some must have been made, or nothing was tested. */
static int some(const char *what, int count)
{
	if (count > 0)
		printf("# %s: %d allocations failed, each once\n", what, count);
	return count > 0 ? 0 : count < 0 ? -1 : fail("%s: no allocation", what);
}

static int unbind_if_bound(void)
{
	return is_bound() ? unbind() : 0;
}

static int test_bind_without_memory(void)
{
	CHECK(unbind() == 0);
	if (some("bind", each_failing(bind, unbind_if_bound)))
		return -1;
	CHECK(bind() == 0);
	CHECK(count_channels() == channels);
	return 0;
}

static int opened = -1;

static int open_once(void)
{
	opened = open(NODE, O_RDWR | O_CLOEXEC);
	return opened < 0 ? -1 : 0;
}

static int close_once(void)
{
	if (opened >= 0)
		close(opened);
	opened = -1;
	return 0;
}

static int test_open_without_memory(void)
{
	if (some("open", each_failing(open_once, close_once)))
		return -1;
	CHECK(count_channels() == channels);
	return 0;
}

static struct channel pinner;
static __u32 list;

static void *own_memory(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

#define PINNED (1024 * 1024)
static void *pinned;

static int pin_once(void)
{
	struct paragpu_pin_request request = {
		.address = (unsigned long)pinned,
		.length = PINNED,
		.flags = PARAGPU_LIST_WRITABLE,
	};

	list = PARAGPU_LISTS;
	if (ioctl(pinner.fd, PARAGPU_IOC_PIN, &request))
		return -1;
	list = request.list;
	return 0;
}

static int unpin_once(void)
{
	__u32 other;

	if (list < PARAGPU_LISTS)
		CHECK(ioctl(pinner.fd, PARAGPU_IOC_UNPIN, &list) == 0);
	/* Where the answer could not be written nothing may be left either. */
	for (other = 0; other < PARAGPU_LISTS; other++)
		CHECK(ioctl(pinner.fd, PARAGPU_IOC_UNPIN, &other) == -1 &&
		      errno == EINVAL);
	return 0;
}

static int test_pin_without_memory(void)
{
	int result;

	CHECK(channel_open(&pinner) == 0);
	pinned = own_memory(PINNED);
	CHECK(pinned);
	result = some("pin", each_failing(pin_once, unpin_once));
	channel_close(&pinner);
	munmap(pinned, PINNED);
	return result;
}

static sigjmp_buf out;

static void on_bus_error(int number)
{
	(void)number;
	siglongjmp(out, 1);
}

#define KEPT 16

/* Its pages in the device, when there is no memory to keep them: all or none. */
static int owner(unsigned int nothing)
{
	struct channel channel;
	volatile char *base;
	int i;

	(void)nothing;
	CHECK(channel_open(&channel) == 0);
	base = (char *)channel.header + channel.header->bulk_offset;
	for (i = 0; i < KEPT; i++)
		base[i * 4096] = i + 1;
	CHECK(ready(1) == 0);
	CHECK(wait_for(&channel, POLLHUP) > 0);
	signal(SIGBUS, on_bus_error);
	for (i = 0; i < KEPT; i++)
		if (!sigsetjmp(out, 1))
			CHECK(base[i * 4096] == i + 1);
	return 0;
}

static int test_unbind_without_memory(void)
{
	pid_t child;
	int nth, had_turn;

	for (nth = 1; nth < MAX_ALLOCATIONS; nth++) {
		child = start(owner, 0, NULL);
		if (child < 0)
			return -1;
		CHECK(fail_from_now(nth) == 0);
		unbind();
		had_turn = failed();
		CHECK(had_turn >= 0);
		if (is_bound())
			CHECK(unbind() == 0);
		if (ends_well(child))
			return -1;
		CHECK(bind() == 0);
		if (!had_turn)
			break;
	}
	if (some("unbind", nth - 1))
		return -1;
	CHECK(count_channels() == channels);
	return 0;
}

/* ------------------------------------------------ whose memory it is */

#define GROUP "/sys/fs/cgroup/paragpu"

static long group_number(const char *name)
{
	char path[128];
	long number = -1;
	FILE *file;

	snprintf(path, sizeof(path), GROUP "/%s", name);
	file = fopen(path, "r");
	if (file) {
		if (fscanf(file, "%ld", &number) != 1)
			number = -1;
		fclose(file);
	}
	return number;
}

/*
 * A process in the group fills `bytes` of its channel, loses the device, and
 * looks again: 0 if all is there, 1 after SIGBUS. It ends when told to.
 */
static void grouped(size_t bytes, int ready, int go)
{
	struct channel channel;
	volatile char *base;
	size_t i;
	char byte;

	if (write_file(GROUP "/cgroup.procs", "0") || channel_open(&channel))
		_exit(10);
	base = (char *)channel.header + channel.header->bulk_offset;
	if (bytes > channel.header->bulk_size)
		_exit(11);
	for (i = 0; i < bytes; i += 4096)
		base[i] = 1 + i / 4096 % 100;
	if (write(ready, "r", 1) != 1 || wait_for(&channel, POLLHUP) < 0)
		_exit(12);
	if (read(go, &byte, 1) != 1)
		_exit(13);
	signal(SIGBUS, on_bus_error);
	if (sigsetjmp(out, 1))
		_exit(1);
	for (i = 0; i < bytes; i += 4096)
		if (base[i] != (char)(1 + i / 4096 % 100))
			_exit(14);
	_exit(0);
}

/* The group's growth through an unbind, in bytes; the process's end in *ended. */
static int grow(size_t bytes, const char *limit, long *growth, int *ended)
{
	int ready[2], go[2], status;
	long before;
	char byte;
	pid_t child;

	CHECK(mkdir(GROUP, 0755) == 0);
	CHECK(write_file(GROUP "/memory.max", limit) == 0);
	CHECK(pipe(ready) == 0 && pipe(go) == 0);
	child = fork();
	if (child == 0)
		grouped(bytes, ready[1], go[0]);
	close(ready[1]);
	close(go[0]);
	if (read(ready[0], &byte, 1) != 1) {
		waitpid(child, &status, 0);
		return fail("the process in the group: %#x", status);
	}
	before = group_number("memory.current");
	CHECK(before >= 0);
	CHECK(unbind() == 0);
	*growth = group_number("memory.current") - before;
	CHECK(write(go[1], "g", 1) == 1);
	CHECK(waitpid(child, &status, 0) == child);
	*ended = status;
	close(ready[0]);
	close(go[1]);
	CHECK(bind() == 0);
	CHECK(rmdir(GROUP) == 0);
	return 0;
}

#define MUCH (4 * 1024 * 1024)

static int test_kept_counts_as_the_openers(void)
{
	long growth;
	int ended;

	if (grow(MUCH, "max", &growth, &ended))
		return -1;
	CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
	/* The kernel charges in batches; page tables come and go. */
	if (growth < MUCH - MUCH / 8)
		return fail("its group grew by %ld of %d bytes", growth, MUCH);
	return 0;
}

/* More than the group may have is lost, and hurts nobody else. */
static int test_group_without_room(void)
{
	long growth;
	int ended;

	if (grow(MUCH, "3M", &growth, &ended))
		return -1;
	if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 1)
		return fail("it ended with %#x, not by SIGBUS", ended);
	CHECK(count_channels() == channels);
	return 0;
}

/* ------------------------------------------------ whose pages may be written */

static int pin_file(struct channel *channel, int file, __u32 flags)
{
	struct paragpu_pin_request request = { .length = 4096, .flags = flags };
	void *memory;
	int error;

	CHECK(file >= 0 && ftruncate(file, 4096) == 0);
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(memory != MAP_FAILED);
	request.address = (unsigned long)memory;
	error = ioctl(channel->fd, PARAGPU_IOC_PIN, &request) ? errno : 0;
	if (!error)
		CHECK(ioctl(channel->fd, PARAGPU_IOC_UNPIN, &request.list) == 0);
	munmap(memory, 4096);
	close(file);
	return error;
}

/* The host may write to memory, and read files; it may not write to them. */
static int test_files_are_not_written(void)
{
	const char *path = "/tmp/files/file";
	const __u32 w = PARAGPU_LIST_WRITABLE;
	struct channel channel;

	CHECK(mkdir("/tmp/files", 0755) == 0);
	CHECK(mount("ramfs", "/tmp/files", "ramfs", 0, NULL) == 0);
	CHECK(channel_open(&channel) == 0);
	CHECK(pin_file(&channel, open(path, O_RDWR | O_CREAT, 0600), w) == EFAULT);
	CHECK(pin_file(&channel, open(path, O_RDWR), 0) == 0);
	CHECK(pin_file(&channel, memfd_create("memory", MFD_CLOEXEC), w) == 0);
	channel_close(&channel);
	CHECK(umount("/tmp/files") == 0 && rmdir("/tmp/files") == 0);
	return 0;
}

/* ------------------------------------------------ what a kernel left */

#define HELD 3

/* Has channels in each state that a process can have. */
static int hold(const char *file)
{
	static const unsigned int how[HELD] = { ECHO, LEAVE, HOLD };
	struct channel held[HELD];
	int i;

	for (i = 0; i < HELD; i++)
		if (channel_open(&held[i]) || hello(&held[i], how[i]))
			return 1;
	if (wait_for(&held[0], POLLIN) < 0 || wait_for(&held[1], POLLHUP) < 0 ||
	    open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) < 0)
		return 1;
	for (;;)
		pause();
}

/*
 * Each channel's state while no driver has the device, or ever had since this
 * kernel started.
 */
static int test_all_channels_are_free(void)
{
	struct paragpu_window_header *header;
	unsigned int i, others = 0, last = 0;
	char path[128];
	int fd;

	CHECK(!is_bound());
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/enable",
		 pci_address);
	CHECK(write_file(path, "1") == 0);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource2",
		 pci_address);
	fd = open(path, O_RDWR);
	CHECK(fd >= 0);
	header = mmap(NULL, sizeof(*header), PROT_READ, MAP_SHARED, fd, 0);
	CHECK(header != MAP_FAILED);
	CHECK(header->magic == PARAGPU_WINDOW_MAGIC);
	CHECK(header->channel_count > 0 &&
	      header->channel_count <= PARAGPU_MAX_CHANNELS);
	for (i = 0; i < header->channel_count; i++)
		if (header->state[i] != PARAGPU_CHANNEL_FREE) {
			others++;
			last = header->state[i];
		}
	if (others)
		return fail("%u channels are not free, one in state %u", others,
			    last);
	return 0;
}

int main(int count, char **arguments)
{
	if (count != 3) {
		fprintf(stderr, "usage: guest-debug failures | account | free PCI-ADDRESS\n"
				"       guest-debug hold FILE\n");
		return 2;
	}
	if (!strcmp(arguments[1], "hold"))
		return hold(arguments[2]);
	pci_address = arguments[2];
	if (!strcmp(arguments[1], "free")) {
		run("kernel-before-gave-all-channels-back",
		    test_all_channels_are_free);
		return failures != 0;
	}
	channels = count_channels();
	if (!strcmp(arguments[1], "account")) {
		run("kept-memory-counts-as-the-openers",
		    test_kept_counts_as_the_openers);
		run("kept-memory-needs-room-in-the-group",
		    test_group_without_room);
		if (can_pin())
			run("files-are-not-written", test_files_are_not_written);
		return failures != 0;
	}
	fail_nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (fail_nth < 0) {
		perror("fail-nth");
		return 2;
	}
	run("bind-without-memory", test_bind_without_memory);
	run("open-without-memory", test_open_without_memory);
	if (can_pin())
		run("pin-without-memory", test_pin_without_memory);
	run("unbind-without-memory", test_unbind_without_memory);
	return failures != 0;
}
