//! Memory that sessions of a VM share, as a daemon passes it on.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use paragpu_control::exchange::{Ask, Offer, Token};
use paragpu_control::socket::{Control, Inbox};
use paragpu_control::worker::FromWorker;
use parking_lot::Mutex;

use crate::daemon_link::DaemonLink;
use crate::exchange::{Answer, Exchange};

/// The offers of a VM's sessions.
pub(crate) type Offers = Arc<Mutex<BTreeMap<Token, (Offer, OwnedFd)>>>;

/// Answers one worker as a daemon does.
pub(crate) fn daemon(offers: Offers) -> Arc<Exchange> {
    let (daemon, worker) = Control::pair().unwrap();
    let exchange = Arc::new(Exchange::new(Arc::new(DaemonLink::new(
        Arc::new(worker),
        None,
    ))));
    let answering = Arc::clone(&exchange);
    std::thread::spawn(move || {
        let (mut inbox, mut tokens) = (Inbox::default(), 0);
        while daemon.receive(&mut inbox, true).is_ok() {
            let memory = inbox.fds.pop();
            let FromWorker::Exchange { request, ask } = inbox.message().unwrap() else {
                panic!("another message");
            };
            let mut offers = offers.lock();
            let mut answer = Answer::default();
            match ask {
                Ask::Offer { size, domain } => {
                    tokens += 1;
                    let token = [tokens; 16];
                    let offer = Offer {
                        token,
                        size,
                        domain,
                    };
                    offers.insert(token, (offer, memory.unwrap()));
                    answer.offer = Some(offer);
                }
                Ask::Again(offer) => {
                    offers.insert(offer.token, (offer, memory.unwrap()));
                    answer.offer = Some(offer);
                }
                Ask::Withdraw(token) => drop(offers.remove(&token)),
                // What it charges is tested with the real one.
                Ask::Return(_) | Ask::Enlarge(_) => {}
                Ask::Take(token) | Ask::Join(token) | Ask::Borrow(token) => {
                    if let Some((offer, memory)) = offers.get(&token) {
                        answer.offer = Some(*offer);
                        answer.memory = Some(memory.as_fd().try_clone_to_owned().unwrap());
                    }
                }
            }
            answering.answered(request, answer);
        }
    });
    exchange
}
