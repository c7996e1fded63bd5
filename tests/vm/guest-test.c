// SPDX-License-Identifier: Apache-2.0
/*
 * Tests the guest driver from inside a VM, against the header that specifies
 * it. The host's side is qemu-device with the example echo_daemon.
 *
 * usage: guest-test PCI-ADDRESS   the tests that the guest can do alone
 *        guest-test hotplug       asks the host to unplug and plug the device
 * Prints one JSON line per test; fails if any does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/paragpu.h>

#define NODE "/dev/paragpu0"

/* What the echo daemon does with a channel: device number of the hello. */
enum { ECHO, LEAVE, REFUSE, HOLD };

enum { KIND_HELLO = 0x7f00, KIND_WELCOME = 0x7f01, KIND_REFUSAL = 0x7f02 };

static const char *pci_address;
static int failures;
static char why[512];

/* Ends a test, saying where and why. */
static int fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why, sizeof(why), format, arguments);
	va_end(arguments);
	return -1;
}

#define CHECK(condition)                                                      \
	do {                                                                  \
		if (!(condition))                                             \
			return fail("line %d: %s (errno %d)", __LINE__,       \
				    #condition, errno);                       \
	} while (0)

struct channel {
	int fd;
	struct paragpu_info info;
	struct paragpu_channel_header *header;
};

static int channel_open(struct channel *channel)
{
	channel->header = NULL;
	channel->fd = open(NODE, O_RDWR | O_CLOEXEC);
	CHECK(channel->fd >= 0);
	CHECK(ioctl(channel->fd, PARAGPU_IOC_INFO, &channel->info) == 0);
	channel->header = mmap(NULL, channel->info.channel_size,
			       PROT_READ | PROT_WRITE, MAP_SHARED,
			       channel->fd, 0);
	CHECK(channel->header != MAP_FAILED);
	return 0;
}

static void channel_close(struct channel *channel)
{
	if (channel->header && channel->header != MAP_FAILED)
		munmap(channel->header, channel->info.channel_size);
	close(channel->fd);
}

static void *at(struct channel *channel, unsigned long long offset)
{
	return (char *)channel->header + offset;
}

/* Puts a hello into the ring and asks to be rung. */
static int hello(struct channel *channel, unsigned int device)
{
	struct paragpu_channel_header *header = channel->header;
	struct __attribute__((packed)) {
		struct paragpu_record record;
		char magic[8];
		__le16 version[3];
		__u8 transport;
		__le32 device;
		__u8 token[16];
		__le64 acknowledged;
		__le32 pid;
		__u8 padding;
	} frame = {
		.record = { .length = 47, .kind = KIND_HELLO },
		.magic = "paragpu",
		.version = { 0, 1, 0 },
		.transport = 3,
		.device = device,
		.pid = getpid(),
	};

	_Static_assert(sizeof(frame) == 64, "a whole record");
	memcpy(at(channel, header->to_host_offset), &frame, sizeof(frame));
	atomic_store((_Atomic __u32 *)&header->to_guest.consumer_waits, 1);
	atomic_store((_Atomic __u64 *)&header->to_host.tail, sizeof(frame));
	CHECK(ioctl(channel->fd, PARAGPU_IOC_DOORBELL) == 0);
	return 0;
}

static int wait_for(struct channel *channel, short events)
{
	struct pollfd pollfd = { .fd = channel->fd, .events = POLLIN };

	do {
		CHECK(poll(&pollfd, 1, 30000) == 1);
		if (pollfd.revents & POLLIN)
			ioctl(channel->fd, PARAGPU_IOC_ACK);
	} while (!(pollfd.revents & events));
	return pollfd.revents;
}

/* The kind of the first record that the host sent, or 0. */
static unsigned int first_kind(struct channel *channel)
{
	struct paragpu_channel_header *header = channel->header;
	struct paragpu_record *record = at(channel, header->to_guest_offset);

	return atomic_load((_Atomic __u64 *)&header->to_guest.tail) ?
		       record->kind : 0;
}

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

/* How many channels can be open at once; all different. */
static int count_channels(void)
{
	char seen[PARAGPU_MAX_CHANNELS] = { 0 };
	int fds[PARAGPU_MAX_CHANNELS + 1];
	struct paragpu_info info;
	int count = 0, i;

	for (;;) {
		fds[count] = open(NODE, O_RDWR | O_CLOEXEC);
		if (fds[count] < 0)
			break;
		CHECK(ioctl(fds[count], PARAGPU_IOC_INFO, &info) == 0);
		CHECK(info.channel < PARAGPU_MAX_CHANNELS);
		CHECK(!seen[info.channel]++);
		CHECK(++count <= PARAGPU_MAX_CHANNELS);
	}
	CHECK(errno == ENOSPC);
	close(fds[--count]);
	fds[count] = open(NODE, O_RDWR | O_CLOEXEC);
	CHECK(fds[count] >= 0);
	for (i = 0; i <= count; i++)
		close(fds[i]);
	return count + 1;
}

static int channels;

static int test_quota(void)
{
	channels = count_channels();
	return channels > 1 ? 0 : -1;
}

/* A child that uses a channel, says so, and never ends. */
static pid_t start_victim(unsigned int device)
{
	struct channel channel;
	int ready[2];
	char byte;
	pid_t child;

	if (pipe(ready))
		return -1;
	child = fork();
	if (child == 0) {
		if (channel_open(&channel) || hello(&channel, device))
			_exit(1);
		if (write(ready[1], "r", 1) != 1)
			_exit(1);
		for (;;)
			wait_for(&channel, POLLIN);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		child = -1;
	close(ready[0]);
	return child;
}

static int test_kill_cycles(void)
{
	int cycle, status;
	pid_t child;

	for (cycle = 0; cycle < 100; cycle++) {
		child = start_victim(cycle & 1 ? ECHO : HOLD);
		CHECK(child > 0);
		CHECK(kill(child, SIGKILL) == 0);
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFSIGNALED(status));
	}
	CHECK(count_channels() == channels);
	return 0;
}

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	int error;

	CHECK(fd >= 0);
	error = write(fd, text, strlen(text)) < 0 ? errno : 0;
	close(fd);
	errno = error;
	return error ? -1 : 0;
}

static sigjmp_buf back;

static void on_bus_error(int number)
{
	(void)number;
	siglongjmp(back, 1);
}

/* An open, mapped, polled channel whose device is taken away by `remove`. */
static int survives(int (*remove)(void), int (*restore)(void))
{
	struct sigaction action = { .sa_handler = on_bus_error };
	struct channel channel, later;
	int status, events, ready[2];
	char byte;
	pid_t child;

	CHECK(pipe(ready) == 0);
	child = fork();
	if (child == 0) {
		sigaction(SIGBUS, &action, NULL);
		if (channel_open(&channel) || hello(&channel, ECHO) ||
		    wait_for(&channel, POLLIN) != POLLIN)
			_exit(10);
		if (write(ready[1], "r", 1) != 1)
			_exit(11);
		events = wait_for(&channel, POLLHUP);
		if (events < 0 || !(events & POLLERR))
			_exit(12);
		if (ioctl(channel.fd, PARAGPU_IOC_DOORBELL) != -1 ||
		    errno != ENODEV)
			_exit(13);
		if (ioctl(channel.fd, PARAGPU_IOC_INFO, &channel.info) != -1 ||
		    errno != ENODEV)
			_exit(14);
		if (mmap(NULL, 4096, PROT_READ, MAP_SHARED, channel.fd, 0) !=
			    MAP_FAILED || errno != ENODEV)
			_exit(15);
		if (!sigsetjmp(back, 1)) {
			*(volatile char *)channel.header = 1;
			_exit(16);
		}
		_exit(0);
	}
	close(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	CHECK(remove() == 0);
	CHECK(open(NODE, O_RDWR) == -1);
	CHECK(restore() == 0);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status));
	if (WEXITSTATUS(status))
		return fail("the process that had it open: step %d",
			    WEXITSTATUS(status));
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

static int test_unplug_under_use(void)
{
	return survives(unplug, plug);
}

/* Asks hotplug.py on the host, then waits for what it did. */
static int ask_host(const char *what, int there)
{
	printf("@paragpu %s\n", what);
	fflush(stdout);
	while ((access(NODE, F_OK) == 0) != there)
		usleep(20000);
	return 0;
}

static int ask_unplug(void)
{
	return ask_host("unplug", 0);
}

static int ask_plug(void)
{
	return ask_host("plug", 1);
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

static void run(const char *name, int (*test)(void))
{
	int ok;

	why[0] = 0;
	errno = 0;
	ok = test() == 0;
	failures += !ok;
	printf("{\"test\":\"%s\",\"ok\":%s,\"why\":\"%s\"}\n", name,
	       ok ? "true" : "false", why);
	fflush(stdout);
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
	run("unplug-under-use", test_unplug_under_use);
	return failures != 0;
}
