//! Stream attributes that a program sets and reads back. The host's stream gets those that
//! steer the GPU's caches and fences. A synchronization policy has no further effect: it
//! would steer a thread of the worker.

use std::collections::BTreeMap;

use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use crate::error::Result;

/// The value of an attribute, as the program passes it.
pub type Value = [u64; 8];

/// CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, _SYNCHRONIZATION_POLICY,
/// _MEM_SYNC_DOMAIN_MAP and _MEM_SYNC_DOMAIN.
const ACCESS_POLICY_WINDOW: i32 = 1;
const SYNCHRONIZATION_POLICY: i32 = 3;
const DOMAIN_MAP: i32 = 9;
const DOMAIN: i32 = 10;

/// The limits of the device.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of bytes of an access policy window.
    pub window: u64,
    /// Memory synchronization domains.
    pub domains: u64,
}

/// The attributes of a stream that were set.
#[derive(Debug, Default)]
pub struct Attributes(Mutex<BTreeMap<i32, Value>>);

/// Whether the host's stream gets it, too.
#[must_use]
pub fn is_passed_on(attribute: i32) -> bool {
    matches!(attribute, ACCESS_POLICY_WINDOW | DOMAIN_MAP | DOMAIN)
}

/// Whether it is an attribute that is stored here.
#[must_use]
pub fn is_kept(attribute: i32) -> bool {
    known(attribute).is_some()
}

/// The default of an attribute.
fn known(attribute: i32) -> Option<Value> {
    let mut value = [0; 8];
    match attribute {
        ACCESS_POLICY_WINDOW | DOMAIN => {}
        SYNCHRONIZATION_POLICY => value = [1, 0, 0, 0, 0, 0, 0, 0],
        // The default domain is 0, the remote one 1.
        DOMAIN_MAP => value = [0x100, 0, 0, 0, 0, 0, 0, 0],
        _ => return None,
    }
    Some(value)
}

fn low(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// The part of a value that has a meaning, if the device allows it.
fn checked(attribute: i32, value: Value, limits: Limits) -> Result<Value> {
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
            [first, second, third, misses]
        }
        SYNCHRONIZATION_POLICY if (1..=4).contains(&low(first)) => [low(first), 0, 0, 0],
        DOMAIN if low(first) <= 1 => [low(first), 0, 0, 0],
        DOMAIN_MAP if first & 0xff < limits.domains && (first >> 8) & 0xff < limits.domains => {
            [first & 0xffff, 0, 0, 0]
        }
        _ => return Err(Status::INVALID_VALUE),
    };
    let [first, second, third, fourth] = kept;
    Ok([first, second, third, fourth, 0, 0, 0, 0])
}

/// Refuses invalid values of an attribute that is [kept](is_kept).
///
/// # Errors
/// As [`Attributes::set`].
pub fn check(attribute: i32, value: Value, limits: Limits) -> Result<()> {
    checked(attribute, value, limits).map(drop)
}

impl Attributes {
    /// Keeps an attribute.
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
        set.or_else(|| known(attribute))
            .ok_or(Status::INVALID_VALUE)
    }

    /// Takes over those of another stream. Returns all attributes as they are now.
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

    fn window(bytes: u64, share: f32, hits: u64, misses: u64) -> Value {
        let third = u64::from(share.to_bits()) | hits << 32;
        [0x1000, bytes, third, misses, 0, 0, 0, 0]
    }

    #[test]
    fn what_is_set_is_read_back_and_copied() {
        let (one, other) = (Attributes::default(), Attributes::default());
        assert_eq!(one.get(SYNCHRONIZATION_POLICY).unwrap()[0], 1);
        assert_eq!(one.get(DOMAIN_MAP).unwrap()[0], 0x100);
        let given = window(4096, 0.5, 2, 1);
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

    #[test]
    fn values_that_the_device_does_not_allow_are_refused() {
        let attributes = Attributes::default();
        for (attribute, value) in [
            (ACCESS_POLICY_WINDOW, window((1 << 20) + 1, 0.5, 0, 0)),
            (ACCESS_POLICY_WINDOW, window(1, 1.5, 0, 0)),
            (ACCESS_POLICY_WINDOW, window(1, f32::NAN, 0, 0)),
            (ACCESS_POLICY_WINDOW, window(1, 0.5, 3, 0)),
            (ACCESS_POLICY_WINDOW, window(1, 0.5, 0, 2)),
            (SYNCHRONIZATION_POLICY, [0; 8]),
            (SYNCHRONIZATION_POLICY, [5, 0, 0, 0, 0, 0, 0, 0]),
            (DOMAIN, [2, 0, 0, 0, 0, 0, 0, 0]),
            (DOMAIN_MAP, [4, 0, 0, 0, 0, 0, 0, 0]),
            (DOMAIN_MAP, [0x400, 0, 0, 0, 0, 0, 0, 0]),
            (2, [1, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            let found = attributes.set(attribute, value, LIMITS);
            assert_eq!(found, Err(Status::INVALID_VALUE), "{attribute} {value:?}");
        }
        assert!(!is_kept(2) && is_kept(DOMAIN));
    }
}
