// SPDX-License-Identifier: Apache-2.0
/*
 * Tests the guest driver from inside a VM, against the header that specifies
 * it. The host's side is qemu-device with the example echo_daemon.
 *
 * usage: guest-test PCI-ADDRESS   the tests that the guest can do alone
 *        guest-test hotplug       asks the host to unplug and plug the device
 * Prints one JSON line per test; fails if any does.
 */
#include "guest.h"

#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>

static const char *pci_address;

static int test_info(void)
{
	struct channel channel;

	CHECK(channel_open(&channel) == 0);
	CHECK(channel.info.version == PARAGPU_VERSION);
	CHECK(channel.info.reserved == 0);
	CHECK(channel.header->magic == PARAGPU_CHANNEL_MAGIC);
	CHECK(channel.header->region_size == channel.info.channel_size);
	CHECK(channel.header->to_host.tail == 0);
	CHECK(ioctl(channel.fd, PARAGPU_IOC_INFO, (void *)8) == -1 &&
	      errno == EFAULT);
	CHECK(ioctl(channel.fd, _IO('P', 0x7f)) == -1 && errno == ENOTTY);
	CHECK(read(channel.fd, why, 1) == -1 && errno == EINVAL);
	channel_close(&channel);
	return 0;
}

static int test_two_openers(void)
{
	struct channel one, two;

	CHECK(channel_open(&one) == 0 && channel_open(&two) == 0);
	CHECK(one.info.channel != two.info.channel);
	memset(at(&one, one.header->bulk_offset), 0x5a, 4096);
	CHECK(*(char *)at(&two, two.header->bulk_offset) == 0);
	channel_close(&one);
	channel_close(&two);
	return 0;
}

static int refuses_map(int fd, size_t length, int flags, off_t offset)
{
	void *map = mmap(NULL, length, PROT_READ, flags, fd, offset);

	return map == MAP_FAILED && errno == EINVAL;
}

static int test_mmap_limits(void)
{
	struct channel channel;
	size_t size;

	CHECK(channel_open(&channel) == 0);
	size = channel.info.channel_size;
	*(char *)at(&channel, size - 1) = 1;
	CHECK(refuses_map(channel.fd, size + 4096, MAP_SHARED, 0));
	CHECK(refuses_map(channel.fd, 4096, MAP_SHARED, 4096));
	CHECK(refuses_map(channel.fd, 4096, MAP_SHARED, size));
	CHECK(refuses_map(channel.fd, 4096, MAP_PRIVATE, 0));
	CHECK(mremap(channel.header, size, size + 4096, MREMAP_MAYMOVE) ==
	      MAP_FAILED);
	channel_close(&channel);
	return 0;
}

static int test_scrubbed(void)
{
	struct channel channel;
	unsigned long long i;
	int cycle;

	/* Twice as often as a window of 16 channels has some. */
	for (cycle = 0; cycle < 32; cycle++) {
		CHECK(channel_open(&channel) == 0);
		for (i = channel.header->bulk_offset;
		     i < channel.info.channel_size; i += 4096)
			CHECK(*(unsigned int *)at(&channel, i) == 0);
		for (i = channel.header->bulk_offset;
		     i < channel.info.channel_size; i += 4096)
			*(unsigned int *)at(&channel, i) = 0xa5a5a5a5;
		channel_close(&channel);
	}
	return 0;
}

static int test_poll_timeout(void)
{
	struct channel channel;
	struct pollfd pollfd = { .events = POLLIN };

	CHECK(channel_open(&channel) == 0);
	pollfd.fd = channel.fd;
	CHECK(poll(&pollfd, 1, 20) == 0);
	channel_close(&channel);
	return 0;
}

static int test_doorbell_both_ways(void)
{
	struct channel channel;
	struct pollfd pollfd = { .events = POLLIN };

	CHECK(channel_open(&channel) == 0);
	CHECK(hello(&channel, ECHO) == 0);
	do
		CHECK(wait_for(&channel, POLLIN) == POLLIN);
	while (!first_kind(&channel));
	CHECK(first_kind(&channel) == KIND_WELCOME);
	/* One wake-up may still have been on its way, no more. */
	pollfd.fd = channel.fd;
	if (poll(&pollfd, 1, 0) == 1)
		CHECK(ioctl(channel.fd, PARAGPU_IOC_ACK) == 0);
	CHECK(poll(&pollfd, 1, 0) == 0);
	channel_close(&channel);
	return 0;
}

static void on_signal(int number)
{
	(void)number;
}

static int test_interruptible(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct itimerval tick = { { 0, 10000 }, { 0, 10000 } }, off = { 0 };
	struct pollfd pollfd = { .events = POLLIN };
	struct channel channel;

	CHECK(channel_open(&channel) == 0);
	pollfd.fd = channel.fd;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &tick, NULL);
	CHECK(poll(&pollfd, 1, -1) == -1 && errno == EINTR);
	setitimer(ITIMER_REAL, &off, NULL);
	channel_close(&channel);
	return 0;
}

static int test_fork(void)
{
	struct channel channel;
	int status;
	pid_t child;

	CHECK(channel_open(&channel) == 0);
	child = fork();
	if (child == 0) {
		signal(SIGSEGV, SIG_DFL);
		_exit(*(volatile int *)channel.header ? 1 : 2);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	CHECK(channel.header->magic == PARAGPU_CHANNEL_MAGIC);
	channel_close(&channel);
	return 0;
}

static int test_host_closes(void)
{
	struct channel channel;
	int events;

	CHECK(channel_open(&channel) == 0);
	CHECK(hello(&channel, LEAVE) == 0);
	events = wait_for(&channel, POLLHUP);
	CHECK(events > 0 && (events & POLLERR));
	CHECK(channel.header->closed_by_host == 1);
	CHECK(ioctl(channel.fd, PARAGPU_IOC_DOORBELL) == 0);
	channel_close(&channel);
	return 0;
}

static int test_refusal(void)
{
	struct channel channel;
	int length;

	CHECK(channel_open(&channel) == 0);
	CHECK(hello(&channel, REFUSE) == 0);
	CHECK(wait_for(&channel, POLLHUP) > 0);
	CHECK(first_kind(&channel) == KIND_REFUSAL);
	length = ((struct paragpu_record *)at(
			  &channel, channel.header->to_guest_offset))->length;
	CHECK(memmem(at(&channel, channel.header->to_guest_offset + 16), length,
		     "the test daemon refuses", 23));
	channel_close(&channel);
	return 0;
}

static int test_rubbish(void)
{
	struct channel channel;
	int cycle;

	for (cycle = 0; cycle < 8; cycle++) {
		CHECK(channel_open(&channel) == 0);
		CHECK(channel.header->magic == PARAGPU_CHANNEL_MAGIC);
		if (cycle & 1)
			CHECK(hello(&channel, ECHO) == 0);
		memset(channel.header, 0xff - cycle, 4096);
		CHECK(ioctl(channel.fd, PARAGPU_IOC_DOORBELL) == 0);
		CHECK(wait_for(&channel, POLLHUP) > 0);
		channel_close(&channel);
	}
	return 0;
}

static int channels;

static int test_quota(void)
{
	channels = count_channels();
	return channels > 1 ? 0 : -1;
}

/* Uses a channel and never ends. */
static int victim(unsigned int device)
{
	struct channel channel;

	CHECK(channel_open(&channel) == 0);
	CHECK(hello(&channel, device) == 0);
	CHECK(ready(1) == 0);
	for (;;)
		wait_for(&channel, POLLIN);
}

static int test_kill_cycles(void)
{
	pid_t child;
	int cycle;

	for (cycle = 0; cycle < 100; cycle++) {
		child = start(victim, cycle & 1 ? ECHO : HOLD, NULL);
		if (child < 0 || kill_child(child))
			return -1;
	}
	CHECK(count_channels() == channels);
	return 0;
}

/* Has a channel open, mapped and polled while its device is removed. */
static int bereaved(unsigned int nothing)
{
	struct channel channel;
	int events;

	(void)nothing;
	CHECK(channel_open(&channel) == 0);
	CHECK(hello(&channel, ECHO) == 0);
	CHECK(wait_for(&channel, POLLIN) == POLLIN);
	CHECK(ready(1) == 0);
	events = wait_for(&channel, POLLHUP);
	CHECK(events >= 0 && (events & POLLERR));
	CHECK(ioctl(channel.fd, PARAGPU_IOC_DOORBELL) == -1 && errno == ENODEV);
	CHECK(ioctl(channel.fd, PARAGPU_IOC_INFO, &channel.info) == -1 &&
	      errno == ENODEV);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, channel.fd, 0) ==
		      MAP_FAILED && errno == ENODEV);
	/* Nothing fades: what it had is its own now. */
	CHECK(channel.header->magic == PARAGPU_CHANNEL_MAGIC);
	return 0;
}

/* A device that is removed under use, and restored. */
static int survives(int (*remove)(void), int (*restore)(void))
{
	struct channel later;
	pid_t child;

	child = start(bereaved, 0, NULL);
	if (child < 0)
		return -1;
	CHECK(remove() == 0);
	CHECK(open(NODE, O_RDWR) == -1);
	CHECK(restore() == 0);
	if (ends_well(child))
		return -1;
	CHECK(channel_open(&later) == 0);
	CHECK(hello(&later, ECHO) == 0);
	CHECK(wait_for(&later, POLLIN) == POLLIN);
	channel_close(&later);
	CHECK(count_channels() == channels);
	return 0;
}

static int unbind(void)
{
	return write_file("/sys/bus/pci/drivers/paragpu/unbind", pci_address);
}

static int bind(void)
{
	return write_file("/sys/bus/pci/drivers/paragpu/bind", pci_address);
}

static int unplug(void)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/remove",
		 pci_address);
	return write_file(path, "1");
}

static int plug(void)
{
	return write_file("/sys/bus/pci/rescan", "1");
}

static int test_unbind_under_use(void)
{
	return survives(unbind, bind);
}

/* A node outside of /dev, as containers have: its inode remembers what it opened. */
static int test_node_elsewhere(void)
{
	static const char node[] = "/tmp/paragpu-node";
	int before, after;
	struct stat found;

	CHECK(stat(NODE, &found) == 0);
	CHECK(mknod(node, S_IFCHR | 0600, found.st_rdev) == 0);
	before = open(node, O_RDWR | O_CLOEXEC);
	CHECK(before >= 0);
	CHECK(unbind() == 0);
	CHECK(open(node, O_RDWR | O_CLOEXEC) == -1 && errno == ENODEV);
	CHECK(bind() == 0);
	after = open(node, O_RDWR | O_CLOEXEC);
	CHECK(after >= 0);
	close(after);
	close(before);
	CHECK(unlink(node) == 0);
	CHECK(count_channels() == channels);
	return 0;
}

static int test_unplug_under_use(void)
{
	return survives(unplug, plug);
}

static int ask_unplug(void)
{
	return ask_host("unplug", 0);
}

static int ask_plug(void)
{
	return ask_host("plug", 1);
}

/* What a process that has part of its channel fade sees after unbinding. */
static int fading(unsigned int nothing)
{
	struct channel channel;
	__u64 bytes, size, too_many;
	volatile char *base;

	(void)nothing;
	CHECK(channel_open(&channel) == 0);
	size = channel.info.channel_size;
	too_many = size + 1;
	CHECK(ioctl(channel.fd, PARAGPU_IOC_FADE, &too_many) == -1 &&
	      errno == EINVAL);
	bytes = channel.header->bulk_offset;
	base = (volatile char *)channel.header;
	CHECK(ioctl(channel.fd, PARAGPU_IOC_FADE, &bytes) == 0);
	/* Pages that were mapped, and pages that never were. */
	base[bytes - 1] = 1;
	base[bytes] = 1;
	base[size - 1] = 2;
	CHECK(channel.header->magic == PARAGPU_CHANNEL_MAGIC);
	CHECK(ready(1) == 0);
	CHECK(wait_for(&channel, POLLHUP) > 0);
	CHECK(!base[bytes - 1] && !base[bytes - 4097] && !channel.header->magic);
	/* What is written goes nowhere that the magic's reader would look. */
	memset((void *)(base + 4096), 0xff, bytes - 4096);
	channel.header->closed_by_guest = 1;
	CHECK(!channel.header->magic);
	/* The rest is kept; what was never touched is zero, and its own. */
	CHECK(base[bytes] == 1 && base[size - 1] == 2);
	CHECK(!base[bytes + 4096] && !base[size - 4097]);
	memset((void *)(base + bytes), 3, size - bytes);
	CHECK(base[bytes] == 3 && base[size / 2] == 3 && base[size - 1] == 3);
	CHECK(!channel.header->magic);
	return 0;
}

static int test_fades(void)
{
	pid_t child;
	int well;

	child = start(fading, 0, NULL);
	if (child < 0)
		return -1;
	CHECK(unbind() == 0);
	well = ends_well(child);
	if (bind() || well)
		return -1;
	CHECK(count_channels() == channels);
	return 0;
}

struct argument {
	int fd;
	void *page;
};

static void *ask_with(void *data)
{
	struct argument *argument = data;

	ioctl(argument->fd, PARAGPU_IOC_UNPIN, argument->page);
	ioctl(argument->fd, PARAGPU_IOC_PIN, argument->page);
	return NULL;
}

/* Asks the driver with memory whose page nobody brings. */
static int asking_for_ever(unsigned int nothing)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register missing = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct argument argument;
	struct channel channel;
	struct uffd_msg message;
	pthread_t thread;
	int faults;

	(void)nothing;
	CHECK(channel_open(&channel) == 0);
	faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	argument.fd = channel.fd;
	argument.page = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	missing.range.start = (unsigned long)argument.page;
	missing.range.len = 4096;
	CHECK(faults >= 0);
	CHECK(ioctl(faults, UFFDIO_API, &api) == 0);
	CHECK(ioctl(faults, UFFDIO_REGISTER, &missing) == 0);
	CHECK(pthread_create(&thread, NULL, ask_with, &argument) == 0);
	CHECK(read(faults, &message, sizeof(message)) == sizeof(message));
	CHECK(message.event == UFFD_EVENT_PAGEFAULT);
	CHECK(ready(1) == 0);
	for (;;)
		pause();
}

/* A process that waits for its own page holds up nobody. */
static int test_page_that_never_comes(void)
{
	pid_t child;

	child = start(asking_for_ever, 0, NULL);
	if (child < 0)
		return -1;
	CHECK(unbind() == 0);
	CHECK(bind() == 0);
	if (kill_child(child))
		return -1;
	CHECK(count_channels() == channels);
	return 0;
}

#define OTHERS		4
#define SOMEBODY	12345

/* Takes channels as another user until there are no more; says how many. */
static int greedy(unsigned int user)
{
	unsigned char count = 0;

	CHECK(setresuid(user, user, user) == 0);
	/* Blocks while the host has yet to scrub a channel of an earlier test. */
	while (count < channels && open(NODE, O_RDWR) >= 0)
		count++;
	CHECK(ready(count) == 0);
	for (;;)
		pause();
}

/* The last channels are for users who have few. */
static int test_last_channels_are_for_others(void)
{
	unsigned char count[2];
	pid_t child[2];
	int i;

	CHECK(chmod(NODE, 0666) == 0);
	for (i = 0; i < 2; i++) {
		child[i] = start(greedy, SOMEBODY + i, &count[i]);
		if (child[i] < 0)
			return -1;
	}
	for (i = 0; i < 2; i++)
		if (kill_child(child[i]))
			return -1;
	CHECK(chmod(NODE, 0600) == 0);
	CHECK(count_channels() == channels);
	if (channels <= 2 * OTHERS)
		return 0;
	if (count[0] != channels - OTHERS || count[1] != OTHERS)
		return fail("two users took %d and %d of %d channels",
			    count[0], count[1], channels);
	return 0;
}

static int test_hot_unplug_and_plug(void)
{
	return survives(ask_unplug, ask_plug);
}

static int test_module_stays_while_open(void)
{
	struct channel channel;

	CHECK(channel_open(&channel) == 0);
	CHECK(syscall(SYS_delete_module, "paragpu", O_NONBLOCK) == -1);
	CHECK(errno == EWOULDBLOCK);
	channel_close(&channel);
	return 0;
}

static int test_module_reloads(void)
{
	CHECK(syscall(SYS_delete_module, "paragpu", O_NONBLOCK) == 0);
	CHECK(access(NODE, F_OK) == -1);
	CHECK(system("modprobe paragpu") == 0);
	CHECK(count_channels() == channels);
	return 0;
}

/* Threads, here processes, that open and leave as fast as they can. */
static int test_many_openers(void)
{
	int i, round, status, fd;
	pid_t child;

	for (i = 0; i < 8; i++) {
		child = fork();
		CHECK(child >= 0);
		if (child)
			continue;
		for (round = 0; round < 50; round++) {
			fd = open(NODE, O_RDWR);
			if (fd < 0)
				_exit(1);
			close(fd);
		}
		_exit(0);
	}
	for (i = 0; i < 8; i++)
		CHECK(wait(&status) > 0 && status == 0);
	return 0;
}

int main(int count, char **arguments)
{
	if (count != 2) {
		fprintf(stderr, "usage: guest-test PCI-ADDRESS | hotplug\n");
		return 2;
	}
	if (!strcmp(arguments[1], "hotplug")) {
		channels = count_channels();
		run("hot-unplug-and-plug", test_hot_unplug_and_plug);
		return failures != 0;
	}
	pci_address = arguments[1];
	run("info", test_info);
	run("two-openers", test_two_openers);
	run("mmap-limits", test_mmap_limits);
	run("scrubbed", test_scrubbed);
	run("poll-timeout", test_poll_timeout);
	run("doorbell-both-ways", test_doorbell_both_ways);
	run("interruptible", test_interruptible);
	run("fork", test_fork);
	run("host-closes", test_host_closes);
	run("refusal", test_refusal);
	run("rubbish", test_rubbish);
	run("quota", test_quota);
	run("kill-cycles", test_kill_cycles);
	run("many-openers", test_many_openers);
	run("module-stays-while-open", test_module_stays_while_open);
	run("module-reloads", test_module_reloads);
	run("unbind-under-use", test_unbind_under_use);
	run("node-elsewhere", test_node_elsewhere);
	run("unplug-under-use", test_unplug_under_use);
	run("fades", test_fades);
	run("page-that-never-comes", test_page_that_never_comes);
	run("last-channels-are-for-others", test_last_channels_are_for_others);
	return failures != 0;
}
