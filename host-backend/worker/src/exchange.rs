//! Requests to the daemon about memory that sessions of the VM share
//! ([`paragpu_control::exchange`]), and about the VM's part of the GPU
//! ([`paragpu_control::account`]).
//!
//! The session's thread sends the request and blocks for a round trip. That is
//! short, because the daemon never blocks. The attendant thread receives the reply.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use paragpu_control::account::Divider;
use paragpu_control::exchange::{Ask, Offer};
use paragpu_control::worker::FromWorker;
use parking_lot::{Condvar, Mutex};

use crate::daemon_link::DaemonLink;

/// Maximum wait for a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// The daemon's reply.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// `None` if there is no result.
    pub(crate) offer: Option<Offer>,
    /// Bytes of the VM's part of the GPU.
    pub(crate) part: Option<u64>,
    /// A descriptor that came with the reply.
    pub(crate) memory: Option<OwnedFd>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last request.
    last_request: u64,
    answer: Option<Answer>,
    /// Whether the daemon is gone.
    closed: bool,
}

/// The channel to the daemon.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// `None` if there is no daemon.
    daemon: Option<Arc<DaemonLink>>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Exchange {
    /// Over a worker's control socket.
    pub(crate) fn new(daemon: Arc<DaemonLink>) -> Self {
        Self {
            daemon: Some(daemon),
            ..Self::default()
        }
    }

    /// Sends a request and waits for the reply. `None` if there is none.
    pub(crate) fn query(&self, ask: Ask, fds: &[BorrowedFd<'_>]) -> Option<Answer> {
        let daemon = self.daemon.as_ref()?;
        let request = {
            let mut state = self.state.lock();
            state.last_request += 1;
            state.answer = None;
            state.last_request
        };
        daemon
            .send(&FromWorker::Exchange { request, ask }, fds)
            .ok()?;
        let waits = |state: &mut State| state.answer.is_none() && !state.closed;
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, waits, PATIENCE);
        state.answer.take()
    }

    /// Delivers the daemon's reply.
    pub(crate) fn answered(&self, request: u64, answer: Answer) {
        let mut state = self.state.lock();
        // A late reply is dropped.
        if state.last_request == request {
            state.answer = Some(answer);
            self.changed.notify_all();
        }
    }

    /// Records that the daemon is gone.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// Records that there is a daemon again.
    pub(crate) fn reopen(&self) {
        self.state.lock().closed = false;
    }
}

impl Divider for Exchange {
    fn enlarge(&self, total: u64) -> Option<u64> {
        self.query(Ask::Enlarge(total), &[])?.part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_control::socket::{Control, Inbox};

    #[test]
    fn late_replies_are_dropped() {
        let (daemon, worker) = Control::pair().unwrap();
        let exchange = Arc::new(Exchange::new(Arc::new(DaemonLink::new(
            Arc::new(worker),
            None,
        ))));
        let other = Arc::clone(&exchange);
        let asking = std::thread::spawn(move || other.query(Ask::Take([7; 16]), &[]));
        let mut inbox = Inbox::default();
        daemon.receive(&mut inbox, true).unwrap();
        let FromWorker::Exchange { request, ask } = inbox.message().unwrap() else {
            panic!("another message");
        };
        assert_eq!(ask, Ask::Take([7; 16]));
        let answer = |size| Answer {
            offer: Some(Offer {
                token: [7; 16],
                size,
                domain: [0; 16],
            }),
            ..Answer::default()
        };
        exchange.answered(request + 1, answer(1));
        exchange.answered(request, answer(2));
        let taken = asking.join().unwrap().unwrap();
        assert_eq!(taken.offer.unwrap().size, 2);
        exchange.close();
        assert!(exchange.query(Ask::Take([7; 16]), &[]).is_none());
        assert!(Exchange::default().query(Ask::Take([0; 16]), &[]).is_none());
    }
}
