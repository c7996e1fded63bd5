//! The daemon's orders to a running session.

use parking_lot::{Condvar, Mutex};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::Wake;
pub use paragpu_control::worker::{Figures, Phase, Progress, Report, Route, Step};
use paragpu_log::cut;

/// An order.
#[derive(Debug)]
pub enum Order {
    /// Write the session's state.
    Checkpoint {
        /// The target.
        target: CheckpointTarget,
        /// End the session when it is written.
        end: bool,
    },
    /// Continue in another worker.
    Migrate(Departure),
}

/// The target of a checkpoint.
#[derive(Debug)]
pub struct CheckpointTarget {
    /// The directory, which is created if it does not exist.
    pub directory: PathBuf,
    /// The file in it, if the daemon has created one and will name it.
    pub file: Option<File>,
}

/// How a session leaves: [`Migrate`](paragpu_control::worker::Migrate).
#[derive(Debug)]
pub struct Departure {
    /// The link to the destination's daemon, to which the session is announced.
    pub link: OwnedFd,
    /// The link can carry descriptors.
    pub local: bool,
    /// The destination is another worker of this daemon.
    pub here: bool,
    /// The communicator over which the guest continues there; empty to keep its
    /// connection.
    pub follows: String,
    /// For sessions that move together: the pipes that open the stop, the rest after it,
    /// and the commit.
    pub gates: Option<[OwnedFd; 3]>,
    /// Pre-copy memory.
    pub precopy: bool,
    /// Hand over device memory if both ends are on one GPU.
    pub hand_over: bool,
}

/// Microseconds of [`Figures`].
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Who hears of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Giver {
    /// The daemon that gave it.
    Daemon,
    /// Nobody: the worker gave it itself, or the daemon that gave it is gone. A later daemon
    /// would take its reports for those of an order of its own.
    Nobody,
}

/// The order of a session, one at most.
///
/// ```text
///           give              take                 Done or Failed is reported
///   Free ─────────▶ Waiting ─────────▶ Underway ──────────────────────────────▶ Free
///    ▲                 │
///    └─────────────────┘ it is withdrawn, or its daemon is gone
/// ```
#[derive(Debug)]
enum Place {
    Free,
    Waiting(Order, Giver),
    /// The session's thread carries it out.
    Underway(Giver),
}

impl Place {
    /// Whether the daemon that gave the order underway is still there.
    fn is_heard(&self) -> bool {
        !matches!(self, Self::Underway(Giver::Nobody))
    }
}

/// How long a session's thread waits for its guest before it takes no orders. A guest that is not
/// stopped connects again at once.
pub(crate) const AWAY: Duration = Duration::from_secs(3);
/// Why it takes none then.
pub(crate) const DISCONNECTED: &str =
    "its program is disconnected, so try again when it is connected";

/// Why the session's thread did not take an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Untaken {
    /// It waits for its guest.
    Away,
    /// It may be in a call of the device that does not return.
    Busy,
}

/// How long an order waits for the session's thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Since the connection to the guest was lost.
    pub(crate) away: Duration,
    /// Since the order was given.
    pub(crate) busy: Duration,
}

/// The daemon's orders to a session, one after the other.
pub struct Orders {
    /// Whether one is [`Waiting`](Place::Waiting).
    waiting: AtomicBool,
    place: Mutex<Place>,
    /// Since when the session's thread waits for its guest; changed under the lock of `place`.
    away: Mutex<Option<Instant>>,
    /// Number of orders given; changed under the lock of `place`.
    given: AtomicU64,
    /// Notified when the order is taken, and when the guest leaves or returns.
    taken: Condvar,
    /// The daemon answered [`Report::Resumes`].
    resumed: AtomicBool,
    /// When the guest's certificate expires, as of the last checkpoint.
    expires: AtomicU64,
    wake: Mutex<Option<Arc<dyn Wake>>>,
    report: Box<dyn Fn(Report) + Send + Sync>,
}

impl std::fmt::Debug for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orders").finish_non_exhaustive()
    }
}

impl Orders {
    /// Orders whose reports go to `report`.
    pub fn new(report: impl Fn(Report) + Send + Sync + 'static) -> Self {
        Self {
            waiting: AtomicBool::new(false),
            place: Mutex::new(Place::Free),
            away: Mutex::new(None),
            given: AtomicU64::new(0),
            taken: Condvar::new(),
            resumed: AtomicBool::new(false),
            expires: AtomicU64::new(0),
            wake: Mutex::new(None),
            report: Box::new(report),
        }
    }

    /// Queues an order. False if an earlier one is not complete.
    pub fn give(&self, order: Order, giver: Giver) -> bool {
        let mut place = self.place.lock();
        if !matches!(*place, Place::Free) {
            return false;
        }
        *place = Place::Waiting(order, giver);
        self.given.fetch_add(1, Ordering::Relaxed);
        self.waiting.store(true, Ordering::Release);
        drop(place);
        self.wake();
        true
    }

    /// Begins with what the daemon ordered together with the session: its restore.
    pub(crate) fn begin(&self) {
        *self.place.lock() = Place::Underway(Giver::Daemon);
    }

    /// Interrupts the session's wait for calls.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &*self.wake.lock() {
            wake.wake();
        }
    }

    /// Takes the queued order.
    pub(crate) fn take(&self) -> Option<Order> {
        if !self.waiting.load(Ordering::Relaxed) {
            return None;
        }
        let mut place = self.place.lock();
        let Place::Waiting(_, giver) = *place else {
            return None;
        };
        self.waiting.store(false, Ordering::Release);
        self.taken.notify_all();
        match std::mem::replace(&mut *place, Place::Underway(giver)) {
            Place::Waiting(order, _) => Some(order),
            Place::Free | Place::Underway(_) => None,
        }
    }

    /// The session's thread waits for its guest from now on, or no longer.
    pub(crate) fn set_away(&self, is_away: bool) {
        let _place = self.place.lock();
        *self.away.lock() = is_away.then(Instant::now);
        self.taken.notify_all();
    }

    /// Whether the session's thread has waited for its guest for that long.
    pub(crate) fn is_away(&self, patience: Duration) -> bool {
        let away = *self.away.lock();
        away.is_some_and(|since| since.elapsed() >= patience)
    }

    /// Withdraws the queued order if the session's thread does not take it within `patience`.
    /// Returns why it was withdrawn, if it was.
    pub(crate) fn withdraw_after(&self, patience: Patience) -> Option<Untaken> {
        let mut place = self.place.lock();
        let number = self.given.load(Ordering::Relaxed);
        let late = Instant::now() + patience.busy;
        while matches!(*place, Place::Waiting(..)) && self.given.load(Ordering::Relaxed) == number {
            let away = *self.away.lock();
            let (until, why) = match away.map(|since| since + patience.away) {
                Some(until) if until < late => (until, Untaken::Away),
                _ => (late, Untaken::Busy),
            };
            if Instant::now() >= until {
                self.withdraw(&mut place);
                return Some(why);
            }
            self.taken.wait_until(&mut place, until);
        }
        None
    }

    fn withdraw(&self, place: &mut Place) {
        self.waiting.store(false, Ordering::Release);
        *place = Place::Free;
        self.taken.notify_all();
    }

    /// Handles the loss of the daemon. An order that waits is withdrawn; nobody hears of one
    /// that is underway.
    pub(crate) fn lose_daemon(&self) {
        let mut place = self.place.lock();
        match &mut *place {
            Place::Waiting(_, Giver::Daemon) => self.withdraw(&mut place),
            Place::Underway(giver) => *giver = Giver::Nobody,
            Place::Free | Place::Waiting(_, Giver::Nobody) => {}
        }
    }

    /// Whether the daemon that gave the order underway is still there.
    pub(crate) fn is_heard(&self) -> bool {
        self.place.lock().is_heard()
    }

    /// Asks the daemon whether a stopped session may execute a call. An answer to an earlier
    /// move, which failed before it came, is discarded.
    pub(crate) fn ask_to_resume(&self) {
        self.take_resumed();
        self.report(Report::Resumes);
    }

    /// Notes the daemon's answer to [`Report::Resumes`].
    pub(crate) fn resume(&self) {
        self.resumed.store(true, Ordering::Release);
    }

    /// Takes that answer.
    pub(crate) fn take_resumed(&self) -> bool {
        self.resumed.swap(false, Ordering::Acquire)
    }

    /// Notes when the guest's certificate expires, in seconds since 1970; 0 if it showed
    /// none. Set before the order to write it.
    pub(crate) fn set_expiry(&self, expires: u64) {
        self.expires.store(expires, Ordering::Release);
    }

    /// When the guest's certificate expires.
    pub(crate) fn expiry(&self) -> u64 {
        self.expires.load(Ordering::Acquire)
    }

    /// Sets how to interrupt the session's wait for calls.
    pub(crate) fn set_waker(&self, wake: Arc<dyn Wake>) {
        *self.wake.lock() = Some(wake);
    }

    /// Reports to the daemon about the order underway, the guest, or the session.
    pub(crate) fn report(&self, report: Report) {
        let is_of_order = !matches!(report, Report::Left(_) | Report::Stayed(_));
        let mut place = self.place.lock();
        let is_heard = place.is_heard();
        if matches!(report, Report::Done(_) | Report::Failed(_))
            && matches!(*place, Place::Underway(_))
        {
            *place = Place::Free;
        }
        drop(place);
        match is_heard || !is_of_order {
            true => self.send(report),
            false => tracing::debug!(?report, "nobody hears of the order"),
        }
    }

    /// Reports that an order is not carried out.
    pub(crate) fn refuse(&self, reason: String) {
        self.send(Report::Failed(reason));
    }

    /// A reason may quote the guest or the other host, and is cut: the report must fit a packet.
    fn send(&self, report: Report) {
        (self.report)(match report {
            Report::Failed(reason) => Report::Failed(cut(&reason)),
            Report::Stayed(reason) => Report::Stayed(cut(&reason)),
            other => other,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attendant::reporting_orders;
    use crate::daemon_link::DaemonLink;
    use paragpu_control::socket::{Control, Inbox};
    use paragpu_control::worker::FromWorker;

    fn order() -> Order {
        Order::Checkpoint {
            target: CheckpointTarget {
                directory: PathBuf::new(),
                file: None,
            },
            end: false,
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    fn patience(away: Duration, busy: Duration) -> Patience {
        Patience { away, busy }
    }

    fn done() -> Report {
        Report::Done(Figures::default())
    }

    #[test]
    fn an_order_that_follows_one_that_is_taken_is_not_lost() {
        const ORDERS: u32 = 20_000;
        let orders = Orders::new(drop);
        let mut taken = 0;
        std::thread::scope(|scope| {
            let giver = scope.spawn(|| {
                for _ in 0..ORDERS {
                    while !orders.give(order(), Giver::Daemon) {
                        // One that was given is seen, or was taken meanwhile.
                        let waits = orders.waiting.load(Ordering::Acquire);
                        assert!(waits || !matches!(*orders.place.lock(), Place::Waiting(..)));
                    }
                }
            });
            loop {
                let was_last = giver.is_finished();
                match orders.take() {
                    Some(_) => {
                        taken += 1;
                        orders.report(done());
                    }
                    None if was_last => break,
                    None => {}
                }
            }
        });
        assert_eq!(taken, ORDERS);
    }

    #[test]
    fn the_longest_reason_fits_a_packet() {
        let (daemon, worker) = Control::pair().unwrap();
        let orders = reporting_orders(Arc::new(DaemonLink::new(Arc::new(worker), None)));
        let mut inbox = Inbox::default();
        // In JSON, a control character takes six bytes.
        for text in ["x", "\u{1}", "é"] {
            let reason = format!("a{}", text.repeat(100_000));
            for report in [Report::Failed, Report::Stayed] {
                orders.report(report(reason.clone()));
                daemon.receive(&mut inbox, false).unwrap();
                let message = inbox.message::<FromWorker>().unwrap();
                let FromWorker::Report(Report::Failed(got) | Report::Stayed(got)) = message else {
                    panic!("{message:?}")
                };
                let got = got.strip_suffix('…').unwrap();
                assert!(got.len() > 1000 && reason.starts_with(got), "{got}");
            }
        }
    }

    #[test]
    fn a_report_that_cannot_be_sent_fails_the_order() {
        let (daemon, worker) = Control::pair().unwrap();
        let orders = reporting_orders(Arc::new(DaemonLink::new(Arc::new(worker), None)));
        orders.report(Report::Left(Route {
            communicator: "tcp".into(),
            address: "x".repeat(100_000),
        }));
        let mut inbox = Inbox::default();
        daemon.receive(&mut inbox, false).unwrap();
        let message = inbox.message::<FromWorker>().unwrap();
        assert!(
            matches!(message, FromWorker::Report(Report::Failed(_))),
            "{message:?}"
        );
    }

    #[test]
    fn an_order_that_nobody_takes_is_withdrawn() {
        let orders = Orders::new(drop);
        let short = patience(LONG, Duration::from_millis(10));
        assert_eq!(orders.withdraw_after(short), None, "there is none");
        assert!(orders.give(order(), Giver::Daemon));
        assert_eq!(orders.withdraw_after(short), Some(Untaken::Busy));
        assert!(orders.take().is_none());
        // The next one is another.
        assert!(orders.give(order(), Giver::Daemon));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| orders.withdraw_after(patience(LONG, LONG)));
            assert!(orders.take().is_some());
            orders.report(done());
            assert!(orders.give(order(), Giver::Daemon));
            assert!(orders.take().is_some());
            assert_eq!(waits.join().unwrap(), None);
        });
    }

    #[test]
    fn an_order_to_a_session_without_its_guest_is_withdrawn() {
        let orders = Orders::new(drop);
        orders.set_away(true);
        assert!(orders.give(order(), Giver::Daemon));
        let short = patience(Duration::from_millis(10), LONG);
        assert_eq!(orders.withdraw_after(short), Some(Untaken::Away));
        assert!(orders.is_away(short.away));
        // The guest leaves once the order waits.
        orders.set_away(false);
        assert!(!orders.is_away(Duration::ZERO));
        assert!(orders.give(order(), Giver::Daemon));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| orders.withdraw_after(short));
            orders.set_away(true);
            assert_eq!(waits.join().unwrap(), Some(Untaken::Away));
        });
        // It returns in time.
        assert!(orders.give(order(), Giver::Daemon));
        orders.set_away(false);
        let short = patience(Duration::ZERO, Duration::from_millis(10));
        assert_eq!(orders.withdraw_after(short), Some(Untaken::Busy));
    }

    #[test]
    fn an_order_waits_for_the_end_of_the_one_underway() {
        let orders = Orders::new(drop);
        for ends in [done(), Report::Failed("it cannot".into())] {
            assert!(orders.give(order(), Giver::Daemon));
            assert!(!orders.give(order(), Giver::Daemon), "one waits");
            assert!(orders.take().is_some());
            orders.refuse("another one is underway".into());
            orders.report(Report::Held(Step::Copied));
            assert!(!orders.give(order(), Giver::Daemon), "it is underway");
            orders.report(ends);
        }
    }

    #[test]
    fn a_later_daemon_hears_nothing_of_an_earlier_order() {
        let (say, said) = std::sync::mpsc::channel();
        let orders = Orders::new(move |report| say.send(report).unwrap());
        let reports = || said.try_iter().collect::<Vec<_>>();
        for giver in [Giver::Daemon, Giver::Nobody] {
            assert!(orders.give(order(), giver));
            assert!(orders.take().is_some());
            assert_eq!(orders.is_heard(), giver == Giver::Daemon);
            orders.lose_daemon();
            assert!(!orders.is_heard());
            assert!(!orders.give(order(), Giver::Daemon), "it is underway");
            orders.report(Report::Held(Step::Copied));
            let left = Report::Left(Route::default());
            orders.report(left.clone());
            assert_eq!(reports(), [left], "a guest may look for the session here");
            orders.report(done());
            assert_eq!(reports(), []);
            assert!(orders.is_heard());
        }
        // One that waits is not carried out, unless it is the worker's own.
        for (giver, stays) in [(Giver::Daemon, false), (Giver::Nobody, true)] {
            assert!(orders.give(order(), giver));
            orders.lose_daemon();
            assert_eq!(orders.take().is_some(), stays);
            orders.report(done());
        }
    }

    #[test]
    fn an_answer_to_an_earlier_move_resumes_nothing() {
        let orders = Orders::new(drop);
        orders.ask_to_resume();
        // The move fails before the answer comes.
        orders.resume();
        orders.ask_to_resume();
        assert!(!orders.take_resumed());
        orders.resume();
        assert!(orders.take_resumed());
    }
}
