//! Texture and surface objects (CUDA Runtime API, chapters "Texture Object
//! Management" and "Surface Object Management").

fn cudaCreateTextureObject(
    object: Out<CUtexObject>,
    resource: In<cudaResourceDesc>,
    texture: In<cudaTextureDesc>,
    view: In<cudaResourceViewDesc>,
);

fn cudaDestroyTextureObject(object: CUtexObject);

fn cudaGetTextureObjectResourceDesc(resource: Out<cudaResourceDesc>, object: CUtexObject);

fn cudaGetTextureObjectTextureDesc(texture: Out<cudaTextureDesc>, object: CUtexObject);

fn cudaGetTextureObjectResourceViewDesc(view: Out<cudaResourceViewDesc>, object: CUtexObject);

fn cudaCreateSurfaceObject(object: Out<CUsurfObject>, resource: In<cudaResourceDesc>);

fn cudaDestroySurfaceObject(object: CUsurfObject);

fn cudaGetSurfaceObjectResourceDesc(resource: Out<cudaResourceDesc>, object: CUsurfObject);
