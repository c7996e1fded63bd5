//! The messages by which an idle worker gets its session.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use paragpu_control::account::{Account, Share};
use paragpu_control::socket::{Control, Inbox};
use paragpu_control::worker::{FromWorker, Migrate, Route, Terms, ToWorker};

use super::Stop;
use crate::confine;
use crate::connect::Guest;
use crate::session::host_memory::Pinned;
use crate::statistics::Statistics;
use crate::transfer::identity::Identity;

/// A session that was handed over.
pub(super) struct Assignment {
    pub(super) session: u64,
    pub(super) ordinal: u32,
    pub(super) device_memory: u64,
    /// How long to wait for a guest that lost its connection.
    pub(super) patience: Duration,
    pub(super) identity: Identity,
    pub(super) origin: Origin,
    /// The order to move it before it executes a call, with its descriptors.
    pub(super) moves: Option<(Migrate, Vec<OwnedFd>)>,
    /// The session's share of the VM's account.
    pub(super) share: Share,
    /// Where a later daemon reaches the worker.
    pub(super) door: Option<OwnedFd>,
    /// The directory for the VM's images, if the daemon gave the worker one.
    pub(super) own: Option<OwnedFd>,
}

/// The origin of a session.
pub(super) enum Origin {
    /// A new guest.
    Guest(Box<Guest>),
    /// An earlier location.
    Elsewhere(EarlierHome),
}

/// The earlier location of a session.
pub(super) enum EarlierHome {
    /// Another worker, at the other end of a connection.
    Worker(Arrival),
    /// A file of a directory.
    File(std::fs::File),
}

/// How a session arrives: [`ToWorker::Arrive`].
pub(super) struct Arrival {
    pub(super) link: OwnedFd,
    pub(super) follows: bool,
    pub(super) route: Option<Route>,
}

/// Waits for a session, and for what comes before it. `None` if the daemon dismisses the worker.
pub(super) fn wait_for_session(control: &Control) -> Result<Option<Assignment>, Stop> {
    let mut inbox = Inbox::default();
    let mut share = Share::default();
    let mut own = None;
    let mut door = None;
    let mut moves = None;
    let (terms, origin) = loop {
        control.receive(&mut inbox, true)?;
        let fds = std::mem::take(&mut inbox.fds);
        match inbox.message()? {
            ToWorker::Assign { terms, guest } => {
                let guest = Guest::new(&terms, &guest, fds).map_err(Stop::Failed)?;
                break (terms, Origin::Guest(Box::new(guest)));
            }
            ToWorker::Exchanged { .. } | ToWorker::Resumed => {
                tracing::error!("the daemon answered a request that was not made");
            }
            ToWorker::Query => {
                let counters = Statistics::default().read();
                control.send(&FromWorker::Counters(counters), &[])?;
            }
            ToWorker::End { .. } => return Ok(None),
            ToWorker::Quota { slot, gpu } => share = share_of(slot, gpu, fds)?,
            ToWorker::Migrate(migrate) => moves = Some((migrate, fds)),
            ToWorker::Door => door = Some(only(fds, "a door")?),
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
                break (terms, Origin::Elsewhere(worker));
            }
            ToWorker::Restore { terms } => {
                let file = EarlierHome::File(only(fds, "the session")?.into());
                break (terms, Origin::Elsewhere(file));
            }
            ToWorker::Own { user } => {
                own = fds.into_iter().next();
                confine::become_user(user)
                    .map_err(|error| Stop::Failed(format!("cannot be user {user}: {error}")))?;
            }
            ToWorker::Resume { .. }
            | ToWorker::Move(_)
            | ToWorker::Checkpoint { .. }
            | ToWorker::Again(_)
            | ToWorker::Turn(_) => {
                tracing::error!("the daemon sent a message that an idle worker does not expect");
            }
        }
    };
    let equipment = (share, door, own);
    Ok(Some(Assignment {
        moves,
        ..assignment(terms, origin, equipment)
    }))
}

/// The session's share of the accounts of its VM and of its GPU.
fn share_of(slot: u32, gpu: Option<u32>, fds: Vec<OwnedFd>) -> Result<Share, Stop> {
    let open = |account| {
        Account::open(account)
            .map(Arc::new)
            .map_err(|error| Stop::Failed(format!("no account: {error}")))
    };
    let Some(on_gpu) = gpu else {
        return Ok(Share::new(open(only(fds, "an account")?)?, slot));
    };
    let Ok([of_vm, of_gpu]) = <[OwnedFd; 2]>::try_from(fds) else {
        return Err(Stop::Failed("an account did not come".into()));
    };
    Ok(Share::new(open(of_vm)?, slot).on_gpu(open(of_gpu)?, on_gpu))
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

fn assignment(
    terms: Terms,
    origin: Origin,
    (share, door, own): (Share, Option<OwnedFd>, Option<OwnedFd>),
) -> Assignment {
    // The daemon logs that it begins, and limits the lines of all workers together.
    tracing::debug!(session = terms.session, vm = terms.vm, "session");
    let guest_pid = match &origin {
        Origin::Guest(guest) => guest.pid(),
        Origin::Elsewhere(_) => 0,
    };
    Assignment {
        session: terms.session,
        ordinal: terms.ordinal,
        device_memory: terms.device_memory,
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
        moves: None,
        share,
        door,
        own,
    }
}
