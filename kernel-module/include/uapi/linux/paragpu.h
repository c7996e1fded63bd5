/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * paragpu: a virtual GPU for virtual machines, over shared memory.
 *
 * This header is the specification of the paragpu PCI device: its registers,
 * the memory window in BAR 2, the channels in the window, the rings in a
 * channel, and the character device that the guest driver makes of it. The
 * device, the host side and the guest side are checked against it.
 *
 * The device is an ivshmem-doorbell device (PCI id 1af4:1110; see
 * docs/specs/ivshmem-spec in QEMU's sources) with one interrupt vector, or one
 * that looks like it, attached by vfio-user. Its window begins with a &struct
 * paragpu_window_header:
 *
 *   BAR 0   registers, see PARAGPU_REG_*
 *   BAR 1   the MSI-X table; none over vfio-user, where the interrupt is MSI
 *   BAR 2   the window: page 0 is &struct paragpu_window_header, the channels
 *           follow from @channel_offset on, each @channel_size bytes; then,
 *           if the host can access the guest's memory, the page lists
 *
 * All integers are little-endian. Reserved bytes are zero.
 *
 * Ownership: the host writes the window header before the guest can see the
 * device, and afterwards only the words named below. Neither side trusts data
 * from the other: it copies the data, checks the copy and uses only that.
 */
#ifndef _UAPI_LINUX_PARAGPU_H
#define _UAPI_LINUX_PARAGPU_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* PCI IDs of all ivshmem devices; the magic below identifies this device. */
#define PARAGPU_PCI_VENDOR_ID		0x1af4
#define PARAGPU_PCI_DEVICE_ID		0x1110

/* Registers in BAR 0, 32 bits each. */
/* Read only: this guest's peer number, %PARAGPU_PEER_GUEST. */
#define PARAGPU_REG_IVPOSITION		0x08
/* Write only: (peer << 16) | vector rings that peer; see %PARAGPU_PEER_*. */
#define PARAGPU_REG_DOORBELL		0x0c

/*
 * Peers of the doorbell register; every peer has vector 0 only.
 *
 * The control peer is the device's owner on the host: rung after each change
 * of a channel's state word. A channel's peer is the process that serves the
 * channel: rung for new data in its rings.
 */
#define PARAGPU_PEER_GUEST		0
#define PARAGPU_PEER_CHANNEL(channel)	((channel) + 1)
#define PARAGPU_PEER_CONTROL(count)	((count) + 1)

/* First word of the window: "PGPU" read as bytes. */
#define PARAGPU_WINDOW_MAGIC		0x55504750
/* First word of a channel: "PGCH" read as bytes. */
#define PARAGPU_CHANNEL_MAGIC		0x48434750

/*
 * Version of window and channels: (major << 16) | minor. Sides with the same
 * major number understand each other.
 */
#define PARAGPU_VERSION			0x00010001
#define PARAGPU_VERSION_MAJOR(version)	((version) >> 16)

/* Most channels that a window can have: one pending bit, one state each. */
#define PARAGPU_MAX_CHANNELS		512

/* The unit to which rings, bulk areas and channels are aligned, in bytes. */
#define PARAGPU_ALIGNMENT		4096

/**
 * enum paragpu_channel_state - state word of a channel in the window header
 * @PARAGPU_CHANNEL_FREE: scrubbed, header written, unused. The guest takes it
 *	by compare-and-exchange to @PARAGPU_CHANNEL_OPEN.
 * @PARAGPU_CHANNEL_OPEN: a guest process has it. Only the guest sets this.
 * @PARAGPU_CHANNEL_HOST_CLOSED: the host ended it; the process in the guest
 *	still holds it. Only the host sets this, from @PARAGPU_CHANNEL_OPEN
 *	by compare-and-exchange, then sets the pending bit and interrupts.
 * @PARAGPU_CHANNEL_RELEASED: no guest process has it any more. Only the guest
 *	sets this, from any state, then rings the control peer. Once nothing on
 *	the host uses it, the host scrubs it, sets it to @PARAGPU_CHANNEL_FREE
 *	and interrupts.
 */
enum paragpu_channel_state {
	PARAGPU_CHANNEL_FREE		= 0,
	PARAGPU_CHANNEL_OPEN		= 1,
	PARAGPU_CHANNEL_HOST_CLOSED	= 2,
	PARAGPU_CHANNEL_RELEASED	= 3,
};

/**
 * struct paragpu_window_header - page 0 of the window
 * @magic: %PARAGPU_WINDOW_MAGIC; any other value is another kind of device
 * @version: %PARAGPU_VERSION of the host
 * @channel_count: channels in the window, 1 to %PARAGPU_MAX_CHANNELS
 * @generation: differs after each start of the host's side of the device
 * @channel_offset: offset of channel 0 in the window, in bytes; a multiple of
 *	%PARAGPU_ALIGNMENT and not 0
 * @channel_size: bytes of each channel, and distance from one to the next; a
 *	multiple of %PARAGPU_ALIGNMENT
 * @window_size: bytes of the window, at most the size of BAR 2
 * @list_offset: offset of the page lists in the window, behind the channels, a
 *	multiple of %PARAGPU_ALIGNMENT: %PARAGPU_LISTS of channel 0, then those
 *	of channel 1, and so on; 0 where the host cannot reach the guest's
 *	memory. Since version 1.1.
 * @host_gone: not zero once the host has ended the device: it has closed all
 *	channels, and serves none. Only another device replaces it. Zero from
 *	hosts that do not know the field
 * @reserved0: zero
 * @pending: bit c % 64 of word c / 64: the host has something for channel c.
 *	Set by the host by atomic or, before it fires the one interrupt vector;
 *	fetched by the guest's interrupt handler by exchange with 0.
 * @reserved1: zero
 * @state: &enum paragpu_channel_state of each channel
 */
struct paragpu_window_header {
	__le32 magic;
	__le32 version;
	__le32 channel_count;
	__le32 generation;
	__le64 channel_offset;
	__le64 channel_size;
	__le64 window_size;
	__le64 list_offset;
	__le32 host_gone;
	__u8 reserved0[0x4c];
	__le64 pending[PARAGPU_MAX_CHANNELS / 64];
	__u8 reserved1[0x40];
	__le32 state[PARAGPU_MAX_CHANNELS];
};

/**
 * struct paragpu_ring_indices - the moving words of one ring
 * @tail: bytes ever written; written by the producer
 * @reserved0: zero; keeps each word in a cache line of its own
 * @head: bytes ever read; written by the consumer, @head <= @tail and
 *	@tail - @head <= the ring's size
 * @reserved1: zero
 * @consumer_waits: 1 while the consumer sleeps and asks to be rung at the next
 *	move of @tail; set by the consumer, cleared by either
 * @reserved2: zero
 * @producer_waits: 1 while the producer sleeps and asks to be rung at the next
 *	move of @head; set by the producer, cleared by either
 * @reserved3: zero
 */
struct paragpu_ring_indices {
	__le64 tail;
	__u8 reserved0[0x38];
	__le64 head;
	__u8 reserved1[0x38];
	__le32 consumer_waits;
	__u8 reserved2[0x3c];
	__le32 producer_waits;
	__u8 reserved3[0x3c];
};

/**
 * struct paragpu_channel_header - first bytes of a channel
 * @magic: %PARAGPU_CHANNEL_MAGIC
 * @version: %PARAGPU_VERSION of the host
 * @region_size: bytes of this channel
 * @to_host_offset: offset of the ring's bytes in this channel; a multiple of
 *	%PARAGPU_ALIGNMENT, as the two other offsets
 * @to_host_size: bytes of that ring, a power of two
 * @to_guest_offset: the same for the other ring
 * @to_guest_size: bytes of the other ring, a power of two
 * @bulk_offset: offset of the bulk area, which the guest carves: staging slots
 *	and pinned memory
 * @bulk_size: bytes of the bulk area
 * @reserved0: zero
 * @to_host: the ring in which the guest is the producer
 * @to_guest: the ring in which the host is the producer
 * @bulk_done: bulk transfers that the host completed, counted from 0; written
 *	by the host
 * @reserved1: zero
 * @closed_by_guest: 1 once the guest side is gone; written by the guest, and
 *	by the device's owner on its behalf when the process died
 * @reserved2: zero
 * @closed_by_host: 1 once the host side is gone; written by the host, and by
 *	the device's owner on its behalf when it died
 * @reserved3: zero
 */
struct paragpu_channel_header {
	__le32 magic;
	__le32 version;
	__le64 region_size;
	__le64 to_host_offset;
	__le64 to_host_size;
	__le64 to_guest_offset;
	__le64 to_guest_size;
	__le64 bulk_offset;
	__le64 bulk_size;
	__u8 reserved0[0x40];
	struct paragpu_ring_indices to_host;
	struct paragpu_ring_indices to_guest;
	__le64 bulk_done;
	__u8 reserved1[0x38];
	__le32 closed_by_guest;
	__u8 reserved2[0x3c];
	__le32 closed_by_host;
	__u8 reserved3[0x3c];
};

/**
 * struct paragpu_record - head of a record in a ring
 * @length: payload bytes that follow this head, at most %PARAGPU_MAX_PAYLOAD
 * @kind: kind of frame (protocol/README.md), or %PARAGPU_RECORD_PAD
 * @slot: slot for the reply, or 0
 * @sequence: sequence number in the session
 *
 * Ring offsets are index modulo ring size. A record begins at a multiple of
 * %PARAGPU_RECORD_ALIGNMENT and occupies head and payload rounded up to that.
 * It never wraps: a pad record fills the end of the ring; its @length is the
 * space left after its own head.
 */
struct paragpu_record {
	__le32 length;
	__le16 kind;
	__le16 slot;
	__le64 sequence;
};

#define PARAGPU_RECORD_PAD		0xffff
#define PARAGPU_RECORD_ALIGNMENT	16
#define PARAGPU_MAX_PAYLOAD		(256 * 1024)

/* Page lists of a channel. */
#define PARAGPU_LISTS			4
/* Bytes of a list. */
#define PARAGPU_LIST_SIZE		16384
/* Entries of a list. */
#define PARAGPU_LIST_ENTRIES		2040
/* Maximum number of bytes that one list names. */
#define PARAGPU_PIN_MAX			(4 * 1024 * 1024)

/**
 * enum paragpu_list_state - ownership of a page list
 * @PARAGPU_LIST_FREE: it names nothing. The guest's kernel writes it, then
 *	sets it to @PARAGPU_LIST_READY.
 * @PARAGPU_LIST_READY: it names pinned pages of the process that has the
 *	channel. The host sets it to @PARAGPU_LIST_BUSY by compare-and-exchange
 *	before it reads it; the guest's kernel sets it to @PARAGPU_LIST_FREE,
 *	likewise, before it unpins the pages.
 * @PARAGPU_LIST_BUSY: the host reads or writes the pages. It sets the list to
 *	@PARAGPU_LIST_READY afterwards.
 */
enum paragpu_list_state {
	PARAGPU_LIST_FREE		= 0,
	PARAGPU_LIST_READY		= 1,
	PARAGPU_LIST_BUSY		= 2,
};

/* Flag of a list and of a request: the host may write to the pages. */
#define PARAGPU_LIST_WRITABLE		0x1

/**
 * struct paragpu_page_list - guest memory that the host may copy directly
 * @state: &enum paragpu_list_state
 * @count: entries, at most %PARAGPU_LIST_ENTRIES
 * @offset: offset of the first named byte in the first entry's memory, less
 *	than the guest's page size
 * @flags: %PARAGPU_LIST_WRITABLE
 * @length: number of bytes named
 * @reserved: zero
 * @entry: the memory's ranges in device addresses, in order: an address that
 *	is a multiple of %PARAGPU_ALIGNMENT, plus one less than the range's
 *	length in units of %PARAGPU_ALIGNMENT
 *
 * Lists lie outside of the channels, so that no process of the guest can map
 * them: the guest's kernel vouches for each process's pages. The host does not
 * trust it either: entries must name memory that the VM mapped for the device.
 *
 * A list that is not free when its channel is released belongs to the host
 * until the channel is %PARAGPU_CHANNEL_FREE, which ends all use.
 */
struct paragpu_page_list {
	__le32 state;
	__le32 count;
	__le32 offset;
	__le32 flags;
	__le64 length;
	__u8 reserved[0x28];
	__le64 entry[PARAGPU_LIST_ENTRIES];
};

/*
 * The character device /dev/paragpuN.
 *
 * open(2) takes the first free channel. It fails with ENOSPC when all channels
 * are taken, ENODEV if the device is gone. If the only channels not taken are
 * still being scrubbed, it waits for one of them, at most a second; with
 * O_NONBLOCK it fails with EAGAIN instead. The channel is returned when the
 * last descriptor of that open is closed, which the end of the process does.
 *
 * mmap(2) maps the opener's channel, from offset 0, MAP_SHARED, at most
 * channel_size bytes. fork(2) does not inherit the mapping. When the device is
 * removed, the process keeps the contents as private memory, except for the part
 * that PARAGPU_IOC_FADE excluded. After a surprise removal, or without memory
 * for the contents, accesses to lost contents raise SIGBUS.
 *
 * poll(2): POLLIN if the host rang since the last PARAGPU_IOC_ACK, rarely also
 * spuriously; POLLHUP and POLLERR once the host closed the channel or the device
 * is gone.
 */

/**
 * struct paragpu_info - result of %PARAGPU_IOC_INFO
 * @version: version of the window, as in &struct paragpu_window_header
 * @channel: number of the opener's channel, from 0
 * @channel_size: bytes that mmap(2) can map
 * @generation: of the window, as in &struct paragpu_window_header
 * @reserved: zero
 */
struct paragpu_info {
	__u32 version;
	__u32 channel;
	__u64 channel_size;
	__u32 generation;
	__u32 reserved;
};

/* Describes the opener's channel. ENODEV: the device is gone. */
#define PARAGPU_IOC_INFO	_IOR('P', 0x01, struct paragpu_info)
/* Rings the host's side of the channel. ENODEV: the device is gone. */
#define PARAGPU_IOC_DOORBELL	_IO('P', 0x02)
/*
 * Clears the doorbell. To miss no event: acknowledge, check the ring, then poll.
 */
#define PARAGPU_IOC_ACK		_IO('P', 0x03)
/*
 * Sets the size of the channel's leading part that fades when the device is
 * removed: its contents are not preserved, and it reads as zeros or as later
 * writes of the process. A reader checks the channel's magic after reading: if
 * it is intact, the earlier reads were valid. 0 at open. EINVAL: more than
 * channel_size.
 */
#define PARAGPU_IOC_FADE	_IOW('P', 0x04, __u64)

/**
 * struct paragpu_pin_request - argument of %PARAGPU_IOC_PIN
 * @address: first byte of the caller's memory
 * @length: bytes, 1 to %PARAGPU_PIN_MAX
 * @flags: %PARAGPU_LIST_WRITABLE if the host may write there
 * @list: result: the number of the list, from 0
 */
struct paragpu_pin_request {
	__u64 address;
	__u64 length;
	__u32 flags;
	__u32 list;
};

/*
 * Pins memory of the caller and names its pages in a list of the channel; they
 * count against the limit of locked memory (RLIMIT_MEMLOCK). EOPNOTSUPP: the
 * host cannot reach the guest's memory. EBUSY: all lists are taken. ENOMEM: the
 * limit is reached. E2BIG: the memory lies in too many places. EFAULT: it is
 * not ordinary memory of the caller, or may not be written, which memory of a
 * file on a disk never may. ENODEV.
 */
#define PARAGPU_IOC_PIN		_IOWR('P', 0x05, struct paragpu_pin_request)
/*
 * Lets the memory of a list go. EBUSY: the host is using it. EINVAL: the list
 * names nothing. ENODEV. What is pinned when the channel is closed is let go
 * once the host does not use it any more.
 */
#define PARAGPU_IOC_UNPIN	_IOW('P', 0x06, __u32)

#endif /* _UAPI_LINUX_PARAGPU_H */
