//! Tensor map.

#[since(12000)]
#[refused("not built yet")]
fn cuTensorMapEncodeIm2col(
    tensor_map: Out<CUtensorMap>,
    tensor_data_type: c_int,
    tensor_rank: u32,
    global_address: *mut c_void,
    global_dim: In<u64>,
    global_strides: In<u64>,
    pixel_box_lower_corner: In<c_int>,
    pixel_box_upper_corner: In<c_int>,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: In<u32>,
    interleave: c_int,
    swizzle: c_int,
    l2_promotion: c_int,
    oob_fill: c_int,
);

#[since(12080)]
#[refused("not built yet")]
fn cuTensorMapEncodeIm2colWide(
    tensor_map: Out<CUtensorMap>,
    tensor_data_type: c_int,
    tensor_rank: u32,
    global_address: *mut c_void,
    global_dim: In<u64>,
    global_strides: In<u64>,
    pixel_box_lower_corner_width: c_int,
    pixel_box_upper_corner_width: c_int,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: In<u32>,
    interleave: c_int,
    mode: c_int,
    swizzle: c_int,
    l2_promotion: c_int,
    oob_fill: c_int,
);

#[since(12000)]
#[refused("not built yet")]
fn cuTensorMapEncodeTiled(
    tensor_map: Out<CUtensorMap>,
    tensor_data_type: c_int,
    tensor_rank: u32,
    global_address: *mut c_void,
    global_dim: In<u64>,
    global_strides: In<u64>,
    box_dim: In<u32>,
    element_strides: In<u32>,
    interleave: c_int,
    swizzle: c_int,
    l2_promotion: c_int,
    oob_fill: c_int,
);

#[since(12000)]
#[refused("not built yet")]
fn cuTensorMapReplaceAddress(tensor_map: Out<CUtensorMap>, global_address: *mut c_void);
