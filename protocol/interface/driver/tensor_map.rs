//! Tensor maps (CUDA Driver API, Tensor Map Object Management).

/// Encodes a tensor map for copies of image columns (im2col).
#[since(12000)]
#[host]
fn cuTensorMapEncodeIm2col(
    tensor_map: *mut CUtensorMap,
    tensor_data_type: c_int,
    tensor_rank: u32,
    global_address: *mut c_void,
    global_dim: *const u64,
    global_strides: *const u64,
    pixel_box_lower_corner: *const c_int,
    pixel_box_upper_corner: *const c_int,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: *const u32,
    interleave: c_int,
    swizzle: c_int,
    l2_promotion: c_int,
    oob_fill: c_int,
);

/// As cuTensorMapEncodeIm2col, with columns along the width.
#[since(12080)]
#[host]
fn cuTensorMapEncodeIm2colWide(
    tensor_map: *mut CUtensorMap,
    tensor_data_type: c_int,
    tensor_rank: u32,
    global_address: *mut c_void,
    global_dim: *const u64,
    global_strides: *const u64,
    pixel_box_lower_corner_width: c_int,
    pixel_box_upper_corner_width: c_int,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: *const u32,
    interleave: c_int,
    mode: c_int,
    swizzle: c_int,
    l2_promotion: c_int,
    oob_fill: c_int,
);

/// Encodes a tensor map for copies of tiles.
#[since(12000)]
#[host]
fn cuTensorMapEncodeTiled(
    tensor_map: *mut CUtensorMap,
    tensor_data_type: c_int,
    tensor_rank: u32,
    global_address: *mut c_void,
    global_dim: *const u64,
    global_strides: *const u64,
    box_dim: *const u32,
    element_strides: *const u32,
    interleave: c_int,
    swizzle: c_int,
    l2_promotion: c_int,
    oob_fill: c_int,
);

/// Replaces the address in a tensor map.
#[since(12000)]
#[host]
fn cuTensorMapReplaceAddress(tensor_map: *mut CUtensorMap, global_address: *mut c_void);

/// Checks its arguments. The class in effect is always the small one, which any request
/// allows.
#[since(13050)]
fn cuTensorMapSetAllocationClass(tensor_map: *mut CUtensorMap, class: c_int, effective: Out<c_int>);
