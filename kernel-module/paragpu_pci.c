// SPDX-License-Identifier: GPL-2.0-only
/*
 * paragpu guest driver: the PCI device, its window, its interrupt.
 *
 * include/uapi/linux/paragpu.h specifies the device.
 */
#include <linux/cc_platform.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/pm.h>
#include <linux/sched/mm.h>

#include "paragpu.h"

#define PARAGPU_BAR_REGISTERS	0
#define PARAGPU_BAR_WINDOW	2

static_assert(sizeof(struct paragpu_window_header) <= PAGE_SIZE);
static_assert(sizeof(struct paragpu_channel_header) <= PARAGPU_ALIGNMENT);

/**
 * paragpu_enter - begin to use the hardware
 * @paragpu: the device
 * @index: for paragpu_exit()
 *
 * Context: Any that may read SRCU; the device stays until paragpu_exit(),
 * which must follow without a wait for the host or for user space.
 * Return: Whether the hardware is there; false needs no paragpu_exit().
 */
bool paragpu_enter(struct paragpu_device *paragpu, int *index)
{
	*index = srcu_read_lock(&paragpu->guard);
	if (!READ_ONCE(paragpu->gone))
		return true;
	srcu_read_unlock(&paragpu->guard, *index);
	return false;
}

/**
 * paragpu_exit - leave the section that paragpu_enter() entered
 * @paragpu: the device
 * @index: from paragpu_enter()
 *
 * Context: As paragpu_enter().
 */
void paragpu_exit(struct paragpu_device *paragpu, int index)
{
	srcu_read_unlock(&paragpu->guard, index);
}

/**
 * paragpu_ring - ring a peer's doorbell
 * @paragpu: the device
 * @peer: a %PARAGPU_PEER_* number
 *
 * All that was written to the window before is visible to the peer.
 *
 * Context: Inside paragpu_enter(), or in probe or remove.
 */
void paragpu_ring(struct paragpu_device *paragpu, u32 peer)
{
	/* writel() orders the window's memory only where that is DMA memory. */
	mb();
	writel(peer << 16, paragpu->registers + PARAGPU_REG_DOORBELL);
}

static void paragpu_ring_control(struct paragpu_device *paragpu)
{
	u32 count = paragpu->layout.channel_count;

	paragpu_ring(paragpu, PARAGPU_PEER_CONTROL(count));
}

/**
 * paragpu_state - read the state word of a channel
 * @paragpu: the device
 * @channel: less than the device's channel count
 *
 * Context: Inside paragpu_enter().
 * Return: &enum paragpu_channel_state, or any value that the host wrote.
 */
u32 paragpu_state(struct paragpu_device *paragpu, u32 channel)
{
	return le32_to_cpu(READ_ONCE(paragpu->header->state[channel]));
}

/**
 * paragpu_take - open a channel if it is free
 * @paragpu: the device
 * @channel: less than the device's channel count
 *
 * Context: Inside paragpu_enter(), under the device's lock.
 * Return: Whether it was free, and now is open.
 */
bool paragpu_take(struct paragpu_device *paragpu, u32 channel)
{
	__le32 *state = &paragpu->header->state[channel];
	const __le32 free = cpu_to_le32(PARAGPU_CHANNEL_FREE);

	if (paragpu_cmpxchg(state, free, cpu_to_le32(PARAGPU_CHANNEL_OPEN)) !=
	    free)
		return false;
	/* Discard doorbells for the previous opener. */
	paragpu_clear_bit(channel, paragpu->header->pending);
	atomic_set(&paragpu->channels[channel].rung, 0);
	paragpu_ring_control(paragpu);
	return true;
}

/**
 * paragpu_give_back - tell the host that no process has the channel any more
 * @paragpu: the device
 * @channel: less than the device's channel count
 *
 * Context: Inside paragpu_enter(), under the device's lock; or in probe or
 * remove.
 */
void paragpu_give_back(struct paragpu_device *paragpu, u32 channel)
{
	xchg(&paragpu->header->state[channel],
	     cpu_to_le32(PARAGPU_CHANNEL_RELEASED));
	paragpu_ring_control(paragpu);
}

static void paragpu_wake(struct paragpu_channel *channel)
{
	atomic_set(&channel->rung, 1);
	/* wake_up() of a queue needs the flag to be visible first: it is. */
	wake_up_interruptible(&channel->wait);
}

static void paragpu_wake_openers(struct paragpu_device *paragpu)
{
	atomic_inc(&paragpu->interrupts);
	wake_up_interruptible_all(&paragpu->freed_wait);
}

static void paragpu_wake_all(struct paragpu_device *paragpu)
{
	u32 i;

	for (i = 0; i < paragpu->layout.channel_count; i++)
		paragpu_wake(&paragpu->channels[i]);
	paragpu_wake_openers(paragpu);
}

static void paragpu_scan_pending(struct paragpu_device *paragpu)
{
	u32 words = DIV_ROUND_UP(paragpu->layout.channel_count, 64);
	u32 word, channel;
	u64 pending;

	for (word = 0; word < words; word++) {
		if (!READ_ONCE(paragpu->header->pending[word]))
			continue;
		pending = le64_to_cpu(xchg(&paragpu->header->pending[word], 0));
		while (pending) {
			channel = word * 64 + __ffs64(pending);
			pending &= pending - 1;
			if (channel >= paragpu->layout.channel_count)
				break;
			paragpu_wake(&paragpu->channels[channel]);
		}
	}
	/* A channel may have become free, which no bit indicates. */
	paragpu_wake_openers(paragpu);
}

/**
 * paragpu_watch - look for news of the host in a second
 * @paragpu: the device
 *
 * Context: Inside paragpu_enter(), so that paragpu_disconnect() finds it.
 */
void paragpu_watch(struct paragpu_device *paragpu)
{
	schedule_delayed_work(&paragpu->watchdog, HZ);
}

static void paragpu_watchdog(struct work_struct *work)
{
	struct paragpu_device *paragpu =
		container_of(to_delayed_work(work), struct paragpu_device,
			     watchdog);
	struct paragpu_channel *channel;
	bool again = false;
	int index;
	u32 i;

	mutex_lock(&paragpu->lock);
	if (!paragpu_enter(paragpu, &index))
		goto unlock;
	paragpu_scan_pending(paragpu);
	for (i = 0; i < paragpu->layout.channel_count; i++) {
		channel = &paragpu->channels[i];
		if (!channel->taken &&
		    paragpu_state(paragpu, i) == PARAGPU_CHANNEL_FREE)
			paragpu_reap_pins(channel);
		again |= channel->taken || paragpu_has_pins(channel);
	}
	if (again)
		paragpu_watch(paragpu);
	paragpu_exit(paragpu, index);
unlock:
	mutex_unlock(&paragpu->lock);
}

static irqreturn_t paragpu_interrupt(int irq, void *data)
{
	paragpu_scan_pending(data);
	return IRQ_HANDLED;
}

/**
 * paragpu_read_header - check the window's header and store its contents
 * @pdev: the PCI device
 * @header: page 0 of the window
 * @to: filled in
 *
 * Context: Process context.
 * Return: 0, or -ENODEV after a log message, for another kind of ivshmem device
 * or one that this driver does not support.
 */
static int paragpu_read_header(struct pci_dev *pdev,
			       const struct paragpu_window_header *header,
			       struct paragpu_layout *to)
{
	u64 length = pci_resource_len(pdev, PARAGPU_BAR_WINDOW);
	u64 size = le64_to_cpu(READ_ONCE(header->window_size));
	u32 magic = le32_to_cpu(READ_ONCE(header->magic));
	u64 end, lists;

	if (magic != PARAGPU_WINDOW_MAGIC) {
		dev_notice(&pdev->dev,
			   "this ivshmem device is not a paragpu device (its memory begins with %#010x), leaving it alone\n",
			   magic);
		return -ENODEV;
	}
	to->version = le32_to_cpu(READ_ONCE(header->version));
	to->generation = le32_to_cpu(READ_ONCE(header->generation));
	to->channel_count = le32_to_cpu(READ_ONCE(header->channel_count));
	to->channel_offset = le64_to_cpu(READ_ONCE(header->channel_offset));
	to->channel_size = le64_to_cpu(READ_ONCE(header->channel_size));
	/* A host of version 1.0 wrote zero. */
	to->list_offset = le64_to_cpu(READ_ONCE(header->list_offset));

	if (PARAGPU_VERSION_MAJOR(to->version) !=
	    PARAGPU_VERSION_MAJOR(PARAGPU_VERSION)) {
		dev_err(&pdev->dev,
			"the host speaks version %u.%u of the device, this driver version %u\n",
			PARAGPU_VERSION_MAJOR(to->version),
			to->version & 0xffff,
			PARAGPU_VERSION_MAJOR(PARAGPU_VERSION));
		return -ENODEV;
	}
	if (!to->channel_count || to->channel_count > PARAGPU_MAX_CHANNELS ||
	    to->channel_offset < PAGE_SIZE || to->channel_size < PAGE_SIZE ||
	    !PAGE_ALIGNED(to->channel_offset) ||
	    !PAGE_ALIGNED(to->channel_size) || size > length ||
	    check_mul_overflow(to->channel_size, (u64)to->channel_count,
			       &end) ||
	    check_add_overflow(end, to->channel_offset, &end) || end > size ||
	    (to->list_offset &&
	     (to->list_offset < end ||
	      !IS_ALIGNED(to->list_offset, PARAGPU_ALIGNMENT) ||
	      check_add_overflow(to->list_offset, (u64)to->channel_count *
				 PARAGPU_LISTS * PARAGPU_LIST_SIZE, &lists) ||
	      lists > size))) {
		dev_err(&pdev->dev,
			"the window's header is invalid: %u channels of %llu bytes from %llu on, in a window of %llu bytes (BAR 2 has %llu)\n",
			to->channel_count, to->channel_size,
			to->channel_offset, size, length);
		return -ENODEV;
	}
	return 0;
}

/*
 * Firmware declares device memory below 4 GiB uncached, and x86 enforces that
 * regardless of the driver's request. Everything works, but slowly if the
 * hypervisor honours it.
 */
static void paragpu_check_cached(struct pci_dev *pdev, void *window)
{
#ifdef CONFIG_X86
	unsigned int level;
	pte_t *pte = lookup_address((unsigned long)window, &level);

	if (pte && (pte_flags(*pte) & (_PAGE_PCD | _PAGE_PWT)))
		dev_notice(&pdev->dev,
			   "the window is not cached: a larger one, of 1 GiB, comes to lie above 4 GiB and is\n");
#endif
}

static int paragpu_map(struct pci_dev *pdev, void __iomem **registers,
		       void **window)
{
	struct resource *bar = &pdev->resource[PARAGPU_BAR_WINDOW];
	int error;

	if (!(bar->flags & IORESOURCE_MEM) || (bar->flags & IORESOURCE_UNSET) ||
	    !bar->start || resource_size(bar) < PAGE_SIZE) {
		dev_err(&pdev->dev,
			"BAR 2 has no address: a hot-plug port needs as much prefetchable memory as the window (QEMU: pref64-reserve)\n");
		return -ENODEV;
	}
	error = pcim_enable_device(pdev);
	if (error)
		return dev_err_probe(&pdev->dev, error,
				     "cannot enable the device\n");
	/* A message-signalled interrupt is a write of the device's. */
	pci_set_master(pdev);
	error = pcim_iomap_regions(pdev, BIT(PARAGPU_BAR_REGISTERS),
				   KBUILD_MODNAME);
	if (error)
		return dev_err_probe(&pdev->dev, error, "cannot map BAR 0\n");
	if (!devm_request_mem_region(&pdev->dev, bar->start,
				     resource_size(bar), KBUILD_MODNAME))
		return dev_err_probe(&pdev->dev, -EBUSY, "BAR 2 is in use\n");
	/*
	 * Map the whole window, although only page 0 is used: on x86 this makes
	 * user mappings of it cached.
	 */
	*window = devm_memremap(&pdev->dev, bar->start, resource_size(bar),
				MEMREMAP_WB);
	if (IS_ERR(*window))
		return dev_err_probe(&pdev->dev, PTR_ERR(*window),
				     "cannot map BAR 2\n");
	paragpu_check_cached(pdev, *window);
	*registers = pcim_iomap_table(pdev)[PARAGPU_BAR_REGISTERS];
	return 0;
}

static void paragpu_disconnect(struct paragpu_device *paragpu, bool there);

static int paragpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct paragpu_layout found = {};
	struct paragpu_device *paragpu;
	void __iomem *registers;
	void *window;
	int error;
	u32 i;

	if (cc_platform_has(CC_ATTR_GUEST_MEM_ENCRYPT)) {
		dev_err(&pdev->dev,
			"this guest keeps its memory from the host, which the device needs to share: use vsock or tcp\n");
		return -EOPNOTSUPP;
	}
	error = paragpu_map(pdev, &registers, &window);
	if (error)
		return error;
	error = paragpu_read_header(pdev, window, &found);
	if (error)
		return error;
	if (found.list_offset) {
		error = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
		if (error)
			return dev_err_probe(&pdev->dev, error,
					     "no address is good for the host\n");
		dma_set_max_seg_size(&pdev->dev, PARAGPU_MAX_SEGMENT);
	}
	error = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSIX | PCI_IRQ_MSI);
	if (error < 0)
		return dev_err_probe(&pdev->dev, error,
				     "the device has no interrupt: QEMU needs vectors=1\n");

	paragpu = paragpu_create(pdev, &found);
	if (IS_ERR(paragpu))
		return dev_err_probe(&pdev->dev, PTR_ERR(paragpu),
				     "cannot set up the device\n");
	paragpu->window = pci_resource_start(pdev, PARAGPU_BAR_WINDOW);
	INIT_DELAYED_WORK(&paragpu->watchdog, paragpu_watchdog);
	paragpu->registers = registers;
	paragpu->header = window;
	if (found.list_offset)
		paragpu->lists = window + found.list_offset;
	pci_set_drvdata(pdev, paragpu);

	error = devm_request_irq(&pdev->dev, pci_irq_vector(pdev, 0),
				 paragpu_interrupt, 0, KBUILD_MODNAME,
				 paragpu);
	if (error) {
		dev_err_probe(&pdev->dev, error, "cannot take the interrupt\n");
		goto discard;
	}
	/* Close channels that an earlier kernel or driver left open. */
	for (i = 0; i < paragpu->layout.channel_count; i++)
		if (paragpu_state(paragpu, i) != PARAGPU_CHANNEL_FREE)
			paragpu_give_back(paragpu, i);

	error = paragpu_add_node(paragpu);
	if (error) {
		dev_err_probe(&pdev->dev, error, "cannot make %s\n",
			      dev_name(&paragpu->dev));
		/* An older node of this number may have been opened. */
		paragpu_disconnect(paragpu, false);
		goto free_irq;
	}
	dev_info(&pdev->dev, "%s: %u channels of %llu KiB\n",
		 dev_name(&paragpu->dev), paragpu->layout.channel_count,
		 paragpu->layout.channel_size >> 10);
	return 0;

free_irq:
	devm_free_irq(&pdev->dev, pci_irq_vector(pdev, 0), paragpu);
discard:
	paragpu_discard(paragpu);
	return error;
}

/**
 * paragpu_blocks - number of blocks of a channel
 * @layout: the device's
 *
 * Context: Any.
 * Return: How many of %PARAGPU_BLOCK bytes, the last of which may have fewer.
 */
u32 paragpu_blocks(const struct paragpu_layout *layout)
{
	return DIV_ROUND_UP_ULL(layout->channel_size, PARAGPU_BLOCK);
}

/**
 * paragpu_forget - free the preserved contents of a channel
 * @channel: the channel, which is not mapped
 *
 * Context: Process context, under the device's lock.
 */
void paragpu_forget(struct paragpu_channel *channel)
{
	unsigned long place;
	struct page *page;

	xa_for_each(&channel->kept, place, page)
		__free_page(page);
	xa_destroy(&channel->kept);
}

/**
 * paragpu_keep - preserve a channel's contents beyond the faded part
 * @paragpu: the device, which is being removed and is not mapped
 * @channel: the channel
 *
 * To a program, memory that it pinned is ordinary memory. It survives, and is
 * charged to the opener. If the cgroup has no room, all of it is lost: otherwise
 * the next page that the process needs would get it killed. The OOM killer must
 * not run, because its victim would wait for the device's lock, which the caller
 * holds.
 *
 * Context: Process context, under the device's lock; sleeps.
 */
static void paragpu_keep(struct paragpu_device *paragpu,
			 struct paragpu_channel *channel)
{
	const unsigned long pages = PARAGPU_BLOCK / PAGE_SIZE;
	const gfp_t flags = GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL |
			    __GFP_NOWARN;
	const struct paragpu_layout *layout = &paragpu->layout;
	unsigned long fade = READ_ONCE(channel->fade) >> PAGE_SHIFT;
	unsigned long block, place, end;
	struct mem_cgroup *before;
	struct page *page;
	void *from, *own;

	before = set_active_memcg(channel->memcg);
	own = (void *)paragpu->header + layout->channel_offset +
	      channel->index * layout->channel_size;
	for_each_set_bit(block, channel->touched, paragpu_blocks(layout)) {
		end = min_t(u64, (block + 1) * pages,
			    layout->channel_size >> PAGE_SHIFT);
		for (place = max(fade, block * pages); place < end; place++) {
			from = own + place * PAGE_SIZE;
			cond_resched();
			/* Missing pages read as zero. */
			if (!memchr_inv(from, 0, PAGE_SIZE))
				continue;
			page = alloc_page(flags);
			if (!page)
				goto lost;
			copy_page(page_address(page), from);
			if (xa_err(xa_store(&channel->kept, place, page,
					    flags))) {
				__free_page(page);
				goto lost;
			}
		}
	}
	set_active_memcg(before);
	return;
lost:
	set_active_memcg(before);
	paragpu_forget(channel);
	channel->lost = true;
	dev_warn(&paragpu->dev,
		 "no memory for what a program has pinned in the device\n");
}

/**
 * paragpu_disconnect - disconnect all open files from the hardware
 * @paragpu: the device
 * @there: whether its window still has the processes' contents
 *
 * Afterwards no file operation touches the hardware, and no process has any
 * of the window mapped.
 *
 * Context: Process context; waits for file operations in flight, none of
 * which waits for the host or for user space.
 */
static void paragpu_disconnect(struct paragpu_device *paragpu, bool there)
{
	struct paragpu_channel *channel;
	u32 i;

	WRITE_ONCE(paragpu->gone, true);
	synchronize_srcu(&paragpu->guard);
	cancel_delayed_work_sync(&paragpu->watchdog);

	mutex_lock(&paragpu->lock);
	for (i = 0; i < paragpu->layout.channel_count; i++) {
		channel = &paragpu->channels[i];
		if (channel->mapping)
			unmap_mapping_range(channel->mapping, 0, 0, 1);
	}
	for (i = 0; i < paragpu->layout.channel_count; i++) {
		channel = &paragpu->channels[i];
		/* Lost before: another device has come in its place. */
		if (channel->taken && there && !channel->lost)
			paragpu_keep(paragpu, channel);
		channel->lost |= !there;
	}
	mutex_unlock(&paragpu->lock);
	complete_all(&paragpu->unmapped);
	paragpu_wake_all(paragpu);
}

/*
 * Releases the pages that the host used. It may still be completing copies, but
 * no more pages can be pinned, and the channels are released. A copy takes
 * milliseconds; a host that does not answer is gone.
 *
 * Does not hold the device's lock: processes that close their files wait for it
 * uninterruptibly. Since paragpu_disconnect() nothing else accesses the pins.
 */
static void paragpu_drain_pins(struct paragpu_device *paragpu)
{
	unsigned long deadline = jiffies + 5 * HZ;
	unsigned long lost = 0;
	u32 i;

	for (i = 0; i < paragpu->layout.channel_count; i++) {
		struct paragpu_channel *channel = &paragpu->channels[i];

		while (paragpu_has_pins(channel) &&
		       paragpu_state(paragpu, i) != PARAGPU_CHANNEL_FREE &&
		       time_before(jiffies, deadline))
			msleep(10);
		if (paragpu_state(paragpu, i) == PARAGPU_CHANNEL_FREE)
			paragpu_reap_pins(channel);
		else
			lost += paragpu_abandon_pins(channel);
	}
	if (lost)
		dev_warn(&paragpu->pdev->dev,
			 "the host may still use %lu pages of memory: they are lost until the next start\n",
			 lost);
}

/*
 * Waits a moment until the host has freed the channels: it interrupts for each.
 * QEMU without KVM may crash on an interrupt of a device that is being removed.
 */
static void paragpu_await_freed(struct paragpu_device *paragpu)
{
	unsigned long deadline = jiffies + HZ;
	u32 i;

	for (i = 0; i < paragpu->layout.channel_count; i++)
		while (paragpu_state(paragpu, i) == PARAGPU_CHANNEL_RELEASED &&
		       time_before(jiffies, deadline))
			fsleep(1000);
}

/*
 * Afterwards no process has the device, and the host uses no memory of the
 * guest's. @there as for paragpu_disconnect().
 */
static void paragpu_leave(struct paragpu_device *paragpu, bool there)
{
	u32 i;

	paragpu_disconnect(paragpu, there);
	/* If it is already unplugged, these writes have no effect. */
	for (i = 0; i < paragpu->layout.channel_count; i++)
		if (paragpu_state(paragpu, i) != PARAGPU_CHANNEL_FREE)
			paragpu_give_back(paragpu, i);
	paragpu_drain_pins(paragpu);
	if (there)
		paragpu_await_freed(paragpu);
}

static void paragpu_remove(struct pci_dev *pdev)
{
	struct paragpu_device *paragpu = pci_get_drvdata(pdev);

	device_del(&paragpu->dev);
	paragpu_leave(paragpu, pci_device_is_present(pdev));
	devm_free_irq(&pdev->dev, pci_irq_vector(pdev, 0), paragpu);
	paragpu_discard(paragpu);
}

/*
 * The machine stops, or another kernel takes over (kexec) and reuses the memory
 * of processes, so the host must stop using it. Channel contents are not
 * preserved, because the processes end too.
 */
static void paragpu_shutdown(struct pci_dev *pdev)
{
	paragpu_leave(pci_get_drvdata(pdev), false);
}

static int paragpu_suspend(struct device *dev)
{
	/* Processes are frozen, the window is memory: nothing to save. */
	return 0;
}

static int paragpu_resume(struct device *dev)
{
	struct pci_dev *pdev = to_pci_dev(dev);
	struct paragpu_device *paragpu = pci_get_drvdata(pdev);
	struct paragpu_layout found = {};
	int error;

	/* After hibernation the host may have started anew. */
	error = paragpu_read_header(pdev, paragpu->header, &found);
	if (error || found.generation != paragpu->layout.generation) {
		dev_warn(dev,
			 "a different device is present: all channels are closed; unbind and rebind the driver\n");
		paragpu_disconnect(paragpu, false);
		return 0;
	}
	/* An interrupt may have been lost: look at everything. */
	paragpu_scan_pending(paragpu);
	paragpu_wake_all(paragpu);
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(paragpu_pm, paragpu_suspend, paragpu_resume);

static const struct pci_device_id paragpu_ids[] = {
	{ PCI_DEVICE(PARAGPU_PCI_VENDOR_ID, PARAGPU_PCI_DEVICE_ID) },
	{ }
};
MODULE_DEVICE_TABLE(pci, paragpu_ids);

static struct pci_driver paragpu_driver = {
	.name = KBUILD_MODNAME,
	.id_table = paragpu_ids,
	.probe = paragpu_probe,
	.remove = paragpu_remove,
	.shutdown = paragpu_shutdown,
	.driver.pm = pm_sleep_ptr(&paragpu_pm),
};

static int __init paragpu_init(void)
{
	int error = paragpu_init_nodes();

	if (error)
		return error;
	error = pci_register_driver(&paragpu_driver);
	if (error)
		paragpu_exit_nodes();
	return error;
}

static void __exit paragpu_exit_module(void)
{
	pci_unregister_driver(&paragpu_driver);
	paragpu_exit_nodes();
}

module_init(paragpu_init);
module_exit(paragpu_exit_module);

MODULE_AUTHOR("The paragpu authors");
MODULE_DESCRIPTION("paragpu virtual GPU: channels in a shared-memory window");
MODULE_LICENSE("GPL");
