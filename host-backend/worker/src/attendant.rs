//! The thread that answers the daemon while the session is served. It ends the
//! process if the guest will not return.

use parking_lot::Mutex;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paragpu_control::account::Share;
use paragpu_control::counters::Counters;
use paragpu_control::socket::{ControlError, Inbox};
use paragpu_control::turn::Turn;
use paragpu_control::worker::{self, FromWorker, Migrate, Route, ToWorker};
use paragpu_log::cut;
use paragpu_protocol::codec::{Text, encode_all};
use paragpu_protocol::frame::Control as Frame;
use paragpu_protocol::handshake::Move;

use crate::connect::Guest;
use crate::daemon_link::DaemonLink;
use crate::exchange::{Answer, Exchange};
use crate::reconnect::Waiting;
use crate::session::sender::DurableSender;
use crate::session_loop::{part, parting_words};
use crate::statistics::Statistics;
use crate::sys::process::exit_now;
use crate::transfer::destination::reachable;
use crate::transfer::handover;
use crate::transfer::orders::{
    AWAY, CheckpointTarget, DISCONNECTED, Departure, Giver, Order, Orders, Patience, Report,
    Untaken,
};
use crate::turns::Turns;
use crate::utilization::Meter;
use crate::watch::{GRACE, Liveness, Watch, after, watch};

/// How long an order waits for the session's thread.
const PATIENCE: Patience = Patience {
    away: AWAY,
    busy: Duration::from_secs(60),
};

/// Whether the daemon ended the session.
static ENDED_BY_HOST: AtomicBool = AtomicBool::new(false);

/// A route in its wire form.
pub(crate) fn on_the_wire(route: &Route) -> Move<'_> {
    Move {
        communicator: Text(&route.communicator),
        address: Text(&route.address),
    }
}

/// The address at which a guest reaches its new host.
pub(crate) fn toward(goal: &Move<'_>) -> Vec<u8> {
    let current = handover::current();
    let socket = current.as_ref().and_then(|handover| handover.fds.last());
    let address = reachable(goal.address.0, socket.map(AsFd::as_fd));
    encode_all(&Move {
        address: Text(&address),
        ..*goal
    })
}

/// Reports the progress of orders to the daemon, at a limited rate.
pub(crate) fn reporting_orders(daemon: Arc<DaemonLink>) -> Orders {
    const REPORT_INTERVAL: Duration = Duration::from_millis(50);
    let last = Mutex::new(None::<Instant>);
    Orders::new(move |report| {
        if let Report::Progress(_) = report {
            let mut last = last.lock();
            if last.is_some_and(|last| last.elapsed() < REPORT_INTERVAL) {
                return;
            }
            *last = Some(Instant::now());
        }
        let message = FromWorker::Report(report);
        match (daemon.send(&message, &[]), &message) {
            (Ok(()), _) => {}
            // Without a report, the daemon would wait for the order's end.
            (Err(ControlError::Message(error)), _) => {
                let failed = Report::Failed(format!("its worker cannot report: {error}"));
                let _ = daemon.send(&FromWorker::Report(failed), &[]);
            }
            (Err(_), FromWorker::Report(Report::Failed(reason))) => {
                tracing::warn!(reason, "an order failed after the daemon was lost");
            }
            (Err(_), _) => {}
        }
    })
}

/// State of the session for the process's other threads.
pub(crate) struct Attendant {
    pub(crate) daemon: Arc<DaemonLink>,
    pub(crate) session: u64,
    /// The secret with which the guest resumes the session.
    pub(crate) token: [u8; 16],
    /// The session's slots in its accounts.
    pub(crate) share: Share,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) meter: Mutex<Meter>,
    pub(crate) sender: Arc<DurableSender>,
    pub(crate) waiting: Arc<Waiting>,
    /// The watch on the latest guest.
    pub(crate) watched: Mutex<Option<Watch>>,
    pub(crate) orders: Arc<Orders>,
    pub(crate) exchange: Arc<Exchange>,
    /// The session's turn on the GPU.
    pub(crate) turns: Arc<Turns>,
    /// The schedule of periodic checkpoints.
    pub(crate) again: Mutex<Option<worker::CheckpointSchedule>>,
    /// How long to wait for a guest that lost its connection.
    pub(crate) patience: Duration,
}

/// The order to move, if the descriptors match it.
fn departure(migrate: Migrate, fds: Vec<OwnedFd>) -> Option<Departure> {
    let mut fds = fds.into_iter();
    let link = fds.next()?;
    let gates = match (migrate.held, fds.next(), fds.next(), fds.next()) {
        (false, None, None, None) => None,
        (true, Some(stop), Some(rest), Some(commit)) => Some([stop, rest, commit]),
        _ => return None,
    };
    Some(Departure {
        link,
        local: migrate.local,
        here: migrate.here,
        follows: migrate.follows,
        gates,
        precopy: migrate.precopy,
        hand_over: migrate.hand_over,
    })
}

impl Attendant {
    /// Answers the daemon while the session is served. If the daemon goes away, the
    /// session continues, and another daemon may come.
    pub(crate) fn attend(self: Arc<Self>) {
        std::thread::spawn(move || {
            loop {
                self.answer_daemon();
                self.orders.lose_daemon();
                self.exchange.close();
                // Turns end with the daemon that granted them.
                self.turn(Turn::Free);
                // What keeps the checkpoints going until another one is there.
                let alone = Arc::new(());
                self.write_again(&alone);
                let mut fds = Vec::new();
                let mut slots = Vec::new();
                for (account, slot) in self.share.slots() {
                    fds.push(account);
                    slots.push(slot);
                }
                let back = FromWorker::Back {
                    slot: slots.first().copied().unwrap_or_default(),
                    gpu: slots.get(1).copied(),
                    token: self.token,
                };
                if !self.daemon.await_another(&back, &fds) {
                    // The thread of the checkpoints, if there is one, goes on.
                    return std::mem::forget(alone);
                }
                self.exchange.reopen();
                tracing::info!(session = self.session, "another daemon is there");
            }
        });
    }

    /// Answers a daemon until it is gone.
    fn answer_daemon(self: &Arc<Self>) {
        let mut inbox = Inbox::default();
        while self.daemon.receive(&mut inbox).is_ok() {
            let fds = std::mem::take(&mut inbox.fds);
            match inbox.message::<ToWorker>() {
                Ok(message) => self.take(message, fds),
                Err(error) => tracing::error!(%error, "the daemon sent an invalid message"),
            }
        }
    }

    fn take(self: &Arc<Self>, message: ToWorker, fds: Vec<OwnedFd>) {
        match message {
            ToWorker::Query => {
                let counters = FromWorker::Counters(Counters {
                    gpu_percent: self.meter.lock().read(),
                    ..self.statistics.read()
                });
                // If the daemon is gone, the next receive reports it.
                let _ = self.daemon.send(&counters, &[]);
            }
            ToWorker::End { reason } => {
                ENDED_BY_HOST.store(true, Ordering::Release);
                // Sending to the guest may block on a thread that is stuck.
                after(GRACE, || exit_now(1));
                if let Some(reason) = reason {
                    let [stream, line] = parting_words(&reason);
                    self.sender.notify(Frame::Output.kind(), &[&stream, &line]);
                }
                self.sender.notify(Frame::Goodbye.kind(), &[]);
                part(&self.sender);
                self.finish("")
            }
            ToWorker::Resume { terms, guest } => match Guest::new(&terms, &guest, fds) {
                Ok(guest) => self.resume(guest),
                Err(reason) => tracing::warn!(reason, "a guest cannot reconnect"),
            },
            ToWorker::Move(_) if self.orders.is_away(PATIENCE.away) => {
                let reason = "it is disconnected, so try again when it is connected";
                self.orders.report(Report::Stayed(reason.into()));
            }
            ToWorker::Move(route) => {
                let goal = toward(&on_the_wire(&route));
                self.sender.query(Frame::Move.kind(), &goal);
            }
            ToWorker::Checkpoint {
                directory,
                end,
                expires,
            } => {
                self.orders.set_expiry(expires);
                let file = fds.into_iter().next().map(File::from);
                let target = CheckpointTarget { directory, file };
                self.order(Order::Checkpoint { target, end });
            }
            ToWorker::Again(again) => {
                *self.again.lock() = again;
            }
            ToWorker::Migrate(migrate) => self.order_migration(migrate, fds),
            ToWorker::Resumed => self.orders.resume(),
            ToWorker::Exchanged {
                request,
                offer,
                part,
            } => {
                let memory = fds.into_iter().next();
                let answer = Answer {
                    offer,
                    part,
                    memory,
                };
                self.exchange.answered(request, answer);
            }
            ToWorker::Turn(turn) => self.turn(turn),
            ToWorker::Assign { .. }
            | ToWorker::Arrive { .. }
            | ToWorker::Restore { .. }
            | ToWorker::Own { .. }
            | ToWorker::Door
            | ToWorker::Quota { .. } => {
                tracing::error!(
                    "the daemon sent a message that a worker with a session does not expect"
                );
            }
        }
    }

    /// Queues the daemon's order to move.
    pub(crate) fn order_migration(&self, migrate: Migrate, fds: Vec<OwnedFd>) {
        match departure(migrate, fds) {
            Some(departure) => self.order(Order::Migrate(departure)),
            None => {
                let reason = "the order to move came with the wrong descriptors";
                self.orders.refuse(reason.into());
            }
        }
    }

    fn resume(self: &Arc<Self>, guest: Guest) {
        let liveness = guest.liveness(self.patience);
        self.waiting.offer(guest);
        // The current connection, not the guest's first one. While the guest waits, it is
        // not this guest's own.
        let earlier = self.sender.connection();
        if self.waiting.has_guest() {
            earlier.close();
        }
        self.guard(liveness);
    }

    /// Continues the periodic checkpoints that a daemon, now gone, had ordered, while the worker
    /// is `alone`.
    fn write_again(&self, alone: &Arc<()>) {
        let again = self.again.lock();
        let Some(worker::CheckpointSchedule { directory, every }) = again.clone() else {
            return;
        };
        drop(again);
        let every = Duration::from_secs(every.max(1));
        tracing::info!(
            session = self.session, directory = %directory.display(),
            "the daemon is gone: the worker continues the periodic checkpoints"
        );
        let (alone, orders) = (Arc::downgrade(alone), Arc::clone(&self.orders));
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(every);
                if alone.strong_count() == 0 {
                    return;
                }
                let target = CheckpointTarget {
                    directory: directory.clone(),
                    file: None,
                };
                // While another order is underway, this one is left out.
                orders.give(Order::Checkpoint { target, end: false }, Giver::Nobody);
            }
        });
    }

    fn turn(&self, turn: Turn) {
        self.turns.handle(turn);
        // The session may be waiting for calls, or for this turn.
        self.orders.wake();
    }

    fn order(&self, order: Order) {
        if !self.orders.give(order, Giver::Daemon) {
            // The daemon gives one at a time.
            let reason = "an order of an earlier daemon to the session is not complete: try again \
                          later";
            return self.orders.refuse(reason.into());
        }
        let orders = Arc::clone(&self.orders);
        let watch = std::thread::Builder::new().name("order".into());
        // Without the thread, the order waits for as long as the session's thread takes.
        let _ = watch.spawn(move || {
            let reason = match orders.withdraw_after(PATIENCE) {
                None => return,
                Some(Untaken::Away) => DISCONNECTED.to_owned(),
                Some(Untaken::Busy) => format!(
                    "the session did not take the order within {} s: its program may be in a call \
                     that waits for a long kernel, so try again later",
                    PATIENCE.busy.as_secs()
                ),
            };
            orders.refuse(reason);
        });
    }

    /// Ends the process if the latest guest will not return and the session does not
    /// notice.
    pub(crate) fn guard(self: &Arc<Self>, liveness: std::io::Result<Option<Liveness>>) {
        let mut watched = self.watched.lock();
        // An earlier connection is no longer watched.
        *watched = None;
        let liveness = match liveness {
            Ok(Some(liveness)) => liveness,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "the guest cannot be watched");
                return;
            }
        };
        let (attendant, offered) = (Arc::clone(self), self.waiting.offered());
        let stuck = move || {
            if attendant.waiting.offered() == offered {
                let reason = "the guest is gone, and a call of the device does not return";
                tracing::warn!(session = attendant.session, reason);
                attendant.finish(reason)
            }
        };
        match watch(liveness, GRACE, stuck) {
            Ok(watch) => *watched = Some(watch),
            Err(error) => tracing::warn!(%error, "the guest cannot be watched"),
        }
    }

    /// Reports the end of the session and exits, regardless of what the other threads and
    /// the device are doing.
    pub(crate) fn finish(&self, reason: &str) -> ! {
        let reason = if ENDED_BY_HOST.load(Ordering::Acquire) {
            "ended by the host"
        } else {
            reason
        };
        let finished = FromWorker::Finished {
            session: self.session,
            counters: self.statistics.read(),
            // It may quote the host from which the session came.
            reason: (!reason.is_empty()).then(|| cut(reason)),
        };
        let _ = self.daemon.send(&finished, &[]);
        exit_now(0)
    }
}
