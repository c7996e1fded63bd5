//! Memory.

/// Memory use and limit of this VM's sessions.
fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: Out<nvmlMemory_t>);

/// The same, with the driver's reserved memory.
fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t);

#[refused("not forwarded")]
fn nvmlDeviceGetDramEncryptionMode(
    device: nvmlDevice_t,
    current: Out<nvmlDramEncryptionInfo_t>,
    pending: Out<nvmlDramEncryptionInfo_t>,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetDramEncryptionMode(
    device: nvmlDevice_t,
    dram_encryption: In<nvmlDramEncryptionInfo_t>,
);

/// The GPU's BAR1: bytes in all, free, used.
#[figure(85)]
fn nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, bar1_memory: Out<[c_ulonglong; 3]>);

/// Width of the memory's bus, in bits.
#[figure(4)]
fn nvmlDeviceGetMemoryBusWidth(device: nvmlDevice_t, bus_width: Out<c_uint>);
