//! Profiler.

#[since(4000)]
#[refused("removed in CUDA 12")]
fn cuProfilerInitialize();
