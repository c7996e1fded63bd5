//! The role on a GPU host: publishes its GPUs, and claims leases of paragpud for the
//! ResourceClaims that have shares of them.
//!
//! ```text
//!            key in the claim                       certificate in the claim
//!  allocated ────────────────▶ Claim to paragpud ──────────────────────────▶ held
//!                                                                             │
//!      Release to paragpud ◀──── deallocated, deleted, or no key any more ────┘
//! ```
//!
//! Connections close when this process ends. The daemon keeps the leases for [`GRACE`]
//! seconds. The next process claims them again by the serial numbers in its state
//! directory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use paragpu_control::admin::{Client, DeviceInfo, Request, Response};
use paragpu_control::lease::{Claim, Name};
use paragpu_protocol::chain;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::{Api, CLAIMS, Event, claim_path, text};
use crate::claim::{self, Data, Share};
use crate::lease::Held;
use crate::{Error, files, slice};

/// How long a restart of this role may take before its leases end, in seconds.
pub const GRACE: u32 = 60;
/// How often all claims are checked again.
const LOOK: Duration = Duration::from_secs(30);
/// Time from a failure to the next attempt.
const AGAIN: Duration = Duration::from_secs(1);
/// Maximum number of attempts to update a claim that others update, too.
const ATTEMPTS: usize = 10;

/// The options of the role.
#[derive(Debug, Clone)]
pub struct Options {
    /// The host's name, which is that of its pool of devices.
    pub name: String,
    /// The daemon's control socket.
    pub control: PathBuf,
    /// The daemon's lease socket.
    pub lease: PathBuf,
    /// The directory for the leases' serial numbers.
    pub state: PathBuf,
    /// Whether to taint the GPUs, so that Pods that use them are evicted.
    pub drains: bool,
}

/// The record of a lease, in a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct LeaseRecord {
    vm: String,
    serial: u64,
    key: String,
}

/// A lease.
#[derive(Debug)]
struct Leased {
    /// `None` while the daemon is not running.
    held: Option<Held>,
    kept: LeaseRecord,
    share: Share,
    said: Data,
    /// The number of its connection.
    number: u64,
}

enum Update {
    /// All claims, from a list.
    All(Vec<Value>),
    /// A changed claim.
    Changed(Box<Value>),
    /// The uid of a deleted claim.
    Gone(String),
    /// A connection that holds a lease was closed.
    Lost { uid: String, number: u64 },
    /// The process must end.
    End,
}

/// Current failures, by what fails. Each is logged once.
#[derive(Debug, Default)]
struct Failures(BTreeMap<String, String>);

impl Failures {
    /// Logs a failure that differs from the last one. Returns whether the outcome is a
    /// success.
    fn note(&mut self, what: &str, outcome: Result<(), Error>) -> bool {
        let Err(error) = outcome else {
            self.0.remove(what);
            return true;
        };
        let error = chain(&error);
        if self.0.get(what) != Some(&error) {
            tracing::warn!(what, error, "this fails, and will be retried");
            self.0.insert(what.to_owned(), error);
        }
        false
    }
}

/// The role.
#[derive(Debug)]
struct Host {
    api: Api,
    options: Options,
    sender: Sender<Update>,
    /// Claims with shares of this host, by uid.
    claims: BTreeMap<String, Value>,
    leases: BTreeMap<String, Leased>,
    /// Number of connections so far.
    number: u64,
    /// Uids of claims to check.
    due: BTreeSet<String>,
    failures: Failures,
}

/// Serves until `end` returns. The daemon keeps the leases for [`GRACE`] seconds.
///
/// # Errors
/// [`Error`]: the role cannot start.
pub fn run(api: &Api, options: Options, end: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    std::fs::create_dir_all(&options.state).map_err(Error::file(&options.state))?;
    let (sender, news) = channel();
    let to = sender.clone();
    thread::spawn(move || {
        end();
        drop(to.send(Update::End));
    });
    let (follower, to) = (api.clone(), sender.clone());
    thread::spawn(move || follow(&follower, &to));
    let mut host = Host {
        api: api.clone(),
        options,
        sender,
        claims: BTreeMap::new(),
        leases: BTreeMap::new(),
        number: 0,
        due: BTreeSet::new(),
        failures: Failures::default(),
    };
    host.serve(&news);
    Ok(())
}

/// Reports claims until the receiver is gone.
fn follow(api: &Api, to: &Sender<Update>) {
    loop {
        match follow_once(api, to) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => return,
            Err(error) => {
                tracing::warn!(error = chain(&error), "claims cannot be watched");
                thread::sleep(AGAIN);
            }
        }
    }
}

/// Lists the claims, and watches them for a while. Breaks when the receiver is gone.
fn follow_once(api: &Api, to: &Sender<Update>) -> Result<ControlFlow<()>, Error> {
    let mut list = api.get(CLAIMS)?;
    let version = text(&list, "/metadata/resourceVersion").to_owned();
    let items = list.get_mut("items").map(Value::take);
    let items = match items {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    if to.send(Update::All(items)).is_err() {
        return Ok(ControlFlow::Break(()));
    }
    let listens = |event: Event| {
        let news = match event.kind.as_str() {
            "ADDED" | "MODIFIED" => Update::Changed(Box::new(event.object)),
            "DELETED" => Update::Gone(text(&event.object, "/metadata/uid").to_owned()),
            _ => return ControlFlow::Continue(()),
        };
        match to.send(news) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    let ended = api.watch(CLAIMS, &version, LOOK * 10, listens)?;
    Ok(ended.map_or(ControlFlow::Continue(()), ControlFlow::Break))
}

impl Host {
    fn serve(&mut self, news: &Receiver<Update>) {
        let mut next_look = Instant::now();
        loop {
            let now = Instant::now();
            if next_look <= now {
                let published = self.publish();
                let published = self.failures.note("the slice of GPUs", published);
                next_look = now + if published { LOOK } else { AGAIN };
            }
            for uid in std::mem::take(&mut self.due) {
                let settled = self.settle(&uid);
                if !self.failures.note(&uid, settled) {
                    self.due.insert(uid);
                }
            }
            let until = match self.due.is_empty() {
                true => next_look,
                false => next_look.min(now + AGAIN),
            };
            match news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(first) => {
                    for news in std::iter::once(first).chain(news.try_iter()) {
                        if self.handle_update(news).is_break() {
                            return;
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn publish(&self) -> Result<(), Error> {
        let gpus = gpus(&self.options.control)?;
        let spec = slice::spec(&self.options.name, &gpus, self.options.drains);
        slice::publish(&self.api, &self.options.name, &spec)
    }

    fn handle_update(&mut self, news: Update) -> ControlFlow<()> {
        match news {
            Update::End => return ControlFlow::Break(()),
            Update::All(claims) => {
                let before = std::mem::take(&mut self.claims);
                self.due.extend(before.into_keys());
                self.due.extend(self.leases.keys().cloned());
                for claim in claims {
                    self.changed(claim);
                }
                self.forget();
            }
            Update::Changed(claim) => self.changed(*claim),
            Update::Gone(uid) => {
                self.claims.remove(&uid);
                self.due.insert(uid);
            }
            Update::Lost { uid, number } => {
                if let Some(leased) = self.leases.get_mut(&uid)
                    && leased.number == number
                {
                    tracing::warn!(claim = uid, "the daemon closed the connection of a lease");
                    leased.held = None;
                    self.due.insert(uid);
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Records a changed claim. Only claims of this host are kept.
    fn changed(&mut self, claim: Value) {
        let uid = text(&claim, "/metadata/uid").to_owned();
        let own = |share: &Share| share.pool == self.options.name;
        if !claim::is_plain(&uid) {
            return;
        }
        match claim::share(&claim).is_ok_and(|share| own(&share)) {
            true => drop(self.claims.insert(uid.clone(), claim)),
            false => drop(self.claims.remove(&uid)),
        }
        if self.claims.contains_key(&uid) || self.leases.contains_key(&uid) {
            self.due.insert(uid);
        }
    }

    /// Removes the records of claims that ended while this role was not running.
    fn forget(&self) {
        let entries = std::fs::read_dir(&self.options.state);
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let uid = name.to_str().and_then(|name| name.strip_suffix(".json"));
            if uid.is_some_and(|uid| !self.claims.contains_key(uid)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Claims, replaces or releases a lease as its claim requires, and writes the result
    /// into the claim.
    fn settle(&mut self, uid: &str) -> Result<(), Error> {
        let Some(claim) = self.claims.get(uid).cloned() else {
            self.release(uid);
            return Ok(());
        };
        let share = claim::share(&claim).map_err(Error::Claim)?;
        let data = claim::data(&claim, &share);
        if data.key.is_empty() {
            self.release(uid);
            return Ok(());
        }
        let other = |leased: &Leased| leased.kept.key != data.key || leased.share != share;
        if self.leases.get(uid).is_some_and(other) {
            self.release(uid);
        }
        if self.leases.get(uid).is_none_or(|it| it.held.is_none()) {
            match self.lease(uid, &share, &data) {
                Ok(()) => {}
                // The daemon refuses the lease; the claim gets the reason.
                Err(Error::Lease(error)) => {
                    self.say(&claim, &share, &data.key, |data| Data {
                        error: error.clone(),
                        ..asked(data)
                    })?;
                    return Err(Error::Lease(error));
                }
                Err(error) => return Err(error),
            }
        }
        let Some(leased) = self.leases.get(uid) else {
            return Ok(());
        };
        let said = leased.said.clone();
        self.say(&claim, &share, &data.key, |data| Data {
            node: data.node.clone(),
            ..said.clone()
        })
    }

    /// Claims a lease. If there is a record of it, claims that lease again.
    fn lease(&mut self, uid: &str, share: &Share, data: &Data) -> Result<(), Error> {
        let path = self.kept(uid);
        let kept = std::fs::read(&path).ok();
        let kept = kept.and_then(|text| serde_json::from_slice::<LeaseRecord>(&text).ok());
        let again = kept.filter(|kept| kept.key == data.key).map(|kept| Name {
            vm: kept.vm,
            serial: kept.serial,
        });
        let gpu = slice::gpu_of(&share.device)
            .ok_or_else(|| Error::Lease(format!("this host has no {}", share.device)))?;
        let wanted = Claim {
            job: None,
            memory: share.memory,
            gpu,
            key: data.key.clone(),
            again,
            checkpoint: 0,
            weight: share.time.min(slice::TIME),
            grace: GRACE,
        };
        self.number += 1;
        let (number, to, of) = (self.number, self.sender.clone(), uid.to_owned());
        let lost = move || drop(to.send(Update::Lost { uid: of, number }));
        let (held, lease) = Held::claim(&self.options.lease, wanted, lost)?;
        let kept = LeaseRecord {
            vm: lease.name.vm,
            serial: lease.name.serial,
            key: data.key.clone(),
        };
        let written = serde_json::to_string(&kept).unwrap_or_default();
        if let Err(error) = files::replace(&path, &written) {
            // The lease is valid, but ends with this process.
            let error = chain(&error);
            tracing::warn!(claim = uid, error, "a lease will not outlive a restart");
        }
        tracing::info!(claim = uid, vm = kept.vm, "a lease begins");
        let said = Data {
            node: String::new(),
            key: data.key.clone(),
            endpoint: lease.address,
            authority: lease.authority,
            certificate: lease.certificate,
            error: String::new(),
        };
        let leased = Leased {
            held: Some(held),
            kept,
            share: share.clone(),
            said,
            number,
        };
        self.leases.insert(uid.to_owned(), leased);
        Ok(())
    }

    fn kept(&self, uid: &str) -> PathBuf {
        self.options.state.join(format!("{uid}.json"))
    }

    fn release(&mut self, uid: &str) {
        if let Some(leased) = self.leases.remove(uid) {
            tracing::info!(claim = uid, vm = leased.kept.vm, "a lease ended");
            if let Some(held) = leased.held {
                held.release();
            }
            let _ = std::fs::remove_file(self.kept(uid));
        }
    }

    /// Writes a message into the claim, if its key is still the same.
    fn say(
        &self,
        claim: &Value,
        share: &Share,
        key: &str,
        what: impl Fn(&Data) -> Data,
    ) -> Result<(), Error> {
        let name = text(claim, "/metadata/name");
        let path = claim_path(text(claim, "/metadata/namespace"), name);
        let mut claim = claim.clone();
        for _ in 0..ATTEMPTS {
            let there = claim::data(&claim, share);
            if there.key != key || claim::share(&claim).ok().as_ref() != Some(share) {
                // The watch will report the change.
                return Ok(());
            }
            let said = what(&there);
            if said == there {
                return Ok(());
            }
            claim::set_data(&mut claim, share, &said);
            match self.api.replace(&format!("{path}/status"), &claim) {
                Ok(_) => return Ok(()),
                Err(error) if error.is_missing() => return Ok(()),
                Err(error) if error.is_conflict() => claim = self.api.get(&path)?,
                Err(error) => return Err(error),
            }
        }
        Err(Error::Server(
            "the claim changes too often to be updated".into(),
        ))
    }
}

/// The node's part of the messages.
fn asked(data: &Data) -> Data {
    Data {
        node: data.node.clone(),
        key: data.key.clone(),
        ..Data::default()
    }
}

/// The GPUs of the daemon.
fn gpus(control: &Path) -> Result<Vec<DeviceInfo>, Error> {
    let client = Client::connect(control).map_err(Error::file(control))?;
    let answer = client.ask(&Request::Stats {});
    match answer.map_err(|error| Error::Daemon(chain(&error)))? {
        Response::Stats(stats) if stats.ready => Ok(stats.devices),
        Response::Stats(stats) => Err(Error::Daemon(
            stats.problem.unwrap_or_else(|| "its GPUs start".into()),
        )),
        other => Err(Error::Daemon(format!("it answers {other:?}"))),
    }
}
