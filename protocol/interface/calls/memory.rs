//! Device memory, pinned memory and shadows.

/// cuMemAlloc: backs a range of the arena with device memory, zeroed if it is new to the session.
#[call(0x0101, synchronous, waits, creates(Memory = address), part(memory), with(replies))]
fn MemMap(
    /// Multiple of 2 MiB inside the arena, overlapping no other mapping.
    address: DeviceAddress,
    /// Bytes; a multiple of 2 MiB, not 0.
    size: u64,
);

/// cuMemFree: unmaps a whole [`MemMap`] once all earlier work is complete.
#[call(0x0102, posted, destroys(Memory = address), part(memory), with(sharing, objects, replies))]
fn MemUnmap(
    /// The address of the mapping.
    address: DeviceAddress,
);

/// cuMemGetInfo.
#[call(0x0103, synchronous, idempotent, part(memory))]
fn MemGetInfo() -> MemoryInfo;

/// cuMemHostAlloc: registers a range of the window as pinned memory, which kernels access at the same address as the program.
#[call(0x0104, synchronous, window, creates(HostMemory = offset), part(host))]
fn HostMap(
    /// Bytes from the start of the device's region of windows; a multiple of 4096.
    offset: WindowOffset,
    /// Bytes; a multiple of 4096, not 0.
    size: u64,
);

/// cuMemFreeHost: unpins the range of a whole [`HostMap`] once all earlier work is complete.
#[call(0x0105, synchronous, window, waits, destroys(HostMemory = offset), part(host), with(objects))]
fn HostUnmap(
    /// The address of the mapping.
    offset: WindowOffset,
);

/// cuMemHostRegister, and cuMemHostAlloc without a window: creates a shadow, a copy of guest memory that kernels access at `address`. Also for memory that was pinned for another device of the guest, at its address there.
#[call(0x0106, synchronous, creates(Shadow = address), part(host))]
fn ShadowCreate(
    /// Multiple of 4096, overlapping no other: inside a shadow region or a region of windows, of whichever device, but outside the session's window.
    address: ShadowAddress,
    /// Bytes; a multiple of 4096, not 0.
    size: u64,
);

/// cuMemHostUnregister: removes a whole [`ShadowCreate`] once all earlier work is complete.
#[call(0x0107, synchronous, waits, destroys(Shadow = address), part(host), with(objects))]
fn ShadowDestroy(
    /// The address of the shadow.
    address: ShadowAddress,
);

/// Writes bytes of the guest into a shadow, or into device memory: a module variable, or a part of a [`MemMap`]. Ordered with the session's other calls, but not with the device's work.
#[call(0x0108, posted, idempotent, early, part(host), with(copies))]
fn ShadowWrite(
    /// First address to write.
    address: u64,
    /// The bytes.
    data: Bytes<'a>,
);

/// Returns, as data frames with offsets from `address`, the 4096-byte pages of a shadow that changed since both sides last agreed, or all bytes of a range of device memory. Waits for no stream.
#[call(0x0109, synchronous, early, replies, part(host), with(copies, replies))]
fn ShadowRead(
    /// First address; in a shadow a multiple of 4096.
    address: u64,
    /// Number of bytes; in a shadow a multiple of 4096.
    size: u64,
);

/// What the device changed in several shadows since both sides last agreed, if it is little. Answered behind the earlier calls of another slot, so a thread sends it right after a call that waits for work, and needs no second round trip. Changes nothing: the guest may have written to the shadows meanwhile. If it takes the changes over, it posts a [`ShadowAgree`], otherwise a [`ShadowRead`] returns them again.
#[call(0x0118, synchronous, idempotent, replies, part(host), with(replies))]
fn ShadowChanges(
    /// The slot whose earlier calls are answered first.
    after: u32,
    /// At most 64 ranges inside shadows, each an address and a number of bytes (two u64), multiples of 4096; together at most 1 GiB.
    ranges: Bytes<'a>,
) -> ChangedRuns<'r>;

/// Both sides agree on bytes of a shadow that the guest has from the device.
#[call(0x011a, posted, idempotent, early, part(host))]
fn ShadowAgree(
    /// The address at which the first run's gap begins.
    address: u64,
    /// The runs, as in [`ShadowPatch`].
    runs: Bytes<'a>,
);

/// Replaces a whole shadow by pages of the window, which the program has at its own addresses by now: a session that got its window when it moved shares the memory that it pinned before. Executed when the device is idle. What the device changed since both sides last agreed is written to the pages. Fails with NOT_READY if the device does not become idle within 0.1 s, or if executable graphs exist, whose nodes may copy from and to the shadow. Early, so that it fails while a host function runs, which may wait for the thread that calls.
#[call(0x0119, synchronous, window, early, changes(Shadow = address), part(host), with(objects))]
fn ShadowJoin(
    /// The address of the shadow.
    address: ShadowAddress,
    /// The first page, from the start of the device's region of windows; a multiple of 4096.
    offset: WindowOffset,
);

/// Writes several runs of bytes into a shadow or device memory, as [`ShadowWrite`] does for one.
#[call(0x010a, posted, idempotent, early, part(host), with(copies))]
fn ShadowPatch(
    /// The address at which the first run's gap begins.
    address: u64,
    /// The runs, each: unchanged bytes since the previous one (u32), bytes of the run (u32), the run.
    runs: Bytes<'a>,
);

/// cuMemMap with cuMemSetAccess: maps the first bytes of a whole [`MemMap`] at a second address. Unmapping the [`MemMap`] also ends its aliases.
#[call(0x010b, synchronous, creates(Alias = address), part(memory), with(replies))]
fn MemAlias(
    /// Multiple of 2 MiB inside the arena, overlapping no mapping and no other alias.
    address: AliasAddress,
    /// Bytes; a multiple of 2 MiB, not 0, at most those of the mapping.
    size: u64,
    /// First address of the [`MemMap`].
    memory: DeviceAddress,
    /// CUmemAccess_flags: 1 for reads, 3 for reads and writes.
    access: u32,
);

/// cuMemUnmap: ends a whole [`MemAlias`] once all earlier work is complete.
#[call(0x010c, posted, destroys(Alias = address), part(memory), with(replies))]
fn MemAliasEnd(
    /// The address of the alias.
    address: AliasAddress,
);

/// cuIpcGetMemHandle: offers the [`MemMap`] around an address to other sessions of the VM, until it is unmapped. Until then the session moves only together with them.
#[call(0x010d, synchronous, part(sharing), with(memory))]
fn MemOffer(
    /// Any address in it.
    address: u64,
) -> MemoryOffer;

/// cuIpcOpenMemHandle and cuCtxEnablePeerAccess: maps memory that another session of the VM offers. In the arena it counts for both sessions, in the arena of another device for its owner only, even after that has freed it; there the session may map what it offers itself. The two move only together while it is mapped.
#[call(0x010e, synchronous, part(sharing), with(memory, replies))]
fn MemTake(
    /// Multiple of 2 MiB, overlapping no mapping and no alias: inside the arena, or inside another device's.
    address: u64,
    /// Number of bytes: all that are offered.
    size: u64,
    /// [`MemoryOffer::token`](crate::types::MemoryOffer::token).
    token: [u8; 16],
);

/// cuIpcCloseMemHandle: ends a whole [`MemTake`] once all earlier work is complete.
#[call(0x010f, posted, part(sharing), with(memory, objects, replies))]
fn MemLeave(
    /// The address of the mapping.
    address: u64,
);

/// cuDeviceCanAccessPeer: returns a name with which the VM's other sessions ask about access to this device.
#[call(0x0116, synchronous, idempotent, part(sharing))]
fn PeerOffer() -> PeerName;

/// cuDeviceGetP2PAttribute of this session's device and another's. All are 0 if the two are on different hosts.
#[call(0x0117, synchronous, idempotent, part(sharing))]
fn PeerAsk(
    /// [`PeerName::token`](crate::types::PeerName::token) of the other session.
    token: [u8; 16],
) -> PeerAttributes;

/// cuMemHostRegister of a shared file mapping: maps pages of a file that the guest passed at `address`, so that program and device share them. The session cannot move while they are mapped.
#[call(0x0114, synchronous, part(host), with(replies))]
fn FileMap(
    /// Multiple of 4096 inside the shadow region, overlapping no shadow and no other file.
    address: u64,
    /// Bytes; a multiple of 4096, not 0.
    size: u64,
    /// Offset of the pages in the file; a multiple of 4096.
    offset: u64,
    /// The number with which the file was passed.
    file: u64,
);

/// cuMemHostUnregister: ends a whole [`FileMap`] once all earlier work is complete.
#[call(0x0115, synchronous, waits, part(host), with(objects))]
fn FileUnmap(
    /// The address of the mapping.
    address: u64,
);
