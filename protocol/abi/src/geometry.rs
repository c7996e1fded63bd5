//! Extents, positions and pitched pointers of the runtime interface.

use crate::abi_struct;
use core::ffi::c_void;

abi_struct! {
    /// Size of a grid in blocks, or of a block in threads.
    struct dim3 { x: u32, y: u32, z: u32 }
    /// Extent of a copy or allocation: elements for arrays, else bytes wide.
    struct cudaExtent { width: usize, height: usize, depth: usize }
    /// Position in an array (elements) or in linear memory (bytes).
    struct cudaPos { x: usize, y: usize, z: usize }
    /// Memory whose rows are `pitch` bytes apart.
    struct cudaPitchedPtr { ptr: *mut c_void, pitch: usize, xsize: usize, ysize: usize }
}
