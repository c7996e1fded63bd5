//! Attributes of streams, of launches and of kernel nodes that steer the GPU without
//! changing results: their defaults, and what values a device allows.

use std::collections::BTreeMap;

use paragpu_abi::{
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW as ACCESS_POLICY_WINDOW,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE as CLUSTER_SCHEDULING,
    CU_LAUNCH_ATTRIBUTE_IGNORE as IGNORE, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN as DOMAIN,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP as DOMAIN_MAP,
    CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING as NVLINK_SCHEDULING,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as CARVEOUT,
    CU_LAUNCH_ATTRIBUTE_PRIORITY as PRIORITY,
    CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY as SYNCHRONIZATION_POLICY,
};
use paragpu_protocol::codec::Field;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::LaunchPreference;

use crate::error::Result;

/// The value of an attribute, as the program passes it.
pub type Value = [u64; 8];

// CU_LAUNCH_ATTRIBUTE_…

/// The limits of the device.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of bytes of an access policy window.
    pub window: u64,
    /// Memory synchronization domains.
    pub domains: u64,
}

/// Whether CUDA 13.0 gives the number of an attribute a meaning. Others are invalid values.
#[must_use]
pub fn is_defined(attribute: i32) -> bool {
    (IGNORE..=CARVEOUT).contains(&attribute) || attribute == NVLINK_SCHEDULING
}

/// The default of an attribute; `None` for other attributes.
pub(crate) fn default_of(attribute: i32) -> Option<Value> {
    let mut value = [0; 8];
    match attribute {
        ACCESS_POLICY_WINDOW | CLUSTER_SCHEDULING | PRIORITY | DOMAIN => {}
        // None is set.
        SYNCHRONIZATION_POLICY => value = word(0xffff_ffff),
        // The default domain is 0, the remote one 1.
        DOMAIN_MAP => value = word(0x100),
        CARVEOUT => value = word(0xffff_ffff),
        _ => return None,
    }
    Some(value)
}

/// Whether it is a preference of a launch or of a kernel node.
#[must_use]
pub fn is_of_launch(attribute: i32) -> bool {
    attribute != SYNCHRONIZATION_POLICY && default_of(attribute).is_some()
}

fn word(value: u64) -> Value {
    [value, 0, 0, 0, 0, 0, 0, 0]
}

fn low(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// The meaningful part of a value.
///
/// # Errors
/// `INVALID_VALUE` for invalid values, for values that the device does not allow, and for
/// other attributes.
pub(crate) fn checked(attribute: i32, value: Value, limits: Limits) -> Result<Value> {
    let [first, second, third, fourth, ..] = value;
    let kept = match attribute {
        ACCESS_POLICY_WINDOW => {
            // Address, bytes, share of hits with the number of their property,
            // property of misses: normal, streaming, persisting.
            let (bytes, hits, misses) = (second, third >> 32, low(fourth));
            let bits = u32::try_from(low(third)).map_err(|_| Status::INVALID_VALUE)?;
            let share = (0.0..=1.0).contains(&f32::from_bits(bits));
            if bytes > limits.window || !share || hits > 2 || misses > 1 {
                return Err(Status::INVALID_VALUE);
            }
            [first, second, third, misses, 0, 0, 0, 0]
        }
        SYNCHRONIZATION_POLICY if (1..=4).contains(&low(first)) => word(low(first)),
        CLUSTER_SCHEDULING if low(first) <= 2 => word(low(first)),
        PRIORITY => word(low(first)),
        DOMAIN if low(first) <= 1 => word(low(first)),
        DOMAIN_MAP if first & 0xff < limits.domains && (first >> 8) & 0xff < limits.domains => {
            word(first & 0xffff)
        }
        CARVEOUT if matches!(low(first), 0..=100 | 0xffff_ffff) => word(low(first)),
        _ => return Err(Status::INVALID_VALUE),
    };
    Ok(kept)
}

/// The preferences that were set for a launch or a kernel node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preferences(BTreeMap<i32, Value>);

impl Preferences {
    /// None are set.
    pub const NONE: Self = Self(BTreeMap::new());

    /// Sets one.
    ///
    /// # Errors
    /// `INVALID_VALUE` for invalid values and for values that the device does not allow.
    pub fn set(&mut self, attribute: i32, value: Value, limits: Limits) -> Result<()> {
        let value = checked(attribute, value, limits)?;
        self.0.insert(attribute, value);
        Ok(())
    }

    /// The value of one, or its default.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other attributes.
    pub fn get(&self, attribute: i32) -> Result<Value> {
        if !is_of_launch(attribute) {
            return Err(Status::INVALID_VALUE);
        }
        let set = self.0.get(&attribute).copied();
        set.or_else(|| default_of(attribute))
            .ok_or(Status::INVALID_VALUE)
    }

    /// The priority.
    pub(crate) fn priority(&self) -> Option<Value> {
        self.get(PRIORITY).ok()
    }

    /// Sets the priority unless it is set.
    pub(crate) fn inherit_priority(&mut self, priority: i32) {
        let value = word(priority.cast_unsigned().into());
        if priority != 0 {
            self.0.entry(PRIORITY).or_insert(value);
        }
    }

    /// Encoded for a launch, as `LaunchPreference`s.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (attribute, words) in &self.0 {
            let preference = LaunchPreference {
                attribute: attribute.cast_unsigned(),
                value: bytes_of(*words),
            };
            preference.encode(&mut bytes);
        }
        bytes
    }
}

/// A value in the byte order of the wire.
pub(crate) fn bytes_of(value: Value) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (place, word) in bytes.chunks_exact_mut(8).zip(value) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        window: 1 << 20,
        domains: 4,
    };

    fn window(bytes: u64, share: f32, hits: u64, misses: u64) -> Value {
        let third = u64::from(share.to_bits()) | hits << 32;
        [0x1000, bytes, third, misses, 0, 0, 0, 0]
    }

    #[test]
    fn values_that_the_device_does_not_allow_are_refused() {
        for (attribute, value) in [
            (ACCESS_POLICY_WINDOW, window((1 << 20) + 1, 0.5, 0, 0)),
            (ACCESS_POLICY_WINDOW, window(1, 1.5, 0, 0)),
            (ACCESS_POLICY_WINDOW, window(1, f32::NAN, 0, 0)),
            (ACCESS_POLICY_WINDOW, window(1, 0.5, 3, 0)),
            (ACCESS_POLICY_WINDOW, window(1, 0.5, 0, 2)),
            (SYNCHRONIZATION_POLICY, [0; 8]),
            (SYNCHRONIZATION_POLICY, word(5)),
            (CLUSTER_SCHEDULING, word(3)),
            (CARVEOUT, word(101)),
            (CARVEOUT, word(0xffff_fffe)),
            (DOMAIN, word(2)),
            (DOMAIN_MAP, word(4)),
            (DOMAIN_MAP, word(0x400)),
            (2, word(1)),
        ] {
            let found = checked(attribute, value, LIMITS);
            assert_eq!(found, Err(Status::INVALID_VALUE), "{attribute} {value:?}");
        }
        assert!(!is_of_launch(2) && !is_of_launch(SYNCHRONIZATION_POLICY));
    }

    #[test]
    fn a_launch_carries_what_was_set() {
        let mut preferences = Preferences::NONE;
        assert_eq!(preferences.encode(), []);
        preferences.set(CARVEOUT, word(50), LIMITS).unwrap();
        preferences.inherit_priority(-3);
        preferences.inherit_priority(-1);
        assert_eq!(preferences.get(PRIORITY), Ok(word(0xffff_fffd)));
        assert_eq!(preferences.get(DOMAIN_MAP), Ok(word(0x100)));
        let bytes = preferences.encode();
        let (records, rest) = bytes.as_chunks::<68>();
        assert!(rest.is_empty() && records.len() == 2);
        assert_eq!(&records[0][..5], [8, 0, 0, 0, 0xfd]);
        assert_eq!(&records[1][..5], [14, 0, 0, 0, 50]);
    }
}
