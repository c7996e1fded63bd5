//! Holds a lease for a program, or for a VM: asks the pool for it, writes the
//! files that lead to it, moves it when its host drains, and takes it up
//! elsewhere when its host is lost.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use paragpu_communicator_secure::issue;
use paragpu_control::json_lines;
use paragpu_control::lease::{Lease, Name};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::agent::BEAT;
use crate::door::{Door, Entry};
use crate::files::Files;
use crate::message::{self, FromAgent, ToAgent};
use crate::{Error, Pool, Want, event, slurm};

/// Silence after which a host is looked at: one whose daemon is gone as well is
/// lost.
const SUSPECT: Duration = Duration::from_secs(5);
/// Silence after which a host is lost. Programs look for it for 30 seconds.
const LOST: Duration = Duration::from_secs(24);
/// So many probes in a row must fail then.
const UNANSWERED: u32 = 3;
/// How long a host may take to accept a connection.
const PROBE: Duration = Duration::from_millis(500);
/// A lease that takes longer is queued by the engine; its user hears that.
const UNEXPLAINED: Duration = Duration::from_secs(3);
/// From a move that failed to the next attempt.
const AGAIN: Duration = Duration::from_secs(5);

/// The requested state.
#[derive(Debug)]
pub struct Options {
    /// The resources that the lease requests.
    pub want: Want,
    /// This very program.
    pub paragpu: PathBuf,
    /// Seconds after which the state of its sessions is written, again and
    /// again; 0 for never.
    pub checkpoint: u64,
    /// Where the files are that lead to it.
    pub directory: PathBuf,
    /// Where a VM's programs come in, if it is for a VM.
    pub entry: Option<Entry>,
}

enum Event {
    Agent(u64, Option<FromAgent>),
    Signal(i32),
    Program(std::io::Result<ExitStatus>),
}

/// An agent, and the lease that it holds.
struct RunningAgent {
    agent: Child,
    /// Closed, the agent ends.
    words: Option<ChildStdin>,
    lease: Option<(Lease, String)>,
    /// It said its version, which is ours.
    greeted: bool,
    heard: Instant,
    /// It is gone, and its host may be.
    ended: bool,
    /// Probes of its silent host, one a beat, that failed.
    unanswered: u32,
}

/// The state of the lease.
///
/// ```text
///            Leave                 Lease                Carried
///  Standing ───────► Leaving(new) ───────► Carrying(new) ───────► Standing
///     │ host lost              Lease              all Restored
///     └────────────► Losing(new) ───► Restoring(new) ───────────► Standing
/// ```
enum State {
    /// It is where it is.
    Standing,
    /// An agent elsewhere claims it.
    Leaving(u64),
    /// Its sessions move to that agent's host.
    Carrying(u64),
    /// An agent elsewhere claims it, and its host is lost.
    Losing(u64),
    /// Its sessions are restored there; these directories are left.
    Restoring(Vec<PathBuf>),
}

/// A lease that is held.
struct Holder<'a> {
    pool: &'a dyn Pool,
    options: Options,
    files: Files,
    door: Option<Door>,
    public: String,
    events: Receiver<Event>,
    sender: Sender<Event>,
    agents: BTreeMap<u64, RunningAgent>,
    next: u64,
    /// The agent that holds it.
    current: u64,
    state: State,
    /// Where it should go, while that is tried.
    toward: Option<String>,
    /// It should leave its host, from then on.
    leave: Option<Instant>,
    /// Why it is over.
    over: Option<String>,
}

/// Runs `program` with a lease; ends as the program does.
///
/// # Errors
/// [`Error`]: there is no lease, or the program does not start.
pub fn run(pool: &dyn Pool, options: Options, program: Command) -> Result<u8, Error> {
    let mut holder = Holder::new(pool, options)?;
    let name = program.get_program().to_string_lossy().into_owned();
    let status = holder.start_program(program).and_then(|pid| {
        let waited = holder.hold(Some(pid), &mut || true)?;
        waited.transpose().map_err(|source| Error::Run {
            program: name,
            source,
        })
    });
    holder.release();
    let code = status?.map_or(1, |status| {
        let signal = status.signal().map_or(1, |signal| 128 + signal);
        status.code().unwrap_or(signal)
    });
    Ok(u8::try_from(code).unwrap_or(1))
}

/// Holds a lease until a signal ends it, or the VM that it is for: `lives` is asked
/// about once a second.
///
/// # Errors
/// [`Error`]: there is no lease, or it is over.
pub fn hold(
    pool: &dyn Pool,
    options: Options,
    lives: &mut dyn FnMut() -> bool,
) -> Result<(), Error> {
    let mut holder = Holder::new(pool, options)?;
    let outcome = holder.hold(None, lives);
    holder.release();
    match holder.over {
        Some(reason) => Err(Error::NoLease(reason)),
        None => outcome.map(drop),
    }
}

impl<'a> Holder<'a> {
    /// Waits for the lease.
    fn new(pool: &'a dyn Pool, options: Options) -> Result<Self, Error> {
        let (sender, events) = channel();
        let signals = [SIGTERM, SIGINT, SIGHUP];
        event::signals(&signals, sender.clone(), Event::Signal).map_err(Error::Signals)?;
        let (private, public) = issue::key()?;
        let files = Files::new(options.directory.clone(), &private)?;
        let door = options.entry.as_ref().map(Door::open).transpose()?;
        let mut holder = Self {
            pool,
            options,
            files,
            door,
            public,
            events,
            sender,
            agents: BTreeMap::new(),
            next: 0,
            current: 0,
            state: State::Standing,
            toward: None,
            leave: None,
            over: None,
        };
        holder.current = holder.start_agent(None, None)?;
        let mut patience = Some(UNEXPLAINED);
        while holder.lease().is_none() {
            let event = match patience {
                Some(patience) => holder.events.recv_timeout(patience),
                None => holder.events.recv().map_err(RecvTimeoutError::from),
            };
            match event {
                Ok(Event::Agent(agent, message)) => holder.hear(agent, message)?,
                Ok(Event::Signal(_)) => holder.over = Some("it was interrupted".into()),
                Err(RecvTimeoutError::Timeout) => {
                    patience = None;
                    let memory = paragpu_config::Size(holder.options.want.memory);
                    eprintln!("paragpu: waiting for a lease of {memory}");
                }
                Ok(Event::Program(_)) | Err(RecvTimeoutError::Disconnected) => {}
            }
            if let Some(reason) = holder.over.take() {
                holder.release();
                return Err(Error::NoLease(reason));
            }
        }
        holder.lead()?;
        holder.open_door()?;
        Ok(holder)
    }

    /// A VM's programs find the lease where it is now.
    fn open_door(&self) -> Result<(), Error> {
        if let (Some(door), Some((lease, _))) = (&self.door, self.lease()) {
            door.lead_to(&lease.address, self.files.credentials()?);
        }
        Ok(())
    }

    /// While its sessions move, programs are led to the new host, or back.
    fn turn_door(&self, to: u64) {
        let held = self.agents.get(&to).and_then(|held| held.lease.as_ref());
        if let (Some(door), Some((lease, _))) = (&self.door, held) {
            door.turn_to(&lease.address);
        }
    }

    fn lease(&self) -> Option<&(Lease, String)> {
        self.agents.get(&self.current)?.lease.as_ref()
    }

    /// Programs find the lease where it is now.
    fn lead(&self) -> Result<(), Error> {
        let Some((lease, host)) = self.lease() else {
            return Ok(());
        };
        self.files.lead_to(lease)?;
        eprintln!(
            "paragpu: {} of GPU {} of {host} as {}",
            paragpu_config::Size(lease.memory),
            lease.gpu,
            lease.name.vm
        );
        Ok(())
    }

    /// Claims the lease, or one that stands already on a host: elsewhere then.
    fn start_agent(&mut self, again: Option<Name>, off: Option<String>) -> Result<u64, Error> {
        let want = Want {
            on: self.toward.clone(),
            not_on: off.into_iter().collect(),
            ..self.options.want.clone()
        };
        let mut command = self.pool.agent(&want, &self.options.paragpu)?;
        let mut agent = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| Error::Run {
                program: command.get_program().to_string_lossy().into_owned(),
                source,
            })?;
        let number = self.next;
        self.next += 1;
        if let Some(output) = agent.stdout.take() {
            event::lines(output, self.sender.clone(), move |message| {
                Event::Agent(number, message)
            });
        }
        let held = RunningAgent {
            words: agent.stdin.take(),
            agent,
            lease: None,
            greeted: false,
            heard: Instant::now(),
            ended: false,
            unanswered: 0,
        };
        self.agents.insert(number, held);
        self.tell(number, &ToAgent::hello());
        let claim = ToAgent::Claim {
            memory: want.memory,
            key: self.public.clone(),
            again,
            checkpoint: self.options.checkpoint,
        };
        self.tell(number, &claim);
        Ok(number)
    }

    /// An agent that does not listen is found by its silence.
    fn tell(&self, agent: u64, message: &ToAgent) {
        let words = self.agents.get(&agent).and_then(|held| held.words.as_ref());
        if let Some(words) = words {
            let _ = json_lines::write(words, message);
        }
    }

    fn start_program(&self, mut program: Command) -> Result<Pid, Error> {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text == "PARAGPU_COMMUNICATOR" || text.starts_with("PARAGPU_TCP_") {
                program.env_remove(&name);
            }
        }
        let name = program.get_program().to_string_lossy().into_owned();
        let failed = |source| Error::Run {
            program: name,
            source,
        };
        let mut child = program
            .env("PARAGPU_CONFIG", self.files.configuration())
            .spawn()
            .map_err(failed)?;
        let pid = Pid::from_child(&child);
        let sender = self.sender.clone();
        std::thread::spawn(move || sender.send(Event::Program(child.wait())));
        Ok(pid)
    }

    /// Until the program ends; without one, until a signal comes or the lease
    /// is over. How the program ended.
    fn hold(
        &mut self,
        program: Option<Pid>,
        lives: &mut dyn FnMut() -> bool,
    ) -> Result<Option<std::io::Result<ExitStatus>>, Error> {
        let mut beat = Instant::now();
        loop {
            match self.events.recv_timeout(BEAT) {
                Ok(Event::Program(status)) => return Ok(Some(status)),
                Ok(Event::Signal(number)) => match (program, Signal::from_named_raw(number)) {
                    (Some(pid), Some(signal)) => {
                        let _ = kill_process(pid, signal);
                    }
                    _ => return Ok(None),
                },
                Ok(Event::Agent(agent, message)) => self.hear(agent, message)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
            if program.is_none() && self.over.is_some() {
                return Ok(None);
            }
            if beat.elapsed() >= BEAT {
                beat = Instant::now();
                self.beat()?;
                if !lives() {
                    return Ok(None);
                }
            }
        }
    }

    /// Says that it is there, and looks whether the host is.
    fn beat(&mut self) -> Result<(), Error> {
        for agent in self.agents.keys() {
            self.tell(*agent, &ToAgent::Alive {});
        }
        if self.over.is_some() {
            return Ok(());
        }
        if matches!(self.state, State::Standing) {
            self.look()?;
        }
        if self.over.is_none()
            && matches!(self.state, State::Standing)
            && self.leave.is_some_and(|at| at <= Instant::now())
        {
            self.leave();
        }
        Ok(())
    }

    fn hear(&mut self, agent: u64, message: Option<FromAgent>) -> Result<(), Error> {
        let Some(held) = self.agents.get_mut(&agent) else {
            return Ok(());
        };
        if message.is_some() {
            held.heard = Instant::now();
        }
        match message {
            Some(FromAgent::Alive {}) => {}
            Some(FromAgent::Hello { version, release }) => {
                match message::check("the GPU host", version, &release) {
                    Ok(()) => held.greeted = true,
                    Err(reason) => self.failed(agent, reason),
                }
            }
            Some(FromAgent::Lease { .. }) if !held.greeted => {
                if let Err(reason) = message::check("the GPU host", 0, "without a version") {
                    self.failed(agent, reason);
                }
            }
            Some(FromAgent::Lease { lease, host }) => {
                held.lease = Some((*lease, host));
                self.claimed(agent)?;
            }
            Some(FromAgent::Leave { reason, to }) if agent == self.current => {
                eprintln!("paragpu: the lease leaves its host: {reason}");
                self.leave.get_or_insert_with(Instant::now);
                if matches!(self.state, State::Standing) {
                    self.toward = to.filter(|to| slurm::is_node(to));
                    self.leave();
                }
            }
            Some(FromAgent::Carried { pause, error }) if agent == self.current => {
                self.carried(pause, error)?;
            }
            Some(FromAgent::Restored { error }) if agent == self.current => {
                self.restored(error)?;
            }
            Some(FromAgent::Over { reason }) => self.failed(agent, reason),
            Some(_) => {}
            // An agent that is ended says so first. Its host may be lost, or cut off
            // for a while: then its programs may continue.
            None if self.may_be_lost(agent) => {
                if let Some(held) = self.agents.get_mut(&agent) {
                    held.ended = true;
                }
                self.look()?;
            }
            None => {
                let had = self.agents.get(&agent);
                let reason = match had.and_then(|held| held.lease.as_ref()) {
                    Some(_) => "its agent ended",
                    None => "the engine runs no agent for it",
                };
                self.failed(agent, reason.into());
            }
        }
        Ok(())
    }

    /// An agent has its lease.
    fn claimed(&mut self, agent: u64) -> Result<(), Error> {
        match self.state {
            State::Leaving(new) if new == agent => {
                let arrivals = self.agents.get(&agent).and_then(|held| {
                    let (lease, _) = held.lease.as_ref()?;
                    lease.arrivals.clone()
                });
                let Some(to) = arrivals else {
                    self.failed(agent, "its host takes no sessions of others".into());
                    return Ok(());
                };
                self.turn_door(agent);
                self.tell(self.current, &ToAgent::Carry { to });
                self.state = State::Carrying(agent);
            }
            State::Losing(new) if new == agent => {
                self.drop_agent(self.current);
                self.current = agent;
                let written = self.lease().map(|(lease, _)| lease.written.clone());
                // The newest last, where it is taken from.
                let left = written.unwrap_or_default().into_iter().rev().collect();
                self.state = State::Restoring(left);
                self.lead()?;
                self.restore()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Looks for another host.
    fn leave(&mut self) {
        let Some((lease, host)) = self.lease() else {
            return;
        };
        let (name, host) = (lease.name.clone(), host.clone());
        match self.start_agent(Some(name), Some(host)) {
            Ok(new) => self.state = State::Leaving(new),
            Err(error) => self.stays(&error.to_string()),
        }
    }

    /// The sessions are at the new host, or stayed.
    fn carried(&mut self, pause: f64, error: Option<String>) -> Result<(), Error> {
        let State::Carrying(new) = self.state else {
            return Ok(());
        };
        if let Some(error) = error {
            self.turn_door(self.current);
            self.drop_agent(new);
            self.stays(&error);
            return Ok(());
        }
        let old = std::mem::replace(&mut self.current, new);
        self.state = State::Standing;
        self.toward = None;
        self.leave = None;
        self.lead()?;
        self.open_door()?;
        eprintln!("paragpu: the lease moved; its programs were delayed for {pause:.1} ms at most");
        self.drop_agent(old);
        Ok(())
    }

    fn stays(&mut self, why: &str) {
        if let Some(host) = self.toward.take() {
            eprintln!("paragpu: the lease does not go to {host}: {why}");
            self.state = State::Standing;
            return self.leave();
        }
        eprintln!("paragpu: the lease stays where it is for now: {why}");
        self.state = State::Standing;
        self.leave = Some(Instant::now() + AGAIN);
    }

    /// Whether this agent may have ended because its host is lost.
    fn may_be_lost(&self, agent: u64) -> bool {
        let standing = matches!(self.state, State::Standing) && self.over.is_none();
        standing && agent == self.current && self.lease().is_some()
    }

    /// Checks whether the host is lost, and not only unreachable for a while.
    fn look(&mut self) -> Result<(), Error> {
        let Some(held) = self.agents.get_mut(&self.current) else {
            return Ok(());
        };
        let (silence, ended) = (held.heard.elapsed(), held.ended);
        let Some((lease, _)) = held.lease.as_ref().filter(|_| ended || silence > SUSPECT) else {
            held.unanswered = 0;
            return Ok(());
        };
        match Presence::of(&lease.address) {
            Presence::Gone => self.lose(),
            Presence::There if ended => {
                self.failed(self.current, "its agent ended".into());
                Ok(())
            }
            // After a cut srun's own connection may take longer to recover than the host.
            Presence::There => {
                held.unanswered = 0;
                Ok(())
            }
            // The engine ended the job of a host that nobody reaches.
            Presence::Silent if ended && self.options.checkpoint > 0 => self.lose(),
            Presence::Silent => {
                held.unanswered += u32::from(silence > LOST);
                match held.unanswered >= UNANSWERED {
                    true => self.lose(),
                    false => Ok(()),
                }
            }
        }
    }

    fn lose(&mut self) -> Result<(), Error> {
        let Some((lease, host)) = self.lease() else {
            return Ok(());
        };
        eprintln!("paragpu: {host} is lost");
        if self.options.checkpoint == 0 {
            let reason = format!("{host} is lost, and its sessions were not written");
            self.end(reason);
            return Ok(());
        }
        let (name, host) = (lease.name.clone(), host.clone());
        self.toward = None;
        match self.start_agent(Some(name), Some(host)) {
            Ok(new) => self.state = State::Losing(new),
            Err(error) => self.end(error.to_string()),
        }
        Ok(())
    }

    /// The lease is over. Its programs read why: else they look for their host
    /// as long as their patience lasts.
    fn end(&mut self, reason: String) {
        if self.over.is_some() {
            return;
        }
        if let Some((lease, _)) = self.lease()
            && let Err(error) = self.files.end(lease, &reason)
        {
            eprintln!("paragpu: programs do not hear that the lease is over: {error}");
        }
        if let Some(door) = &self.door {
            door.close(&reason);
            door.cut();
        }
        self.over = Some(reason);
    }

    /// Takes up the next session that was written.
    fn restore(&mut self) -> Result<(), Error> {
        let State::Restoring(left) = &mut self.state else {
            return Ok(());
        };
        match left.pop() {
            Some(directory) => self.tell(self.current, &ToAgent::Restore { directory }),
            None => {
                self.state = State::Standing;
                // Not before: a program that comes first finds its session over.
                self.open_door()?;
            }
        }
        Ok(())
    }

    fn restored(&mut self, error: Option<String>) -> Result<(), Error> {
        if let Some(error) = error {
            eprintln!("paragpu: a session is not restored: {error}");
        }
        self.restore()
    }

    /// An agent has no lease any more.
    fn failed(&mut self, agent: u64, reason: String) {
        match self.state {
            State::Leaving(new) | State::Carrying(new) if new == agent => {
                self.turn_door(self.current);
                self.drop_agent(agent);
                self.stays(&reason);
            }
            State::Losing(new) if new == agent => {
                self.drop_agent(agent);
                self.end(reason);
            }
            _ if agent == self.current => {
                let had = self.lease().is_some();
                if had && self.over.is_none() {
                    eprintln!("paragpu: the lease is over: {reason}");
                }
                // Its programs hear from their host, if it still is.
                if let Some(door) = &self.door {
                    door.close(&reason);
                }
                self.over.get_or_insert(reason);
                self.drop_agent(agent);
            }
            _ => self.drop_agent(agent),
        }
    }

    /// Ends an agent, and its lease with it.
    fn drop_agent(&mut self, agent: u64) {
        self.tell(agent, &ToAgent::Release {});
        if let Some(mut held) = self.agents.remove(&agent) {
            held.words = None;
            // An engine that cannot reach the host waits for it for a while.
            std::thread::spawn(move || {
                if ends_within(&mut held.agent, 2 * BEAT) {
                    return;
                }
                // srun takes back what it still waits for; killed, it would leave it.
                let _ = kill_process(Pid::from_child(&held.agent), Signal::TERM);
                if ends_within(&mut held.agent, 2 * BEAT) {
                    return;
                }
                let _ = held.agent.kill();
                let _ = held.agent.wait();
            });
        }
    }

    /// Ends the lease, and waits for its agents.
    fn release(&mut self) {
        for agent in self.agents.keys() {
            self.tell(*agent, &ToAgent::Release {});
        }
        for held in self.agents.values_mut() {
            held.words = None;
        }
        let patience = Instant::now() + 3 * BEAT;
        for held in self.agents.values_mut() {
            while let Ok(None) = held.agent.try_wait() {
                if Instant::now() > patience {
                    // srun passes TERM on to a host that may be lost, and waits.
                    let _ = held.agent.kill();
                    let _ = held.agent.wait();
                    break;
                }
                std::thread::sleep(BEAT / 100);
            }
        }
        self.agents.clear();
    }
}

/// Whether a process exits by itself within a time limit.
fn ends_within(process: &mut Child, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Ok(Some(_)) | Err(_) = process.try_wait() {
            return true;
        }
        std::thread::sleep(BEAT / 20);
    }
    false
}

/// The outcome of a connection to a host's daemon.
#[derive(Debug, PartialEq, Eq)]
enum Presence {
    /// A daemon accepts it.
    There,
    /// Each of the machine's addresses answers that nobody listens.
    Gone,
    /// No answer came.
    Silent,
}

impl Presence {
    /// Asks each address of `address` once, until one accepts.
    fn of(address: &str) -> Self {
        let mut gone = false;
        for (at, address) in address.to_socket_addrs().into_iter().flatten().enumerate() {
            match TcpStream::connect_timeout(&address, PROBE) {
                Ok(_) => return Self::There,
                Err(error) => {
                    gone = (at == 0 || gone) && error.kind() == ErrorKind::ConnectionRefused;
                }
            }
        }
        if gone { Self::Gone } else { Self::Silent }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// An agent that says what it is told to, until its input ends.
    #[derive(Debug)]
    struct Says(String);

    impl Pool for Says {
        fn agent(&self, _: &Want, _: &std::path::Path) -> Result<Command, Error> {
            let mut agent = Command::new("sh");
            agent.args([
                "-c",
                "printf '%s' \"$1\"; exec cat >/dev/null",
                "sh",
                &self.0,
            ]);
            Ok(agent)
        }
    }

    #[test]
    fn a_lease_ends_with_its_vm() {
        let directory = tempfile::tempdir().unwrap();
        let lease = Lease {
            name: Name {
                vm: "lease-0-1".into(),
                serial: 7,
            },
            memory: 1 << 30,
            gpu: 0,
            address: "gpu1:7474".into(),
            arrivals: None,
            authority: "ca".into(),
            certificate: "certificate".into(),
            expires: 0,
            written: Vec::new(),
        };
        let said = FromAgent::Lease {
            lease: Box::new(lease),
            host: "gpu1".into(),
        };
        let lines = [FromAgent::hello(), said].map(|said| json_lines::encode(&said).unwrap());
        let agent = Says(String::from_utf8(lines.concat()).unwrap());
        let options = Options {
            want: Want::default(),
            paragpu: PathBuf::new(),
            checkpoint: 0,
            directory: directory.path().to_owned(),
            entry: None,
        };
        let mut asked = 0;
        let mut lives = || {
            asked += 1;
            asked < 2
        };
        hold(&agent, options, &mut lives).unwrap();
        assert_eq!(asked, 2);
    }

    #[test]
    fn a_host_is_gone_only_where_its_machine_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(Presence::of(&address), Presence::There);
        drop(listener);
        assert_eq!(Presence::of(&address), Presence::Gone);
        assert_eq!(Presence::of("no port"), Presence::Silent);
    }
}
