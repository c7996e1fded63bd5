//! Stream attributes that a program sets and reads back. The host's stream receives those
//! that control the GPU's caches and fences. A synchronization policy has no effect: it
//! would only affect a thread of the worker.

use std::collections::BTreeMap;

use paragpu_abi::{
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW as ACCESS_POLICY_WINDOW,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN as DOMAIN,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP as DOMAIN_MAP,
    CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY as SYNCHRONIZATION_POLICY,
};
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use crate::error::Result;
use crate::objects::preference::{Limits, Value, checked, default_of};

/// The attributes of a stream that were set.
#[derive(Debug, Default)]
pub struct Attributes(Mutex<BTreeMap<i32, Value>>);

/// Whether the host's stream receives it, too.
#[must_use]
pub fn is_passed_on(attribute: i32) -> bool {
    matches!(attribute, ACCESS_POLICY_WINDOW | DOMAIN_MAP | DOMAIN)
}

/// Whether it is stored here.
#[must_use]
pub fn is_kept(attribute: i32) -> bool {
    matches!(
        attribute,
        ACCESS_POLICY_WINDOW | SYNCHRONIZATION_POLICY | DOMAIN_MAP | DOMAIN
    )
}

impl Attributes {
    /// Stores an attribute.
    ///
    /// # Errors
    /// `INVALID_VALUE` for invalid values, and for values that the device does
    /// not allow.
    pub fn set(&self, attribute: i32, value: Value, limits: Limits) -> Result<()> {
        let value = checked(attribute, value, limits)?;
        self.0.lock().insert(attribute, value);
        Ok(())
    }

    /// The value, or the attribute's default.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown attributes.
    pub fn get(&self, attribute: i32) -> Result<Value> {
        let set = self.0.lock().get(&attribute).copied();
        set.or_else(|| default_of(attribute))
            .ok_or(Status::INVALID_VALUE)
    }

    /// Copies the attributes of another stream. Returns all attributes.
    pub fn copy(&self, from: &Self) -> Vec<(i32, Value)> {
        let set = from.0.lock().clone();
        *self.0.lock() = set;
        let all = [
            ACCESS_POLICY_WINDOW,
            SYNCHRONIZATION_POLICY,
            DOMAIN_MAP,
            DOMAIN,
        ];
        let valued = |attribute| Some((attribute, self.get(attribute).ok()?));
        all.into_iter().filter_map(valued).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        window: 1 << 20,
        domains: 4,
    };

    #[test]
    fn what_is_set_is_read_back_and_copied() {
        assert!(!is_kept(2) && is_kept(DOMAIN));
        let (one, other) = (Attributes::default(), Attributes::default());
        assert_eq!(one.get(SYNCHRONIZATION_POLICY).unwrap()[0], 0xffff_ffff);
        assert_eq!(one.get(DOMAIN_MAP).unwrap()[0], 0x100);
        let half = u64::from(0.5_f32.to_bits());
        let given = [0x1000, 4096, half | 2 << 32, 1, 0, 0, 0, 0];
        one.set(ACCESS_POLICY_WINDOW, given, LIMITS).unwrap();
        one.set(DOMAIN_MAP, [0xffff_0302, 9, 9, 9, 9, 9, 9, 9], LIMITS)
            .unwrap();
        assert_eq!(one.get(ACCESS_POLICY_WINDOW), Ok(given));
        assert_eq!(one.get(DOMAIN_MAP), Ok([0x302, 0, 0, 0, 0, 0, 0, 0]));
        other.copy(&one);
        assert_eq!(other.get(ACCESS_POLICY_WINDOW), Ok(given));
        other.copy(&Attributes::default());
        assert_eq!(other.get(ACCESS_POLICY_WINDOW), Ok([0; 8]));
    }
}
