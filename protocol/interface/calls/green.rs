//! Green contexts: parts of the device's multiprocessors. A part is named by
//! the way to it from the whole device, so that it can be found on another one.

/// cuDeviceGetDevResource: all multiprocessors.
#[call(0x0805, synchronous, idempotent, part(gpu))]
fn SmResourceGet() -> SmResource;

/// cuDevSmResourceSplitByCount.
#[call(0x0806, synchronous, idempotent, part(objects))]
fn SmResourceSplit(
    /// The green context whose resource it is; 0 for the whole device's.
    green: GreenHandle,
    /// Maximum number of groups to make; 0 asks how many there would be.
    groups: u32,
    /// CUdevSmResourceSplit_flags.
    flags: u32,
    /// Least multiprocessors of a group.
    least: u32,
) -> SmGroups;

/// cuGreenCtxCreate with what lies at the end of a way.
#[call(0x0807, synchronous, creates(Green = green), part(objects, greens))]
fn GreenCreate(
    /// Its name from now on.
    green: GreenHandle,
    /// The multiprocessors that it must have at least: what the program was told.
    count: u32,
    /// [`SmSplit`](crate::types::SmSplit), one after the other; at most 8. None for the whole device.
    way: Bytes<'a>,
) -> SmResource;

/// cuGreenCtxDestroy. Its streams are destroyed before.
#[call(0x0808, posted, destroys(Green = green), part(objects))]
fn GreenDestroy(
    /// The green context.
    green: GreenHandle,
);

/// cuGreenCtxStreamCreate; the stream waits for no other one.
#[call(0x0809, posted, creates(Stream = stream), part(objects))]
fn GreenStreamCreate(
    /// Its name from now on.
    stream: StreamHandle,
    /// Where its kernels run.
    green: GreenHandle,
    /// Lower numbers go first.
    priority: i32,
);
