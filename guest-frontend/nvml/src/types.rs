//! NVML's C types, by NVML's names. Enumerations are plain integers.
#![allow(non_camel_case_types, missing_docs)]

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};

pub type nvmlReturn_t = c_uint;
/// Opaque.
pub type nvmlDevice_t = *mut c_void;
/// Opaque.
pub type nvmlEventSet_t = *mut c_void;
pub type nvmlTemperature_t = nvmlTemperature_v1_t;
pub type nvmlPciInfoExt_t = nvmlPciInfoExt_v1_t;
pub type nvmlUUID_t = nvmlUUID_v1_t;

/// What a versioned structure's first word must be.
#[must_use]
pub const fn version_of<T>(version: u32) -> c_uint {
    size_of::<T>() as c_uint | version << 24
}

macro_rules! records {
    ($( $(#[$meta:meta])* $name:ident { $( $(#[$of:meta])* $field:ident: $type:ty, )* } )*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name { $( $(#[$of])* pub $field: $type, )* }
    )*};
}

records! {
    /// What nvmlDeviceGetPciInfo wrote in its first version.
    PciInfo1 {
        bus_id: [c_char; 16],
        domain: c_uint,
        bus: c_uint,
        device: c_uint,
        pci_device_id: c_uint,
    }

    /// What it wrote in its second.
    PciInfo2 {
        head: PciInfo1,
        pci_subsystem_id: c_uint,
    }

    nvmlPciInfo_t {
        head: PciInfo2,
        bus_id: [c_char; 32],
    }

    nvmlPciInfoExt_v1_t {
        version: c_uint,
        domain: c_uint,
        bus: c_uint,
        device: c_uint,
        pci_device_id: c_uint,
        pci_subsystem_id: c_uint,
        base_class: c_uint,
        sub_class: c_uint,
        bus_id: [c_char; 32],
    }

    nvmlGpuFabricInfo_t {
        cluster_uuid: [u8; 16],
        status: nvmlReturn_t,
        clique_id: c_uint,
        state: u8,
    }

    nvmlGpuFabricInfo_v2_t {
        version: c_uint,
        cluster_uuid: [u8; 16],
        status: nvmlReturn_t,
        clique_id: c_uint,
        state: u8,
        health_mask: c_uint,
    }

    nvmlGpuFabricInfo_v3_t {
        head: nvmlGpuFabricInfo_v2_t,
        health_summary: u8,
    }

    nvmlUUID_v1_t {
        version: c_uint,
        kind: c_uint,
        /// Text or 16 bytes.
        value: [u8; 41],
    }

    nvmlMemory_t {
        total: c_ulonglong,
        free: c_ulonglong,
        used: c_ulonglong,
    }

    nvmlMemory_v2_t {
        version: c_uint,
        total: c_ulonglong,
        reserved: c_ulonglong,
        free: c_ulonglong,
        used: c_ulonglong,
    }

    nvmlProcessInfo_v1_t {
        pid: c_uint,
        used_gpu_memory: c_ulonglong,
    }

    nvmlProcessInfo_t {
        pid: c_uint,
        used_gpu_memory: c_ulonglong,
        gpu_instance: c_uint,
        compute_instance: c_uint,
    }

    nvmlProcessUtilizationSample_t {
        pid: c_uint,
        time: c_ulonglong,
        sm: c_uint,
        memory: c_uint,
        encoder: c_uint,
        decoder: c_uint,
    }

    nvmlEventData_t {
        device: nvmlDevice_t,
        event_type: c_ulonglong,
        event_data: c_ulonglong,
        gpu_instance: c_uint,
        compute_instance: c_uint,
    }

    nvmlTemperature_v1_t {
        version: c_uint,
        sensor: c_uint,
        temperature: c_int,
    }

    nvmlFieldValue_t {
        field: c_uint,
        scope: c_uint,
        time: c_longlong,
        latency: c_longlong,
        value_type: c_uint,
        code: nvmlReturn_t,
        /// A union; every value of it begins where it does.
        value: c_ulonglong,
    }
}

/// Host interface cards: there are none.
pub type nvmlHwbcEntry_t = c_void;
