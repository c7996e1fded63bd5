//! TLS connections of guests, from their first byte to their hello.

use std::os::fd::OwnedFd;

use paragpu_communicator_secure::Handshake;
use paragpu_communicator_secure::rustls::Connection;

use super::Broker;
use super::arrivals::{patience, slots};
use crate::handshake::{Guest, Pending, Progress};
use crate::listener::Peer;

impl Broker {
    /// Queues a connection that begins with TLS. Threads do its handshake.
    pub(super) fn greet_under_tls(&mut self, socket: OwnedFd, peer: Peer, tls: Connection) {
        let guest = Guest::handshaking(socket, peer, Handshake::new(tls));
        let pending = Pending::new(guest, patience(&self.host.limits));
        let key = self.counts.key();
        let slots = slots(&self.host.limits);
        self.arrivals.reception.enter(key, pending, slots);
    }

    /// Collects handshakes that threads have advanced.
    pub(super) fn finish_handshake_steps(&mut self) {
        for (key, pending, progress) in self.arrivals.handshakes.done() {
            if let Progress::More = progress {
                self.arrivals.reception.take_back(key, pending);
                self.arrivals
                    .recognize(key, &self.workers, &self.host.limits);
            } else if self.arrivals.reception.check_out(key) {
                self.first_frame(pending.guest, progress);
            }
        }
        self.arrivals.hand_out();
    }
}
