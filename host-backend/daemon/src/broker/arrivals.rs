//! Guests that have no session yet.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use paragpu_config::host::Limits;

use super::workers::Workers;
use crate::handshake::{Guest, Progress, SessionRequest};
use crate::handshake_threads::HandshakeThreads;
use crate::listener::Peer;
use crate::reception::Reception;
use crate::slots::oldest_of_largest;

/// A guest that waits for a worker.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) guest: Guest,
    pub(super) request: Box<SessionRequest>,
    /// Index of its GPU, or why it gets none; `None` until the devices are known.
    pub(super) placed: Option<Result<u32, String>>,
}

impl Waiting {
    /// The guest's process in this host's numbering, if the kernel reported it. Another daemon
    /// connects for a session that moves.
    pub(super) fn process(&self) -> Option<i32> {
        match self.guest.peer {
            Peer::Local { pid, .. } if pid > 0 && self.request.arrives.is_none() => Some(pid),
            _ => None,
        }
    }
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
    /// Has an admitted guest wait for a worker.
    pub(super) fn wait(&mut self, guest: Guest, request: Box<SessionRequest>) {
        self.waiting.push_back(Waiting {
            guest,
            request,
            placed: None,
        });
    }

    /// Takes the waiting guests: the first of each VM, the second of each, and so on.
    pub(super) fn take_waiting(&mut self) -> Vec<Waiting> {
        let waiting = std::mem::take(&mut self.waiting);
        in_turns(waiting, |waiting| waiting.request.vm.clone())
    }

    /// Number of guests that wait for a worker of a GPU.
    pub(super) fn waiting_on(&self, position: u32) -> usize {
        let waiting = self.waiting.iter();
        let on_it = waiting.filter(|waiting| waiting.placed == Some(Ok(position)));
        on_it.count()
    }

    /// Number of a VM's guests that wait for a worker.
    pub(super) fn waiting_of(&self, vm: &str) -> usize {
        let waiting = self.waiting.iter();
        waiting.filter(|waiting| waiting.request.vm == vm).count()
    }

    /// Removes a waiting guest that has disconnected.
    pub(super) fn gave_up(&mut self, index: usize) {
        if let Some(waiting) = self.waiting.remove(index) {
            tracing::debug!(
                vm = waiting.request.vm,
                "a guest left before it had a worker"
            );
        }
    }

    /// Continues with a first frame of which more has arrived. Returns it once it is complete
    /// or never will be. A thread continues with the handshake of TLS.
    pub(super) fn advance(&mut self, key: u64) -> Option<(Guest, Progress)> {
        if self.reception.queue(key) {
            self.hand_out();
            return None;
        }
        match self.reception.get_mut(key)?.advance() {
            Progress::More => None,
            progress => Some((self.reception.remove(key)?.guest, progress)),
        }
    }

    /// Prioritizes a connection that presents the token of a session of this host.
    pub(super) fn recognize(&mut self, key: u64, workers: &Workers, limits: &Limits) {
        let pending = self.reception.get_mut(key);
        let token = pending.and_then(|pending| pending.token());
        if token.is_some_and(|token| workers.know(&token)) {
            self.reception.recognize(key, slots(limits));
        }
    }

    /// Gives handshakes to idle threads.
    pub(super) fn hand_out(&mut self) {
        while self.handshakes.is_idle() {
            let Some((key, pending)) = self.reception.next_to_shake() else {
                return;
            };
            self.handshakes.submit(key, pending);
        }
    }

    /// Closes connections whose hello did not arrive in time.
    pub(super) fn give_up_on_silent(&mut self, now: Instant) {
        for source in self.reception.overdue(now) {
            tracing::info!(?source, "a connection did not send its hello in time");
        }
    }

    /// Keeps a guest of a lease that has no agent yet. Returns the guest that loses its place,
    /// if there are `most` already.
    pub(super) fn keep(&mut self, early: Early, most: usize) -> Option<Early> {
        let keys = self.early.iter().zip(0..);
        let vms = keys.map(|(early, key)| (&early.vm, key));
        let displaced = match self.early.len() >= most {
            true => oldest_of_largest(vms).and_then(|oldest| usize::try_from(oldest).ok()),
            false => None,
        };
        let displaced = displaced.map(|oldest| self.early.remove(oldest));
        self.early.push(early);
        displaced
    }
}

/// Deadline for the hello of a new connection.
pub(super) fn patience(limits: &Limits) -> Instant {
    Instant::now() + Duration::from_millis(limits.hello.into())
}

/// Maximum number of connections without a hello.
pub(super) fn slots(limits: &Limits) -> usize {
    usize::try_from(limits.pending).unwrap_or(usize::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_take_turns() {
        let queue = ["a1", "a2", "a3", "b1", "c1", "b2"].into();
        let ordered = in_turns(queue, |name: &&str| name[..1].to_owned());
        assert_eq!(ordered, ["a1", "b1", "c1", "a2", "b2", "a3"]);
    }
}
