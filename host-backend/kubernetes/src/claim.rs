//! The parts of a ResourceClaim that concern this driver.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::api::text;
use crate::{DRIVER, quantity};

/// A share of a device that is allocated to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The request of the claim that it satisfies.
    pub request: String,
    /// The GPU host, which is the pool's name.
    pub pool: String,
    /// The GPU.
    pub device: String,
    /// The ID of the share.
    pub id: Option<String>,
    /// Bytes of device memory; 0 if the claim has none.
    pub memory: u64,
    /// Thousandths of the GPU's time; 0 if the claim has none.
    pub time: u32,
}

/// The messages of both roles to each other, in `status.devices[].data` of the claim. All
/// of it is public.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Data {
    /// The node whose Pods use the claim.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The public key of that node for this claim (PEM).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Where the GPU host accepts guests: `HOST:PORT`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// The certificate of the authority that proves the host (PEM).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub authority: String,
    /// The certificate for the node's key (PEM).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// Why there is no lease.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// The shares of this driver's devices that are allocated to a claim.
#[must_use]
pub fn shares(claim: &Value) -> Vec<Share> {
    let results = claim.pointer("/status/allocation/devices/results");
    let results = results.and_then(Value::as_array).into_iter().flatten();
    results
        .filter(|result| text(result, "/driver") == DRIVER)
        .map(|result| {
            let consumed = |name: &str| {
                let amount = result.pointer(&format!("/consumedCapacity/{name}"));
                amount.and_then(Value::as_str).and_then(quantity::parse)
            };
            let id = result.get("shareID").and_then(Value::as_str);
            Share {
                request: text(result, "/request").to_owned(),
                pool: text(result, "/pool").to_owned(),
                device: text(result, "/device").to_owned(),
                id: id.map(str::to_owned),
                memory: consumed("memory").unwrap_or(0),
                time: consumed("time")
                    .and_then(|time| u32::try_from(time).ok())
                    .unwrap_or(0),
            }
        })
        .collect()
}

/// The one share that a claim may have.
///
/// # Errors
/// One sentence.
pub fn share(claim: &Value) -> Result<Share, String> {
    let shares = shares(claim);
    let [share] = shares.as_slice() else {
        return Err(match shares.is_empty() {
            true => format!("the claim has no device of {DRIVER}"),
            false => format!("the claim has more than one device of {DRIVER}: use one claim each"),
        });
    };
    match share.memory {
        0 => Err("the claim has no share of the device's memory".into()),
        _ => Ok(share.clone()),
    }
}

fn is_of(entry: &Value, share: &Share) -> bool {
    text(entry, "/driver") == DRIVER
        && text(entry, "/pool") == share.pool
        && text(entry, "/device") == share.device
        && entry.get("shareID").and_then(Value::as_str) == share.id.as_deref()
}

/// Reads the roles' messages about a share.
#[must_use]
pub fn data(claim: &Value, share: &Share) -> Data {
    let devices = claim.pointer("/status/devices").and_then(Value::as_array);
    let mut devices = devices.into_iter().flatten();
    let data = devices.find(|entry| is_of(entry, share));
    let data = data.and_then(|entry| entry.get("data").cloned());
    data.and_then(|data| serde_json::from_value(data).ok())
        .unwrap_or_default()
}

/// Replaces the roles' messages about a share. Empty data removes them.
pub fn set_data(claim: &mut Value, share: &Share, data: &Data) {
    let Some(status) = claim.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    let entry = status.entry("devices").or_insert_with(|| json!([]));
    let Some(devices) = entry.as_array_mut() else {
        return;
    };
    devices.retain(|entry| !is_of(entry, share));
    if *data != Data::default() {
        let mut entry = Map::new();
        entry.insert("driver".into(), DRIVER.into());
        entry.insert("pool".into(), share.pool.as_str().into());
        entry.insert("device".into(), share.device.as_str().into());
        if let Some(id) = &share.id {
            entry.insert("shareID".into(), id.as_str().into());
        }
        entry.insert("data".into(), json!(data));
        devices.push(Value::Object(entry));
    }
}

/// Whether this can be part of a path, like Kubernetes' uids, names and namespaces.
#[must_use]
pub fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.len() <= 253 && !name.starts_with('.') && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(results: Value) -> Value {
        json!({"status": {"allocation": {"devices": {"results": results}}}})
    }

    #[test]
    fn a_claim_has_one_share_of_one_device() {
        let own = json!({
            "request": "gpu", "driver": DRIVER, "pool": "gpu1", "device": "gpu-0",
            "shareID": "s", "consumedCapacity": {"memory": "2Gi", "time": "250"},
        });
        let other = json!({"request": "net", "driver": "net.example", "pool": "p", "device": "d"});
        let found = share(&claim(json!([other, own]))).unwrap();
        assert_eq!((found.memory, found.time), (2 << 30, 250));
        assert_eq!(found.id.as_deref(), Some("s"));
        for bad in [json!([]), json!([other]), json!([own, own])] {
            assert!(share(&claim(bad.clone())).is_err(), "{bad}");
        }
        let mut whole = own;
        whole.as_object_mut().unwrap().remove("consumedCapacity");
        assert!(share(&claim(json!([whole]))).is_err());
        assert!(share(&json!({})).is_err());
    }

    #[test]
    fn what_others_said_stays() {
        let own = json!({
            "driver": DRIVER, "pool": "gpu1", "device": "gpu-0", "shareID": "s",
            "consumedCapacity": {"memory": "1"},
        });
        let mut claim = claim(json!([own]));
        let share = share(&claim).unwrap();
        let other = json!({"driver": "net.example", "pool": "p", "device": "d", "data": {"a": 1}});
        claim["status"]["devices"] = json!([other]);
        let said = Data {
            key: "k".into(),
            ..Data::default()
        };
        set_data(&mut claim, &share, &said);
        assert_eq!(data(&claim, &share), said);
        assert_eq!(claim["status"]["devices"][0], other);
        set_data(&mut claim, &share, &Data::default());
        assert_eq!(claim["status"]["devices"], json!([other]));
    }

    #[test]
    fn names_that_leave_a_directory_are_refused() {
        for good in ["a", "0b3-4", "a.b"] {
            assert!(is_plain(good));
        }
        for bad in ["", ".", "..", "a/b", "a b", "a\0", "é"] {
            assert!(!is_plain(bad), "{bad:?}");
        }
    }
}
