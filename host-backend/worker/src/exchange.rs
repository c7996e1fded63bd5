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
    /// The daemon has not answered a request in time, and none since.
    silent: bool,
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
        self.query_within(PATIENCE, ask, fds)
    }

    fn query_within(&self, patience: Duration, ask: Ask, fds: &[BorrowedFd<'_>]) -> Option<Answer> {
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
        let waited = self.changed.wait_while_for(&mut state, waits, patience);
        state.silent |= waited.timed_out();
        state.answer.take()
    }

    /// Delivers the daemon's reply.
    pub(crate) fn answered(&self, request: u64, answer: Answer) {
        let mut state = self.state.lock();
        state.silent = false;
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
        let mut state = self.state.lock();
        (state.closed, state.silent) = (false, false);
    }
}

impl Divider for Exchange {
    /// Does not ask a daemon again that is [silent](State::silent): programs allocate all the time.
    fn enlarge(&self, total: u64) -> Option<u64> {
        if self.state.lock().silent {
            return None;
        }
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

    #[test]
    fn a_daemon_that_does_not_answer_is_waited_for_once() {
        for comes_anew in [false, true] {
            let (daemon, worker) = Control::pair().unwrap();
            let link = DaemonLink::new(Arc::new(worker), None);
            let exchange = Arc::new(Exchange::new(Arc::new(link)));
            let mut inbox = Inbox::default();
            let mut asked = || {
                daemon.receive(&mut inbox, true).unwrap();
                match inbox.message().unwrap() {
                    FromWorker::Exchange { ask, .. } => ask,
                    _ => panic!("another message"),
                }
            };
            let first = Ask::Enlarge(1);
            let answer = exchange.query_within(Duration::ZERO, first, &[]);
            assert!(answer.is_none() && asked() == first);
            assert_eq!(exchange.enlarge(2), None);
            match comes_anew {
                true => exchange.reopen(),
                false => exchange.answered(1, Answer::default()),
            }
            let other = Arc::clone(&exchange);
            let asking = std::thread::spawn(move || other.enlarge(3));
            assert_eq!(asked(), Ask::Enlarge(3), "it was not asked meanwhile");
            let part = Some(9);
            let answer = Answer {
                part,
                ..Answer::default()
            };
            exchange.answered(2, answer);
            assert_eq!(asking.join().unwrap(), part);
        }
    }
}
