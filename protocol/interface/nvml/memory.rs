//! Memory.

/// Returns the memory use and the limit of this VM's sessions.
fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: Out<nvmlMemory_t>);

/// As nvmlDeviceGetMemoryInfo, with the driver's reserved memory.
fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t);

#[refused("is for maintenance of the host's memory")]
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

/// Returns the size of the GPU's BAR1, and its free and used bytes.
#[figure(85)]
fn nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, bar1_memory: Out<[c_ulonglong; 3]>);

/// Returns the width of the memory bus, in bits.
#[figure(4)]
fn nvmlDeviceGetMemoryBusWidth(device: nvmlDevice_t, bus_width: Out<c_uint>);
