//! Device memory, pinned memory and shadows.

/// cuMemAlloc: backs a range of the arena with device memory. Zeroed when new to the session.
#[call(0x0101, synchronous, waits, creates(Memory = address))]
fn MemMap(
    /// Multiple of 2 MiB inside the arena, overlapping no other mapping.
    address: DeviceAddress,
    /// Bytes; a multiple of 2 MiB, not 0.
    size: u64,
);

/// cuMemFree: takes the memory of a whole [`MemMap`] away once all work posted before is done.
#[call(0x0102, posted, destroys(Memory = address))]
fn MemUnmap(
    /// As it was mapped.
    address: DeviceAddress,
);

/// cuMemGetInfo.
#[call(0x0103, synchronous, idempotent, part(memory))]
fn MemGetInfo() -> MemoryInfo;

/// cuMemHostAlloc: registers a range of the window's bulk area as pinned memory, which kernels reach at window base + region offset.
#[call(0x0104, synchronous, window, creates(HostMemory = offset), part(host))]
fn HostMap(
    /// Bytes from the start of the bulk area; a multiple of 4096.
    offset: WindowOffset,
    /// Bytes; a multiple of 4096, not 0.
    size: u64,
);

/// cuMemFreeHost: the range of a whole [`HostMap`] is pinned no longer, once all work posted before is done.
#[call(0x0105, synchronous, window, waits, destroys(HostMemory = offset))]
fn HostUnmap(
    /// As it was mapped.
    offset: WindowOffset,
);

/// cuMemHostRegister, and cuMemHostAlloc where there is no window: makes a copy of guest memory that kernels reach at `address`.
#[call(0x0106, synchronous, creates(Shadow = address), part(host))]
fn ShadowCreate(
    /// Multiple of 4096 inside the shadow region, overlapping no other.
    address: ShadowAddress,
    /// Bytes; a multiple of 4096, not 0.
    size: u64,
);

/// cuMemHostUnregister: drops a whole [`ShadowCreate`], once all work posted before is done.
#[call(0x0107, synchronous, waits, destroys(Shadow = address))]
fn ShadowDestroy(
    /// As it was created.
    address: ShadowAddress,
);

/// Writes bytes of the guest into a shadow, or into device memory: a variable of a module, or a part of a [`MemMap`]. In order with the session's other calls but not with the device's work.
#[call(0x0108, posted, idempotent, early)]
fn ShadowWrite(
    /// First address to write.
    address: u64,
    /// The bytes.
    data: Bytes<'a>,
);

/// Sends back, as data frames with offsets from `address`, the 4096-byte pages of a shadow that changed since both sides last agreed, or all bytes of a range of device memory. Waits for no stream.
#[call(0x0109, synchronous, early, replies)]
fn ShadowRead(
    /// First address; in a shadow a multiple of 4096.
    address: u64,
    /// Bytes; in a shadow a multiple of 4096.
    size: u64,
);

/// Writes several runs of bytes into a shadow or device memory, as [`ShadowWrite`] does one.
#[call(0x010a, posted, idempotent, early)]
fn ShadowPatch(
    /// Where the first run's gap begins.
    address: u64,
    /// Run after run: bytes left as they are since the last one (u32), bytes of the run (u32), the run.
    runs: Bytes<'a>,
);

/// cuMemMap with cuMemSetAccess: the first bytes of a whole [`MemMap`] appear at a second address, too. The [`MemMap`] ends its aliases with itself.
#[call(0x010b, synchronous, creates(Alias = address))]
fn MemAlias(
    /// Multiple of 2 MiB inside the arena, overlapping no mapping and no other alias.
    address: AliasAddress,
    /// Bytes; a multiple of 2 MiB, not 0, at most those of the mapping.
    size: u64,
    /// First address of the [`MemMap`].
    memory: DeviceAddress,
    /// CUmemAccess_flags: 1 may be read, 3 read and written.
    access: u32,
);

/// cuMemUnmap: ends a whole [`MemAlias`] once all work posted before is done.
#[call(0x010c, posted, destroys(Alias = address))]
fn MemAliasEnd(
    /// As it was made.
    address: AliasAddress,
);

/// cuIpcGetMemHandle: other sessions of the VM may take the [`MemMap`] around an address, until it is unmapped. Meanwhile the session moves only together with them.
#[call(0x010d, synchronous)]
fn MemOffer(
    /// Any address in it.
    address: u64,
) -> MemoryOffer;

/// cuIpcOpenMemHandle: the memory that another session of the VM offers lies here, too. In the arena it counts for both sessions. cuCtxEnablePeerAccess: in the arena of another device it counts for its owner only. The two move only together meanwhile.
#[call(0x010e, synchronous)]
fn MemTake(
    /// Multiple of 2 MiB, overlapping no mapping and no alias: inside the arena, or inside another device's.
    address: u64,
    /// Bytes; all that is offered.
    size: u64,
    /// [`MemoryOffer::token`](crate::types::MemoryOffer::token).
    token: [u8; 16],
);

/// cuIpcCloseMemHandle: ends a whole [`MemTake`] once all work posted before is done.
#[call(0x010f, posted)]
fn MemLeave(
    /// As it was taken.
    address: u64,
);

/// cuDeviceCanAccessPeer: a name by which the VM's other sessions ask about access to this device.
#[call(0x0116, synchronous, idempotent)]
fn PeerOffer() -> PeerName;

/// cuDeviceGetP2PAttribute: what this session's device can do with the memory of another's. All 0 if the two are not of one host.
#[call(0x0117, synchronous, idempotent)]
fn PeerAsk(
    /// [`PeerName::token`](crate::types::PeerName::token) of the other session.
    token: [u8; 16],
) -> PeerAttributes;

/// cuMemHostRegister of a shared file mapping: pages of a file that the guest passed lie at `address`, the same for the program and the device. The session does not move meanwhile.
#[call(0x0114, synchronous)]
fn FileMap(
    /// Multiple of 4096 inside the shadow region, overlapping no shadow and no other file.
    address: u64,
    /// Bytes; a multiple of 4096, not 0.
    size: u64,
    /// Where the pages begin in the file; a multiple of 4096.
    offset: u64,
    /// The number under which the file was passed.
    file: u64,
);

/// cuMemHostUnregister: ends a whole [`FileMap`], once all work posted before is done.
#[call(0x0115, synchronous, waits)]
fn FileUnmap(
    /// As it was mapped.
    address: u64,
);
