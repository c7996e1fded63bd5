//! The values that kernels set and that control conditional nodes of graphs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A condition's value.
pub type Value = Arc<AtomicU32>;

/// The values of a device's graphs, by the handle that kernels use.
#[derive(Debug, Default)]
pub struct Conditions {
    values: Mutex<Values>,
}

#[derive(Debug, Default)]
struct Values {
    all: HashMap<u64, Weak<AtomicU32>>,
    /// The number of entries at which unused ones are removed. It is twice the number that
    /// was left the last time, so that creating a million values takes linear time.
    crowd: usize,
}

/// Below this number of entries, none are removed.
const FEW: usize = 64;

impl Conditions {
    /// Returns the value of a condition; a new one is `first`. It is kept as long as it is
    /// referenced.
    #[must_use]
    pub fn value(&self, condition: u64, first: u32) -> Value {
        let mut values = self.values.lock();
        if let Some(value) = values.all.get(&condition).and_then(Weak::upgrade) {
            return value;
        }
        if values.all.len() >= values.crowd.max(FEW) {
            values.all.retain(|_, value| value.strong_count() > 0);
            values.crowd = values.all.len() * 2;
        }
        let value = Value::new(AtomicU32::new(first));
        values.all.insert(condition, Arc::downgrade(&value));
        value
    }

    /// Sets a value for a kernel. Ignores handles that no graph has.
    pub fn set(&self, condition: u64, value: u32) {
        let found = self
            .values
            .lock()
            .all
            .get(&condition)
            .and_then(Weak::upgrade);
        if let Some(place) = found {
            place.store(value, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_nobody_holds_go() {
        let conditions = Conditions::default();
        let held: Vec<Value> = (0..100).map(|number| conditions.value(number, 7)).collect();
        for number in 100..100_000 {
            drop(conditions.value(number, 1));
        }
        assert!(conditions.values.lock().all.len() <= 2 * held.len().max(FEW));
        conditions.set(99, 8);
        assert_eq!(conditions.value(99, 0).load(Ordering::Acquire), 8);
        assert_eq!(conditions.value(98, 0).load(Ordering::Acquire), 7);
    }
}
