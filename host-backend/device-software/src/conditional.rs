//! Conditional nodes of graphs: what kernels set, and bodies that become operations of the scheduler as it says.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use paragpu_device::Conditional;
use parking_lot::Mutex;

use crate::scheduler::{Unfold, Work};

/// A value that kernels set.
pub type Value = Arc<AtomicU32>;
/// Makes a node's operation anew for each time that its body runs.
pub type Make = Arc<dyn Fn() -> Work + Send + Sync>;
/// A body: its nodes, with the numbers of those of them that each comes after.
pub type Body = Vec<(Vec<usize>, Make)>;

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

/// The operation of a conditional node.
#[must_use]
pub fn unfold(conditional: &Conditional, value: Value, bodies: Arc<Vec<Body>>) -> Work {
    let conditional = conditional.clone();
    let mut again = true;
    let next: Unfold = Box::new(move || {
        if !again {
            return None;
        }
        again = conditional.kind == paragpu_device::ConditionalKind::While;
        let chosen = conditional.chosen(value.load(Ordering::Acquire))?;
        let body = bodies.get(chosen)?;
        Some(
            body.iter()
                .map(|(after, make)| (after.clone(), make()))
                .collect(),
        )
    });
    Work::Unfold(next)
}
