// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faults for tests/vm/debug.sh, which has to find each of them: insmod with
 * fault=NAME commits one. Never part of the driver.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/timer.h>

static char *fault = "none";
module_param(fault, charp, 0);
MODULE_PARM_DESC(fault, "which fault to commit");

/* Hides from the compiler what it would warn of or optimise away. */
static noinline volatile char *hidden(volatile char *at, size_t by)
{
	OPTIMIZER_HIDE_VAR(at);
	OPTIMIZER_HIDE_VAR(by);
	return at + by;
}

static int out_of_bounds(void)
{
	char *memory = kmalloc(64, GFP_KERNEL);
	char read;

	if (!memory)
		return -ENOMEM;
	read = *hidden(memory, 64);
	kfree(memory);
	return read ? 0 : 0;
}

static int use_after_free(void)
{
	char *memory = kmalloc(64, GFP_KERNEL);
	char read;

	if (!memory)
		return -ENOMEM;
	kfree(memory);
	read = *hidden(memory, 8);
	return read ? 0 : 0;
}

static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);

/* No deadlock in one thread: lockdep finds what two would run into. */
static int lock_order(void)
{
	mutex_lock(&first);
	mutex_lock(&second);
	mutex_unlock(&second);
	mutex_unlock(&first);
	mutex_lock(&second);
	mutex_lock(&first);
	mutex_unlock(&first);
	mutex_unlock(&second);
	return 0;
}

static DEFINE_SPINLOCK(spin);

static int sleep_in_atomic(void)
{
	spin_lock(&spin);
	might_sleep();
	spin_unlock(&spin);
	return 0;
}

static void never(struct timer_list *timer)
{
}

struct owner {
	struct timer_list timer;
};

static int free_active_timer(void)
{
	struct owner *owner = kzalloc(sizeof(*owner), GFP_KERNEL);

	if (!owner)
		return -ENOMEM;
	timer_setup(&owner->timer, never, 0);
	mod_timer(&owner->timer, jiffies + 3600 * HZ);
	/* The check takes the timer out of its list. */
	kfree(owner);
	return 0;
}

static int wild_shift(void)
{
	unsigned int by = 40;
	int value = 1;

	OPTIMIZER_HIDE_VAR(by);
	OPTIMIZER_HIDE_VAR(value);
	value <<= by;
	return value ? 0 : 0;
}

static int leak(void)
{
	int i;

	/* More than may stay in a register or on a stack by chance. */
	for (i = 0; i < 16; i++)
		if (!kmalloc(192, GFP_KERNEL))
			return -ENOMEM;
	return 0;
}

static const struct {
	const char *name;
	int (*commit)(void);
} faults[] = {
	{ "out-of-bounds", out_of_bounds },
	{ "use-after-free", use_after_free },
	{ "lock-order", lock_order },
	{ "sleep-in-atomic", sleep_in_atomic },
	{ "free-active-timer", free_active_timer },
	{ "wild-shift", wild_shift },
	{ "leak", leak },
};

static int __init planted_init(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(faults); i++)
		if (!strcmp(faults[i].name, fault))
			return faults[i].commit();
	return -EINVAL;
}

static void __exit planted_exit(void)
{
}

module_init(planted_init);
module_exit(planted_exit);

MODULE_DESCRIPTION("Faults that the tests of paragpu's driver have to find");
MODULE_LICENSE("GPL");
