//! The session itself.

/// Replies immediately with the argument; measures the cost of a round trip.
#[call(0x0001, synchronous, idempotent, survives, part(gpu))]
fn Ping(
    /// Returned unchanged.
    value: u64,
) -> u64;

/// cuDeviceGetAttribute, cuDeviceGetName, cuDeviceGetUuid, cuDeviceTotalMem: the constant facts about one device of the guest.
#[call(0x0002, cached, idempotent, survives, replies, part(replies))]
fn SnapshotDevice(
    /// The guest's device ordinal.
    ordinal: u32,
) -> DeviceSnapshot<'r>;

/// NVML: one query about the session's device, by its number in the description of NVML.
#[call(0x0003, synchronous, idempotent, survives, replies, part(management), with(memory, transfer, replies))]
fn DeviceAsk(
    /// The figure's number.
    figure: u32,
    /// Its arguments, in order, padded with zeros.
    arguments: [u8; 4],
) -> DeviceAnswer<'r>;

/// NVML: the use of the session's device by the VM's sessions.
#[call(0x0004, synchronous, idempotent, survives, replies, part(management), with(memory, transfer, replies))]
fn DeviceUse() -> DeviceUsage<'r>;
