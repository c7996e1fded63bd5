//! The ResourceSlice of a GPU host.

use paragpu_control::admin::DeviceInfo;
use serde_json::{Map, Value, json};

use crate::DRIVER;
use crate::Error;
use crate::api::{Api, SLICES, text};

/// The time of a whole GPU, in thousandths.
pub const TIME: u32 = 1000;
/// The time of a claim that requests none, in thousandths.
const LITTLE: u32 = 10;
/// The minimum and the granularity of memory, in bytes.
const STEP: u64 = 1 << 20;
/// The memory of a claim that requests none, in bytes.
const SOME: u64 = 1 << 30;

/// The slice, with a device for each GPU.
#[must_use]
pub fn spec(host: &str, gpus: &[DeviceInfo], drains: bool) -> Value {
    let devices: Vec<Value> = gpus
        .iter()
        .filter(|gpu| gpu.problem.is_none() && gpu.memory >= 2 * STEP)
        .map(|gpu| device(gpu, drains))
        .collect();
    json!({
        "driver": DRIVER,
        "allNodes": true,
        "pool": {"name": host, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    })
}

fn device(gpu: &DeviceInfo, drains: bool) -> Value {
    let memory = gpu.memory / STEP * STEP;
    let mut device = json!({
        "name": name_of(gpu.ordinal),
        "allowMultipleAllocations": true,
        "attributes": attributes(gpu),
        "capacity": {
            "memory": {
                "value": memory.to_string(),
                "requestPolicy": {
                    "default": SOME.min(memory).to_string(),
                    "validRange": {"min": STEP.to_string(), "step": STEP.to_string()},
                },
            },
            "time": {
                "value": TIME.to_string(),
                "requestPolicy": {
                    "default": LITTLE.to_string(),
                    "validRange": {"min": "1"},
                },
            },
        },
    });
    if drains {
        let taint = json!([{"key": format!("{DRIVER}/drain"), "effect": "NoExecute"}]);
        if let Some(device) = device.as_object_mut() {
            device.insert("taints".into(), taint);
        }
    }
    device
}

/// The attributes by which requests can select. The names are those of NVIDIA's own driver
/// if it has them.
fn attributes(gpu: &DeviceInfo) -> Value {
    // The text of an attribute has at most 64 bytes.
    let name: String = gpu.name.chars().filter(char::is_ascii).take(64).collect();
    let kind = gpu.device.split(':').next().unwrap_or("");
    let texts = [
        ("productName", name.as_str()),
        ("kind", kind),
        ("uuid", &gpu.uuid),
    ];
    let texts = texts.map(|(key, text)| (key, text, json!({"string": text})));
    let versions = [
        ("cudaComputeCapability", &gpu.compute_capability),
        ("cudaDriverVersion", &gpu.cuda_version),
    ];
    let versions = versions.map(|(key, version)| {
        let whole = format!("{version}.0");
        (key, version.as_str(), json!({"version": whole}))
    });
    // A daemon of an earlier release does not report all of them.
    let told = texts
        .into_iter()
        .chain(versions)
        .filter(|(_, text, _)| !text.is_empty());
    let mut attributes: Map<String, Value> = told
        .map(|(key, _, value)| (key.to_owned(), value))
        .collect();
    attributes.insert(
        "version".into(),
        json!({"version": env!("CARGO_PKG_VERSION")}),
    );
    attributes.into()
}

/// The name of a GPU's device.
#[must_use]
pub fn name_of(gpu: u32) -> String {
    format!("gpu-{gpu}")
}

/// The GPU of a device with this name.
#[must_use]
pub fn gpu_of(device: &str) -> Option<u32> {
    device.strip_prefix("gpu-")?.parse().ok()
}

/// Publishes the slice, unless it is published unchanged.
pub fn publish(api: &Api, host: &str, spec: &Value) -> Result<(), Error> {
    let name = format!("{host}-{DRIVER}");
    let path = format!("{SLICES}/{name}");
    let mut slice = match api.get(&path) {
        Ok(slice) => slice,
        Err(error) if error.is_missing() => {
            let slice = json!({
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": name},
                "spec": spec,
            });
            return api.create(SLICES, &slice).map(drop);
        }
        Err(error) => return Err(error),
    };
    let generation = slice.pointer("/spec/pool/generation");
    let generation = generation.and_then(Value::as_u64).unwrap_or(0);
    if text(&slice, "/spec/driver") != DRIVER || text(&slice, "/spec/pool/name") != host {
        let whose = format!("the slice {name} belongs to another host");
        return Err(Error::Configuration(whose));
    }
    let mut wanted = spec.clone();
    let Some(pool) = wanted.pointer_mut("/pool/generation") else {
        return Ok(());
    };
    *pool = generation.into();
    if slice.get("spec").is_some_and(|there| same(&wanted, there)) {
        return Ok(());
    }
    if let Some(pool) = wanted.pointer_mut("/pool/generation") {
        *pool = (generation + 1).into();
    }
    if let Some(there) = slice.get_mut("spec") {
        *there = wanted;
    }
    api.replace(&path, &slice).map(drop)
}

/// Whether an object on the server is equal to the wanted one. The server adds fields and
/// times, and normalizes quantities.
fn same(wanted: &Value, there: &Value) -> bool {
    match (wanted, there) {
        (Value::Object(wanted), Value::Object(there)) => {
            let known = |key: &&String| wanted.contains_key(*key) || *key == "timeAdded";
            let extra = there.keys().filter(|key| !known(key)).count();
            extra == 0
                && wanted
                    .iter()
                    .all(|(key, value)| there.get(key).is_some_and(|other| same(value, other)))
        }
        (Value::Array(wanted), Value::Array(there)) => {
            wanted.len() == there.len() && wanted.iter().zip(there).all(|(a, b)| same(a, b))
        }
        (Value::String(wanted), Value::String(there)) => {
            let number = |text: &str| crate::quantity::parse(text);
            wanted == there || number(wanted).is_some_and(|it| number(there) == Some(it))
        }
        _ => wanted == there,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(ordinal: u32, problem: Option<&str>) -> DeviceInfo {
        DeviceInfo {
            ordinal,
            device: format!("software:{ordinal}"),
            name: "paragpu software GPU".into(),
            memory: 2 << 30,
            uuid: "GPU-1".into(),
            compute_capability: "9.0".into(),
            cuda_version: String::new(),
            idle: 0,
            starting: 0,
            sessions: 0,
            problem: problem.map(str::to_owned),
        }
    }

    #[test]
    fn a_slice_has_the_gpus_that_work() {
        let gpus = [gpu(0, None), gpu(1, Some("it fell off the bus"))];
        let spec = spec("gpu1", &gpus, true);
        let devices = spec["devices"].as_array().unwrap();
        assert_eq!(devices.len(), 1);
        let memory = &devices[0]["capacity"]["memory"]["value"];
        assert_eq!(memory, "2147483648");
        let attribute = |name: &str| devices[0]["attributes"].get(name);
        let capability = attribute("cudaComputeCapability");
        assert_eq!(capability, Some(&json!({"version": "9.0.0"})));
        assert_eq!(attribute("uuid"), Some(&json!({"string": "GPU-1"})));
        assert_eq!(
            attribute("cudaDriverVersion"),
            None,
            "the daemon did not report a driver version"
        );
        assert_eq!(devices[0]["taints"][0]["effect"], "NoExecute");
        assert_eq!(gpu_of(devices[0]["name"].as_str().unwrap()), Some(0));
    }

    #[test]
    fn a_slice_that_the_server_wrote_in_its_way_is_the_same() {
        let wanted = spec("gpu1", &[gpu(0, None)], true);
        let text = wanted.to_string().replace("2147483648", "2Gi");
        let mut there: Value = serde_json::from_str(&text).unwrap();
        there["devices"][0]["taints"][0]["timeAdded"] = json!("2026-01-01T00:00:00Z");
        assert!(same(&wanted, &there));
        assert!(!same(&wanted, &spec("gpu1", &[gpu(0, None)], false)));
        assert!(!same(&spec("gpu1", &[gpu(0, None)], false), &there));
        assert!(!same(&wanted, &spec("gpu1", &[], true)));
    }
}
