//! Devices.

/// Returns the number of GPUs of the VM.
#[also(nvmlDeviceGetCount = 0)]
fn nvmlDeviceGetCount_v2(device_count: Out<c_uint>);

#[refused("describes the host's device")]
fn nvmlDeviceGetAttributes_v2(device: nvmlDevice_t, attributes: Out<nvmlDeviceAttributes_t>);

/// Returns a GPU by its index.
#[also(nvmlDeviceGetHandleByIndex = 0)]
fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<nvmlDevice_t>);

#[refused("describes the host's device")]
fn nvmlDeviceGetHandleBySerial(serial: Text, device: Out<nvmlDevice_t>);

/// Returns a GPU by its UUID.
fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<nvmlDevice_t>);

/// Returns a GPU by its UUID, as text or bytes.
fn nvmlDeviceGetHandleByUUIDV(uuid: In<nvmlUUID_t>, device: Out<nvmlDevice_t>);

/// Returns a GPU by the PCI address that CUDA reports.
#[also(nvmlDeviceGetHandleByPciBusId = 0)]
fn nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id: Text, device: Out<nvmlDevice_t>);

/// Returns the name that CUDA reports.
fn nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint);

/// Returns the GPU's brand.
#[figure(1)]
fn nvmlDeviceGetBrand(device: nvmlDevice_t, kind: Out<c_uint>);

/// Returns the GPU's ordinal in CUDA.
fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: Out<c_uint>);

/// Returns the UUID that CUDA reports, as text.
fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: c_uint);

/// Returns the minor number of the device file: the index.
fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor_number: Out<c_uint>);

/// Returns the compute capability that CUDA reports.
fn nvmlDeviceGetCudaComputeCapability(device: nvmlDevice_t, major: Out<c_int>, minor: Out<c_int>);

/// Returns the number of CUDA cores.
#[figure(3)]
fn nvmlDeviceGetNumGpuCores(device: nvmlDevice_t, num_cores: Out<c_uint>);

/// Returns the GPU's architecture.
#[figure(2)]
fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, arch: Out<c_uint>);

/// Returns 0: no device is excluded.
fn nvmlGetExcludedDeviceCount(device_count: Out<c_uint>);

#[refused("describes the host's device")]
fn nvmlGetExcludedDeviceInfoByIndex(index: c_uint, info: Out<nvmlExcludedDeviceInfo_t>);

#[refused("describes the host's device")]
fn nvmlDeviceGetAttributes(device: nvmlDevice_t, attributes: Out<nvmlDeviceAttributes_t>);
