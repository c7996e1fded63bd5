//! Driver and system.

/// Version of the host's driver.
#[figure(75)]
fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint);

/// Version of the host's NVML.
#[figure(76)]
fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint);

/// The CUDA version that the host's driver has.
#[also(nvmlSystemGetCudaDriverVersion = 0)]
fn nvmlSystemGetCudaDriverVersion_v2(cuda_driver_version: Out<c_int>);

/// The name of a process of this VM.
fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint);

#[refused("describes the host")]
fn nvmlSystemGetDriverBranch(branch_info: Out<nvmlSystemDriverBranchInfo_t>, length: c_uint);
