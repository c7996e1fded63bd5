//! Interoperability with graphics APIs, all refused.

#[refused("a virtual GPU has no graphics")]
fn cudaEGLStreamConsumerAcquireFrame();

#[refused("a virtual GPU has no graphics")]
fn cudaEGLStreamConsumerConnect();

#[refused("a virtual GPU has no graphics")]
fn cudaEGLStreamConsumerConnectWithFlags();

#[refused("a virtual GPU has no graphics")]
fn cudaEGLStreamConsumerDisconnect();

#[refused("a virtual GPU has no graphics")]
fn cudaEGLStreamConsumerReleaseFrame();

#[refused("a virtual GPU has no graphics")]
fn cudaEGLStreamProducerConnect();

#[refused("a virtual GPU has no graphics")]
fn cudaEGLStreamProducerDisconnect();

#[refused("a virtual GPU has no graphics")]
fn cudaEGLStreamProducerPresentFrame();

#[refused("a virtual GPU has no graphics")]
fn cudaEGLStreamProducerReturnFrame();

#[refused("a virtual GPU has no graphics")]
fn cudaEventCreateFromEGLSync();

#[refused("a virtual GPU has no graphics")]
fn cudaGLGetDevices();

#[refused("a virtual GPU has no graphics")]
fn cudaGLMapBufferObject();

#[refused("a virtual GPU has no graphics")]
fn cudaGLMapBufferObjectAsync();

#[refused("a virtual GPU has no graphics")]
fn cudaGLRegisterBufferObject();

#[refused("a virtual GPU has no graphics")]
fn cudaGLSetBufferObjectMapFlags();

#[refused("a virtual GPU has no graphics")]
fn cudaGLSetGLDevice();

#[refused("a virtual GPU has no graphics")]
fn cudaGLUnmapBufferObject();

#[refused("a virtual GPU has no graphics")]
fn cudaGLUnmapBufferObjectAsync();

#[refused("a virtual GPU has no graphics")]
fn cudaGLUnregisterBufferObject();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsEGLRegisterImage();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsGLRegisterBuffer();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsGLRegisterImage();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsMapResources();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsResourceGetMappedEglFrame();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsResourceGetMappedMipmappedArray();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsResourceGetMappedPointer();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsResourceSetMapFlags();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsSubResourceGetMappedArray();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsUnmapResources();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsUnregisterResource();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsVDPAURegisterOutputSurface();

#[refused("a virtual GPU has no graphics")]
fn cudaGraphicsVDPAURegisterVideoSurface();

#[refused("a virtual GPU has no graphics")]
fn cudaVDPAUGetDevice();

#[refused("a virtual GPU has no graphics")]
fn cudaVDPAUSetVDPAUDevice();
