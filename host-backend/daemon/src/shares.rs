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

mod clock;
mod runner;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use paragpu_config::host::Host;
use paragpu_control::admin::TurnsInfo;
use paragpu_control::turn::{MAX_WEIGHT, TimeShare, Turn, TurnRequest};

use self::clock::Clock;
use self::runner::{Runner, State};

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
    Gib(f64),
    /// The weight in the claim.
    Own(f64),
}

#[derive(Debug, Default)]
struct Gpu {
    /// Whether its sessions take turns.
    paced: bool,
    runners: BTreeMap<u64, Runner>,
    /// Of owners with sessions, and of those that left with a [debt](Clock::debt).
    clocks: BTreeMap<Owner, Clock>,
    /// For each priority, the least [`Clock::time`] of the owners whose work may run; it never
    /// decreases. A returning owner starts at most [`CREDIT`] behind it.
    floors: BTreeMap<u32, f64>,
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
            standing: Duration::ZERO,
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
        // A lease has at least a MiB, and a weight is never zero.
        let gib = (memory >> 20).max(1) as f64 / 1024.0;
        let weight = match weight {
            0 => Weight::Gib(gib.min(MAX_WEIGHT.into())),
            own => Weight::Own(own.min(MAX_WEIGHT).into()),
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
                let owner = match own {
                    Some(_) => Owner::Session(*session),
                    None => Owner::Vm(runner.vm.clone()),
                };
                let share = configured.unwrap_or_default();
                let floor = floor(&gpu.floors, share.priority);
                let clock = gpu.clocks.entry(owner.clone());
                let clock = clock.or_insert_with(|| Clock::new(share, floor, now));
                if clock.share != share {
                    clock.change(share, floor);
                }
                if runner.owner != owner {
                    runner.standing = clock.standing;
                    runner.owner = owner.clone();
                }
                owners.insert(owner);
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

/// A time for a worker.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The floor of a priority; zero before any of its owners had work.
fn floor(floors: &BTreeMap<u32, f64>, priority: u32) -> f64 {
    floors.get(&priority).copied().unwrap_or_default()
}

/// The share that `host.toml` gives a VM.
fn configured(host: &Host, vm: &str) -> Option<TimeShare> {
    let (weight, cap, priority) = host.share_of(vm)?;
    let all = TimeShare::default();
    Some(TimeShare {
        weight: if weight == 0 {
            all.weight
        } else {
            weight.into()
        },
        cap: if cap == 0 { all.cap } else { cap },
        priority,
    })
}

impl Gpu {
    /// Removes the clocks of absent owners without debts, and of those with the least if there
    /// are too many.
    fn forget_absent(&mut self, present: &BTreeSet<Owner>) {
        // Without others, nobody is owed time.
        let floor = |clock: &Clock| match self.runners.is_empty() {
            true => f64::INFINITY,
            false => floor(&self.floors, clock.share.priority),
        };
        let absent = self
            .clocks
            .iter()
            .filter(|(owner, _)| !present.contains(owner));
        let absent = absent.map(|(owner, clock)| (clock.debt(floor(clock)), owner.clone()));
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
            let (State::Running { charged, .. } | State::Late { charged, .. }) = &mut runner.state
            else {
                continue;
            };
            let more = now.saturating_duration_since(*charged);
            *charged = now;
            runner.used += more;
            runner.standing += more;
            if let Some(clock) = self.clocks.get_mut(&runner.owner) {
                clock.charge(more.as_secs_f64());
            }
        }
        for clock in self.clocks.values_mut() {
            clock.fill(now);
        }
        self.raise_floors();
    }

    /// Raises the floors, below which nobody starts, to the owners and sessions that are
    /// farthest behind.
    fn raise_floors(&mut self) {
        let mut least: BTreeMap<u32, f64> = BTreeMap::new();
        let mut standings: BTreeMap<&Owner, Duration> = BTreeMap::new();
        for runner in self.runners.values() {
            let Some(clock) = self.clocks.get(&runner.owner) else {
                continue;
            };
            if runner.state == State::Away {
                continue;
            }
            let standing = standings.entry(&runner.owner).or_insert(runner.standing);
            *standing = runner.standing.min(*standing);
            // An owner that waits for its cap is not owed the time meanwhile.
            if runner.state != State::Waiting || clock.wait().is_zero() {
                let time = least.entry(clock.share.priority).or_insert(clock.time);
                *time = clock.time.min(*time);
            }
        }
        for (priority, time) in least {
            let floor = self.floors.entry(priority).or_insert(time);
            *floor = floor.max(time);
        }
        for (owner, standing) in standings {
            if let Some(clock) = self.clocks.get_mut(owner) {
                clock.standing = clock.standing.max(standing);
                clock.return_to(floor(&self.floors, clock.share.priority));
            }
        }
    }

    /// Lets others launch concurrently with a session whose turn has been over for long.
    fn pass_late(&mut self, now: Instant) {
        for runner in self.runners.values_mut() {
            if let State::Running { charged, .. } = runner.state
                && runner.state.late_at().is_some_and(|at| at <= now)
            {
                runner.state = State::Late {
                    charged,
                    wants: None,
                };
            }
        }
    }

    fn handle_request(&mut self, session: u64, request: TurnRequest, now: Instant) {
        self.charge(now);
        self.pass_late(now);
        let active = self.active();
        let Some(runner) = self.runners.get_mut(&session) else {
            return;
        };
        match (request, &mut runner.state) {
            (TurnRequest::Wanted, State::Away) => {
                runner.state = State::Waiting;
                if let Some(clock) = self.clocks.get_mut(&runner.owner) {
                    runner.standing = runner.standing.max(clock.standing);
                    if !active.contains(&runner.owner) {
                        clock.return_to(floor(&self.floors, clock.share.priority));
                    }
                }
            }
            (TurnRequest::Wanted, State::Late { wants, .. }) => *wants = Some(now),
            (TurnRequest::Waits, State::Running { charged, .. }) => {
                runner.state = State::Late {
                    charged: *charged,
                    wants: None,
                };
            }
            (TurnRequest::Over, State::Running { .. } | State::Late { .. }) => {
                runner.state = State::Away;
            }
            // The message crossed one from the daemon. Its state is out of date.
            (TurnRequest::Wanted | TurnRequest::Waits | TurnRequest::Over, _) => {}
        }
    }

    fn settle(&mut self, now: Instant, notices: &mut Vec<Notice>) -> Option<Instant> {
        self.charge(now);
        self.pass_late(now);
        if !self.runners.values().any(Runner::runs) {
            self.begin_turn(now, notices);
        }
        let revisit = self.end_turn(now, notices);
        let runners = self.runners.values();
        let deadlines = runners.flat_map(|runner| {
            let clock = self.clocks.get(&runner.owner);
            let wait = clock.filter(|_| runner.waits()).map(Clock::wait);
            let wait = wait.filter(|wait| !wait.is_zero());
            let overdue = clock.and_then(|clock| runner.overdue_at(clock));
            let overdue = overdue.filter(|at| *at > now);
            [runner.state.late_at(), wait.map(|wait| now + wait), overdue]
        });
        deadlines.flatten().chain(revisit).min()
    }

    /// Gives the turn to a session that waits.
    fn begin_turn(&mut self, now: Instant, notices: &mut Vec<Notice>) {
        let overdue = self.overdue(now);
        let Some(next) = overdue.or_else(|| self.next()) else {
            return;
        };
        let Some(runner) = self.runners.get_mut(&next) else {
            return;
        };
        runner.state = State::Running {
            charged: now,
            until: overdue.map(|_| now + QUANTUM),
            stays: matches!(runner.state, State::Late { .. }),
        };
        notices.push((next, Turn::Yours));
        if overdue.is_some() {
            if let Some(clock) = self.clocks.get_mut(&runner.owner) {
                clock.out_of_order = Some(now);
            }
            notices.push((next, Turn::Ends(micros(QUANTUM))));
        }
    }

    /// A session whose kernel stays and that has waited for long, whatever its owner used. It is
    /// charged for the kernel as long as that runs, so it might never be the next one, and the
    /// kernel would never end if it waits for what the session could not launch.
    fn overdue(&self, now: Instant) -> Option<u64> {
        let mut overdue = self.runners.iter().filter(|(_, runner)| {
            let clock = self.clocks.get(&runner.owner);
            let at = clock.and_then(|clock| runner.overdue_at(clock));
            at.is_some_and(|at| at <= now)
        });
        overdue.next().map(|(session, _)| *session)
    }

    /// The session whose turn is next, of those that wait and whose cap allows a turn.
    fn next(&self) -> Option<u64> {
        let waits = self.runners.iter().filter_map(|(session, runner)| {
            let clock = self.clocks.get(&runner.owner)?;
            (runner.waits() && clock.wait().is_zero()).then_some((session, runner, clock))
        });
        let first = waits.min_by(|(_, one, first), (_, other, second)| {
            let by_priority = second.share.priority.cmp(&first.share.priority);
            by_priority
                .then(first.time.total_cmp(&second.time))
                .then(one.standing.cmp(&other.standing))
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
                State::Running { until, stays, .. } => {
                    Some((*session, &runner.owner, until, stays))
                }
                _ => None,
            });
        let (session, owner, until, stays) = holder?;
        if stays && until.is_some() {
            return None;
        }
        let own = self.clocks.get(owner)?;
        let next = self.next().and_then(|next| self.runners.get(&next));
        let next = next.and_then(|next| self.clocks.get(&next.owner));
        let fair = next.and_then(|next| match next.share.priority.cmp(&own.share.priority) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Greater => Some(0.0),
            std::cmp::Ordering::Equal => {
                let behind = (next.time - own.time) * own.share.weight;
                Some((behind + QUANTUM.as_secs_f64()).clamp(0.0, LONGEST_WAIT))
            }
        });
        let fair = self.overdue(now).map(|_| 0.0).or(fair);
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
            notices.push((session, Turn::Ends(micros(within))));
        }
        None
    }
}

#[cfg(test)]
mod tests;
