// SPDX-License-Identifier: Apache-2.0
/*
 * Wears the guest driver out from inside a VM: many processes at once, killed
 * at any moment, with the device taken from under them again and again. The
 * host's side is qemu-device with the example echo_daemon.
 *
 * usage: guest-soak full             every channel in use at once, and one more
 *        guest-soak kill CYCLES      open, use, kill
 *        guest-soak rebind ROUNDS PCI-ADDRESS
 *                                    unbind and bind the driver under load
 *        guest-soak replug ROUNDS    the host unplugs and plugs under load
 * Prints one JSON line per test; fails if any does.
 */
#include "guest.h"

#define PING "/opt/paragpu/programs/ring_ping"
/* Processes that use the device all the time. */
#define LOADS 6

/* What ring_ping ends with when a call fails: Rust's panic. */
#define PANIC 101

static const char *pci_address;
static int rounds;
static int channels;

/* What the loads have seen; shared with them. */
struct seen {
	atomic_int good;
	atomic_int errors;
	atomic_int deaths;
};

static struct seen *seen;
static pid_t loads[LOADS];

/* ring_ping over the device: whole frames of all sizes, checked byte by byte. */
static pid_t ping(const char *count)
{
	pid_t child = fork();

	if (child == 0) {
		int nothing = open("/dev/null", O_RDWR);

		dup2(nothing, 1);
		dup2(nothing, 2);
		execl(PING, PING, NODE, count, NULL);
		_exit(1);
	}
	return child;
}

static void load(struct seen *mine)
{
	int status;

	for (;;) {
		if (waitpid(ping("50"), &status, 0) < 0)
			_exit(1);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
			mine->good++;
		} else if (WIFEXITED(status) && WEXITSTATUS(status) == PANIC) {
			mine->errors++;
			/* While there is no device, not at full speed. */
			usleep(20000);
		} else {
			mine->deaths++;
		}
	}
}

static int start_loads(void)
{
	int i;

	for (i = 0; i < LOADS; i++) {
		seen[i].good = seen[i].errors = seen[i].deaths = 0;
		loads[i] = fork();
		CHECK(loads[i] >= 0);
		if (loads[i] == 0) {
			setpgid(0, 0);
			load(&seen[i]);
		}
		setpgid(loads[i], loads[i]);
	}
	return 0;
}

/* Each load comes through once more, from the first byte to the last. */
static int loads_get_on(void)
{
	int before[LOADS], i, tries;

	for (i = 0; i < LOADS; i++)
		before[i] = seen[i].good;
	for (i = 0; i < LOADS; i++) {
		/* Two, as the first may have begun before. A minute at most. */
		for (tries = 0; seen[i].good < before[i] + 2; tries++) {
			if (tries == 6000)
				return fail("load %d hangs: %d good, %d errors",
					    i, seen[i].good, seen[i].errors);
			usleep(10000);
		}
	}
	return 0;
}

static int stop_loads(void)
{
	int i, status, errors = 0;

	for (i = 0; i < LOADS; i++) {
		kill(-loads[i], SIGKILL);
		CHECK(waitpid(loads[i], &status, 0) == loads[i]);
		if (seen[i].deaths)
			return fail("load %d died of a signal %d times", i,
				    seen[i].deaths);
		errors += seen[i].errors;
	}
	return errors;
}

/* Channels that are still being given back count as soon as they are. */
static int all_channels_are_back(void)
{
	int tries;

	for (tries = 0; tries < 100; tries++) {
		if (count_channels() == channels)
			return 0;
		usleep(50000);
	}
	return fail("%d of %d channels came back", count_channels(), channels);
}

static int test_full(void)
{
	pid_t children[PARAGPU_MAX_CHANNELS], extra;
	int i, fd, status, refused = 0, again = 0;

	for (i = 0; i < channels; i++)
		CHECK((children[i] = ping("1000000")) > 0);
	/*
	 * Once every channel is taken, the next open is refused at once. To
	 * look takes a channel for a moment, perhaps the last one, which a
	 * child opens just then: that child is refused, and begins again.
	 */
	while (!refused) {
		fd = open(NODE, O_RDWR | O_NONBLOCK | O_CLOEXEC);
		refused = fd < 0 && errno == ENOSPC;
		if (fd >= 0)
			close(fd);
		else
			CHECK(errno == ENOSPC || errno == EAGAIN);
		for (i = 0; i < channels; i++) {
			if (waitpid(children[i], &status, WNOHANG) == 0)
				continue;
			CHECK(!refused && again++ < 100);
			CHECK(WIFEXITED(status) && WEXITSTATUS(status) == PANIC);
			CHECK((children[i] = ping("1000000")) > 0);
		}
		usleep(1000);
	}
	extra = ping("1");
	CHECK(waitpid(extra, &status, 0) == extra);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == PANIC);
	for (i = 0; i < channels; i++) {
		CHECK(kill(children[i], SIGKILL) == 0);
		CHECK(waitpid(children[i], &status, 0) == children[i]);
		if (!WIFSIGNALED(status))
			return fail("process %d of %d ended by itself", i,
				    channels);
	}
	return all_channels_are_back();
}

static int test_kill(void)
{
	int cycle, status;
	pid_t child;

	srand(1);
	CHECK(start_loads() == 0);
	for (cycle = 0; cycle < rounds; cycle++) {
		child = ping("1000000");
		CHECK(child > 0);
		/* From before its open to deep in its use. */
		usleep(rand() % 30000);
		CHECK(kill(child, SIGKILL) == 0);
		CHECK(waitpid(child, &status, 0) == child);
		if (!WIFSIGNALED(status))
			return fail("cycle %d: it had ended with %d", cycle,
				    WEXITSTATUS(status));
		if (cycle % 100 == 99)
			CHECK(loads_get_on() == 0);
	}
	if (stop_loads() != 0)
		return fail("killing some gave errors to others");
	return all_channels_are_back();
}

/*
 * Takes the device away and brings it back, `rounds` times. The loads may all
 * be between two uses just then: this process loses a channel each time.
 */
static int under_load(int (*take)(void), int (*bring)(void))
{
	struct channel channel;
	int round;

	CHECK(start_loads() == 0);
	for (round = 0; round < rounds; round++) {
		if (loads_get_on())
			return -1;
		if (channel_open(&channel))
			return -1;
		CHECK(take() == 0);
		/* The node may go before its channels do. */
		CHECK(wait_for(&channel, POLLHUP) > 0);
		CHECK(ioctl(channel.fd, PARAGPU_IOC_INFO, &channel.info) == -1 &&
		      errno == ENODEV);
		channel_close(&channel);
		CHECK(bring() == 0);
	}
	if (loads_get_on() || stop_loads() < 0)
		return -1;
	return all_channels_are_back();
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
	return ask_host("unplug", 0);
}

static int plug(void)
{
	return ask_host("plug", 1);
}

static int test_rebind(void)
{
	return under_load(unbind, bind);
}

static int test_replug(void)
{
	return under_load(unplug, plug);
}

int main(int count, char **arguments)
{
	const char *what = count > 1 ? arguments[1] : "";

	seen = mmap(NULL, LOADS * sizeof(*seen), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (count > 2)
		rounds = atoi(arguments[2]);
	channels = count_channels();
	if (!strcmp(what, "full") && count == 2) {
		run("every-channel-at-once", test_full);
	} else if (!strcmp(what, "kill") && rounds > 0) {
		run("open-use-kill", test_kill);
	} else if (!strcmp(what, "rebind") && rounds > 0 && count == 4) {
		pci_address = arguments[3];
		run("rebind-under-load", test_rebind);
	} else if (!strcmp(what, "replug") && rounds > 0) {
		run("replug-under-load", test_replug);
	} else {
		fprintf(stderr, "usage: guest-soak full | kill CYCLES | "
				"rebind ROUNDS PCI-ADDRESS | replug ROUNDS\n");
		return 2;
	}
	/* Loads that a failed test left. */
	for (count = 0; count < LOADS; count++)
		if (failures && loads[count] > 0)
			kill(-loads[count], SIGKILL);
	return failures != 0;
}
