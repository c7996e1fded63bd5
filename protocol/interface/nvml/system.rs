//! Driver and system.

/// Returns the version of the host's driver.
#[figure(75)]
fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint);

/// Returns the version of the host's NVML.
#[figure(76)]
fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint);

/// Returns the CUDA version of the host's driver.
#[also(nvmlSystemGetCudaDriverVersion = 0)]
fn nvmlSystemGetCudaDriverVersion_v2(cuda_driver_version: Out<c_int>);

/// Returns the name of a process of this VM.
fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint);

#[refused("describes the host")]
fn nvmlSystemGetDriverBranch(branch_info: Out<nvmlSystemDriverBranchInfo_t>, length: c_uint);
