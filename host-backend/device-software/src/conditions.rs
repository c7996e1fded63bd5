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
    values: Mutex<HashMap<u64, Weak<AtomicU32>>>,
}

impl Conditions {
    /// The value, as long as somebody holds it; a new one is `first`.
    #[must_use]
    pub fn value(&self, condition: u64, first: u32) -> Value {
        let mut values = self.values.lock();
        if let Some(value) = values.get(&condition).and_then(Weak::upgrade) {
            return value;
        }
        values.retain(|_, value| value.strong_count() > 0);
        let value = Value::new(AtomicU32::new(first));
        values.insert(condition, Arc::downgrade(&value));
        value
    }

    /// A kernel sets a value; one that no graph has is no value.
    pub fn set(&self, condition: u64, value: u32) {
        let found = self.values.lock().get(&condition).and_then(Weak::upgrade);
        if let Some(place) = found {
            place.store(value, Ordering::Release);
        }
    }
}
