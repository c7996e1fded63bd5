//! Events (CUDA Driver API, Event Management).

/// Creates an event.
#[since(2000)]
#[runtime(cudaEventCreateWithFlags)]
#[call(0x0701, posted, creates(Event = event), code(guest, worker, device), part(objects, events))]
#[host]
fn cuEventCreate(event: Out<CUevent>, flags: c_uint);

/// Destroys an event.
#[since(2000)]
#[also(cuEventDestroy_v2 = 4000)]
#[runtime(cudaEventDestroy)]
#[call(0x0702, posted, destroys(Event = event), code(guest, worker, device), part(objects, events))]
#[host]
fn cuEventDestroy(event: CUevent);

/// Records an event in a stream. It is complete when the stream's earlier work is.
#[since(2000)]
#[per_thread(ptsz)]
#[runtime(cudaEventRecord)]
#[call(0x0703, posted, node, changes(Event = event), code(guest, worker, device), part(objects), with(replies))]
#[host]
#[through(record(event, stream, 0))]
fn cuEventRecord(event: CUevent, stream: DefaultStream);

/// Records an event in a stream. With the flag EXTERNAL, a graph captured from the stream
/// records it at each launch.
#[since(11010)]
#[per_thread(ptsz)]
#[runtime(cudaEventRecordWithFlags)]
fn cuEventRecordWithFlags(event: CUevent, stream: DefaultStream, flags: c_uint);

/// Returns whether an event is complete.
#[since(2000)]
#[in_callbacks]
#[runtime(cudaEventQuery)]
#[call(0x0705, synchronous, idempotent, reports, code(guest, worker, device), part(objects), with(replies))]
#[host]
fn cuEventQuery(event: CUevent);

/// Waits until an event is complete.
#[since(2000)]
#[in_callbacks]
#[runtime(cudaEventSynchronize)]
#[call(0x0704, synchronous, idempotent, reports, waits, code(guest, worker, device), part(objects), with(replies))]
#[host]
fn cuEventSynchronize(event: CUevent);

/// Returns the milliseconds between two events. Completion times of another device's events
/// come from the worker.
#[since(2000)]
#[in_callbacks]
#[also(cuEventElapsedTime_v2 = 12080)]
#[runtime(cudaEventElapsedTime)]
#[call(0x0706, synchronous, idempotent, reports, code(worker), part(objects, events))]
#[cuda12(cudaEventElapsedTime, cudaEventElapsedTime_v2)]
fn cuEventElapsedTime(milliseconds: Out<f32>, start: TimedEvent, end: TimedEvent);
