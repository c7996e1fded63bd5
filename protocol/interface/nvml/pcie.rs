//! The PCI bus.

/// Returns the PCI address that CUDA reports.
fn nvmlDeviceGetPciInfoExt(device: nvmlDevice_t, pci: *mut nvmlPciInfoExt_t);

/// Returns the PCI address that CUDA reports.
fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>);

/// Returns the maximum generation of the PCIe link.
#[figure(17)]
fn nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, max_link_gen: Out<c_uint>);

/// Returns the maximum PCIe generation of the GPU.
#[figure(18)]
fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: nvmlDevice_t, max_link_gen_device: Out<c_uint>);

/// Returns the maximum width of the PCIe link.
#[figure(19)]
fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, max_link_width: Out<c_uint>);

/// Returns the current generation of the PCIe link.
#[figure(20)]
fn nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, curr_link_gen: Out<c_uint>);

/// Returns the current width of the PCIe link.
#[figure(21)]
fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, curr_link_width: Out<c_uint>);

/// Returns the throughput of the PCIe link, in KB/s.
#[figure(22, 2)]
fn nvmlDeviceGetPcieThroughput(device: nvmlDevice_t, counter: c_uint, value: Out<c_uint>);

/// Returns the number of replays on the PCIe link.
#[figure(23)]
fn nvmlDeviceGetPcieReplayCounter(device: nvmlDevice_t, value: Out<c_uint>);

/// Returns the maximum speed of the PCIe link.
#[figure(24)]
fn nvmlDeviceGetPcieLinkMaxSpeed(device: nvmlDevice_t, max_speed: Out<c_uint>);

/// Returns the current speed of the PCIe link, in MB/s.
#[figure(25)]
fn nvmlDeviceGetPcieSpeed(device: nvmlDevice_t, pcie_speed: Out<c_uint>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceModifyDrainState(pci_info: Out<nvmlPciInfo_t>, new_state: c_uint);

#[refused("concerns the host's operator, who drains GPUs")]
fn nvmlDeviceQueryDrainState(pci_info: Out<nvmlPciInfo_t>, current_state: Out<c_uint>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceRemoveGpu_v2(pci_info: Out<nvmlPciInfo_t>, gpu_state: c_uint, link_state: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceDiscoverGpus(pci_info: Out<nvmlPciInfo_t>);

/// As nvmlDeviceGetPciInfo_v3, by its older name.
fn nvmlDeviceGetPciInfo(device: nvmlDevice_t, pci: Out<PciInfo1>);

/// As nvmlDeviceGetPciInfo_v3, by its older name.
fn nvmlDeviceGetPciInfo_v2(device: nvmlDevice_t, pci: Out<PciInfo2>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceRemoveGpu(pci_info: Out<nvmlPciInfo_t>);
