//! Textures and surfaces (CUDA Driver API, Texture Object Management, Surface
//! Object Management).

/// A texture object.
#[since(5000)]
#[host]
fn cuTexObjectCreate(
    texture: Out<CUtexObject>,
    from: In<CUDA_RESOURCE_DESC>,
    how: In<CUDA_TEXTURE_DESC>,
    another: In<CUDA_RESOURCE_VIEW_DESC>,
);

/// Ends a texture object.
#[since(5000)]
#[host]
#[through(remove(false, texture))]
fn cuTexObjectDestroy(texture: CUtexObject);

/// Its resource.
#[since(5000)]
fn cuTexObjectGetResourceDesc(place: Out<CUDA_RESOURCE_DESC>, texture: CUtexObject);

/// How it reads.
#[since(5000)]
fn cuTexObjectGetTextureDesc(place: Out<CUDA_TEXTURE_DESC>, texture: CUtexObject);

/// Its resource view.
#[since(5000)]
fn cuTexObjectGetResourceViewDesc(place: Out<CUDA_RESOURCE_VIEW_DESC>, texture: CUtexObject);

/// A surface object.
#[since(5000)]
#[host]
fn cuSurfObjectCreate(surface: Out<CUsurfObject>, from: In<CUDA_RESOURCE_DESC>);

/// Ends a surface object.
#[since(5000)]
#[host]
#[through(remove(true, surface))]
fn cuSurfObjectDestroy(surface: CUsurfObject);

/// Its resource.
#[since(5000)]
fn cuSurfObjectGetResourceDesc(place: Out<CUDA_RESOURCE_DESC>, surface: CUsurfObject);
