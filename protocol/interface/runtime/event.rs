//! Events (CUDA Runtime API, chapter "Event Management"; inter-process events
//! from "Device Management").

#[direct(cuEventCreate(event, 0))]
fn cudaEventCreate(event: Out<CUevent>);

#[direct(cuIpcGetEventHandle(handle, event))]
fn cudaIpcGetEventHandle(handle: Out<cudaIpcEventHandle_t>, event: CUevent);

#[direct(cuIpcOpenEventHandle(event, handle))]
fn cudaIpcOpenEventHandle(event: Out<CUevent>, handle: cudaIpcEventHandle_t);
