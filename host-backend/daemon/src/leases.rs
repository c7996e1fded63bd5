//! The leases of this host, and the job states that the site's engine reports.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use paragpu_communicator_secure::Identity;
use paragpu_config::host;
use paragpu_control::lease::{Claim, PREFIX};
use paragpu_pool::slurm;
use paragpu_protocol::MAX_VM_NAME;

use crate::jobs::{Jobs, Running};

/// Minimum and maximum interval of queries whether this host drains, while it has leases.
/// It grows if many hosts query the engine.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(20));
/// The interval is this multiple of the time that the last answer took.
const BACKOFF_FACTOR: u32 = 10;

/// Maximum number of claims for which the engine is queried at the same time. Each takes
/// a thread and a process.
const QUESTIONS: usize = 16;
/// The same, per user. Any user may connect to the lease socket.
const QUESTIONS_EACH: usize = 2;

/// The resources that the engine grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The user.
    pub uid: u32,
    /// Bytes of device memory.
    pub memory: u64,
    /// Number of the GPU on this host.
    pub gpu: u32,
    /// Its weight if sessions take turns; 0 for the default.
    pub weight: u32,
    /// Its grace period: how long it continues after its connection closed.
    pub grace: Duration,
}

/// The holder of a lease.
///
/// ```text
///              the connection closes, with a grace
///   By(holder) ───────────────────────────────────► Until(end)
///              ◄───────────────────────────────────     │
///                 the same user claims it again         ▼ over
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// This connection.
    By(u64),
    /// No connection; it may be reclaimed until this time.
    Until(Instant),
}

/// An active lease.
#[derive(Debug, Clone)]
pub struct Leased {
    /// The serial number in its certificates.
    pub serial: u64,
    /// The engine's job; `None` if there is no engine.
    pub job: Option<u64>,
    /// Its limits.
    pub grant: Grant,
    /// Its holder.
    pub hold: Hold,
    /// Interval of its sessions' checkpoints in seconds; 0 for none.
    pub checkpoint: u64,
    /// When to retry sessions that could not be checkpointed.
    pub next_try: Instant,
    /// Whether its agent was notified that the host drains.
    pub notified: bool,
}

/// The engine's answer.
#[derive(Debug)]
pub enum Verdict {
    /// The limits of a connection's claim.
    Claim {
        /// The connection.
        holder: u64,
        /// The claim.
        claim: Box<Claim>,
        /// The grant, or the reason for a refusal in one sentence.
        grant: Result<Grant, String>,
    },
    /// Whether the host drains; `None` if the engine does not report it.
    Drains {
        /// Its message.
        drains: Option<bool>,
        /// How long its answer took.
        took: Duration,
        /// Which jobs run, if it was asked that, too.
        running: Option<Running>,
    },
}

/// A claim that waits for the engine's answer.
#[derive(Debug)]
struct Question {
    holder: u64,
    uid: u32,
    claim: Claim,
    job: u64,
    node: String,
}

/// All leases of this host, by the VM's name.
#[derive(Debug)]
pub struct Leases {
    standing: BTreeMap<String, Leased>,
    /// Claims that wait until the engine has answered others.
    queue: VecDeque<Question>,
    /// Connections whose claims the engine is processing, with their users.
    queried: Vec<(u64, u32)>,
    /// A byte in `woken` for each verdict.
    verdicts: (Sender<Verdict>, Receiver<Verdict>),
    wake: Arc<UnixStream>,
    woken: UnixStream,
    looks: bool,
    next_look: Instant,
    jobs: Jobs,
}

impl Leases {
    /// No leases.
    pub fn new() -> std::io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        Ok(Self {
            standing: BTreeMap::new(),
            queue: VecDeque::new(),
            queried: Vec::new(),
            verdicts: channel(),
            wake: Arc::new(wake),
            woken,
            looks: false,
            next_look: Instant::now(),
            jobs: Jobs::new(),
        })
    }

    /// Readable when there are verdicts.
    #[must_use]
    pub fn woken(&self) -> &UnixStream {
        &self.woken
    }

    /// Takes the engine's answers.
    pub fn verdicts(&mut self) -> Vec<Verdict> {
        let mut bytes = [0; 64];
        while matches!((&self.woken).read(&mut bytes), Ok(count) if count > 0) {}
        let verdicts: Vec<Verdict> = self.verdicts.1.try_iter().collect();
        for verdict in &verdicts {
            match verdict {
                Verdict::Claim { holder, .. } => self.queried.retain(|(other, _)| other != holder),
                Verdict::Drains { took, .. } => {
                    self.looks = false;
                    self.next_look = Instant::now() + until_next_look(*took);
                }
            }
        }
        self.query_next();
        verdicts
    }

    /// Whether a claim of this connection waits for the engine.
    #[must_use]
    pub fn has_claim(&self, holder: u64) -> bool {
        let waits = |question: &Question| question.holder == holder;
        self.queue.iter().any(waits) || self.queried.iter().any(|(other, _)| *other == holder)
    }

    /// The connections whose claims wait for the engine.
    #[must_use]
    pub fn claimants(&self) -> BTreeSet<u64> {
        let queue = self.queue.iter().map(|question| question.holder);
        let queried = self.queried.iter().map(|(holder, _)| *holder);
        queue.chain(queried).collect()
    }

    /// Removes the pending claims of a closed connection.
    pub fn forget(&mut self, holder: u64) {
        self.queue.retain(|question| question.holder != holder);
    }

    /// Queries the engine in a thread.
    fn query(
        &self,
        question: impl FnOnce() -> Verdict + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let (sender, wake) = (self.verdicts.0.clone(), Arc::clone(&self.wake));
        let run = move || {
            if sender.send(question()).is_ok() {
                // A full socket wakes the loop as well.
                let _ = (&*wake).write(&[1]);
            }
        };
        std::thread::Builder::new().name("engine".into()).spawn(run)
    }

    /// Queries the resources of the job of a user's claim, in turn.
    pub fn enqueue(&mut self, holder: u64, uid: u32, claim: Claim, job: u64, node: String) {
        self.queue.push_back(Question {
            holder,
            uid,
            claim,
            job,
            node,
        });
        self.query_next();
    }

    /// The next claim to process, if the limits allow one now.
    fn next_question(&mut self) -> Option<Question> {
        let count = |uid: u32| self.queried.iter().filter(|(_, one)| *one == uid).count();
        let may = |question: &Question| count(question.uid) < QUESTIONS_EACH;
        let next = self.queue.iter().position(may)?;
        (self.queried.len() < QUESTIONS).then(|| self.queue.remove(next))?
    }

    fn query_next(&mut self) {
        while let Some(question) = self.next_question() {
            self.queried.push((question.holder, question.uid));
            let holder = question.holder;
            let claim = Box::new(question.claim.clone());
            if let Err(error) = self.query_for(question) {
                // The channel lives as long as this. The next message wakes the loop.
                let grant = Err(format!("the host cannot query its engine: {error}"));
                let verdict = Verdict::Claim {
                    holder,
                    claim,
                    grant,
                };
                let _ = self.verdicts.0.send(verdict);
                let _ = (&*self.wake).write(&[1]);
            }
        }
    }

    fn query_for(&self, question: Question) -> std::io::Result<JoinHandle<()>> {
        let Question {
            holder,
            claim,
            job,
            node,
            ..
        } = question;
        self.query(move || Verdict::Claim {
            holder,
            claim: Box::new(claim),
            grant: slurm::job(job, &node)
                .map(|job| Grant {
                    uid: job.uid,
                    memory: job.memory,
                    gpu: job.gpu,
                    // A job's lease ends with the job.
                    weight: 0,
                    grace: Duration::ZERO,
                })
                .map_err(|error| error.to_string()),
        })
    }

    /// Handles the engine's answer which jobs run. Returns the VMs of leases whose jobs are
    /// over, and their holders.
    pub fn over(&mut self, running: &Running) -> Vec<(String, Hold)> {
        let leased = self.standing.values().filter_map(|leased| leased.job);
        let over = self.jobs.over(leased, running, Instant::now());
        let standing = self.standing.iter();
        standing
            .filter(|(_, leased)| leased.job.is_some_and(|job| over.contains(&job)))
            .map(|(vm, leased)| (vm.clone(), leased.hold))
            .collect()
    }

    /// Queries periodically whether the host drains, and less often which jobs run. Returns
    /// the next time.
    pub fn look(&mut self, now: Instant, lease: &host::Lease) -> Option<Instant> {
        if lease.engine != host::Engine::Slurm || self.standing.is_empty() || self.looks {
            return None;
        }
        if self.next_look <= now {
            self.looks = true;
            let node = node(lease);
            let asks_jobs = self.jobs.is_due(now);
            let result = self.query(move || {
                let began = Instant::now();
                let drains = slurm::drains(&node).ok();
                let took = began.elapsed();
                let running = asks_jobs.then(|| {
                    let began = Instant::now();
                    let jobs = slurm::jobs_on(&node).ok();
                    let took = began.elapsed();
                    Running { jobs, took }
                });
                Verdict::Drains {
                    drains,
                    took,
                    running,
                }
            });
            if result.is_ok() {
                return None;
            }
            // The system is out of threads.
            self.looks = false;
            self.next_look = now + POLL_INTERVAL.1;
        }
        Some(self.next_look)
    }

    /// The lease of a VM.
    #[must_use]
    pub fn get(&self, vm: &str) -> Option<&Leased> {
        self.standing.get(vm)
    }

    /// The same, to change.
    pub fn get_mut(&mut self, vm: &str) -> Option<&mut Leased> {
        self.standing.get_mut(vm)
    }

    /// All leases, by VM.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Leased)> {
        self.standing.iter()
    }

    /// The connections that hold a lease.
    #[must_use]
    pub fn holders(&self) -> BTreeSet<u64> {
        let standing = self.standing.values();
        standing
            .filter_map(|leased| match leased.hold {
                Hold::By(holder) => Some(holder),
                Hold::Until(_) => None,
            })
            .collect()
    }

    /// The VM whose lease a connection holds.
    #[must_use]
    pub fn of(&self, holder: u64) -> Option<&str> {
        let mut standing = self.standing.iter();
        let found = standing.find(|(_, leased)| leased.hold == Hold::By(holder));
        found.map(|(vm, _)| vm.as_str())
    }

    /// The VM's name for a claim, and its lease.
    ///
    /// # Errors
    /// One sentence if the claim is for a lease of another user or job.
    pub fn enter(
        &mut self,
        holder: u64,
        claim: &Claim,
        grant: Grant,
    ) -> Result<(String, Leased), String> {
        if self.of(holder).is_some() {
            return Err("the agent already has a lease".into());
        }
        let taken = |leased: &Leased| leased.job.is_some() && leased.job == claim.job;
        let own = claim.again.as_ref().map(|again| again.vm.as_str());
        if let Some((vm, _)) = self.standing.iter().find(|(_, leased)| taken(leased)) {
            return Err(format!("the job already has the lease {vm}"));
        }
        let (vm, serial) = match (&claim.again, claim.job) {
            (Some(again), _) => {
                check_owner(&again.vm, grant.uid)?;
                if again.serial == 0 {
                    return Err("a lease's serial number is not 0".into());
                }
                (again.vm.clone(), again.serial)
            }
            (None, Some(job)) => (format!("{PREFIX}{}-{job}", grant.uid), random()?),
            (None, None) => {
                let serial = random()?;
                (format!("{PREFIX}{}-s{:x}", grant.uid, serial >> 32), serial)
            }
        };
        if let Some(standing) = self.standing.get(&vm) {
            let kept = matches!(standing.hold, Hold::Until(_)) && standing.serial == serial;
            if own.is_none() {
                return Err(format!("there already is a lease {vm} of another host"));
            } else if !kept || standing.grant.uid != grant.uid {
                return Err(format!("another agent holds the lease {vm}"));
            }
        }
        let leased = Leased {
            serial,
            job: claim.job,
            grant,
            hold: Hold::By(holder),
            checkpoint: claim.checkpoint,
            next_try: Instant::now(),
            notified: false,
        };
        self.standing.insert(vm.clone(), leased.clone());
        Ok((vm, leased))
    }

    /// Handles the loss of a connection. Its lease ends, unless it has a grace.
    pub fn leave(&mut self, holder: u64, now: Instant) -> Option<String> {
        let vm = self.of(holder)?.to_owned();
        let leased = self.standing.get_mut(&vm)?;
        if leased.grant.grace.is_zero() {
            return Some(vm);
        }
        leased.hold = Hold::Until(now + leased.grant.grace);
        tracing::info!(vm, "a lease may be claimed again");
        None
    }

    /// Ends a lease.
    pub fn end(&mut self, vm: &str) -> Option<Leased> {
        self.standing.remove(vm)
    }

    /// Leases that were not reclaimed in time, and the time when the next one ends.
    #[must_use]
    pub fn unclaimed(&self, now: Instant) -> (Vec<String>, Option<Instant>) {
        let kept = self
            .standing
            .iter()
            .filter_map(|(vm, leased)| match leased.hold {
                Hold::Until(end) => Some((vm, end)),
                Hold::By(_) => None,
            });
        let (over, open): (Vec<_>, Vec<_>) = kept.partition(|(_, end)| *end <= now);
        let over = over.into_iter().map(|(vm, _)| vm.clone()).collect();
        (over, open.into_iter().map(|(_, end)| end).min())
    }

    /// Checks that a guest with this certificate may be admitted.
    ///
    /// # Errors
    /// One sentence.
    pub fn admit(&self, identity: &Identity) -> Result<(), String> {
        let serial = self.get(&identity.vm).map(|leased| leased.serial);
        match (identity.lease, serial) {
            (0, None) if !identity.vm.starts_with(PREFIX) => Ok(()),
            (shown @ 1.., Some(standing)) if shown == standing => Ok(()),
            (0, _) => Err(format!("{} is reserved for leases", identity.vm)),
            (_, _) => Err("the lease of its certificate has ended, or is on another host".into()),
        }
    }

    /// Checks that a session of this VM may arrive from another host.
    ///
    /// # Errors
    /// One sentence.
    pub fn admit_arrival(&self, vm: &str) -> Result<(), String> {
        match vm.starts_with(PREFIX) && self.get(vm).is_none() {
            true => Err(format!("this host has no lease {vm}")),
            false => Ok(()),
        }
    }
}

/// All hosts share one controller. Those of a large pool query it less often, so that it
/// has time for leases.
fn until_next_look(took: Duration) -> Duration {
    took.saturating_mul(BACKOFF_FACTOR)
        .clamp(POLL_INTERVAL.0, POLL_INTERVAL.1)
}

/// Users can reclaim only their own leases.
fn check_owner(vm: &str, uid: u32) -> Result<(), String> {
    let own = format!("{PREFIX}{uid}-");
    let rest = vm.strip_prefix(&own).filter(|_| vm.len() <= MAX_VM_NAME);
    match rest {
        Some(rest) if rest.bytes().all(|byte| byte.is_ascii_alphanumeric()) => Ok(()),
        _ => Err("the lease to continue belongs to another user".into()),
    }
}

fn random() -> Result<u64, String> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        // Zero is not a lease.
        Ok(8) => Ok(u64::from_ne_bytes(bytes).max(1)),
        _ => Err("the host has no source of randomness".into()),
    }
}

/// This host's name in the engine.
#[must_use]
pub fn node(lease: &host::Lease) -> String {
    if !lease.node.is_empty() {
        return lease.node.clone();
    }
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// The directory of a lease's checkpoints, of this host or of all hosts.
#[must_use]
pub fn directory(checkpoints: &Path, vm: &str, serial: u64) -> Option<PathBuf> {
    let kept = !checkpoints.as_os_str().is_empty();
    kept.then(|| checkpoints.join(format!("{vm}-{serial:016x}")))
}

/// The checkpoints of a lease's sessions, newest first.
#[must_use]
pub fn written(directory: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
    };
    let mut states: Vec<(SystemTime, PathBuf)> = entries(directory)
        .iter()
        .flat_map(|host| entries(host))
        .filter_map(|session| {
            let state = session.join(paragpu_control::state::FILE);
            let at = std::fs::metadata(state).and_then(|file| file.modified());
            at.ok().map(|at| (at, session))
        })
        .collect();
    states.sort();
    states.into_iter().rev().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_control::lease::Name;

    fn claim(job: u64, again: Option<Name>) -> Claim {
        Claim {
            job: Some(job),
            memory: 0,
            gpu: 0,
            key: String::new(),
            again,
            checkpoint: 0,
            weight: 0,
            grace: 0,
        }
    }

    fn grant(uid: u32) -> Grant {
        Grant {
            uid,
            memory: 1 << 30,
            gpu: 0,
            weight: 0,
            grace: Duration::ZERO,
        }
    }

    fn identity(vm: &str, lease: u64) -> Identity {
        Identity {
            vm: vm.into(),
            memory: 0,
            sessions: 0,
            lease,
            expires: 0,
        }
    }

    #[test]
    fn a_user_with_many_claims_leaves_the_engine_to_others() {
        let mut leases = Leases::new().unwrap();
        let question = |holder, uid| Question {
            holder,
            uid,
            claim: claim(holder, None),
            job: holder,
            node: String::new(),
        };
        leases
            .queue
            .extend((0..500).map(|holder| question(holder, 1)));
        leases
            .queue
            .extend((500..503).map(|holder| question(holder, 2)));
        let mut holders = Vec::new();
        while let Some(next) = leases.next_question() {
            leases.queried.push((next.holder, next.uid));
            holders.push(next.holder);
        }
        assert_eq!(holders, [0, 1, 500, 501]);
        assert!(leases.has_claim(0) && leases.has_claim(499));
        leases.forget(499);
        assert!(!leases.has_claim(499));
        leases.queried.retain(|(holder, _)| *holder != 1);
        assert_eq!(leases.next_question().unwrap().holder, 2);
        // Regardless of the number of users.
        leases
            .queue
            .extend((1000..2000).map(|holder| question(holder, holder as u32)));
        while let Some(next) = leases.next_question() {
            leases.queried.push((next.holder, next.uid));
        }
        assert_eq!(leases.queried.len(), QUESTIONS);
    }

    #[test]
    fn an_engine_that_answers_slowly_is_asked_less_often() {
        let after = |millis| until_next_look(Duration::from_millis(millis)).as_millis();
        assert_eq!([10, 500, 9000].map(after), [2000, 5000, 20_000]);
    }

    #[test]
    fn a_job_has_one_lease_and_a_certificate_ends_with_it() {
        let mut leases = Leases::new().unwrap();
        let (vm, leased) = leases.enter(1, &claim(7, None), grant(1000)).unwrap();
        assert_eq!(vm, "lease-1000-7");
        assert!(leases.enter(2, &claim(7, None), grant(1000)).is_err());
        assert!(leases.enter(1, &claim(8, None), grant(1000)).is_err());
        assert_eq!(leases.admit(&identity(&vm, leased.serial)), Ok(()));
        assert!(leases.admit(&identity(&vm, leased.serial ^ 1)).is_err());
        assert!(leases.admit(&identity(&vm, 0)).is_err());
        assert_eq!(leases.admit(&identity("web1", 0)), Ok(()));
        assert_eq!(leases.admit_arrival(&vm), Ok(()));
        assert_eq!(leases.leave(1, Instant::now()), Some(vm.clone()));
        assert!(leases.end(&vm).is_some());
        assert!(leases.admit(&identity(&vm, leased.serial)).is_err());
        assert!(leases.admit_arrival(&vm).is_err());
        // The job's number may be reused; the serial number is not.
        let (_, other) = leases.enter(3, &claim(7, None), grant(1000)).unwrap();
        assert_ne!(other.serial, leased.serial);
    }

    #[test]
    fn a_lease_under_another_name_ends_with_its_job() {
        let mut leases = Leases::new().unwrap();
        let again = Name {
            vm: "lease-1000-other".into(),
            serial: 5,
        };
        let (vm, _) = leases
            .enter(1, &claim(7, Some(again)), grant(1000))
            .unwrap();
        leases.enter(2, &claim(8, None), grant(1000)).unwrap();
        let running = Running {
            jobs: Some(BTreeSet::from([8, 9])),
            took: Duration::ZERO,
        };
        assert_eq!(leases.over(&running), []);
        assert_eq!(leases.over(&running), [(vm, Hold::By(1))]);
    }

    #[test]
    fn a_lease_with_a_grace_is_claimed_again() {
        let (mut leases, begin) = (Leases::new().unwrap(), Instant::now());
        let mut first = claim(0, None);
        first.job = None;
        let grace = Duration::from_secs(60);
        let with_grace = |uid| Grant {
            grace,
            ..grant(uid)
        };
        let (vm, leased) = leases.enter(1, &first, with_grace(0)).unwrap();
        let again = |serial| {
            let vm = vm.clone();
            let again = Some(Name { vm, serial });
            Claim {
                again,
                ..first.clone()
            }
        };
        let own = again(leased.serial);
        assert!(leases.enter(2, &own, with_grace(0)).is_err(), "it is held");
        assert_eq!(leases.leave(1, begin), None);
        assert_eq!(leases.unclaimed(begin), (Vec::new(), Some(begin + grace)));
        assert_eq!(leases.admit(&identity(&vm, leased.serial)), Ok(()));
        let forged = again(leased.serial ^ 1);
        assert!(leases.enter(2, &forged, with_grace(0)).is_err());
        assert!(
            leases.enter(2, &own, with_grace(7)).is_err(),
            "another user"
        );
        let (_, other) = leases.enter(2, &own, with_grace(0)).unwrap();
        assert_eq!((other.serial, other.hold), (leased.serial, Hold::By(2)));
        assert_eq!(leases.unclaimed(begin + grace), (Vec::new(), None));
        assert_eq!(leases.leave(2, begin), None);
        let over = leases.unclaimed(begin + grace);
        assert_eq!(over, (vec![vm.clone()], None));
        assert!(leases.end(&vm).is_some());
        assert!(leases.admit(&identity(&vm, leased.serial)).is_err());
    }

    #[test]
    fn a_lease_continues_for_its_user_only() {
        let mut leases = Leases::new().unwrap();
        let again = |vm: &str| {
            Some(Name {
                vm: vm.into(),
                serial: 5,
            })
        };
        let long = format!("lease-1000-{}", "7".repeat(60));
        for vm in [
            "lease-100-7",
            "lease-1000",
            "web1",
            "lease-1000-../x",
            "",
            &long,
        ] {
            let entered = leases.enter(1, &claim(9, again(vm)), grant(1000));
            assert!(entered.is_err(), "{vm}");
        }
        let mut none = claim(9, again("lease-1000-7"));
        none.again.as_mut().unwrap().serial = 0;
        assert!(leases.enter(1, &none, grant(1000)).is_err());
        assert!(leases.admit(&identity("lease-1000-7", 0)).is_err());
        let entered = leases.enter(1, &claim(9, again("lease-1000-7")), grant(1000));
        assert_eq!(entered.unwrap().1.serial, 5);
        let twice = leases.enter(2, &claim(10, again("lease-1000-7")), grant(1000));
        assert!(twice.is_err());
    }
}
