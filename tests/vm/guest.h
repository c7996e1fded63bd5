/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the guest's test programs share: a channel as the header specifies it,
 * and the line that each test prints.
 */
#ifndef GUEST_H
#define GUEST_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/paragpu.h>

#define NODE "/dev/paragpu0"

/* Not every program uses all that is here. */
#pragma GCC diagnostic ignored "-Wunused-function"

/* What the echo daemon does with a channel: device number of the hello. */
enum { ECHO, LEAVE, REFUSE, HOLD };

enum { KIND_HELLO = 0x7f00, KIND_WELCOME = 0x7f01, KIND_REFUSAL = 0x7f02 };

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
		__le64 window;
		__le64 room;
		__u8 padding;
	} frame = {
		.record = { .length = 63, .kind = KIND_HELLO },
		.magic = "paragpu",
		.version = { 0, 1, 0 },
		.transport = 3,
		.device = device,
		.pid = getpid(),
		.window = ~0ull,
	};

	_Static_assert(sizeof(frame) == 80, "a whole record");
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

/* Where a child says that it is ready. */
static int parent = -1;

static int ready(unsigned char said)
{
	CHECK(write(parent, &said, 1) == 1);
	return 0;
}

/*
 * Starts a child that runs `work`, and waits until that calls ready(): the
 * child's ID, or -1. What the child finds wrong it prints itself. `said` may
 * be NULL.
 */
static pid_t start(int (*work)(unsigned int with), unsigned int with,
		   unsigned char *said)
{
	unsigned char byte;
	int ends[2];
	pid_t child;

	CHECK(pipe(ends) == 0);
	child = fork();
	if (child == 0) {
		close(ends[0]);
		parent = ends[1];
		if (work(with) == 0)
			_exit(0);
		dprintf(STDOUT_FILENO, "in a process of this test: %s\n", why);
		_exit(1);
	}
	close(ends[1]);
	if (read(ends[0], said ? said : &byte, 1) != 1)
		child = fail("a process ended before it was ready");
	close(ends[0]);
	return child;
}

static int ends_well(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return 0;
}

static int kill_child(pid_t child)
{
	int status;

	CHECK(kill(child, SIGKILL) == 0);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status));
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

/* The list of pages pinned, or an error. */
static int pin(struct channel *channel, void *address,
	       unsigned long long length, unsigned int flags)
{
	struct paragpu_pin_request request = {
		.address = (unsigned long)address,
		.length = length,
		.flags = flags,
	};

	if (ioctl(channel->fd, PARAGPU_IOC_PIN, &request))
		return -errno;
	return request.list;
}

static int unpin(struct channel *channel, __u32 list)
{
	return ioctl(channel->fd, PARAGPU_IOC_UNPIN, &list) ? -errno : 0;
}

static int can_pin(void)
{
	struct channel channel;
	int answer;

	if (channel_open(&channel))
		return 0;
	answer = pin(&channel, NULL, 0, 0);
	channel_close(&channel);
	return answer == -EINVAL;
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

#endif /* GUEST_H */
