/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * paragpu guest driver: shared declarations.
 */
#ifndef PARAGPU_H
#define PARAGPU_H

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/srcu.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <uapi/linux/paragpu.h>

/* Device nodes that the driver can serve; one per PCI device. */
#define PARAGPU_MAX_DEVICES	64

/*
 * Maximum number of bytes that one fault maps: the range of one page table. It
 * is also the granularity at which use of a channel is tracked.
 */
#define PARAGPU_BLOCK	PMD_SIZE

/*
 * Atomic operations on memory shared with the host. A uniprocessor kernel omits
 * the lock prefix from cmpxchg() and clear_bit(), but the host runs concurrently.
 */
#ifdef CONFIG_X86
#include <asm/sync_bitops.h>
#define paragpu_cmpxchg(at, old, new)	sync_cmpxchg(at, old, new)
#define paragpu_clear_bit(bit, at)	sync_clear_bit(bit, (unsigned long *)(at))
#else
#define paragpu_cmpxchg(at, old, new)	cmpxchg(at, old, new)
#define paragpu_clear_bit(bit, at)	clear_bit_le(bit, at)
#endif

/* Maximum size of one entry of a page list, in bytes. */
#define PARAGPU_MAX_SEGMENT	(PARAGPU_ALIGNMENT * PARAGPU_ALIGNMENT)

struct paragpu_pin;

/**
 * struct paragpu_channel - the guest's side of one channel
 * @owner: the device
 * @index: number of the channel
 * @taken: an open file has it; changed under @owner->lock
 * @user: who opened it; under @owner->lock
 * @memcg: the opener's cgroup, charged for preserved contents; under
 *	@owner->lock
 * @mapping: page cache of the open file's inode, through which its user
 *	mappings are found at removal; NULL while free; under @owner->lock
 * @rung: whether the host rang the doorbell since the last acknowledgement
 * @wait: pollers
 * @fade: size of the leading part that fades, see %PARAGPU_IOC_FADE
 * @touched: which blocks of %PARAGPU_BLOCK bytes its opener has touched
 * @kept: preserved pages beyond @fade, from when the device was removed
 * @lost: whether these contents are lost
 * @faded: replacement pages of the faded part: one for the channel's header,
 *	one for the rest; NULL until needed. Only for the last opener, because a
 *	removed device gets no other.
 * @pin_lock: protects @pins
 * @pins: the pages of each page list, NULL if it is free; outlives the open
 *	file while the host still uses it
 */
struct paragpu_channel {
	struct paragpu_device *owner;
	u32 index;
	bool taken;
	kuid_t user;
	struct mem_cgroup *memcg;
	struct address_space *mapping;
	atomic_t rung;
	wait_queue_head_t wait;
	u64 fade;
	unsigned long *touched;
	struct xarray kept;
	bool lost;
	struct page *faded[2];
	struct mutex pin_lock;
	struct paragpu_pin *pins[PARAGPU_LISTS];
};

/**
 * struct paragpu_layout - the checked contents of the window's header
 * @version: as in &struct paragpu_window_header, like all the others
 * @generation: likewise
 * @channel_count: likewise
 * @channel_offset: likewise
 * @channel_size: likewise
 * @list_offset: likewise
 */
struct paragpu_layout {
	u32 version;
	u32 generation;
	u32 channel_count;
	u64 channel_offset;
	u64 channel_size;
	u64 list_offset;
};

/**
 * struct paragpu_device - one paragpu PCI device
 * @dev: the device node; its release frees this structure. Open files hold a
 *	reference, so it outlives the PCI device for as long as there are any
 * @pdev: the PCI device; not to be used outside @guard
 * @registers: BAR 0; not to be used outside @guard
 * @header: page 0 of BAR 2; not to be used outside @guard
 * @lists: the page lists in BAR 2, or NULL; not to be used outside @guard
 * @window: physical address of BAR 2
 * @layout: of the window when the driver was bound
 * @gone: the PCI device was unbound or unplugged, or came back from
 *	hibernation as another one; never cleared
 * @unmapped: after @gone, once no process has any of the window mapped
 * @guard: read side: use of the hardware and faults. After setting @gone,
 *	synchronize_srcu() means that nothing uses the hardware any more.
 * @lock: protects @taken and @mapping of the channels
 * @interrupts: counts events after which a channel may be free
 * @freed_wait: openers that wait for a channel to be scrubbed
 * @watchdog: polls the host's state once a second while channels are taken,
 *	because a host that died may not have sent an interrupt
 * @channels: @layout.channel_count channels
 */
struct paragpu_device {
	struct device dev;
	struct pci_dev *pdev;
	void __iomem *registers;
	struct paragpu_window_header *header;
	struct paragpu_page_list *lists;
	phys_addr_t window;
	struct paragpu_layout layout;
	bool gone;
	struct completion unmapped;
	struct srcu_struct guard;
	struct mutex lock;
	atomic_t interrupts;
	wait_queue_head_t freed_wait;
	struct delayed_work watchdog;
	struct paragpu_channel channels[];
};

extern const struct file_operations paragpu_fops;

struct paragpu_device *paragpu_get(u32 minor);
struct paragpu_device *paragpu_create(struct pci_dev *pdev,
				      const struct paragpu_layout *found);
int paragpu_add_node(struct paragpu_device *paragpu);
void paragpu_discard(struct paragpu_device *paragpu);
int paragpu_init_nodes(void);
void paragpu_exit_nodes(void);

bool paragpu_enter(struct paragpu_device *paragpu, int *index);
void paragpu_exit(struct paragpu_device *paragpu, int index);
void paragpu_watch(struct paragpu_device *paragpu);
void paragpu_ring(struct paragpu_device *paragpu, u32 peer);
u32 paragpu_state(struct paragpu_device *paragpu, u32 channel);
u32 paragpu_blocks(const struct paragpu_layout *layout);
bool paragpu_take(struct paragpu_device *paragpu, u32 channel);
void paragpu_give_back(struct paragpu_device *paragpu, u32 channel);
void paragpu_forget(struct paragpu_channel *channel);

long paragpu_ioc_pin(struct paragpu_channel *channel,
		     struct paragpu_pin_request __user *user);
long paragpu_ioc_unpin(struct paragpu_channel *channel, u32 __user *user);
void paragpu_release_pins(struct paragpu_channel *channel);
void paragpu_reap_pins(struct paragpu_channel *channel);
bool paragpu_has_pins(struct paragpu_channel *channel);
unsigned long paragpu_abandon_pins(struct paragpu_channel *channel);

#endif /* PARAGPU_H */
