//! Copies and memsets.

/// cuMemcpyHtoDAsync of bytes that travel with the call.
#[call(0x0201, posted, part(copies), with(objects))]
fn CopyToDevice(
    /// First device address.
    destination: u64,
    /// The stream that orders it.
    stream: StreamHandle,
    /// The bytes, at most 256 KiB less this call's other fields.
    data: Bytes<'a>,
);

/// cuMemcpyDtoHAsync and a wait for it; the bytes come back as data frames before the reply.
#[call(0x0202, synchronous, idempotent, reports, waits, part(copies), with(objects))]
fn CopyFromDevice(
    /// First device address.
    source: u64,
    /// Number of bytes.
    size: u64,
    /// The stream that orders it.
    stream: StreamHandle,
);

/// cuMemcpyAsync between any two addresses that the device can access: device memory, pinned window memory, shadows.
#[call(0x0203, posted, node, replies, token(token), part(copies), with(objects, host, replies))]
fn Copy(
    /// First address to write.
    destination: u64,
    /// First address to read.
    source: u64,
    /// Number of bytes.
    size: u64,
    /// The stream that orders it.
    stream: StreamHandle,
    /// Bulk token to clear when the copy is complete; 0 for none.
    token: u32,
);

/// cuMemcpy3DAsync between device memory, pinned memory and arrays.
#[call(0x0204, posted, node, replies, token(token), part(copies), with(objects, host, replies))]
fn CopyRect(
    /// The destination.
    destination: CopyEnd,
    /// The source.
    source: CopyEnd,
    /// Bytes in a row, rows in a slice, slices.
    extent: [u64; 3],
    /// The stream that orders it.
    stream: StreamHandle,
    /// Bulk token to clear when the copy is complete; 0 for none.
    token: u32,
);

/// cuMemcpy3DAsync to the device of bytes that travel with the call, rows without gaps.
#[call(0x0205, posted, part(copies), with(objects))]
fn CopyRectToDevice(
    /// The destination.
    destination: CopyEnd,
    /// Bytes in a row, rows in a slice, slices.
    extent: [u64; 3],
    /// The stream that orders it.
    stream: StreamHandle,
    /// The product of `extent` in bytes.
    data: Bytes<'a>,
);

/// cuMemcpy3DAsync from the device and a wait for it; the bytes come back as data frames, rows without gaps, before the reply.
#[call(0x0206, synchronous, idempotent, reports, waits, part(copies), with(objects))]
fn CopyRectFromDevice(
    /// The source.
    source: CopyEnd,
    /// Bytes in a row, rows in a slice, slices.
    extent: [u64; 3],
    /// The stream that orders it.
    stream: StreamHandle,
);

/// cuMemsetD8Async, D16, D32, and their 2D forms.
#[call(0x0207, posted, node, part(objects))]
fn Memset(
    /// First address to write.
    destination: u64,
    /// Bytes from one row to the next; ignored for one row.
    pitch: u64,
    /// The element's value in its low bytes.
    value: u32,
    /// Bytes of an element: 1, 2 or 4.
    element: u8,
    /// Elements in a row.
    width: u64,
    /// Rows.
    height: u64,
    /// The stream that orders it.
    stream: StreamHandle,
);

/// Waits until a bulk token is cleared, after spinning on its word took too long, or for a copy that was posted before the session left its window.
#[call(0x0208, synchronous, idempotent, reports, replies, part(copies), with(replies))]
fn WaitToken(
    /// The token, from 1.
    token: u32,
);

/// cuMemcpyHtoD of memory that the guest's kernel named in a page list of the session's channel. The reply comes when the copy is complete. MAP_FAILED if the host cannot access that memory, or no longer can, or no [`CheckPages`] verified it: the guest must copy another way.
#[call(0x0209, synchronous, waits, part(host), with(objects))]
fn CopyPagesToDevice(
    /// First device address.
    destination: u64,
    /// Number of the list.
    list: u32,
    /// Number of bytes: all bytes of the list.
    size: u64,
    /// The stream that orders it.
    stream: StreamHandle,
);

/// cuMemcpyDtoH to such memory.
#[call(0x020a, synchronous, waits, part(host), with(objects))]
fn CopyPagesFromDevice(
    /// First device address.
    source: u64,
    /// Number of the list.
    list: u32,
    /// As of [`CopyPagesToDevice`].
    size: u64,
    /// The stream that orders it.
    stream: StreamHandle,
);

/// Checks that host and guest see each other's writes, because a hypervisor may have mapped
/// the memory privately. Reads 8 bytes through a page list and, if they are `value`, writes
/// their complement after them; MAP_FAILED otherwise.
#[call(0x020b, synchronous, idempotent, part(host), with(transfer))]
fn CheckPages(
    /// Number of a list that names 16 bytes at an offset in a page that is a multiple of 16.
    list: u32,
    /// The expected first 8 bytes.
    value: u64,
);
