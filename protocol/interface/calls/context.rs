//! The context.

/// cuCtxSynchronize.
#[call(0x0801, synchronous, idempotent, reports, waits)]
fn ContextSynchronize();

/// Where the GPU's pairs of multiprocessors (TPCs) lie, as function 4 of the
/// driver's private table 1734dc26 tells: 128 bytes with the cluster of each,
/// 128 with its number there. NVIDIA's matrix library asks for them.
#[call(0x0804, cached, idempotent, part(gpu))]
fn TopologyGet() -> [u8; 256];
