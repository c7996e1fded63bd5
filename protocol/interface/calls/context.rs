//! The context.

/// cuCtxSynchronize.
#[call(0x0801, synchronous, idempotent, reports, waits, part(objects), with(replies))]
fn ContextSynchronize();

/// The layout of the GPU's pairs of multiprocessors (TPCs), as returned by function 4 of
/// the driver's private table 1734dc26: 128 bytes with the cluster of each, 128 with its
/// index there. NVIDIA's matrix library uses it.
#[call(0x0804, cached, idempotent, part(gpu))]
fn TopologyGet() -> [u8; 256];
