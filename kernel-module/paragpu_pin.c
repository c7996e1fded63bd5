// SPDX-License-Identifier: GPL-2.0-only
/*
 * paragpu guest driver: process memory that the host copies directly.
 *
 * A process names a range of its own memory; the driver pins its pages and
 * writes their addresses into a page list in the window, where no process can
 * write. include/uapi/linux/paragpu.h defines who owns a list when.
 *
 * Pages are unpinned once their list is free again: never while the host may
 * use it, even if the process that pinned them has exited.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/nospec.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "paragpu.h"

/* Unit of addresses in a list, independent of the guest's page size. */
#define PARAGPU_UNIT	PARAGPU_ALIGNMENT

static_assert(sizeof(struct paragpu_page_list) == PARAGPU_LIST_SIZE);

/**
 * struct paragpu_pin - pages behind one list
 * @mm: the address space that the pages are charged to
 * @pages: the pages
 * @count: number of pages
 * @table: the pages, mapped for the device
 * @direction: direction of the device's accesses
 */
struct paragpu_pin {
	struct mm_struct *mm;
	struct page **pages;
	unsigned long count;
	struct sg_table table;
	enum dma_data_direction direction;
};

static struct paragpu_page_list *
paragpu_list(struct paragpu_device *paragpu, u32 channel, u32 list)
{
	return paragpu->lists + channel * PARAGPU_LISTS + list;
}

/* Counts pages against the limit of locked memory, as RDMA does. */
static int paragpu_account(struct mm_struct *mm, unsigned long count)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (atomic64_add_return(count, &mm->pinned_vm) > limit &&
	    !capable(CAP_IPC_LOCK)) {
		atomic64_sub(count, &mm->pinned_vm);
		return -ENOMEM;
	}
	return 0;
}

/* Lets go of pages that the device does not know. */
static void paragpu_unpin_pages(struct paragpu_pin *pin)
{
	sg_free_table(&pin->table);
	unpin_user_pages_dirty_lock(pin->pages, pin->count,
				    pin->direction == DMA_FROM_DEVICE);
	atomic64_sub(pin->count, &pin->mm->pinned_vm);
	mmdrop(pin->mm);
	kvfree(pin->pages);
	kfree(pin);
}

static void paragpu_unpin(struct device *dev, struct paragpu_pin *pin)
{
	dma_unmap_sgtable(dev, &pin->table, pin->direction, 0);
	paragpu_unpin_pages(pin);
}

/*
 * May the host write to these pages? A file's page must be locked to become dirty.
 * A file system in user space can hold that lock forever and so block the release
 * of the page. File systems also do not notice such writes.
 */
static bool paragpu_may_be_written(struct page **pages, unsigned long count)
{
	unsigned long i;

	for (i = 0; i < count; i++) {
		struct folio *folio = page_folio(pages[i]);

		if (!folio_test_swapbacked(folio) && !folio_test_hugetlb(folio))
			return false;
	}
	return true;
}

/**
 * paragpu_pin_pages - pin a range of the caller's memory
 * @address: first byte
 * @length: bytes, at least 1
 * @direction: direction of the device's accesses
 *
 * Context: Process context, outside paragpu_enter(): it may wait for a
 *	file system in user space that provides the pages. Sleeps.
 * Return: The pin, or an error pointer.
 */
static struct paragpu_pin *
paragpu_pin_pages(unsigned long address, size_t length,
		  enum dma_data_direction direction)
{
	unsigned int flags = FOLL_LONGTERM;
	struct paragpu_pin *pin;
	unsigned long last;
	int pinned, error;

	if (check_add_overflow(address, length - 1, &last))
		return ERR_PTR(-EFAULT);
	pin = kzalloc(sizeof(*pin), GFP_KERNEL_ACCOUNT);
	if (!pin)
		return ERR_PTR(-ENOMEM);
	pin->direction = direction;
	pin->mm = current->mm;
	pin->count = (last >> PAGE_SHIFT) - (address >> PAGE_SHIFT) + 1;
	pin->pages = kvmalloc_array(pin->count, sizeof(*pin->pages),
				    GFP_KERNEL_ACCOUNT);
	if (!pin->pages) {
		error = -ENOMEM;
		goto free;
	}
	error = paragpu_account(pin->mm, pin->count);
	if (error)
		goto free;
	if (direction == DMA_FROM_DEVICE)
		flags |= FOLL_WRITE;
	pinned = pin_user_pages_fast(address & PAGE_MASK, pin->count, flags,
				     pin->pages);
	if (pinned != pin->count) {
		error = pinned < 0 ? pinned : -EFAULT;
		goto unpin;
	}
	if (direction == DMA_FROM_DEVICE &&
	    !paragpu_may_be_written(pin->pages, pin->count)) {
		error = -EFAULT;
		goto unpin;
	}
	error = sg_alloc_table_from_pages_segment(&pin->table, pin->pages,
			pin->count, 0, pin->count << PAGE_SHIFT,
			PARAGPU_MAX_SEGMENT, GFP_KERNEL_ACCOUNT);
	if (error)
		goto unpin;
	mmgrab(pin->mm);
	return pin;

unpin:
	if (pinned > 0)
		unpin_user_pages(pin->pages, pinned);
	atomic64_sub(pin->count, &pin->mm->pinned_vm);
free:
	kvfree(pin->pages);
	kfree(pin);
	return ERR_PTR(error);
}

/*
 * Writes the pages' addresses into a free list. -E2BIG if they have more
 * contiguous ranges than a list can hold.
 */
static int paragpu_fill(struct paragpu_page_list *list,
			const struct paragpu_pin *pin, unsigned long address,
			size_t length)
{
	struct scatterlist *sg;
	unsigned int i, count = 0;

	for_each_sgtable_dma_sg(&pin->table, sg, i) {
		u64 at = sg_dma_address(sg);
		u64 units = sg_dma_len(sg) / PARAGPU_UNIT;

		if (count == PARAGPU_LIST_ENTRIES)
			return -E2BIG;
		if (!IS_ALIGNED(at, PARAGPU_UNIT) || !units ||
		    units > PARAGPU_UNIT)
			return -EIO;
		list->entry[count++] = cpu_to_le64(at | (units - 1));
	}
	list->count = cpu_to_le32(count);
	list->offset = cpu_to_le32(offset_in_page(address));
	list->length = cpu_to_le64(length);
	list->flags = cpu_to_le32(pin->direction == DMA_FROM_DEVICE ?
				  PARAGPU_LIST_WRITABLE : 0);
	return 0;
}

/*
 * Takes a list back from the host, unless the host is using it. Under the
 * channel's pin_lock.
 */
static bool paragpu_take_back(struct paragpu_channel *channel, u32 index)
{
	struct paragpu_device *paragpu = channel->owner;
	struct paragpu_page_list *list =
		paragpu_list(paragpu, channel->index, index);
	const __le32 ready = cpu_to_le32(PARAGPU_LIST_READY);
	struct paragpu_pin *pin = channel->pins[index];

	if (paragpu_cmpxchg(&list->state, ready,
			    cpu_to_le32(PARAGPU_LIST_FREE)) != ready)
		return false;
	channel->pins[index] = NULL;
	paragpu_unpin(&paragpu->pdev->dev, pin);
	return true;
}

/**
 * paragpu_publish - put pinned pages into a free list of a channel
 * @channel: the channel
 * @pin: the pages, which the list owns afterwards
 * @request: the request
 *
 * Context: Inside paragpu_enter(); sleeps, but not for user space.
 * Return: The list's number or an error.
 */
static long paragpu_publish(struct paragpu_channel *channel,
			    struct paragpu_pin *pin,
			    const struct paragpu_pin_request *request)
{
	struct paragpu_device *paragpu = channel->owner;
	struct device *dev = &paragpu->pdev->dev;
	struct paragpu_page_list *list;
	long error;
	u32 index;

	if (mutex_lock_interruptible(&channel->pin_lock))
		return -ERESTARTSYS;
	for (index = 0; index < PARAGPU_LISTS; index++)
		if (!channel->pins[index])
			break;
	if (index == PARAGPU_LISTS) {
		error = -EBUSY;
		goto unlock;
	}
	list = paragpu_list(paragpu, channel->index, index);
	error = dma_map_sgtable(dev, &pin->table, pin->direction, 0);
	if (error)
		goto unlock;
	error = paragpu_fill(list, pin, request->address, request->length);
	if (error) {
		dma_unmap_sgtable(dev, &pin->table, pin->direction, 0);
		goto unlock;
	}
	channel->pins[index] = pin;
	virt_store_release(&list->state, cpu_to_le32(PARAGPU_LIST_READY));
	error = index;
unlock:
	mutex_unlock(&channel->pin_lock);
	return error;
}

/* Takes a list back if the host does not use it. */
static long paragpu_retract(struct paragpu_channel *channel, u32 index)
{
	struct paragpu_device *paragpu = channel->owner;
	long error = 0;
	int guard;

	if (!paragpu_enter(paragpu, &guard))
		return -ENODEV;
	if (mutex_lock_interruptible(&channel->pin_lock)) {
		error = -ERESTARTSYS;
		goto exit;
	}
	if (!channel->pins[index])
		error = -EINVAL;
	else if (!paragpu_take_back(channel, index))
		error = -EBUSY;
	mutex_unlock(&channel->pin_lock);
exit:
	paragpu_exit(paragpu, guard);
	return error;
}

/**
 * paragpu_ioc_pin - %PARAGPU_IOC_PIN
 * @channel: the caller's
 * @user: the request
 *
 * Context: Process context, outside paragpu_enter(), whose sections must not
 *	depend on user space.
 * Return: 0 or an error, as documented in the header.
 */
long paragpu_ioc_pin(struct paragpu_channel *channel,
		     struct paragpu_pin_request __user *user)
{
	struct paragpu_device *paragpu = channel->owner;
	struct paragpu_pin_request request;
	struct paragpu_pin *pin;
	long index;
	int guard;

	if (READ_ONCE(paragpu->gone))
		return -ENODEV;
	if (!paragpu->layout.list_offset)
		return -EOPNOTSUPP;
	if (copy_from_user(&request, user, sizeof(request)))
		return -EFAULT;
	if (!request.length || request.length > PARAGPU_PIN_MAX ||
	    request.flags & ~PARAGPU_LIST_WRITABLE ||
	    request.address != (unsigned long)request.address)
		return -EINVAL;
	pin = paragpu_pin_pages(request.address, request.length,
				request.flags & PARAGPU_LIST_WRITABLE ?
				DMA_FROM_DEVICE : DMA_TO_DEVICE);
	if (IS_ERR(pin))
		return PTR_ERR(pin);
	if (!paragpu_enter(paragpu, &guard)) {
		paragpu_unpin_pages(pin);
		return -ENODEV;
	}
	index = paragpu_publish(channel, pin, &request);
	paragpu_exit(paragpu, guard);
	if (index < 0) {
		paragpu_unpin_pages(pin);
		return index;
	}
	if (put_user((u32)index, &user->list)) {
		/* If the host already took it, it is freed with the channel. */
		paragpu_retract(channel, index);
		return -EFAULT;
	}
	return 0;
}

/**
 * paragpu_ioc_unpin - %PARAGPU_IOC_UNPIN
 * @channel: the caller's
 * @user: the list's number
 *
 * Context: Process context, outside paragpu_enter().
 * Return: 0 or an error, as documented in the header.
 */
long paragpu_ioc_unpin(struct paragpu_channel *channel, u32 __user *user)
{
	u32 index;

	if (get_user(index, user))
		return -EFAULT;
	if (index >= PARAGPU_LISTS)
		return -EINVAL;
	return paragpu_retract(channel,
			       array_index_nospec(index, PARAGPU_LISTS));
}

/**
 * paragpu_release_pins - unpin the pages of a closed channel
 * @channel: the channel
 *
 * Pages that the host uses stay pinned until paragpu_reap_pins().
 *
 * Context: Inside paragpu_enter(), under the device's lock, before the
 * channel is given back; sleeps.
 */
void paragpu_release_pins(struct paragpu_channel *channel)
{
	u32 index;

	mutex_lock(&channel->pin_lock);
	for (index = 0; index < PARAGPU_LISTS; index++)
		if (channel->pins[index])
			paragpu_take_back(channel, index);
	mutex_unlock(&channel->pin_lock);
}

/**
 * paragpu_reap_pins - unpin pages that the host no longer uses
 * @channel: a channel that no process has open and that the host made free, so
 *	that nothing on the host uses its lists any more
 *
 * Context: Under the device's lock, or after paragpu_disconnect(); sleeps.
 */
void paragpu_reap_pins(struct paragpu_channel *channel)
{
	u32 index;

	mutex_lock(&channel->pin_lock);
	for (index = 0; index < PARAGPU_LISTS; index++) {
		struct paragpu_pin *pin = channel->pins[index];

		channel->pins[index] = NULL;
		if (pin)
			paragpu_unpin(&channel->owner->pdev->dev, pin);
	}
	mutex_unlock(&channel->pin_lock);
}

/**
 * paragpu_has_pins - is any memory of a channel still pinned?
 * @channel: the channel
 *
 * Context: Process context; sleeps.
 * Return: Whether any is.
 */
bool paragpu_has_pins(struct paragpu_channel *channel)
{
	bool has;

	mutex_lock(&channel->pin_lock);
	has = memchr_inv(channel->pins, 0, sizeof(channel->pins));
	mutex_unlock(&channel->pin_lock);
	return has;
}

/**
 * paragpu_abandon_pins - leak the pages of a device that will not return
 * @channel: the channel
 *
 * It can no longer be determined whether the host still uses a list. Leaking
 * pages is better than freeing them while the host may still write to them.
 *
 * Context: Process context, when no new pins are possible.
 * Return: The number of leaked pages.
 */
unsigned long paragpu_abandon_pins(struct paragpu_channel *channel)
{
	unsigned long lost = 0;
	u32 index;

	mutex_lock(&channel->pin_lock);
	for (index = 0; index < PARAGPU_LISTS; index++) {
		if (!channel->pins[index])
			continue;
		if (paragpu_take_back(channel, index))
			continue;
		lost += channel->pins[index]->count;
		channel->pins[index] = NULL;
	}
	mutex_unlock(&channel->pin_lock);
	return lost;
}
