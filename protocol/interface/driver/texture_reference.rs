//! Texture references (CUDA Driver API, Texture Reference Management, deprecated). Their
//! attributes are stored, but no kernel can read through them.

#[since(3000)]
#[refused("kernels read through texture objects; texture references of modules are not supported")]
fn cuModuleGetSurfRef(surf_ref: Out<CUsurfref>, hmod: CUmodule, name: Text);

#[since(2000)]
#[refused("kernels read through texture objects; texture references of modules are not supported")]
fn cuModuleGetTexRef(tex_ref: Out<CUtexref>, hmod: CUmodule, name: Text);

#[since(2000)]
#[refused("kernels read through texture objects; texture references of modules are not supported")]
fn cuParamSetTexRef(hfunc: CUfunction, texunit: c_int, tex_ref: CUtexref);

#[since(3000)]
#[refused("kernels read through texture objects; texture references of modules are not supported")]
fn cuSurfRefGetArray(array: Out<CUarray>, surf_ref: CUsurfref);

#[since(3000)]
#[refused("kernels read through texture objects; texture references of modules are not supported")]
fn cuSurfRefSetArray(surf_ref: CUsurfref, array: CUarray, flags: c_uint);

/// Creates a texture reference. No kernel can read through it.
#[since(2000)]
fn cuTexRefCreate(tex_ref: Out<CUtexref>);

/// Destroys a texture reference.
#[since(2000)]
fn cuTexRefDestroy(tex_ref: CUtexref);

#[since(2000)]
#[refused("kernels read through texture objects; texture references of modules are not supported")]
fn cuTexRefGetAddress(pdptr: Out<c_uint>, tex_ref: CUtexref);

/// Returns the address mode of a texture reference.
#[since(2000)]
fn cuTexRefGetAddressMode(pam: Out<c_int>, tex_ref: CUtexref, dim: c_int);

/// Returns the address of a texture reference.
#[since(3020)]
fn cuTexRefGetAddress_v2(pdptr: Out<CUdeviceptr>, tex_ref: CUtexref);

/// Returns the array of a texture reference.
#[since(2000)]
fn cuTexRefGetArray(array: Out<CUarray>, tex_ref: CUtexref);

/// Returns the border color of a texture reference.
#[since(8000)]
fn cuTexRefGetBorderColor(border_color: *mut f32, tex_ref: CUtexref);

/// Returns the filter mode of a texture reference.
#[since(2000)]
fn cuTexRefGetFilterMode(pfm: Out<c_int>, tex_ref: CUtexref);

/// Returns the flags of a texture reference.
#[since(2000)]
fn cuTexRefGetFlags(flags: Out<c_uint>, tex_ref: CUtexref);

/// Returns the format of a texture reference.
#[since(2000)]
fn cuTexRefGetFormat(format: Out<c_int>, num_channels: Out<c_int>, tex_ref: CUtexref);

/// Returns the maximum anisotropy of a texture reference.
#[since(5000)]
fn cuTexRefGetMaxAnisotropy(pmax_aniso: Out<c_int>, tex_ref: CUtexref);

/// Returns the mipmap filter mode of a texture reference.
#[since(5000)]
fn cuTexRefGetMipmapFilterMode(pfm: Out<c_int>, tex_ref: CUtexref);

/// Returns the mipmap level bias of a texture reference.
#[since(5000)]
fn cuTexRefGetMipmapLevelBias(pbias: Out<f32>, tex_ref: CUtexref);

/// Returns the mipmap level clamp of a texture reference.
#[since(5000)]
fn cuTexRefGetMipmapLevelClamp(
    pmin_mipmap_level_clamp: Out<f32>,
    pmax_mipmap_level_clamp: Out<f32>,
    tex_ref: CUtexref,
);

/// Returns the mipmapped array of a texture reference.
#[since(5000)]
fn cuTexRefGetMipmappedArray(mipmapped_array: Out<CUmipmappedArray>, tex_ref: CUtexref);

#[since(2000)]
#[refused("kernels read through texture objects; texture references of modules are not supported")]
fn cuTexRefSetAddress(byte_offset: Out<c_uint>, tex_ref: CUtexref, dptr: c_uint, bytes: c_uint);

#[since(2020)]
#[refused("kernels read through texture objects; texture references of modules are not supported")]
fn cuTexRefSetAddress2D(
    tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR_v1>,
    dptr: c_uint,
    pitch: c_uint,
);

/// Sets the address and pitch of a 2D texture reference.
#[since(3020)]
#[through(cuTexRefSetAddress2D_v3(tex_ref, desc, dptr, pitch))]
fn cuTexRefSetAddress2D_v2(
    tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR>,
    dptr: CUdeviceptr,
    pitch: usize,
);

/// Sets the address and pitch of a 2D texture reference.
#[since(4010)]
fn cuTexRefSetAddress2D_v3(
    tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR>,
    dptr: CUdeviceptr,
    pitch: usize,
);

/// Sets the address mode of a texture reference.
#[since(2000)]
fn cuTexRefSetAddressMode(tex_ref: CUtexref, dim: c_int, am: c_int);

/// Sets the address of a texture reference.
#[since(3020)]
fn cuTexRefSetAddress_v2(
    byte_offset: *mut usize,
    tex_ref: CUtexref,
    dptr: CUdeviceptr,
    bytes: usize,
);

/// Sets the array of a texture reference.
#[since(2000)]
fn cuTexRefSetArray(tex_ref: CUtexref, array: CUarray, flags: c_uint);

/// Sets the border color of a texture reference.
#[since(8000)]
fn cuTexRefSetBorderColor(tex_ref: CUtexref, border_color: *mut f32);

/// Sets the filter mode of a texture reference.
#[since(2000)]
fn cuTexRefSetFilterMode(tex_ref: CUtexref, fm: c_int);

/// Sets the flags of a texture reference.
#[since(2000)]
fn cuTexRefSetFlags(tex_ref: CUtexref, flags: c_uint);

/// Sets the format of a texture reference.
#[since(2000)]
fn cuTexRefSetFormat(tex_ref: CUtexref, fmt: c_int, num_packed_components: c_int);

/// Sets the maximum anisotropy of a texture reference.
#[since(5000)]
fn cuTexRefSetMaxAnisotropy(tex_ref: CUtexref, max_aniso: c_uint);

/// Sets the mipmap filter mode of a texture reference.
#[since(5000)]
fn cuTexRefSetMipmapFilterMode(tex_ref: CUtexref, fm: c_int);

/// Sets the mipmap level bias of a texture reference.
#[since(5000)]
fn cuTexRefSetMipmapLevelBias(tex_ref: CUtexref, bias: f32);

/// Sets the mipmap level clamp of a texture reference.
#[since(5000)]
fn cuTexRefSetMipmapLevelClamp(
    tex_ref: CUtexref,
    min_mipmap_level_clamp: f32,
    max_mipmap_level_clamp: f32,
);

/// Sets the mipmapped array of a texture reference.
#[since(5000)]
fn cuTexRefSetMipmappedArray(tex_ref: CUtexref, mipmapped_array: CUmipmappedArray, flags: c_uint);
