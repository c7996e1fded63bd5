//! Initialization of the profiler (CUDA Driver API, Profiler Control), refused.

#[since(4000)]
#[refused("NVIDIA's driver refuses it as well since CUDA 12")]
fn cuProfilerInitialize();
