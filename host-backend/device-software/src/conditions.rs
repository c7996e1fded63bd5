//! What kernels set, and conditional nodes of graphs follow.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A value that kernels set.
pub type Value = Arc<AtomicU32>;

/// The values of a device's graphs, by what kernels call them.
#[derive(Debug, Default)]
pub struct Conditions {
    values: Mutex<Values>,
}

#[derive(Debug, Default)]
struct Values {
    all: HashMap<u64, Weak<AtomicU32>>,
    /// With so many, those that nobody holds are looked for. Twice as many as were held the last time, so that a
    /// graph with a million values does not look at all of them for each.
    crowd: usize,
}

/// Values that are never looked through.
const FEW: usize = 64;

impl Conditions {
    /// The value, as long as somebody holds it; a new one is `first`.
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

    /// A kernel sets a value; one that no graph has is no value.
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
