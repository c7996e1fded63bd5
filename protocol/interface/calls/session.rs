//! The session itself.

/// Answers at once with the argument: the price of a round trip.
#[call(0x0001, synchronous, idempotent, survives, replies)]
fn Ping(
    /// Returned as it came.
    value: u64,
) -> u64;

/// cuDeviceGetAttribute, cuDeviceGetName, cuDeviceGetUuid, cuDeviceTotalMem: all that is constant about one device of the guest.
#[call(0x0002, cached, idempotent, survives, replies)]
fn SnapshotDevice(
    /// The guest's device ordinal.
    ordinal: u32,
) -> DeviceSnapshot<'r>;

/// NVML: one question about the session's device, by its number in the description of NVML.
#[call(0x0003, synchronous, idempotent, survives, replies)]
fn DeviceAsk(
    /// The figure's number.
    figure: u32,
    /// Its arguments, in order; zeros after them.
    arguments: [u8; 4],
) -> DeviceAnswer<'r>;

/// NVML: what the VM's sessions have of the session's device.
#[call(0x0004, synchronous, idempotent, survives, replies)]
fn DeviceUse() -> DeviceUsage<'r>;
