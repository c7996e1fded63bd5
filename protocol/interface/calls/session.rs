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
