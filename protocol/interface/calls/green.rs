//! Green contexts: parts of the device's multiprocessors. A part is identified by the
//! splits that lead to it from the whole device, so that another device can recreate it.

/// cuDeviceGetDevResource: all multiprocessors.
#[call(0x0805, synchronous, idempotent, part(gpu))]
fn SmResourceGet() -> SmResource;

/// cuDevSmResourceSplitByCount.
#[call(0x0806, synchronous, idempotent, part(objects))]
fn SmResourceSplit(
    /// The green context that has the resource; 0 for the whole device.
    green: GreenHandle,
    /// Maximum number of groups; 0 requests only the possible number.
    groups: u32,
    /// CUdevSmResourceSplit_flags.
    flags: u32,
    /// Minimum number of multiprocessors per group.
    least: u32,
) -> SmGroups;

/// cuGreenCtxCreate of the part at the end of a list of splits.
#[call(0x0807, synchronous, creates(Green = green), part(objects, greens))]
fn GreenCreate(
    /// Its handle, chosen by the guest.
    green: GreenHandle,
    /// The minimum number of multiprocessors: the number reported to the program.
    count: u32,
    /// A sequence of at most 8 [`SmSplit`](crate::types::SmSplit); empty for the whole device.
    way: Bytes<'a>,
) -> SmResource;

/// cuGreenCtxDestroy. Its streams have been destroyed.
#[call(0x0808, posted, destroys(Green = green), part(objects))]
fn GreenDestroy(
    /// The green context.
    green: GreenHandle,
);

/// cuGreenCtxStreamCreate of a non-blocking stream.
#[call(0x0809, posted, creates(Stream = stream), part(objects))]
fn GreenStreamCreate(
    /// Its handle, chosen by the guest.
    stream: StreamHandle,
    /// The green context whose multiprocessors run its kernels.
    green: GreenHandle,
    /// The priority; lower numbers run first.
    priority: i32,
);
