//! Interoperability with graphics APIs, all refused. NVIDIA's video library waits for ever
//! for a driver without these symbols.

#[since(7000)]
#[refused("a virtual GPU has no graphics")]
fn cuEGLStreamConsumerAcquireFrame();

#[since(7000)]
#[refused("a virtual GPU has no graphics")]
fn cuEGLStreamConsumerConnect();

#[since(8000)]
#[refused("a virtual GPU has no graphics")]
fn cuEGLStreamConsumerConnectWithFlags();

#[since(7000)]
#[refused("a virtual GPU has no graphics")]
fn cuEGLStreamConsumerDisconnect();

#[since(7000)]
#[refused("a virtual GPU has no graphics")]
fn cuEGLStreamConsumerReleaseFrame();

#[since(7000)]
#[refused("a virtual GPU has no graphics")]
fn cuEGLStreamProducerConnect();

#[since(7000)]
#[refused("a virtual GPU has no graphics")]
fn cuEGLStreamProducerDisconnect();

#[since(7000)]
#[refused("a virtual GPU has no graphics")]
fn cuEGLStreamProducerPresentFrame();

#[since(7000)]
#[refused("a virtual GPU has no graphics")]
fn cuEGLStreamProducerReturnFrame();

#[since(9000)]
#[refused("a virtual GPU has no graphics")]
fn cuEventCreateFromEGLSync();

#[since(2000)]
#[refused("a virtual GPU has no graphics")]
fn cuGLCtxCreate();

#[since(3020)]
#[refused("a virtual GPU has no graphics")]
fn cuGLCtxCreate_v2();

#[since(4010)]
#[refused("a virtual GPU has no graphics")]
fn cuGLGetDevices();

#[since(6050)]
#[refused("a virtual GPU has no graphics")]
fn cuGLGetDevices_v2();

#[since(2000)]
#[refused("a virtual GPU has no graphics")]
fn cuGLInit();

#[since(2000)]
#[refused("a virtual GPU has no graphics")]
fn cuGLMapBufferObject();

#[since(2030)]
#[refused("a virtual GPU has no graphics")]
fn cuGLMapBufferObjectAsync();

#[since(3020)]
#[per_thread(ptsz)]
#[refused("a virtual GPU has no graphics")]
fn cuGLMapBufferObjectAsync_v2();

#[since(3020)]
#[per_thread(ptds)]
#[refused("a virtual GPU has no graphics")]
fn cuGLMapBufferObject_v2();

#[since(2000)]
#[refused("a virtual GPU has no graphics")]
fn cuGLRegisterBufferObject();

#[since(2030)]
#[refused("a virtual GPU has no graphics")]
fn cuGLSetBufferObjectMapFlags();

#[since(2000)]
#[refused("a virtual GPU has no graphics")]
fn cuGLUnmapBufferObject();

#[since(2030)]
#[refused("a virtual GPU has no graphics")]
fn cuGLUnmapBufferObjectAsync();

#[since(2000)]
#[refused("a virtual GPU has no graphics")]
fn cuGLUnregisterBufferObject();

#[since(7000)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsEGLRegisterImage();

#[since(3000)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsGLRegisterBuffer();

#[since(3000)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsGLRegisterImage();

#[since(3000)]
#[per_thread(ptsz)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsMapResources(count: c_uint, resources: *mut CUgraphicsResource, stream: CUstream);

#[since(7000)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsResourceGetMappedEglFrame();

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

#[since(3010)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsVDPAURegisterOutputSurface();

#[since(3010)]
#[refused("a virtual GPU has no graphics")]
fn cuGraphicsVDPAURegisterVideoSurface();

#[since(3010)]
#[refused("a virtual GPU has no graphics")]
fn cuVDPAUCtxCreate();

#[since(3020)]
#[refused("a virtual GPU has no graphics")]
fn cuVDPAUCtxCreate_v2();

#[since(3010)]
#[refused("a virtual GPU has no graphics")]
fn cuVDPAUGetDevice();
