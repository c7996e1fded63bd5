//! Events (CUDA Driver API, Event Management).

/// An event.
#[since(2000)]
#[runtime(cudaEventCreateWithFlags)]
#[call(0x0701, posted, creates(Event = event), code(guest, worker, device), part(objects, events))]
#[host]
fn cuEventCreate(event: Out<CUevent>, flags: c_uint);

/// Ends an event.
#[since(2000)]
#[also(cuEventDestroy_v2 = 4000)]
#[runtime(cudaEventDestroy)]
#[call(0x0702, posted, destroys(Event = event), code(guest, worker, device), part(objects, events))]
#[host]
fn cuEventDestroy(event: CUevent);

/// From now on it stands for the stream's work so far.
#[since(2000)]
#[per_thread(ptsz)]
#[runtime(cudaEventRecord)]
#[call(0x0703, posted, node, changes(Event = event), code(guest, worker, device), part(objects))]
#[host]
fn cuEventRecord(event: CUevent, stream: DefaultStream);

/// As cuEventRecord; with the one flag a capture's graph records the event
/// at each launch.
#[since(11010)]
#[per_thread(ptsz)]
#[runtime(cudaEventRecordWithFlags)]
fn cuEventRecordWithFlags(event: CUevent, stream: DefaultStream, flags: c_uint);

/// Whether it is reached.
#[since(2000)]
#[runtime(cudaEventQuery)]
#[call(0x0705, synchronous, idempotent, reports, code(guest, worker, device))]
#[host]
fn cuEventQuery(event: CUevent);

/// Waits until it is reached.
#[since(2000)]
#[runtime(cudaEventSynchronize)]
#[call(0x0704, synchronous, idempotent, reports, waits, code(guest, worker, device))]
fn cuEventSynchronize(event: CUevent);

/// Milliseconds between two events. The worker knows when those were reached
/// that were recorded on another device.
#[since(2000)]
#[also(cuEventElapsedTime_v2 = 12080)]
#[runtime(cudaEventElapsedTime)]
#[call(0x0706, synchronous, idempotent, reports, code(worker), part(objects, events))]
#[cuda12(cudaEventElapsedTime, cudaEventElapsedTime_v2)]
fn cuEventElapsedTime(milliseconds: Out<f32>, start: TimedEvent, end: TimedEvent);
