//! Conditional nodes of graphs, whose bodies become operations of the scheduler depending
//! on a value.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use paragpu_device::Conditional;

use crate::conditions::Value;
use crate::scheduler::{Unfold, Work};

/// Creates a node's operation for each run of its body.
pub type Make = Arc<dyn Fn() -> Work + Send + Sync>;
/// A body: its nodes, each with the numbers of the nodes on which it depends.
pub type Body = Vec<(Vec<usize>, Make)>;

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
