//! Texture reference.

#[since(3000)]
#[refused("texture references were removed in CUDA 12")]
fn cuModuleGetSurfRef(surf_ref: Out<CUsurfref>, hmod: CUmodule, name: Text);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuModuleGetTexRef(tex_ref: Out<CUtexref>, hmod: CUmodule, name: Text);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuParamSetTexRef(hfunc: CUfunction, texunit: c_int, tex_ref: CUtexref);

#[since(3000)]
#[refused("texture references were removed in CUDA 12")]
fn cuSurfRefGetArray(array: Out<CUarray>, surf_ref: CUsurfref);

#[since(3000)]
#[refused("texture references were removed in CUDA 12")]
fn cuSurfRefSetArray(surf_ref: CUsurfref, array: CUarray, flags: c_uint);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefCreate(tex_ref: Out<CUtexref>);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefDestroy(tex_ref: CUtexref);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetAddress(pdptr: Out<c_uint>, tex_ref: CUtexref);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetAddressMode(pam: Out<c_int>, tex_ref: CUtexref, dim: c_int);

#[since(3020)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetAddress_v2(pdptr: Out<CUdeviceptr>, tex_ref: CUtexref);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetArray(array: Out<CUarray>, tex_ref: CUtexref);

#[since(8000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetBorderColor(border_color: Out<f32>, tex_ref: CUtexref);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetFilterMode(pfm: Out<c_int>, tex_ref: CUtexref);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetFlags(flags: Out<c_uint>, tex_ref: CUtexref);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetFormat(format: Out<c_int>, num_channels: Out<c_int>, tex_ref: CUtexref);

#[since(5000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetMaxAnisotropy(pmax_aniso: Out<c_int>, tex_ref: CUtexref);

#[since(5000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetMipmapFilterMode(pfm: Out<c_int>, tex_ref: CUtexref);

#[since(5000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetMipmapLevelBias(pbias: Out<f32>, tex_ref: CUtexref);

#[since(5000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetMipmapLevelClamp(
    pmin_mipmap_level_clamp: Out<f32>,
    pmax_mipmap_level_clamp: Out<f32>,
    tex_ref: CUtexref,
);

#[since(5000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefGetMipmappedArray(mipmapped_array: Out<CUmipmappedArray>, tex_ref: CUtexref);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetAddress(byte_offset: Out<c_uint>, tex_ref: CUtexref, dptr: c_uint, bytes: c_uint);

#[since(2020)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetAddress2D(
    tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR_v1>,
    dptr: c_uint,
    pitch: c_uint,
);

#[since(3020)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetAddress2D_v2(
    tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR>,
    dptr: CUdeviceptr,
    pitch: usize,
);

#[since(4010)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetAddress2D_v3(
    tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR>,
    dptr: CUdeviceptr,
    pitch: usize,
);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetAddressMode(tex_ref: CUtexref, dim: c_int, am: c_int);

#[since(3020)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetAddress_v2(
    byte_offset: Out<usize>,
    tex_ref: CUtexref,
    dptr: CUdeviceptr,
    bytes: usize,
);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetArray(tex_ref: CUtexref, array: CUarray, flags: c_uint);

#[since(8000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetBorderColor(tex_ref: CUtexref, border_color: Out<f32>);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetFilterMode(tex_ref: CUtexref, fm: c_int);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetFlags(tex_ref: CUtexref, flags: c_uint);

#[since(2000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetFormat(tex_ref: CUtexref, fmt: c_int, num_packed_components: c_int);

#[since(5000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetMaxAnisotropy(tex_ref: CUtexref, max_aniso: c_uint);

#[since(5000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetMipmapFilterMode(tex_ref: CUtexref, fm: c_int);

#[since(5000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetMipmapLevelBias(tex_ref: CUtexref, bias: f32);

#[since(5000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetMipmapLevelClamp(
    tex_ref: CUtexref,
    min_mipmap_level_clamp: f32,
    max_mipmap_level_clamp: f32,
);

#[since(5000)]
#[refused("texture references were removed in CUDA 12")]
fn cuTexRefSetMipmappedArray(tex_ref: CUtexref, mipmapped_array: CUmipmappedArray, flags: c_uint);
