//! Shares of GPU time: decides which session's turn it is.
//!
//! If any session on a GPU has a share, all its sessions launch in turns, one at a time, so
//! the length of a turn is the GPU time that it used. The next turn goes to the highest
//! priority, then to the owner with the least time divided by weight. An owner is a VM with
//! all its sessions, or a session with its own share. A session that is alone keeps its
//! turn.
//!
//! Nothing here blocks or sends: [`Shares::settle`] returns the messages for workers, and
//! when to call again.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use paragpu_config::host::Host;
use paragpu_control::admin::TurnsInfo;
use paragpu_control::turn::{MAX_WEIGHT, TimeShare, Turn, TurnRequest};

/// GPU time by which a turn may exceed its owner's fair share. It bounds how often turns
/// change.
const QUANTUM: Duration = Duration::from_millis(10);
/// Maximum GPU time that a returning owner may catch up. Programs pause between batches,
/// and other owners' turns in these pauses should not cost them their share. The limit
/// keeps an owner that was idle for long from holding the GPU until it has caught up.
const CREDIT: Duration = Duration::from_millis(100);
/// How long before the end of a turn its worker is notified. Until then, the end moves as
/// others start and stop waiting.
const NOTICE: Duration = Duration::from_millis(10);
/// Upper limit, in seconds, for the computed rest of a turn.
const LONGEST_WAIT: f64 = 60.0;
/// Maximum number of absent owners whose debts a GPU remembers.
const MAX_ABSENT: usize = 1024;
/// If a kernel still runs this long after the end of the turn, other sessions launch
/// concurrently, as without shares.
const OVERRUN: Duration = Duration::from_secs(1);

/// Sessions whose GPU time is counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// All sessions of a tenant that have no share of their own.
    Vm(String),
    /// One session.
    Session(u64),
}

/// The shares of all GPUs.
#[derive(Debug, Default)]
pub struct Shares {
    /// Shares set over the control socket; they override the configuration.
    given: BTreeMap<Owner, TimeShare>,
    /// The weight of each lease, by its tenant.
    leases: BTreeMap<String, Weight>,
    /// The GPUs with sessions, by label.
    gpus: BTreeMap<String, Gpu>,
}

/// The weight of a lease.
#[derive(Debug, Clone, Copy)]
enum Weight {
    /// GiB of device memory in the lease. They are the weight if `lease.share_time` is set.
    Gib(u32),
    /// The weight in the claim.
    Own(u32),
}

#[derive(Debug, Default)]
struct Gpu {
    /// Whether its sessions take turns.
    paced: bool,
    runners: BTreeMap<u64, Runner>,
    /// Of owners with sessions, and of those that left with a [debt](Clock::debt).
    clocks: BTreeMap<Owner, Clock>,
    /// The least [`Clock::time`] of the owners with work; it never decreases. A returning
    /// owner starts at most [`CREDIT`] behind it.
    floor: f64,
}

/// A session on a GPU.
#[derive(Debug)]
struct Runner {
    vm: String,
    owner: Owner,
    state: State,
    /// Whether its worker has been notified that it takes turns.
    notified: bool,
    used: Duration,
}

/// ```text
///          Wanted            Yours             others wait
///   Away ─────────► Waiting ─────────► Running ───────────► Running until
///    ▲                                    │                    │      │ OVERRUN
///    └────────────────────────── Over ◄───┴────────────────────┴──── Late
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Away,
    Waiting,
    Running {
        charged: Instant,
        until: Option<Instant>,
    },
    Late {
        charged: Instant,
    },
}

/// The time account of an owner on a GPU.
#[derive(Debug)]
struct Clock {
    share: TimeShare,
    /// GPU seconds used, divided by the weight.
    time: f64,
    /// GPU seconds that the cap still allows; at most two [`QUANTUM`]s accumulate.
    budget: f64,
    filled: Instant,
}

impl Clock {
    fn new(share: TimeShare, now: Instant) -> Self {
        let budget = QUANTUM.as_secs_f64();
        Self {
            share,
            time: 0.0,
            budget,
            filled: now,
        }
    }

    fn fill(&mut self, now: Instant) {
        let rate = f64::from(self.share.cap) / 100.0;
        let more = now.saturating_duration_since(self.filled).as_secs_f64() * rate;
        self.budget = (self.budget + more).min(2.0 * QUANTUM.as_secs_f64());
        self.filled = now;
    }

    fn charge(&mut self, seconds: f64) {
        self.time += seconds / f64::from(self.share.weight);
        self.budget -= seconds;
    }

    /// Limits the time that an owner with work again may catch up.
    fn return_to(&mut self, floor: f64) {
        let credit = CREDIT.as_secs_f64() / f64::from(self.share.weight);
        self.time = self.time.max(floor - credit);
    }

    /// GPU seconds that the owner used beyond its share. Without memory of it, an owner would
    /// get rid of it by ending its sessions and starting new ones.
    fn debt(&self, floor: f64) -> f64 {
        let ahead = (self.time - floor) * f64::from(self.share.weight);
        ahead.max(0.0).max(self.wait().as_secs_f64())
    }

    fn is_capped(&self) -> bool {
        self.share.cap < 100
    }

    /// How long until the cap allows a whole [`QUANTUM`]; zero if it does now.
    fn wait(&self) -> Duration {
        let lacks = QUANTUM.as_secs_f64() - self.budget;
        if !self.is_capped() || lacks <= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(lacks * 100.0 / f64::from(self.share.cap))
    }
}

/// A message for the worker of a session.
pub type Notice = (u64, Turn);

impl Shares {
    /// Adds a session on a GPU.
    pub fn join(&mut self, session: u64, vm: &str, gpu: &str) {
        let runner = Runner {
            vm: vm.to_owned(),
            owner: Owner::Vm(vm.to_owned()),
            state: State::Away,
            notified: false,
            used: Duration::ZERO,
        };
        let gpu = self.gpus.entry(gpu.to_owned()).or_default();
        gpu.runners.insert(session, runner);
    }

    /// Removes a session that has ended.
    pub fn leave(&mut self, session: u64, now: Instant) {
        for gpu in self.gpus.values_mut() {
            if gpu.runners.contains_key(&session) {
                gpu.charge(now);
                gpu.runners.remove(&session);
            }
        }
        self.given.remove(&Owner::Session(session));
        let gpus = &self.gpus;
        self.given.retain(|owner, _| match owner {
            Owner::Session(_) => true,
            Owner::Vm(vm) => gpus
                .values()
                .any(|gpu| gpu.runners.values().any(|one| one.vm == *vm)),
        });
    }

    /// Adds the lease of a tenant, with its bytes of device memory. `weight` is 0 if the
    /// claim has none.
    pub fn lease(&mut self, vm: &str, memory: u64, weight: u32) {
        let gib = u32::try_from(memory >> 30).unwrap_or(MAX_WEIGHT);
        let weight = match weight {
            0 => Weight::Gib(gib.clamp(1, MAX_WEIGHT)),
            own => Weight::Own(own.min(MAX_WEIGHT)),
        };
        self.leases.insert(vm.to_owned(), weight);
    }

    /// Removes a lease that has ended.
    pub fn end_lease(&mut self, vm: &str) {
        self.leases.remove(vm);
    }

    /// Sets the share of an owner until its sessions have ended.
    pub fn give(&mut self, owner: Owner, share: TimeShare) {
        self.given.insert(owner, share);
    }

    /// Gives a session's own share, if it has one, to the session that continues it.
    pub fn hand_on(&mut self, session: u64, successor: u64) {
        if let Some(share) = self.given.remove(&Owner::Session(session)) {
            self.given.insert(Owner::Session(successor), share);
        }
    }

    /// The share of an owner. A session without its own has that of its VM.
    #[must_use]
    pub fn share_of(&self, host: &Host, owner: &Owner) -> TimeShare {
        let vm = match owner {
            Owner::Vm(vm) => Some(vm.as_str()),
            Owner::Session(session) => {
                let mut runners = self
                    .gpus
                    .values()
                    .filter_map(|gpu| gpu.runners.get(session));
                runners.next().map(|runner| runner.vm.as_str())
            }
        };
        let own = self.given.get(owner).copied();
        own.or_else(|| self.of_vm(host, vm?)).unwrap_or_default()
    }

    fn of_vm(&self, host: &Host, vm: &str) -> Option<TimeShare> {
        let given = self.given.get(&Owner::Vm(vm.to_owned())).copied();
        let leased = || {
            let weight = match *self.leases.get(vm)? {
                Weight::Own(own) => own,
                Weight::Gib(gib) if host.lease.share_time => gib,
                Weight::Gib(_) => return None,
            };
            let all = TimeShare::default();
            Some(TimeShare { weight, ..all })
        };
        given.or_else(|| configured(host, vm)).or_else(leased)
    }

    /// Applies changes of sessions, shares or the configuration. Returns messages for the
    /// sessions that start or stop taking turns.
    pub fn follow(&mut self, host: &Host, now: Instant) -> Vec<Notice> {
        let mut notices = Vec::new();
        let mut gpus = std::mem::take(&mut self.gpus);
        for gpu in gpus.values_mut() {
            gpu.charge(now);
            let mut owners = BTreeSet::new();
            gpu.paced = false;
            for (session, runner) in &mut gpu.runners {
                let own = self.given.get(&Owner::Session(*session)).copied();
                let configured = own.or_else(|| self.of_vm(host, &runner.vm));
                gpu.paced |= configured.is_some();
                runner.owner = match own {
                    Some(_) => Owner::Session(*session),
                    None => Owner::Vm(runner.vm.clone()),
                };
                let share = configured.unwrap_or_default();
                let floor = gpu.floor;
                let clock = gpu.clocks.entry(runner.owner.clone());
                let clock = clock.or_insert_with(|| Clock {
                    time: floor,
                    ..Clock::new(share, now)
                });
                clock.share = share;
                owners.insert(runner.owner.clone());
            }
            gpu.forget_absent(&owners);
            for (session, runner) in &mut gpu.runners {
                if runner.notified != gpu.paced {
                    runner.notified = gpu.paced;
                    runner.state = State::Away;
                    notices.push((*session, if gpu.paced { Turn::Paced } else { Turn::Free }));
                }
            }
        }
        gpus.retain(|_, gpu| !gpu.runners.is_empty() || !gpu.clocks.is_empty());
        self.gpus = gpus;
        notices
    }

    /// Handles a worker's message about its turn.
    pub fn handle_request(&mut self, session: u64, request: TurnRequest, now: Instant) {
        for gpu in self.gpus.values_mut() {
            if gpu.paced && gpu.runners.contains_key(&session) {
                gpu.handle_request(session, request, now);
            }
        }
    }

    /// Begins and ends turns. Returns the messages to send, and when to call again.
    pub fn settle(&mut self, now: Instant) -> (Vec<Notice>, Option<Instant>) {
        let mut notices = Vec::new();
        let paced = self.gpus.values_mut().filter(|gpu| gpu.paced);
        let next = paced.filter_map(|gpu| gpu.settle(now, &mut notices)).min();
        (notices, next)
    }

    /// The share and the used GPU time of a session that takes turns, for a listing.
    #[must_use]
    pub fn info(&self, session: u64) -> Option<TurnsInfo> {
        let mut paced = self.gpus.values().filter(|gpu| gpu.paced);
        paced.find_map(|gpu| {
            let runner = gpu.runners.get(&session)?;
            Some(TurnsInfo {
                share: gpu.clocks.get(&runner.owner)?.share,
                seconds: runner.used.as_secs_f64(),
            })
        })
    }
}

/// The share that `host.toml` gives a VM.
fn configured(host: &Host, vm: &str) -> Option<TimeShare> {
    let (weight, cap, priority) = host.share_of(vm)?;
    let all = TimeShare::default();
    Some(TimeShare {
        weight: if weight == 0 { all.weight } else { weight },
        cap: if cap == 0 { all.cap } else { cap },
        priority,
    })
}

impl Gpu {
    /// Removes the clocks of absent owners without debts, and of those with the least if there
    /// are too many.
    fn forget_absent(&mut self, present: &BTreeSet<Owner>) {
        // Without others, nobody is owed time.
        let floor = match self.runners.is_empty() {
            true => f64::INFINITY,
            false => self.floor,
        };
        let absent = self
            .clocks
            .iter()
            .filter(|(owner, _)| !present.contains(owner));
        let absent = absent.map(|(owner, clock)| (clock.debt(floor), owner.clone()));
        let mut absent: Vec<_> = absent.collect();
        absent.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        for (place, (debt, owner)) in absent.into_iter().enumerate() {
            let may_return = matches!(owner, Owner::Vm(_));
            if debt == 0.0 || !may_return || place >= MAX_ABSENT {
                self.clocks.remove(&owner);
            }
        }
    }

    /// The owners that have work.
    fn active(&self) -> BTreeSet<Owner> {
        let runners = self.runners.values();
        let active = runners.filter(|runner| runner.state != State::Away);
        active.map(|runner| runner.owner.clone()).collect()
    }

    /// Charges owners for the turns in progress, up to now.
    fn charge(&mut self, now: Instant) {
        for runner in self.runners.values_mut() {
            let (State::Running { charged, .. } | State::Late { charged }) = &mut runner.state
            else {
                continue;
            };
            let more = now.saturating_duration_since(*charged);
            *charged = now;
            runner.used += more;
            if let Some(clock) = self.clocks.get_mut(&runner.owner) {
                clock.charge(more.as_secs_f64());
            }
        }
        for clock in self.clocks.values_mut() {
            clock.fill(now);
        }
        let active = self.active();
        let times = self
            .clocks
            .iter()
            .filter(|(owner, _)| active.contains(owner));
        let least = times.map(|(_, clock)| clock.time).min_by(f64::total_cmp);
        self.floor = least.map_or(self.floor, |least| self.floor.max(least));
    }

    fn handle_request(&mut self, session: u64, request: TurnRequest, now: Instant) {
        self.charge(now);
        let active = self.active();
        let Some(runner) = self.runners.get_mut(&session) else {
            return;
        };
        match (request, runner.state) {
            (TurnRequest::Wanted, State::Away) => {
                runner.state = State::Waiting;
                if !active.contains(&runner.owner)
                    && let Some(clock) = self.clocks.get_mut(&runner.owner)
                {
                    clock.return_to(self.floor);
                }
            }
            (TurnRequest::Over, State::Running { .. } | State::Late { .. }) => {
                runner.state = State::Away;
            }
            // The message crossed one from the daemon. Its state is out of date.
            (TurnRequest::Wanted | TurnRequest::Over, _) => {}
        }
    }

    fn settle(&mut self, now: Instant, notices: &mut Vec<Notice>) -> Option<Instant> {
        self.charge(now);
        for runner in self.runners.values_mut() {
            if let State::Running {
                charged,
                until: Some(until),
            } = runner.state
                && until + OVERRUN <= now
            {
                runner.state = State::Late { charged };
            }
        }
        let running = |runner: &Runner| matches!(runner.state, State::Running { .. });
        if !self.runners.values().any(running)
            && let Some(next) = self.next()
            && let Some(runner) = self.runners.get_mut(&next)
        {
            runner.state = State::Running {
                charged: now,
                until: None,
            };
            notices.push((next, Turn::Yours));
        }
        let revisit = self.end_turn(now, notices);
        let deadline = |runner: &Runner| match runner.state {
            State::Running {
                until: Some(until), ..
            } => Some(until + OVERRUN),
            State::Waiting => {
                let wait = self.clocks.get(&runner.owner)?.wait();
                (!wait.is_zero()).then(|| now + wait)
            }
            _ => None,
        };
        let deadlines = self.runners.values().filter_map(deadline);
        deadlines.chain(revisit).min()
    }

    /// The session whose turn is next, of those that wait and whose cap allows a turn.
    fn next(&self) -> Option<u64> {
        let waits = self.runners.iter().filter_map(|(session, runner)| {
            let clock = self.clocks.get(&runner.owner)?;
            (runner.state == State::Waiting && clock.wait().is_zero())
                .then_some((session, runner, clock))
        });
        let first = waits.min_by(|(_, one, first), (_, other, second)| {
            let by_priority = second.share.priority.cmp(&first.share.priority);
            by_priority
                .then(first.time.total_cmp(&second.time))
                .then(one.used.cmp(&other.used))
        });
        first.map(|(session, ..)| *session)
    }

    /// Announces the end of the current turn, if others wait or its cap is reached within
    /// [`NOTICE`]. If that is later, returns when to call again.
    fn end_turn(&mut self, now: Instant, notices: &mut Vec<Notice>) -> Option<Instant> {
        let holder = self
            .runners
            .iter()
            .find_map(|(session, runner)| match runner.state {
                State::Running { until, .. } => Some((*session, &runner.owner, until)),
                _ => None,
            });
        let (session, owner, until) = holder?;
        let own = self.clocks.get(owner)?;
        let next = self.next().and_then(|next| self.runners.get(&next));
        let next = next.and_then(|next| self.clocks.get(&next.owner));
        let fair = next.and_then(|next| match next.share.priority.cmp(&own.share.priority) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Greater => Some(0.0),
            std::cmp::Ordering::Equal => {
                let behind = (next.time - own.time) * f64::from(own.share.weight);
                Some((behind + QUANTUM.as_secs_f64()).clamp(0.0, LONGEST_WAIT))
            }
        });
        let capped = own.is_capped().then_some(own.budget.max(0.0));
        let within = [fair, capped].into_iter().flatten().min_by(f64::total_cmp);
        let within = Duration::from_secs_f64(within?);
        // Once announced, an end is moved forward only if the turn must end immediately.
        if until.is_some_and(|until| !within.is_zero() || until <= now) {
            return None;
        }
        if within > NOTICE {
            return Some(now + within - NOTICE);
        }
        if let Some(runner) = self.runners.get_mut(&session)
            && let State::Running { until, .. } = &mut runner.state
        {
            *until = Some(now + within);
            let micros = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
            notices.push((session, Turn::Ends(micros)));
        }
        None
    }
}

#[cfg(test)]
mod tests;
