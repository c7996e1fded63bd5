//! Events (CUDA Driver API, Event Management).

/// An event.
#[since(2000)]
#[runtime(cudaEventCreateWithFlags)]
fn cuEventCreate(event: Out<CUevent>, flags: c_uint);

/// Ends an event.
#[since(2000)]
#[also(cuEventDestroy_v2 = 4000)]
#[runtime(cudaEventDestroy)]
fn cuEventDestroy(event: CUevent);

/// From now on it stands for the stream's work so far.
#[since(2000)]
#[per_thread(ptsz)]
#[runtime(cudaEventRecord)]
fn cuEventRecord(event: CUevent, stream: DefaultStream);

/// As cuEventRecord; with the one flag a capture's graph records the event
/// at each launch.
#[since(11010)]
#[per_thread(ptsz)]
#[runtime(cudaEventRecordWithFlags)]
fn cuEventRecordWithFlags(event: CUevent, stream: DefaultStream, flags: c_uint);

/// Is it reached?
#[since(2000)]
#[runtime(cudaEventQuery)]
fn cuEventQuery(event: CUevent);

/// Waits until it is reached.
#[since(2000)]
#[runtime(cudaEventSynchronize)]
fn cuEventSynchronize(event: CUevent);

/// Milliseconds between two events.
#[since(2000)]
#[also(cuEventElapsedTime_v2 = 12080)]
#[runtime(cudaEventElapsedTime)]
fn cuEventElapsedTime(milliseconds: Out<f32>, start: CUevent, end: CUevent);
