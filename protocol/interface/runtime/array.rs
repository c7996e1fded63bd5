//! Arrays (CUDA Runtime API, chapters "Memory Management" and "Texture Object
//! Management").

#[through(cudaMalloc3DArray(array, desc, cudaExtent { width, height, depth: 0 }, flags))]
fn cudaMallocArray(
    array: Out<CUarray>,
    desc: In<cudaChannelFormatDesc>,
    width: usize,
    height: usize,
    flags: c_uint,
);

fn cudaMalloc3DArray(
    array: Out<CUarray>,
    desc: In<cudaChannelFormatDesc>,
    extent: cudaExtent,
    flags: c_uint,
);

fn cudaMallocMipmappedArray(
    array: Out<CUmipmappedArray>,
    desc: In<cudaChannelFormatDesc>,
    extent: cudaExtent,
    levels: c_uint,
    flags: c_uint,
);

fn cudaFreeArray(array: CUarray);

fn cudaFreeMipmappedArray(array: CUmipmappedArray);

#[clears(desc, extent, flags)]
fn cudaArrayGetInfo(
    desc: Out<cudaChannelFormatDesc>,
    extent: Out<cudaExtent>,
    flags: Out<c_uint>,
    array: CUarray,
);

fn cudaGetChannelDesc(desc: Out<cudaChannelFormatDesc>, array: CUarray);

#[direct(cuArrayGetPlane(plane, array, index))]
fn cudaArrayGetPlane(plane: Out<CUarray>, array: CUarray, index: c_uint);

#[required(needs)]
#[direct(cuArrayGetMemoryRequirements(needs, array, number(device)?))]
fn cudaArrayGetMemoryRequirements(
    needs: Out<cudaArrayMemoryRequirements>,
    array: CUarray,
    device: c_int,
);

#[required(needs)]
#[direct(cuMipmappedArrayGetMemoryRequirements(needs, array, number(device)?))]
fn cudaMipmappedArrayGetMemoryRequirements(
    needs: Out<cudaArrayMemoryRequirements>,
    array: CUmipmappedArray,
    device: c_int,
);

#[required(properties)]
#[direct(cuArrayGetSparseProperties(properties, array))]
fn cudaArrayGetSparseProperties(properties: *mut c_void, array: CUarray);

#[required(properties)]
#[direct(cuMipmappedArrayGetSparseProperties(properties, array))]
fn cudaMipmappedArrayGetSparseProperties(properties: *mut c_void, array: CUmipmappedArray);

#[by_hand]
fn cudaCreateChannelDesc(x: c_int, y: c_int, z: c_int, w: c_int, f: c_int)
-> cudaChannelFormatDesc;
