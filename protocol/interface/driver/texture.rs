//! Textures and surfaces (CUDA Driver API, Texture Object Management, Surface
//! Object Management).

/// Creates a texture object.
#[since(5000)]
#[host]
fn cuTexObjectCreate(
    texture: Out<CUtexObject>,
    from: In<CUDA_RESOURCE_DESC>,
    how: In<CUDA_TEXTURE_DESC>,
    another: In<CUDA_RESOURCE_VIEW_DESC>,
);

/// Destroys a texture object.
#[since(5000)]
#[host]
#[through(remove(false, texture))]
fn cuTexObjectDestroy(texture: CUtexObject);

/// Returns the resource of a texture object.
#[since(5000)]
fn cuTexObjectGetResourceDesc(place: Out<CUDA_RESOURCE_DESC>, texture: CUtexObject);

/// Returns the sampling parameters of a texture object.
#[since(5000)]
fn cuTexObjectGetTextureDesc(place: Out<CUDA_TEXTURE_DESC>, texture: CUtexObject);

/// Returns the resource view of a texture object.
#[since(5000)]
fn cuTexObjectGetResourceViewDesc(place: Out<CUDA_RESOURCE_VIEW_DESC>, texture: CUtexObject);

/// Creates a surface object.
#[since(5000)]
#[host]
fn cuSurfObjectCreate(surface: Out<CUsurfObject>, from: In<CUDA_RESOURCE_DESC>);

/// Destroys a surface object.
#[since(5000)]
#[host]
#[through(remove(true, surface))]
fn cuSurfObjectDestroy(surface: CUsurfObject);

/// Returns the resource of a surface object.
#[since(5000)]
fn cuSurfObjectGetResourceDesc(place: Out<CUDA_RESOURCE_DESC>, surface: CUsurfObject);
