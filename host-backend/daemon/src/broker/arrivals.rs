//! Guests that have no session yet.

use std::collections::{BTreeMap, VecDeque};

use crate::handshake::{Guest, SessionRequest};
use crate::handshake_threads::HandshakeThreads;
use crate::reception::Reception;

/// A guest that waits for a worker.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) guest: Guest,
    pub(super) request: Box<SessionRequest>,
    /// Index of its GPU, or why it gets none; `None` until the devices are known.
    pub(super) placed: Option<Result<u32, String>>,
}

/// A guest that reconnected before the agent of its lease.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) vm: String,
    pub(super) guest: Guest,
    pub(super) request: Box<SessionRequest>,
}

/// Guests that are being admitted.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// Peers that have not completed their hello.
    pub(super) reception: Reception,
    /// Threads for their handshakes.
    pub(super) handshakes: HandshakeThreads,
    /// Admitted guests without a worker.
    pub(super) waiting: VecDeque<Waiting>,
    /// Guests of leases whose agents have not reclaimed them yet.
    pub(super) early: Vec<Early>,
    /// Index of the GPU of the latest session.
    pub(super) last_position: Option<u32>,
}

impl Arrivals {
    /// Takes the waiting guests: the first of each VM, the second of each, and so on.
    pub(super) fn take_waiting(&mut self) -> Vec<Waiting> {
        let waiting = std::mem::take(&mut self.waiting);
        in_turns(waiting, |waiting| waiting.request.vm.clone())
    }

    /// Keeps a guest of a lease that has no agent yet. Returns the guest that loses its place,
    /// if there are `most` already.
    pub(super) fn keep(&mut self, early: Early, most: usize) -> Option<Early> {
        let vms: Vec<&str> = self.early.iter().map(|early| &*early.vm).collect();
        let displaced = (vms.len() >= most)
            .then(|| oldest_of_largest(&vms))
            .flatten();
        let displaced = displaced.map(|position| self.early.remove(position));
        self.early.push(early);
        displaced
    }
}

/// Reorders a queue so that VMs take turns. Each VM's entries keep their order.
fn in_turns<T>(queue: VecDeque<T>, vm: impl Fn(&T) -> String) -> Vec<T> {
    let mut before = BTreeMap::new();
    let turns = queue.into_iter().map(|entry| {
        let count = before.entry(vm(&entry)).or_insert(0_usize);
        *count += 1;
        (*count, entry)
    });
    let mut turns: Vec<_> = turns.collect();
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, entry)| entry).collect()
}

/// The first entry of the VM that has the most, so that one VM's guests take places from that
/// VM only.
fn oldest_of_largest(vms: &[&str]) -> Option<usize> {
    let mut counts = BTreeMap::new();
    for vm in vms {
        *counts.entry(*vm).or_insert(0_usize) += 1;
    }
    let (largest, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    vms.iter().position(|vm| *vm == largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_take_turns() {
        let queue = ["a1", "a2", "a3", "b1", "c1", "b2"].into();
        let ordered = in_turns(queue, |name: &&str| name[..1].to_owned());
        assert_eq!(ordered, ["a1", "b1", "c1", "a2", "b2", "a3"]);
    }

    #[test]
    fn a_vm_with_many_guests_takes_no_places_of_others() {
        assert_eq!(oldest_of_largest(&[]), None);
        assert_eq!(oldest_of_largest(&["a", "b", "b", "b", "a"]), Some(1));
        let mut vms = vec!["honest"; 3];
        for _ in 0..200 {
            if vms.len() >= 16 {
                vms.remove(oldest_of_largest(&vms).unwrap());
            }
            vms.push("hostile");
        }
        assert_eq!(vms.iter().filter(|vm| **vm == "honest").count(), 3);
    }
}
