//! The worker process, from its start to the end of its only session.

use parking_lot::Mutex;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_communicator::{Nowhere, Receiver, Sender};
use paragpu_control::account::{Account, Share};
use paragpu_control::socket::{Control, ControlError, Inbox};
use paragpu_control::worker::{FromWorker, Route, Terms, ToWorker};
use paragpu_device::{Device, Platform, Snapshot};
use paragpu_log::cut;
use paragpu_protocol::frame::Control as Frame;
use paragpu_protocol::handshake::Move;
use paragpu_protocol::layout::Regions;

use crate::arguments::{Arguments, Calls, DeviceKind};
use crate::attendant::{self, Attendant, on_the_wire, toward};
use crate::confine;
use crate::connect::Guest;
use crate::exchange::Exchange;
use crate::guest_life::GuestLife;
use crate::images::ImageStore;
use crate::management::introduce;
use crate::platform;
use crate::reconnect::Waiting;
use crate::session::gpu;
use crate::session::host_memory::Pinned;
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

/// An opened GPU.
struct Warm {
    platform: Box<dyn Platform>,
    device: Box<dyn Device>,
    snapshot: Snapshot,
    ordinal: u32,
    regions: Regions,
}

/// A session that was handed over.
struct Assigned {
    session: u64,
    ordinal: u32,
    device_memory: u64,
    host_memory: u64,
    /// How long to wait for a guest that lost its connection.
    patience: Duration,
    identity: Identity,
    origin: Origin,
}

/// The origin of a session.
enum Origin {
    /// A new guest.
    Guest(Box<Guest>),
    /// An earlier location.
    Elsewhere(EarlierHome),
}

/// The earlier location of a session.
enum EarlierHome {
    /// Another worker, at the other end of a connection.
    Worker(Arrival),
    /// A file of a directory.
    File(std::fs::File),
}

/// How a session arrives: [`ToWorker::Arrive`].
struct Arrival {
    link: OwnedFd,
    follows: bool,
    route: Option<Route>,
}

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
    let mut share = Share::default();
    let mut own = None;
    let Some(assigned) = wait_for_session(control, &mut share, &mut own)? else {
        return Ok(());
    };
    let session = assigned.session;
    if let Err(reason) = prepare(arguments, &mut warm, assigned.ordinal) {
        if let Origin::Guest(guest) = assigned.origin {
            guest.refuse(&reason);
        }
        return Err(Stop::Failed(reason));
    }
    let images = images_of(&assigned.identity.vm, arguments, own);
    let own = images.directory.as_deref();
    confine::finish(arguments.device, own, arguments.apart);
    warm.device.begin();
    let waiting = Arc::new(Waiting::new()?);
    let (regions, patience) = (warm.regions, assigned.patience);
    let mut guest_memory = None;
    let (connection, reconnect, elsewhere) = match assigned.origin {
        Origin::Guest(guest) => {
            guest_memory = guest.memory();
            let reconnect = waiting.host(&guest, regions, patience);
            let connection = guest
                .welcome(regions)
                .map_err(|error| Stop::Failed(format!("cannot connect to the guest: {error}")))?;
            (Some(connection), reconnect, None)
        }
        Origin::Elsewhere(elsewhere) => {
            let reconnect = waiting.host_of(GuestLife::Unknown, regions, patience);
            (None, Some(reconnect), Some(elsewhere))
        }
    };
    let statistics = Arc::new(Statistics::default());
    let meter = Meter::new(warm.device.as_ref(), warm.snapshot.uuid);
    // Sleeps of a few microseconds must not be prolonged.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1000));
    let setup = Setup {
        device: warm.device,
        snapshot: warm.snapshot,
        ordinal: warm.ordinal,
        regions: warm.regions,
        device_memory: assigned.device_memory,
        host_memory: assigned.host_memory,
        images,
        output: Some(output),
        statistics: Arc::clone(&statistics),
        latency: arguments.latency,
        reconnect: reconnect.map(|host| Box::new(host) as Box<dyn Reconnect>),
    };
    // Never dropped: dropping a device waits for its work, and a kernel may never end.
    let (sender, window, receiver) = match connection {
        Some(connection) => (
            connection.sender,
            connection.window,
            Some(connection.receiver),
        ),
        None => (Arc::new(Nowhere) as Arc<dyn Sender>, None, None),
    };
    let mut served = Session::new(setup, sender, window);
    served.count_for(share);
    let device = served.transfer.identity().device.clone();
    served.transfer.set_identity(Identity {
        device,
        ..assigned.identity
    });
    introduce(served.transfer.identity(), &served.memory);
    served.host.pages().adopt(guest_memory);
    let orders = Arc::new(attendant::reporting_orders(Arc::clone(control)));
    served.transfer.set_orders(Arc::clone(&orders));
    let exchange = Arc::new(Exchange::new(Arc::clone(control)));
    served.sharing.exchange = Arc::clone(&exchange);
    let requests = Arc::clone(control);
    let turns = Arc::new(Turns::new(move |request| {
        // Without the daemon, turns end.
        let _ = requests.send(&FromWorker::Turn(request), &[]);
    }));
    served.pacing.follow(Arc::clone(&turns));
    let attendant = Arc::new(Attendant {
        control: Arc::clone(control),
        session,
        statistics,
        meter: Mutex::new(meter),
        sender: Arc::clone(served.replies.link.sender()),
        waiting: Arc::clone(&waiting),
        watched: Mutex::default(),
        orders,
        exchange,
        turns,
        again: Mutex::default(),
        patience,
    });
    Arc::clone(&attendant).attend();
    let receiver = match (receiver, elsewhere) {
        (Some(receiver), _) => Ok(receiver),
        (None, Some(elsewhere)) => receive(&mut served, elsewhere, &waiting, patience),
        (None, None) => Err("a session comes from a guest or from elsewhere".into()),
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
    let _ = control.send(&FromWorker::Started { session }, &[]);
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
                    let resumed = served.resume(paragpu_communicator::Error::Closed);
                    drop(link);
                    return resumed.map_err(|_| "the guest was lost at the switchover".into());
                }
            };
            let host = waiting.host_of(life, served.gpu.regions(), patience);
            let reconnect = (!patience.is_zero()).then(|| Box::new(host) as Box<dyn Reconnect>);
            served.replies.link.set_reconnect(reconnect);
            guide(served, &home, arrival.follows);
            Ok(receiver)
        }
        EarlierHome::File(file) => {
            let began = Instant::now();
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

/// Opens the GPU and confines the worker: first, if it is a software GPU, whose threads belong to the
/// worker; afterwards, if a driver starts threads and programs of its own.
fn open_confined(arguments: &Arguments) -> Result<Warm, Stop> {
    let confine = || confine::begin(arguments.device, arguments.calls, arguments.apart);
    if arguments.device == DeviceKind::Software {
        let _ = confine();
        return warm_up(arguments);
    }
    if let Err(error) = code_cache::reserve() {
        tracing::warn!(%error, "compiled code is not cached");
    }
    if arguments.calls == Calls::Learn {
        confine::learn();
    }
    let warm = warm_up(arguments)?;
    let _ = confine();
    tracing::debug!("the GPU is open");
    Ok(warm)
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

/// Opens the GPU as far as possible without a session.
fn warm_up(arguments: &Arguments) -> Result<Warm, Stop> {
    let failed = |error: paragpu_device::Error| {
        Stop::NoDevice(format!(
            "cannot open {}:{}: {error}",
            arguments.device, arguments.index
        ))
    };
    let platform = platform::open(arguments).map_err(failed)?;
    let index = arguments.place();
    let snapshot = platform.snapshot(index).map_err(failed)?;
    let ordinal = arguments.ordinal;
    let regions = Regions::of(ordinal)
        .ok_or_else(|| Stop::Failed(format!("a guest has no device {ordinal}")))?;
    let device = platform.open(index, regions).map_err(failed)?;
    Ok(Warm {
        platform,
        device,
        snapshot,
        ordinal,
        regions,
    })
}

/// Reopens the GPU at other addresses if the guest uses another ordinal.
fn prepare(arguments: &Arguments, warm: &mut Warm, ordinal: u32) -> Result<(), String> {
    if ordinal == warm.ordinal {
        return Ok(());
    }
    let regions = Regions::of(ordinal).ok_or_else(|| format!("a guest has no device {ordinal}"))?;
    let failed = |error| format!("cannot open the device: {error}");
    if !warm.device.rehome(regions).map_err(failed)? {
        let opened = warm.platform.open(arguments.place(), regions);
        warm.device = opened.map_err(failed)?;
    }
    (warm.ordinal, warm.regions) = (ordinal, regions);
    Ok(())
}

/// Waits for a session and for its share of the VM's account. `None` if the daemon
/// dismisses the worker.
fn wait_for_session(
    control: &Control,
    share: &mut Share,
    own: &mut Option<OwnedFd>,
) -> Result<Option<Assigned>, Stop> {
    let mut inbox = Inbox::default();
    loop {
        control.receive(&mut inbox, true)?;
        let fds = std::mem::take(&mut inbox.fds);
        match inbox.message()? {
            ToWorker::Assign { terms, guest } => {
                let guest = Guest::new(&terms, &guest, fds).map_err(Stop::Failed)?;
                return Ok(Some(assigned(terms, Origin::Guest(Box::new(guest)))));
            }
            ToWorker::Exchanged { .. } | ToWorker::Resumed => {
                tracing::error!("the daemon answered a request that was not made");
            }
            ToWorker::Query => {
                let counters = Statistics::default().read();
                control.send(&FromWorker::Counters(counters), &[])?;
            }
            ToWorker::End { .. } => return Ok(None),
            ToWorker::Quota { slot } => {
                let account = Account::open(only(fds, "an account")?)
                    .map_err(|error| Stop::Failed(format!("no account of the VM: {error}")))?;
                *share = Share::new(Arc::new(account), slot);
            }
            ToWorker::Arrive {
                terms,
                route,
                follows,
            } => {
                let arrival = Arrival {
                    link: only(fds, "the session")?,
                    follows,
                    route,
                };
                let worker = EarlierHome::Worker(arrival);
                return Ok(Some(assigned(terms, Origin::Elsewhere(worker))));
            }
            ToWorker::Restore { terms } => {
                let file = EarlierHome::File(only(fds, "the session")?.into());
                return Ok(Some(assigned(terms, Origin::Elsewhere(file))));
            }
            ToWorker::Own { user } => {
                *own = fds.into_iter().next();
                confine::become_user(user)
                    .map_err(|error| Stop::Failed(format!("cannot be user {user}: {error}")))?;
            }
            ToWorker::Resume { .. }
            | ToWorker::Move(_)
            | ToWorker::Checkpoint { .. }
            | ToWorker::Again(_)
            | ToWorker::Turn(_)
            | ToWorker::Migrate(_) => {
                tracing::error!("the daemon sent a message that an idle worker does not expect");
            }
        }
    }
}

/// The only descriptor that came with `what`.
fn only(fds: Vec<OwnedFd>, what: &str) -> Result<OwnedFd, Stop> {
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([fd]) => Ok(fd),
        Err(fds) => {
            let reason = format!("{} descriptors came with {what}", fds.len());
            Err(Stop::Failed(reason))
        }
    }
}

fn assigned(terms: Terms, origin: Origin) -> Assigned {
    // The daemon logs that it begins, and limits the lines of all workers together.
    tracing::debug!(session = terms.session, vm = terms.vm, "session");
    let guest_pid = match &origin {
        Origin::Guest(guest) => guest.pid(),
        Origin::Elsewhere(_) => 0,
    };
    Assigned {
        session: terms.session,
        ordinal: terms.ordinal,
        device_memory: terms.device_memory,
        host_memory: terms.host_memory,
        patience: Duration::from_millis(terms.reconnect.into()),
        identity: Identity {
            ordinal: terms.ordinal,
            token: terms.resume_token(),
            device_count: terms.device_count,
            guest_pid,
            vm: terms.vm,
            device: String::new(),
            pinned: Pinned::default(),
        },
        origin,
    }
}
