//! The host's `libnvidia-ml.so.1`, loaded at run time. Its functions are called as the
//! description of NVML specifies (`protocol/interface/nvml`).

use core::ffi::{c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};

use libloading::Library;
use paragpu_abi::nvml::{FIELD, LINK_FIELDS};
use paragpu_device::management::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED};

use super::driver::is_of_guests;

#[allow(non_camel_case_types)]
type nvmlDevice_t = *mut c_void;

/// Maximum size of a text from NVML in bytes.
const TEXT: usize = 96;
/// NVML_ERROR_INSUFFICIENT_SIZE.
const INSUFFICIENT_SIZE: c_uint = 7;
/// Maximum number of processes whose utilization is requested.
const SAMPLES: usize = 4096;

/// NVML, initialized.
pub struct Nvml(Library);

/// nvmlProcessUtilizationSample_t.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sample {
    pid: c_uint,
    time: c_ulonglong,
    sm: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

/// nvmlPciInfo_t.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct nvmlPciInfo_t {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

/// nvmlFieldValue_t. Every member of the union `value` starts at its offset.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    time: c_longlong,
    latency: c_longlong,
    value_type: c_uint,
    code: c_uint,
    value: c_ulonglong,
}

/// A function's result that consists of numbers.
trait Figure {
    /// Writes it to the start of `values`.
    fn gather(self, values: &mut [u64]);
}

impl Figure for c_uint {
    fn gather(self, values: &mut [u64]) {
        [self].gather(values);
    }
}

impl Figure for c_int {
    fn gather(self, values: &mut [u64]) {
        [i64::from(self).cast_unsigned()].gather(values);
    }
}

impl Figure for c_ulonglong {
    fn gather(self, values: &mut [u64]) {
        [self].gather(values);
    }
}

impl Figure for nvmlPciInfo_t {
    fn gather(self, values: &mut [u64]) {
        let numbers = [self.domain, self.bus, self.device];
        let ids = [self.pci_device_id, self.pci_subsystem_id];
        numbers.gather(values);
        ids.gather(&mut values[numbers.len()..]);
    }
}

impl<const N: usize> Figure for [c_uint; N] {
    fn gather(self, values: &mut [u64]) {
        self.map(u64::from).gather(values);
    }
}

impl<const N: usize> Figure for [c_ulonglong; N] {
    fn gather(self, values: &mut [u64]) {
        for (place, value) in values.iter_mut().zip(self) {
            *place = value;
        }
    }
}

/// Converts a C string that NVML wrote.
fn text_of(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// `GPU-` and the UUID, as NVML writes it, NUL-terminated.
fn name(uuid: &[u8; 16]) -> String {
    let mut name = String::from("GPU");
    for (place, byte) in uuid.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&place) {
            name.push('-');
        }
        name.push_str(&format!("{byte:02x}"));
    }
    name.push('\0');
    name
}

impl Nvml {
    /// Loads and initializes NVML; `None` if that fails.
    pub fn load() -> Option<Self> {
        // SAFETY: NVIDIA's library may be loaded by any process.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        if is_of_guests(&library, c"paragpu_nvml") {
            return None;
        }
        let nvml = Self(library);
        let init = nvml.find("nvmlInit_v2")?;
        // SAFETY: the type is nvml.h's for this name.
        let code = unsafe {
            let init = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_uint>(init);
            init()
        };
        (code == 0).then_some(nvml)
    }

    /// The address of a function.
    fn find(&self, name: &str) -> Option<*mut c_void> {
        // SAFETY: only the address is taken; who calls it gives it its type.
        let symbol = unsafe { self.0.get::<*mut c_void>(name) }.ok()?;
        // SAFETY: the library stays loaded as long as `self`, which outlives
        // the call that the address is for.
        let address = unsafe { symbol.into_raw() };
        Some(address.as_raw_ptr()).filter(|address| !address.is_null())
    }

    /// NVML's handle of the GPU with this UUID.
    fn device(&self, uuid: &[u8; 16]) -> Option<nvmlDevice_t> {
        let find = self.find("nvmlDeviceGetHandleByUUID")?;
        let name = name(uuid);
        let mut device = std::ptr::null_mut();
        // SAFETY: the type is nvml.h's for this name; the text ends with a zero.
        let code = unsafe {
            let find = std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> c_uint,
            >(find);
            find(name.as_ptr().cast(), &raw mut device)
        };
        (code == 0).then_some(device)
    }

    /// Answers a figure.
    pub fn ask(&self, uuid: &[u8; 16], number: u32, arguments: [u8; 4]) -> Answer {
        match self.device(uuid) {
            Some(device) if number == FIELD => self.field(device, arguments),
            Some(device) => figure(self, device, number, arguments),
            None => Answer::refused(NOT_SUPPORTED),
        }
    }

    /// Answers [`FIELD`].
    fn field(&self, device: nvmlDevice_t, [field, scope, ..]: [u8; 4]) -> Answer {
        if !LINK_FIELDS.contains(&field) {
            return Answer::refused(INVALID_ARGUMENT);
        }
        let Some(address) = self.find("nvmlDeviceGetFieldValues") else {
            return Answer::refused(NOT_SUPPORTED);
        };
        let mut value = FieldValue {
            field: field.into(),
            scope: scope.into(),
            ..FieldValue::default()
        };
        // SAFETY: the type is nvml.h's for this name; there is room for one value.
        let code = unsafe {
            let function = std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(nvmlDevice_t, c_int, *mut FieldValue) -> c_uint,
            >(address);
            function(device, 1, &raw mut value)
        };
        let mut answer = Answer::refused(if code == 0 { value.code } else { code });
        answer.values = [value.value_type.into(), value.value, 0, 0, 0];
        answer
    }

    /// Percentage of the multiprocessors' time by process, in the latest sample.
    pub fn utilization(&self, uuid: &[u8; 16], processes: &[u32]) -> Option<Vec<u32>> {
        let device = self.device(uuid)?;
        let function = self.find("nvmlDeviceGetProcessUtilization")?;
        let mut samples = vec![Sample::default(); SAMPLES];
        let mut count = SAMPLES as c_uint;
        // SAFETY: the type is nvml.h's for this name; there is room for as many
        // samples as `count` says.
        let code = unsafe {
            let function = std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(nvmlDevice_t, *mut Sample, *mut c_uint, c_ulonglong) -> c_uint,
            >(function);
            function(device, samples.as_mut_ptr(), &raw mut count, 0)
        };
        if code == INSUFFICIENT_SIZE {
            return None;
        }
        // NOT_FOUND: no process did anything.
        let count = if code == 0 { count as usize } else { 0 };
        let samples = samples.get(..count)?;
        let of = |pid: &u32| {
            let own = samples.iter().filter(|sample| sample.pid == *pid);
            own.max_by_key(|sample| sample.time)
                .map_or(0, |sample| sample.sm)
        };
        Some(processes.iter().map(of).collect())
    }
}

include!(concat!(env!("OUT_DIR"), "/figures.rs"));
