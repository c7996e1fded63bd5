//! The worker process: from its start to the end of its one session.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use paragpu_communicator::Sender;
use paragpu_device::{Device, Platform, Snapshot};
use paragpu_protocol::codec::Text;
use paragpu_protocol::frame::Control as Frame;
use paragpu_protocol::layout::Regions;
use paragpu_protocol::types::encode_pairs;

use crate::arguments::Arguments;
use crate::confine::confine;
use crate::connect::Guest;
use crate::control::{
    Assign, Control, ControlError, Failed, Finished, FromWorker, Inbox, Ready, Started, ToWorker,
};
use crate::images::ImageStore;
use crate::output::Output;
use crate::platform;
use crate::session::{Session, Setup, wire_snapshot};
use crate::statistics::Statistics;
use crate::sys::process::{exit_now, without_address_randomisation};
use crate::watch::{GRACE, after, watch};

/// The daemon ended the session, whichever thread notices its end first.
static ENDED_BY_HOST: AtomicBool = AtomicBool::new(false);

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
    guest: Guest,
}

/// Runs the worker; does not return.
pub fn run(arguments: &Arguments) -> ! {
    if !without_address_randomisation() {
        tracing::warn!("addresses are random: this session cannot move");
    }
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
            tracing::error!(%error, "cannot talk to the daemon");
            exit_now(1)
        }
        Err(Stop::Failed(reason)) => {
            tracing::error!(reason, "no session");
            let failed = FromWorker::Failed(Failed {
                reason: Text(&reason),
            });
            let _ = control.send(&failed, &[]);
            exit_now(1)
        }
    }
}

/// Why a worker stops before its session.
enum Stop {
    Daemon(ControlError),
    Failed(String),
}

impl From<ControlError> for Stop {
    fn from(error: ControlError) -> Self {
        Self::Daemon(error)
    }
}

/// Takes the control socket from standard input and captures standard output.
fn standard_streams() -> std::io::Result<(Arc<Control>, Output)> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok((Arc::new(Control::from_fd(socket)), Output::capture()?))
}

fn live(arguments: &Arguments, control: &Arc<Control>, output: Output) -> Result<(), Stop> {
    let mut warm = warm_up(arguments)?;
    confine();
    let attributes = warm.snapshot.attributes.iter();
    let attributes = encode_pairs(attributes.map(|(name, value)| (*name, value.cast_unsigned())));
    let ready = Ready {
        pid: std::process::id(),
        snapshot: wire_snapshot(&warm.snapshot, &attributes),
    };
    control.send(&FromWorker::Ready(ready), &[])?;
    let Some(assigned) = wait_for_session(control)? else {
        return Ok(());
    };
    let session = assigned.session;
    if let Err(reason) = prepare(arguments, &mut warm, assigned.ordinal) {
        assigned.guest.refuse(&reason);
        return Err(Stop::Failed(reason));
    }
    let liveness = assigned
        .guest
        .liveness()
        .map_err(|error| Stop::Failed(format!("cannot watch the guest: {error}")))?;
    let connection = assigned
        .guest
        .welcome(warm.regions)
        .map_err(|error| Stop::Failed(format!("cannot connect to the guest: {error}")))?;
    let statistics = Arc::new(Statistics::default());
    let _ = control.send(&FromWorker::Started(Started { session }), &[]);
    if let Some(liveness) = liveness {
        let (control, statistics) = (Arc::clone(control), Arc::clone(&statistics));
        watch(liveness, GRACE, move || {
            let reason = "the guest is gone, and a call of the device does not return";
            tracing::warn!(session, reason);
            finish(&control, session, &statistics, reason)
        });
    }
    attend(
        Arc::clone(control),
        session,
        Arc::clone(&statistics),
        Arc::clone(&connection.sender),
    );
    // Naps of a few microseconds are wanted as such.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1000));
    let setup = Setup {
        device: warm.device,
        snapshot: warm.snapshot,
        ordinal: warm.ordinal,
        regions: warm.regions,
        device_memory: assigned.device_memory,
        host_memory: assigned.host_memory,
        images: ImageStore {
            directory: arguments.image_cache.clone(),
            limit: arguments.image_cache_bytes,
        },
        output: Some(output),
        statistics: Arc::clone(&statistics),
    };
    let mut receiver = connection.receiver;
    // Never dropped: a device waits for its work when it is, and a kernel may
    // never end.
    let mut served = Session::new(setup, connection.sender, connection.window);
    let end = served.serve(receiver.as_mut());
    let reason = if end.is_orderly() {
        String::new()
    } else {
        tracing::warn!(session, %end, "the session was ended");
        end.to_string()
    };
    finish(control, session, &statistics, &reason)
}

/// Opens the GPU as far as it can be without a session.
fn warm_up(arguments: &Arguments) -> Result<Warm, Stop> {
    let failed = |error: paragpu_device::Error| {
        Stop::Failed(format!(
            "cannot open {:?} device {}: {error}",
            arguments.device, arguments.index
        ))
    };
    let platform = platform::open(arguments).map_err(failed)?;
    let snapshot = platform.snapshot(arguments.index).map_err(failed)?;
    let ordinal = arguments.ordinal;
    let regions = Regions::of(ordinal)
        .ok_or_else(|| Stop::Failed(format!("a guest has no device {ordinal}")))?;
    let device = platform.open(arguments.index, regions).map_err(failed)?;
    Ok(Warm {
        platform,
        device,
        snapshot,
        ordinal,
        regions,
    })
}

/// Opens the GPU again where the guest calls it by another ordinal.
fn prepare(arguments: &Arguments, warm: &mut Warm, ordinal: u32) -> Result<(), String> {
    if ordinal == warm.ordinal {
        return Ok(());
    }
    let regions = Regions::of(ordinal).ok_or_else(|| format!("a guest has no device {ordinal}"))?;
    warm.device = warm
        .platform
        .open(arguments.index, regions)
        .map_err(|error| format!("cannot open the device: {error}"))?;
    (warm.ordinal, warm.regions) = (ordinal, regions);
    Ok(())
}

/// Waits for a session; `None` where the daemon wants none.
fn wait_for_session(control: &Control) -> Result<Option<Assigned>, Stop> {
    let mut inbox = Inbox::default();
    loop {
        control.receive(&mut inbox, true)?;
        let fds = std::mem::take(&mut inbox.fds);
        match inbox.message::<ToWorker<'_>>()? {
            ToWorker::Assign(assign) => return assigned(&assign, fds).map(Some),
            ToWorker::Query => {
                let counters = Statistics::default().read();
                control.send(&FromWorker::Counters(counters), &[])?;
            }
            ToWorker::End => return Ok(None),
        }
    }
}

fn assigned(assign: &Assign<'_>, fds: Vec<std::os::fd::OwnedFd>) -> Result<Assigned, Stop> {
    tracing::info!(session = assign.session, vm = assign.vm.0, "session");
    Ok(Assigned {
        session: assign.session,
        ordinal: assign.ordinal,
        device_memory: assign.device_memory,
        host_memory: assign.host_memory,
        guest: Guest::new(assign, fds).map_err(Stop::Failed)?,
    })
}

/// Answers the daemon while the session is served. When the daemon goes away
/// the session goes on.
fn attend(
    control: Arc<Control>,
    session: u64,
    statistics: Arc<Statistics>,
    sender: Arc<dyn Sender>,
) {
    std::thread::spawn(move || {
        let mut inbox = Inbox::default();
        while control.receive(&mut inbox, true).is_ok() {
            match inbox.message::<ToWorker<'_>>() {
                Ok(ToWorker::Query) => {
                    let counters = FromWorker::Counters(statistics.read());
                    if control.send(&counters, &[]).is_err() {
                        return;
                    }
                }
                Ok(ToWorker::End) => {
                    ENDED_BY_HOST.store(true, Ordering::Release);
                    // Telling the guest may wait for a thread that is stuck.
                    after(GRACE, || exit_now(1));
                    let _ = sender.try_send(Frame::Goodbye.kind(), 0, Some(0), &[]);
                    let _ = sender.flush();
                    sender.close();
                    finish(&control, session, &statistics, "")
                }
                Ok(ToWorker::Assign(_)) | Err(_) => {
                    tracing::error!("the daemon sent what a busy worker does not expect");
                }
            }
        }
    });
}

/// Says that the session is over and ends the process, whatever its other
/// threads and the device are doing.
fn finish(control: &Control, session: u64, statistics: &Statistics, reason: &str) -> ! {
    let reason = if ENDED_BY_HOST.load(Ordering::Acquire) {
        "ended by the host"
    } else {
        reason
    };
    let finished = Finished {
        session,
        counters: statistics.read(),
        reason: Text(reason),
    };
    let _ = control.send(&FromWorker::Finished(finished), &[]);
    exit_now(0)
}
