//! Texture and surface objects (CUDA Runtime API, chapters "Texture Object
//! Management" and "Surface Object Management").

#[only(13)]
fn cudaCreateTextureObject(
    object: Out<CUtexObject>,
    resource: In<cudaResourceDesc>,
    texture: In<cudaTextureDesc>,
    view: In<cudaResourceViewDesc>,
);

fn cudaDestroyTextureObject(object: CUtexObject);

#[only(13)]
fn cudaGetTextureObjectResourceDesc(resource: Out<cudaResourceDesc>, object: CUtexObject);

fn cudaGetTextureObjectTextureDesc(texture: Out<cudaTextureDesc>, object: CUtexObject);

#[only(13)]
#[required(view)]
#[direct(cuTexObjectGetResourceViewDesc(view.cast(), object))]
fn cudaGetTextureObjectResourceViewDesc(view: Out<cudaResourceViewDesc>, object: CUtexObject);

#[only(13)]
fn cudaCreateSurfaceObject(object: Out<CUsurfObject>, resource: In<cudaResourceDesc>);

fn cudaDestroySurfaceObject(object: CUsurfObject);

#[only(13)]
fn cudaGetSurfaceObjectResourceDesc(resource: Out<cudaResourceDesc>, object: CUsurfObject);
