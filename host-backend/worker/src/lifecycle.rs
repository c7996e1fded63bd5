//! The worker process, from its start to the end of its only session.

mod assignment;
mod warm;

use parking_lot::Mutex;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_communicator::{Nowhere, Receiver, Sender, Window};
use paragpu_communicator_ring::guest_memory::GuestMemory;
use paragpu_control::socket::{Control, ControlError};
use paragpu_control::worker::FromWorker;
use paragpu_log::cut;
use paragpu_protocol::frame::Control as Frame;
use paragpu_protocol::handshake::Move;
use paragpu_protocol::layout::Regions;

use self::assignment::{Assignment, EarlierHome, Origin, wait_for_session};
use self::warm::{open_confined, prepare};
use crate::arguments::{Arguments, DeviceKind};
use crate::attendant::{self, Attendant, on_the_wire, toward};
use crate::confine;
use crate::daemon_link::DaemonLink;
use crate::exchange::Exchange;
use crate::guest_life::GuestLife;
use crate::images::ImageStore;
use crate::management::introduce;
use crate::reconnect::{Host, Waiting};
use crate::session::gpu;
use crate::session::output::Output;
use crate::session::{Reconnect, Session, Setup};
use crate::statistics::Statistics;
use crate::sys::code_cache;
use crate::sys::process::{exit_now, take_short_slices, unblock_signals};
use crate::transfer::destination::{Arrived, Destination};
use crate::transfer::handover;
use crate::transfer::identity::Identity;
use crate::transfer::orders::{Figures, Report, micros};
use crate::turns::Turns;
use crate::utilization::Meter;

/// Runs the worker; does not return.
pub fn run(arguments: &Arguments) -> ! {
    unblock_signals();
    take_short_slices();
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!(%panic, "the worker panicked");
        exit_now(101)
    }));
    let (control, output) = match standard_streams() {
        Ok(both) => both,
        Err(error) => {
            tracing::error!(%error, "paragpu-worker is started by paragpud");
            exit_now(2)
        }
    };
    match live(arguments, &control, output) {
        Ok(()) | Err(Stop::Daemon(ControlError::Closed)) => exit_now(0),
        Err(Stop::Daemon(error)) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(%error, cause, "cannot talk to the daemon");
            exit_now(1)
        }
        // The daemon decides whether one is needed.
        Err(Stop::NoDevice(reason)) => {
            tracing::debug!(reason, "no device");
            let reason = cut(&reason);
            let _ = control.send(&FromWorker::Failed { reason }, &[]);
            exit_now(1)
        }
        Err(Stop::Failed(reason)) => {
            tracing::error!(reason, "no session");
            let reason = cut(&reason);
            let _ = control.send(&FromWorker::Failed { reason }, &[]);
            exit_now(1)
        }
    }
}

/// Why a worker stops before its session.
enum Stop {
    Daemon(ControlError),
    NoDevice(String),
    Failed(String),
}

impl From<ControlError> for Stop {
    fn from(error: ControlError) -> Self {
        Self::Daemon(error)
    }
}

/// Takes the control socket from standard input and captures what kernels write.
fn standard_streams() -> std::io::Result<(Arc<Control>, Output)> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok((Arc::new(Control::from_fd(socket)), Output::capture()?))
}

fn live(arguments: &Arguments, control: &Arc<Control>, output: Output) -> Result<(), Stop> {
    let mut warm = open_confined(arguments)?;
    let ready = FromWorker::Ready {
        pid: std::process::id(),
        gpu: gpu::facts(&warm.snapshot),
    };
    control.send(&ready, &[])?;
    let Some(assignment) = wait_for_session(control)? else {
        return Ok(());
    };
    let Assignment {
        session,
        ordinal,
        device_memory,
        patience,
        identity,
        origin,
        moves,
        share,
        door,
        own,
    } = assignment;
    if let Err(reason) = prepare(arguments, &mut warm, ordinal) {
        if let Origin::Guest(guest) = origin {
            guest.refuse(&reason);
        }
        return Err(Stop::Failed(reason));
    }
    let images = images_of(&identity.vm, arguments, own);
    let own = images.directory.as_deref();
    confine::finish(arguments.device, own, arguments.apart);
    warm.device.begin();
    let waiting = Arc::new(Waiting::new()?);
    let beginning = Beginning::of(origin, &waiting, warm.regions, patience)?;
    let reconnect = beginning.reconnect;
    let statistics = Arc::new(Statistics::default());
    let meter = Meter::new(warm.device.as_ref(), warm.snapshot.uuid);
    // Sleeps of a few microseconds must not be prolonged.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1000));
    let setup = Setup {
        device: warm.device,
        snapshot: warm.snapshot,
        ordinal: warm.ordinal,
        regions: warm.regions,
        device_memory,
        share: share.clone(),
        images,
        output: Some(output),
        statistics: Arc::clone(&statistics),
        latency: arguments.latency,
        reconnect: reconnect.map(|host| Box::new(host) as Box<dyn Reconnect>),
    };
    // Never dropped: dropping a device waits for its work, and a kernel may never end.
    let mut served = Session::new(setup, beginning.sender, beginning.window);
    let token = identity.token;
    introduce_to_vm(&mut served, identity);
    served.host.pages().adopt(beginning.guest_memory);
    let daemon = Arc::new(DaemonLink::new(Arc::clone(control), door));
    let attendant = Attendant {
        session,
        token,
        share,
        statistics,
        meter: Mutex::new(meter),
        sender: Arc::clone(served.replies.link.sender()),
        waiting,
        watched: Mutex::default(),
        orders: Arc::new(attendant::reporting_orders(Arc::clone(&daemon))),
        exchange: Arc::new(Exchange::new(Arc::clone(&daemon))),
        turns: turns(&daemon),
        daemon,
        again: Mutex::default(),
        patience,
    };
    let attendant = Arc::new(attendant);
    served.transfer.set_orders(Arc::clone(&attendant.orders));
    if let Some((migrate, fds)) = moves {
        served.transfer.hold_calls();
        attendant.order_migration(migrate, fds);
    }
    serve(&mut served, beginning.calls, &attendant)
}

/// How a session begins.
struct Beginning {
    sender: Arc<dyn Sender>,
    window: Option<Arc<Window>>,
    /// Where the guest connects again; `None` if the session ends with its connection.
    reconnect: Option<Host>,
    /// The VM's memory, if the host can reach it.
    guest_memory: Option<GuestMemory>,
    calls: FirstCalls,
}

/// What precedes the first calls.
enum FirstCalls {
    /// Nothing: the guest is connected.
    From(Box<dyn Receiver>),
    /// The session's arrival.
    After(EarlierHome),
}

impl Beginning {
    /// Welcomes the guest of a new session.
    fn of(
        origin: Origin,
        waiting: &Arc<Waiting>,
        regions: Regions,
        patience: Duration,
    ) -> Result<Self, Stop> {
        match origin {
            Origin::Guest(guest) => {
                let guest_memory = guest.memory();
                let reconnect = waiting.host(&guest, regions, patience);
                let connection = guest.welcome(regions).map_err(|error| {
                    Stop::Failed(format!("cannot connect to the guest: {error}"))
                })?;
                Ok(Self {
                    sender: connection.sender,
                    window: connection.window,
                    reconnect,
                    guest_memory,
                    calls: FirstCalls::From(connection.receiver),
                })
            }
            Origin::Elsewhere(home) => Ok(Self {
                sender: Arc::new(Nowhere),
                window: None,
                reconnect: Some(waiting.host_of(GuestLife::Unknown, regions, patience)),
                guest_memory: None,
                calls: FirstCalls::After(home),
            }),
        }
    }
}

/// Shows the session to its VM's other sessions.
fn introduce_to_vm(served: &mut Session, identity: Identity) {
    let device = served.transfer.identity().device.clone();
    served
        .transfer
        .set_identity(Identity { device, ..identity });
    introduce(served.transfer.identity(), &served.memory);
}

/// The turns that the daemon gives the session.
fn turns(daemon: &Arc<DaemonLink>) -> Arc<Turns> {
    let requests = Arc::clone(daemon);
    Arc::new(Turns::new(move |request| {
        // Without the daemon, turns end.
        let _ = requests.send(&FromWorker::Turn(request), &[]);
    }))
}

/// Serves the session to its end.
fn serve(served: &mut Session, calls: FirstCalls, attendant: &Arc<Attendant>) -> ! {
    let (session, patience) = (attendant.session, attendant.patience);
    served.sharing.exchange = Arc::clone(&attendant.exchange);
    let exchange = Arc::clone(&attendant.exchange);
    served.memory.set_divider(exchange);
    served.pacing.follow(Arc::clone(&attendant.turns));
    Arc::clone(attendant).attend();
    let receiver = match calls {
        FirstCalls::From(receiver) => Ok(receiver),
        FirstCalls::After(home) => receive(served, home, &attendant.waiting, patience),
    };
    let receiver = match receiver {
        Ok(receiver) => receiver,
        Err(reason) => {
            tracing::info!(session, reason, "the session did not arrive");
            served
                .transfer
                .orders()
                .report(Report::Failed(reason.clone()));
            attendant.finish(&reason)
        }
    };
    let started = FromWorker::Started { session };
    let _ = attendant.daemon.send(&started, &[]);
    let liveness = handover::current()
        .as_ref()
        .map(|handover| handover.liveness(patience));
    if let Some(liveness) = liveness {
        attendant.guard(liveness);
    }
    let end = served.serve(receiver);
    let reason = if end.is_orderly() {
        String::new()
    } else {
        // The daemon logs the reason.
        tracing::debug!(session, %end, "the session was ended");
        end.to_string()
    };
    attendant.finish(&reason)
}

/// Receives a session from another worker or from a directory.
fn receive(
    served: &mut Session,
    elsewhere: EarlierHome,
    waiting: &Arc<Waiting>,
    patience: Duration,
) -> Result<Box<dyn Receiver>, String> {
    match elsewhere {
        EarlierHome::Worker(arrival) => {
            let route = arrival.route.unwrap_or_default();
            let home = on_the_wire(&route);
            let filled = Destination::new(arrival.link, &home)
                .and_then(|destination| destination.fill(served, waiting))
                .map_err(|error| error.to_string())?;
            // Not before, when the source still serves the process.
            introduce(served.transfer.identity(), &served.memory);
            let (receiver, life) = match filled {
                Arrived::Connected(receiver, life) => (receiver, life),
                Arrived::Waiting(link) => {
                    // It is not over if the guest's connection broke meanwhile: the guest
                    // turns to the source then, which sends it here.
                    let resumed = served.resume(paragpu_communicator::Error::io(
                        "a session that arrived waits for its guest",
                        std::io::ErrorKind::NotConnected,
                    ));
                    served.transfer.shortage.end_with(link);
                    return resumed.map_err(|_| "the guest was lost at the switchover".into());
                }
            };
            // A guest with a token keeps calls and acknowledges frames, also where sessions end with
            // their connections; one without does neither, wherever its session goes.
            let is_durable = served.transfer.identity().token != [0; 16];
            let host = waiting.host_of(life, served.gpu.regions(), patience);
            let reconnect = is_durable.then(|| Box::new(host) as Box<dyn Reconnect>);
            served.replies.link.set_reconnect(reconnect);
            guide(served, &home, arrival.follows);
            Ok(receiver)
        }
        EarlierHome::File(file) => {
            let began = Instant::now();
            served.transfer.orders().begin();
            let read = served.read_file(&file);
            let bytes = read.map_err(|error| error.to_string())?;
            introduce(served.transfer.identity(), &served.memory);
            served.transfer.orders().report(Report::Done(Figures {
                bytes,
                total: micros(began.elapsed()),
                ..Figures::default()
            }));
            served
                .resume(paragpu_communicator::Error::io(
                    "a restored session waits for its guest",
                    std::io::ErrorKind::NotConnected,
                ))
                .map_err(|_| "the guest did not reconnect".into())
        }
    }
}

/// Notifies the guest, whose connection was handed over, of the session's new location.
/// It reconnects there now, or after the connection is lost.
fn guide(served: &Session, home: &Move<'_>, follows: bool) {
    if home.communicator.0.is_empty() {
        return;
    }
    let home = toward(home);
    if follows {
        served
            .replies
            .link
            .sender()
            .query(Frame::Move.kind(), &home);
    } else {
        served
            .replies
            .link
            .sender()
            .notify(Frame::Home.kind(), &[&home]);
    }
}

/// The images of a VM, in `own` if the daemon gave the worker a directory. A driver keeps compiled
/// code beside them.
fn images_of(vm: &str, arguments: &Arguments, own: Option<OwnedFd>) -> ImageStore {
    let limit = arguments.image_cache_bytes;
    let images = match arguments.apart {
        true => ImageStore::given(own, limit),
        false => ImageStore::of_vm(arguments.image_cache.as_deref(), vm, limit),
    };
    if arguments.device == DeviceKind::Cuda
        && let Some(directory) = &images.directory
        && let Err(error) = code_cache::keep_in(&directory.join("compiled"))
    {
        tracing::warn!(%error, "compiled code is not cached");
    }
    images
}
