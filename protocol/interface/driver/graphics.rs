//! Interoperability with graphics APIs, all refused.

#[since(3000)]
#[per_thread(ptsz)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsMapResources(count: c_uint, resources: *mut CUgraphicsResource, stream: CUstream);

#[since(5000)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsResourceGetMappedMipmappedArray(
    mipmapped_array: Out<CUmipmappedArray>,
    resource: CUgraphicsResource,
);

#[since(3000)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsResourceGetMappedPointer(
    dev_ptr: Out<c_uint>,
    size: Out<c_uint>,
    resource: CUgraphicsResource,
);

#[since(3020)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsResourceGetMappedPointer_v2(
    dev_ptr: Out<CUdeviceptr>,
    size: Out<usize>,
    resource: CUgraphicsResource,
);

#[since(3000)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsResourceSetMapFlags(resource: CUgraphicsResource, flags: c_uint);

#[since(6050)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsResourceSetMapFlags_v2(resource: CUgraphicsResource, flags: c_uint);

#[since(3000)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsSubResourceGetMappedArray(
    array: Out<CUarray>,
    resource: CUgraphicsResource,
    array_index: c_uint,
    mip_level: c_uint,
);

#[since(3000)]
#[per_thread(ptsz)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsUnmapResources(count: c_uint, resources: *mut CUgraphicsResource, stream: CUstream);

#[since(3000)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsUnregisterResource(resource: CUgraphicsResource);
