//! TLS connections of guests, from their first byte to their hello.

use std::os::fd::OwnedFd;

use paragpu_communicator_secure::Handshake;
use paragpu_communicator_secure::rustls::Connection;

use super::Broker;
use crate::handshake::{Guest, Pending, Progress};
use crate::listener::Peer;

impl Broker {
    /// Queues a connection that begins with TLS. Threads do its handshake.
    pub(super) fn greet_under_tls(&mut self, socket: OwnedFd, peer: Peer, tls: Connection) {
        let guest = Guest::handshaking(socket, peer, Handshake::new(tls));
        let pending = Pending::new(guest, self.patience());
        let key = self.counts.key();
        let places = self.slots();
        self.arrivals.reception.enter(key, pending, places);
    }

    /// Gives handshakes to idle threads.
    pub(super) fn hand_out(&mut self) {
        while self.arrivals.handshakes.is_idle() {
            let Some((key, pending)) = self.arrivals.reception.next_to_shake() else {
                return;
            };
            self.arrivals.handshakes.submit(key, pending);
        }
    }

    /// Collects handshakes that threads have advanced.
    pub(super) fn finish_handshake_steps(&mut self) {
        for (key, pending, progress) in self.arrivals.handshakes.done() {
            if let Progress::More = progress {
                self.arrivals.reception.take_back(key, pending);
                self.recognize(key);
            } else if self.arrivals.reception.check_out(key) {
                self.first_frame(pending.guest, progress);
            }
        }
        self.hand_out();
    }
}
