// SPDX-License-Identifier: GPL-2.0-only
/*
 * paragpu guest driver: the character device, a channel for each open.
 *
 * include/uapi/linux/paragpu.h says what each operation does.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "paragpu.h"

/* Longest time that an opener waits for a channel to be scrubbed. */
#define PARAGPU_SCRUB_TIMEOUT	(1 * HZ)

static unsigned int reserved = 4;
module_param(reserved, uint, 0644);
MODULE_PARM_DESC(reserved,
		 "The last so many free channels of a device are for users who have fewer than so many (default 4; 0: anybody's)");

/**
 * paragpu_may_take - may the opener have one more channel?
 * @paragpu: the device
 *
 * No user takes the last channels from all others. An administrator may.
 *
 * Context: Under the device's lock.
 * Return: Whether it may, where one is free.
 */
static bool paragpu_may_take(struct paragpu_device *paragpu)
{
	u32 kept = READ_ONCE(reserved);
	u32 has = 0, left = 0;
	u32 i;

	for (i = 0; i < paragpu->layout.channel_count; i++) {
		struct paragpu_channel *channel = &paragpu->channels[i];

		if (!channel->taken)
			left++;
		else if (uid_eq(channel->user, current_euid()))
			has++;
	}
	if (left > kept || has < kept || capable(CAP_SYS_RESOURCE))
		return true;
	dev_notice_ratelimited(&paragpu->dev,
			       "user %u has %u of %u channels; the last %u are for others (reserved=)\n",
			       from_kuid(&init_user_ns, current_euid()), has,
			       paragpu->layout.channel_count, left);
	return false;
}

/**
 * paragpu_find - take the first free channel
 * @paragpu: the device
 * @file: the opener
 *
 * Context: Process context; sleeps, interruptibly.
 * Return: 0, -EAGAIN when a channel will be free once the host scrubbed it,
 * -ENOSPC when all are taken or the rest is for others, -ENODEV without a
 * device or a host that serves it, -ERESTARTSYS.
 */
static int paragpu_find(struct paragpu_device *paragpu, struct file *file)
{
	struct paragpu_channel *channel;
	int error = -ENOSPC;
	int index;
	u32 i;

	if (mutex_lock_interruptible(&paragpu->lock))
		return -ERESTARTSYS;
	if (!paragpu_enter(paragpu, &index)) {
		error = -ENODEV;
		goto unlock;
	}
	if (READ_ONCE(paragpu->header->host_gone)) {
		error = -ENODEV;
		goto exit;
	}
	if (!paragpu_may_take(paragpu))
		goto exit;
	for (i = 0; i < paragpu->layout.channel_count; i++) {
		channel = &paragpu->channels[i];
		if (channel->taken)
			continue;
		/* Not ours and not free: the host has yet to scrub it. */
		error = -EAGAIN;
		if (!paragpu_take(paragpu, i))
			continue;
		/* The host made it free: it uses nothing of the last opener's. */
		paragpu_reap_pins(channel);
		channel->taken = true;
		channel->user = current_euid();
		channel->memcg = get_mem_cgroup_from_mm(current->mm);
		channel->mapping = file->f_mapping;
		WRITE_ONCE(channel->fade, 0);
		bitmap_zero(channel->touched, paragpu_blocks(&paragpu->layout));
		file->private_data = channel;
		paragpu_watch(paragpu);
		error = 0;
		break;
	}
exit:
	paragpu_exit(paragpu, index);
unlock:
	mutex_unlock(&paragpu->lock);
	return error;
}

static int paragpu_open(struct inode *inode, struct file *file)
{
	struct paragpu_device *paragpu = paragpu_get(iminor(inode));
	unsigned long deadline = jiffies + PARAGPU_SCRUB_TIMEOUT;
	long left = PARAGPU_SCRUB_TIMEOUT;
	int seen, error;

	if (!paragpu)
		return -ENODEV;
	for (;;) {
		seen = atomic_read(&paragpu->interrupts);
		error = paragpu_find(paragpu, file);
		if (error != -EAGAIN || (file->f_flags & O_NONBLOCK))
			break;
		if (left <= 0) {
			error = -ENOSPC;
			break;
		}
		left = wait_event_interruptible_timeout(paragpu->freed_wait,
				atomic_read(&paragpu->interrupts) != seen ||
				READ_ONCE(paragpu->gone), left);
		if (left < 0) {
			error = left;
			break;
		}
		if (left > 0)
			left = max(1L, (long)(deadline - jiffies));
	}
	if (error) {
		put_device(&paragpu->dev);
		return error;
	}
	return nonseekable_open(inode, file);
}

static int paragpu_release(struct inode *inode, struct file *file)
{
	struct paragpu_channel *channel = file->private_data;
	struct paragpu_device *paragpu = channel->owner;
	struct mem_cgroup *memcg;
	int index;

	/*
	 * Not interruptible, because a failed release cannot be handled. Holders
	 * of the lock wait only for each other.
	 */
	mutex_lock(&paragpu->lock);
	if (paragpu_enter(paragpu, &index)) {
		paragpu_release_pins(channel);
		paragpu_give_back(paragpu, channel->index);
		paragpu_exit(paragpu, index);
	}
	/*
	 * No process has it mapped any more: mappings hold the file. Before the
	 * next opener can take the channel, whose contents these are then.
	 */
	paragpu_forget(channel);
	channel->taken = false;
	channel->mapping = NULL;
	memcg = channel->memcg;
	channel->memcg = NULL;
	mutex_unlock(&paragpu->lock);
	mem_cgroup_put(memcg);
	put_device(&paragpu->dev);
	return 0;
}

/**
 * paragpu_kept - find a preserved page of a removed device
 * @channel: the process's channel
 * @place: page of the channel, beyond the faded part
 * @page: set to it
 *
 * Pages that were never touched are zero.
 *
 * Context: Page fault; sleeps.
 * Return: 0, VM_FAULT_OOM, or VM_FAULT_SIGBUS if the contents are lost.
 */
static vm_fault_t paragpu_kept(struct paragpu_channel *channel,
			       unsigned long place, struct page **page)
{
	struct page *fresh;

	*page = xa_load(&channel->kept, place);
	if (*page)
		return 0;
	if (READ_ONCE(channel->lost))
		return VM_FAULT_SIGBUS;
	fresh = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!fresh)
		return VM_FAULT_OOM;
	*page = xa_cmpxchg(&channel->kept, place, NULL, fresh,
			   GFP_KERNEL_ACCOUNT);
	if (!*page) {
		*page = fresh;
		return 0;
	}
	__free_page(fresh);
	return xa_is_err(*page) ? VM_FAULT_OOM : 0;
}

/**
 * paragpu_fault_faded - map the replacement of a removed device
 * @vmf: the fault
 *
 * Zeros for the faded part, the preserved contents elsewhere. Waits until all
 * device pages are unmapped and flushed from every TLB, so that a process that
 * reads zeros here also finds no magic at its next look.
 *
 * Context: Page fault; sleeps.
 * Return: VM_FAULT_NOPAGE, VM_FAULT_OOM, or VM_FAULT_SIGBUS for lost
 * contents.
 */
static vm_fault_t paragpu_fault_faded(struct vm_fault *vmf)
{
	struct paragpu_channel *channel = vmf->vma->vm_private_data;
	struct page **faded = &channel->faded[vmf->pgoff ? 1 : 0];
	struct page *page;
	vm_fault_t found;

	/* A task killed meanwhile does not return to the fault. */
	if (wait_for_completion_killable(&channel->owner->unmapped))
		return VM_FAULT_NOPAGE;
	if (vmf->pgoff >= READ_ONCE(channel->fade) >> PAGE_SHIFT) {
		found = paragpu_kept(channel, vmf->pgoff, &page);
		if (found)
			return found;
		return vmf_insert_pfn(vmf->vma, vmf->address,
				      page_to_pfn(page));
	}
	page = READ_ONCE(*faded);
	if (!page) {
		struct page *fresh = alloc_page(GFP_KERNEL_ACCOUNT |
						__GFP_ZERO);

		if (!fresh)
			return VM_FAULT_OOM;
		page = cmpxchg(faded, NULL, fresh);
		if (page)
			__free_page(fresh);
		else
			page = fresh;
	}
	return vmf_insert_pfn(vmf->vma, vmf->address, page_to_pfn(page));
}

/**
 * paragpu_fault - map the touched page and its surroundings
 * @vmf: the fault
 *
 * Pages are mapped here and not in mmap(), so that removal cannot miss a
 * mapping: a fault after paragpu_enter() started to fail gets no page, and
 * pages of earlier faults are found and unmapped.
 *
 * Context: Page fault; may sleep for page tables.
 * Return: VM_FAULT_NOPAGE; the result of paragpu_fault_faded() if the device
 * was removed.
 */
static vm_fault_t paragpu_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct paragpu_channel *channel = vma->vm_private_data;
	struct paragpu_device *paragpu = channel->owner;
	u64 pages = paragpu->layout.channel_size >> PAGE_SHIFT;
	unsigned long first, last, address;
	vm_fault_t result = VM_FAULT_SIGBUS;
	unsigned long base;
	int index;

	if (vmf->pgoff >= pages)
		return VM_FAULT_SIGBUS;
	if (!paragpu_enter(paragpu, &index))
		return paragpu_fault_faded(vmf);

	base = PHYS_PFN(paragpu->window + paragpu->layout.channel_offset +
			channel->index * paragpu->layout.channel_size);
	set_bit(vmf->pgoff / (PARAGPU_BLOCK / PAGE_SIZE), channel->touched);
	result = vmf_insert_pfn(vma, vmf->address, base + vmf->pgoff);

	first = max(vma->vm_start, ALIGN_DOWN(vmf->address, PARAGPU_BLOCK));
	last = min(vma->vm_end - 1, vmf->address | (PARAGPU_BLOCK - 1));
	for (address = first;
	     result == VM_FAULT_NOPAGE && address <= last;
	     address += PAGE_SIZE) {
		unsigned long page = linear_page_index(vma, address);

		if (page >= pages)
			break;
		set_bit(page / (PARAGPU_BLOCK / PAGE_SIZE), channel->touched);
		result = vmf_insert_pfn(vma, address, base + page);
	}
	paragpu_exit(paragpu, index);
	return result;
}

static const struct vm_operations_struct paragpu_vm_ops = {
	.fault = paragpu_fault,
};

static void paragpu_set_vm_flags(struct vm_area_struct *vma)
{
	const unsigned long flags = VM_PFNMAP | VM_IO | VM_DONTEXPAND |
				    VM_DONTDUMP | VM_DONTCOPY;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

static int paragpu_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct paragpu_channel *channel = file->private_data;
	unsigned long length = vma->vm_end - vma->vm_start;

	if (vma->vm_pgoff || length > channel->owner->layout.channel_size)
		return -EINVAL;
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (READ_ONCE(channel->owner->gone))
		return -ENODEV;
	/* The file that the mapping holds keeps channel and device alive. */
	vma->vm_private_data = channel;
	vma->vm_ops = &paragpu_vm_ops;
	paragpu_set_vm_flags(vma);
	return 0;
}

static __poll_t paragpu_poll(struct file *file, poll_table *wait)
{
	struct paragpu_channel *channel = file->private_data;
	struct paragpu_device *paragpu = channel->owner;
	__poll_t events = 0;
	int index;

	poll_wait(file, &channel->wait, wait);
	if (atomic_read(&channel->rung))
		events |= EPOLLIN | EPOLLRDNORM;
	/* Mappings are gone before the end is reported: a wake-up follows. */
	if (!paragpu_enter(paragpu, &index))
		return completion_done(&paragpu->unmapped) ?
		       events | EPOLLHUP | EPOLLERR : events;
	if (paragpu_state(paragpu, channel->index) ==
	    PARAGPU_CHANNEL_HOST_CLOSED)
		events |= EPOLLHUP | EPOLLERR;
	paragpu_exit(paragpu, index);
	return events;
}

static long paragpu_get_info(struct paragpu_channel *channel,
			     struct paragpu_info __user *to)
{
	struct paragpu_device *paragpu = channel->owner;
	struct paragpu_info info = {
		.version = paragpu->layout.version,
		.channel = channel->index,
		.channel_size = paragpu->layout.channel_size,
		.generation = paragpu->layout.generation,
	};

	if (READ_ONCE(paragpu->gone))
		return -ENODEV;
	return copy_to_user(to, &info, sizeof(info)) ? -EFAULT : 0;
}

static long paragpu_set_fade(struct paragpu_channel *channel,
			     const u64 __user *from)
{
	u64 bytes;

	if (copy_from_user(&bytes, from, sizeof(bytes)))
		return -EFAULT;
	if (bytes > channel->owner->layout.channel_size)
		return -EINVAL;
	WRITE_ONCE(channel->fade, bytes);
	return 0;
}

static long paragpu_ioctl(struct file *file, unsigned int command,
			  unsigned long argument)
{
	struct paragpu_channel *channel = file->private_data;
	struct paragpu_device *paragpu = channel->owner;
	int index;

	switch (command) {
	case PARAGPU_IOC_INFO:
		return paragpu_get_info(channel, (void __user *)argument);
	case PARAGPU_IOC_DOORBELL:
		if (!paragpu_enter(paragpu, &index))
			return -ENODEV;
		paragpu_ring(paragpu, PARAGPU_PEER_CHANNEL(channel->index));
		paragpu_exit(paragpu, index);
		return 0;
	case PARAGPU_IOC_PIN:
		return paragpu_ioc_pin(channel, (void __user *)argument);
	case PARAGPU_IOC_UNPIN:
		return paragpu_ioc_unpin(channel, (void __user *)argument);
	case PARAGPU_IOC_ACK:
		/* Before any look at the ring that follows. */
		atomic_xchg(&channel->rung, 0);
		return 0;
	case PARAGPU_IOC_FADE:
		return paragpu_set_fade(channel, (void __user *)argument);
	default:
		return -ENOTTY;
	}
}

const struct file_operations paragpu_fops = {
	.owner = THIS_MODULE,
	.open = paragpu_open,
	.release = paragpu_release,
	.mmap = paragpu_mmap,
	.poll = paragpu_poll,
	.unlocked_ioctl = paragpu_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};
