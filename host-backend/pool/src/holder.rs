//! Holds a lease for a program or a VM: requests it from the pool, writes the files with
//! which programs connect to it, moves it when its host drains, and restores it elsewhere
//! when its host is lost.

use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use paragpu_communicator_secure::issue;
use paragpu_control::json_lines;
use paragpu_control::lease::{Lease, Name};
use paragpu_control::terminal::plain;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::agent::HEARTBEAT;
use crate::files::Files;
use crate::message::{self, FromAgent, ToAgent};
use crate::presence::Presence;
use crate::proxy::{Entry, Proxy};
use crate::running::RunningAgent;
use crate::{Error, LeaseRequest, Pool, event, slurm};

/// Silence of the agent after which the host is probed. It is lost if its daemon is gone as well.
const PROBE_AFTER: Duration = Duration::from_secs(5);
/// Silence after which a host is lost. It is shorter than the 30 seconds for which programs
/// look for their host.
const LOST: Duration = Duration::from_secs(24);
/// The number of consecutive probes that must also fail.
const UNANSWERED: u32 = 3;
/// If a lease takes longer, the engine has queued it, and the user gets a message.
const UNEXPLAINED: Duration = Duration::from_secs(3);
/// Time from a failed move to the next attempt.
const AGAIN: Duration = Duration::from_secs(5);

/// The requested lease.
#[derive(Debug)]
pub struct Options {
    /// The resources that the lease requests.
    pub want: LeaseRequest,
    /// The path of this program, which is also the agent.
    pub paragpu: PathBuf,
    /// Interval in seconds between checkpoints of its sessions; 0 for none.
    pub checkpoint: u64,
    /// The directory of the files with which programs connect to it.
    pub directory: PathBuf,
    /// Where the VM's programs connect, if it is for a VM.
    pub entry: Option<Entry>,
}

enum Event {
    Agent(u64, Option<FromAgent>),
    Signal(i32),
    Program(std::io::Result<ExitStatus>),
}

/// The state of the lease.
///
/// ```text
///            Leave                 Lease                Carried
///  Standing ───────► Leaving(new) ───────► Carrying(new) ───────► Standing
///     │ host lost         │ host lost           │ host lost
///     │                   ▼                     │
///     └────────────► Losing(new) ◄──────────────┘
///                         │ Lease              all Restored
///                         └───► Restoring(new) ───────────► Standing
/// ```
enum State {
    /// It stays on its host.
    Standing,
    /// It is to move, and another agent claims it on another host.
    Leaving(u64),
    /// Its sessions are moving to that agent's host.
    Carrying(u64),
    /// Its host is lost, and another agent claims it on another host.
    Losing(u64),
    /// Its sessions are being restored on the new host, from these directories.
    Restoring(Vec<PathBuf>),
}

impl State {
    /// Whether its sessions are on the host of the current agent, which may be lost.
    fn has_host(&self) -> bool {
        matches!(self, Self::Standing | Self::Leaving(_) | Self::Carrying(_))
    }
}

/// A lease that is held.
struct Holder<'a> {
    pool: &'a dyn Pool,
    options: Options,
    files: Files,
    proxy: Option<Proxy>,
    public: String,
    events: Receiver<Event>,
    sender: Sender<Event>,
    agents: BTreeMap<u64, RunningAgent>,
    next: u64,
    /// The number of the agent that holds the lease.
    current: u64,
    state: State,
    /// The requested destination, while a move there is tried.
    toward: Option<String>,
    /// When to try to leave the host, if it should.
    leave: Option<Instant>,
    /// It may as well stay there.
    optional: bool,
    /// Why the lease is over.
    over: Option<String>,
}

/// Runs `program` with a lease. Returns the program's exit status.
///
/// # Errors
/// [`Error`]: there is no lease, or the program cannot be started.
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

/// Holds a lease until a signal arrives, or the VM that it is for ends: `lives` is called
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
    /// Requests a lease and waits for it.
    fn new(pool: &'a dyn Pool, options: Options) -> Result<Self, Error> {
        let (sender, events) = channel();
        let signals = [SIGTERM, SIGINT, SIGHUP];
        event::signals(&signals, sender.clone(), Event::Signal).map_err(Error::Signals)?;
        let (private, public) = issue::key()?;
        let files = Files::new(options.directory.clone(), &private)?;
        let proxy = options.entry.as_ref().map(Proxy::open).transpose()?;
        let mut holder = Self {
            pool,
            options,
            files,
            proxy,
            public,
            events,
            sender,
            agents: BTreeMap::new(),
            next: 0,
            current: 0,
            state: State::Standing,
            toward: None,
            leave: None,
            optional: false,
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
                Ok(Event::Agent(agent, message)) => holder.handle_message(agent, message)?,
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
        holder.open_proxy()?;
        Ok(holder)
    }

    /// Relays a VM's new connections to the current host of the lease.
    fn open_proxy(&self) -> Result<(), Error> {
        if let (Some(proxy), Some((lease, _))) = (&self.proxy, self.lease()) {
            proxy.route_to(&lease.address, self.files.credentials()?);
        }
        Ok(())
    }

    /// Relays new connections to the host of another agent while sessions move there, or back.
    fn route_proxy(&self, to: u64) {
        let held = self.agents.get(&to).and_then(|held| held.lease.as_ref());
        if let (Some(proxy), Some((lease, _))) = (&self.proxy, held) {
            proxy.turn_to(&lease.address);
        }
    }

    fn lease(&self) -> Option<&(Lease, String)> {
        self.agents.get(&self.current)?.lease.as_ref()
    }

    /// Writes the current host of the lease for programs that start or have lost their host.
    fn lead(&self) -> Result<(), Error> {
        let Some((lease, host)) = self.lease() else {
            return Ok(());
        };
        self.files.write_for(lease)?;
        eprintln!(
            "paragpu: {} of GPU {} of {} as {}",
            paragpu_config::Size(lease.memory),
            lease.gpu,
            plain(host),
            plain(&lease.name.vm)
        );
        Ok(())
    }

    /// Starts an agent that claims the lease. `again` names an existing lease, and `off`
    /// the host that it must leave.
    fn start_agent(&mut self, again: Option<Name>, off: Option<String>) -> Result<u64, Error> {
        let asked = self.options.want.clone();
        let want = LeaseRequest {
            // Inside a job that has shards, the lease is the job's, whatever was asked for.
            memory: self.lease().map_or(asked.memory, |(lease, _)| lease.memory),
            on: self.toward.clone(),
            not_on: off.into_iter().collect(),
            ..asked
        };
        let mut command = self.pool.agent(&want, &self.options.paragpu)?;
        let mut agent = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A terminal's Ctrl-C is not for the agent: the lease must last until the holder,
            // or the program in its handler, has ended.
            .process_group(0)
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
        let held = RunningAgent::new(agent);
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

    /// Sends a message to an agent. Errors are ignored: an agent that is gone is detected
    /// by its silence.
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

    /// Runs until the program ends; without one, until a signal arrives or the lease is
    /// over. Returns the program's exit status.
    fn hold(
        &mut self,
        program: Option<Pid>,
        lives: &mut dyn FnMut() -> bool,
    ) -> Result<Option<std::io::Result<ExitStatus>>, Error> {
        let mut beat = Instant::now();
        loop {
            match self.events.recv_timeout(HEARTBEAT) {
                Ok(Event::Program(status)) => return Ok(Some(status)),
                Ok(Event::Signal(number)) => match (program, Signal::from_named_raw(number)) {
                    (Some(pid), Some(signal)) => {
                        let _ = kill_process(pid, signal);
                    }
                    _ => return Ok(None),
                },
                Ok(Event::Agent(agent, message)) => self.handle_message(agent, message)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
            if program.is_none() && self.over.is_some() {
                return Ok(None);
            }
            if beat.elapsed() >= HEARTBEAT {
                beat = Instant::now();
                self.beat()?;
                if !lives() {
                    return Ok(None);
                }
            }
        }
    }

    /// Sends signs of life, and checks whether the host is alive.
    fn beat(&mut self) -> Result<(), Error> {
        for agent in self.agents.keys() {
            self.tell(*agent, &ToAgent::Alive {});
        }
        if self.over.is_some() {
            return Ok(());
        }
        if self.state.has_host() {
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

    /// Begins to stand on the host of the current agent, which may drain already.
    fn settle(&mut self) {
        let drains = self.agents.get(&self.current).is_some_and(|it| it.drains);
        self.state = State::Standing;
        self.leave = drains.then(Instant::now);
        self.optional = false;
    }

    fn handle_message(&mut self, agent: u64, message: Option<FromAgent>) -> Result<(), Error> {
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
            Some(FromAgent::Leave {
                reason,
                to,
                optional,
            }) => {
                // A daemon says it once.
                held.drains |= !optional;
                if agent != self.current {
                    return Ok(());
                }
                eprintln!("paragpu: the lease leaves its host: {}", plain(&reason));
                self.optional = optional && (self.leave.is_none() || self.optional);
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
            // An agent that is asked to end reports it first. This one did not, so its host may be
            // lost, or only unreachable for a while. In that case its programs may continue.
            None if self.may_be_lost(agent) => {
                if let Some(held) = self.agents.get_mut(&agent) {
                    held.ended = true;
                }
                self.look()?;
            }
            None => {
                let had = self.agents.get(&agent);
                let reason = match had.and_then(|held| held.lease.as_ref()) {
                    Some(_) => "its agent ended unexpectedly",
                    None => "the engine did not run an agent for it",
                };
                self.failed(agent, reason.into());
            }
        }
        Ok(())
    }

    /// Continues a move or a restore once the new agent has the lease.
    fn claimed(&mut self, agent: u64) -> Result<(), Error> {
        match self.state {
            State::Leaving(new) if new == agent => {
                let arrivals = self.agents.get(&agent).and_then(|held| {
                    let (lease, _) = held.lease.as_ref()?;
                    lease.arrivals.clone()
                });
                let Some(to) = arrivals else {
                    self.failed(agent, "its host accepts no migrations".into());
                    return Ok(());
                };
                self.route_proxy(agent);
                self.tell(self.current, &ToAgent::Carry { to });
                self.state = State::Carrying(agent);
            }
            State::Losing(new) if new == agent => {
                self.drop_agent(self.current);
                self.current = agent;
                let written = self.lease().map(|(lease, _)| lease.written.clone());
                // Reversed, because `restore` takes directories from the end.
                let left = written.unwrap_or_default().into_iter().rev().collect();
                self.state = State::Restoring(left);
                self.lead()?;
                self.restore()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Starts to look for another host.
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

    /// Handles the end of a move: the sessions have moved, or all stayed.
    fn carried(&mut self, pause: f64, error: Option<String>) -> Result<(), Error> {
        let State::Carrying(new) = self.state else {
            return Ok(());
        };
        if let Some(error) = error {
            self.route_proxy(self.current);
            self.drop_agent(new);
            self.stays(&error);
            return Ok(());
        }
        let old = std::mem::replace(&mut self.current, new);
        self.toward = None;
        self.settle();
        self.lead()?;
        self.open_proxy()?;
        eprintln!("paragpu: the lease moved; its programs were delayed for {pause:.1} ms at most");
        self.drop_agent(old);
        Ok(())
    }

    /// Handles a failed move. One that rebalancing asked for is tried elsewhere if its
    /// destination had no room, but it never pauses the programs a second time.
    fn stays(&mut self, why: &str) {
        let paused = matches!(self.state, State::Carrying(_));
        self.state = State::Standing;
        if let Some(host) = self.toward.take() {
            eprintln!("paragpu: the lease cannot move to {host}: {}", plain(why));
            if !(self.optional && paused) {
                return self.leave();
            }
        }
        if self.optional {
            eprintln!("paragpu: the lease stays where it is: {}", plain(why));
            self.optional = false;
            self.leave = None;
            return;
        }
        eprintln!(
            "paragpu: the lease stays where it is for now: {}",
            plain(why)
        );
        self.leave = Some(Instant::now() + AGAIN);
    }

    /// Whether this agent may have ended because its host is lost.
    fn may_be_lost(&self, agent: u64) -> bool {
        let held = self.state.has_host() && self.over.is_none();
        held && agent == self.current && self.lease().is_some()
    }

    /// Checks whether the host is lost, and not only unreachable for a while.
    fn look(&mut self) -> Result<(), Error> {
        let Some(held) = self.agents.get_mut(&self.current) else {
            return Ok(());
        };
        let (silence, ended) = (held.heard.elapsed(), held.ended);
        let Some((lease, _)) = held
            .lease
            .as_ref()
            .filter(|_| ended || silence > PROBE_AFTER)
        else {
            held.unanswered = 0;
            return Ok(());
        };
        match Presence::of(&lease.address) {
            Presence::Gone => self.host_lost(),
            Presence::There if ended => {
                self.failed(self.current, "its agent ended unexpectedly".into());
                Ok(())
            }
            // The host is alive. After a network failure, srun's own connection may recover
            // later than the host's.
            Presence::There => {
                held.unanswered = 0;
                Ok(())
            }
            // The engine has ended the job, and the host does not answer either.
            Presence::Silent if ended && self.options.checkpoint > 0 => self.host_lost(),
            Presence::Silent => {
                held.unanswered += u32::from(silence > LOST);
                match held.unanswered >= UNANSWERED {
                    true => self.host_lost(),
                    false => Ok(()),
                }
            }
        }
    }

    fn host_lost(&mut self) -> Result<(), Error> {
        let Some((lease, host)) = self.lease() else {
            return Ok(());
        };
        eprintln!("paragpu: {} is lost", plain(host));
        if self.options.checkpoint == 0 {
            let reason = format!("{host} is lost, and its sessions were not checkpointed");
            self.end(reason);
            return Ok(());
        }
        let (name, host) = (lease.name.clone(), host.clone());
        self.toward = None;
        let new = match self.state {
            // It claims the lease on another host, or has it there already.
            State::Leaving(new) | State::Carrying(new) => Ok(new),
            _ => self.start_agent(Some(name), Some(host)),
        };
        match new {
            Ok(new) => {
                self.state = State::Losing(new);
                let has_lease = |held: &RunningAgent| held.lease.is_some();
                match self.agents.get(&new).is_some_and(has_lease) {
                    true => self.claimed(new),
                    false => Ok(()),
                }
            }
            Err(error) => {
                self.end(error.to_string());
                Ok(())
            }
        }
    }

    /// Ends the lease, and writes the reason for its programs. Otherwise they would look
    /// for their host until their time limit.
    fn end(&mut self, reason: String) {
        if self.over.is_some() {
            return;
        }
        if let Some((lease, _)) = self.lease()
            && let Err(error) = self.files.end(lease, &reason)
        {
            eprintln!("paragpu: cannot notify programs that the lease is over: {error}");
        }
        if let Some(proxy) = &self.proxy {
            proxy.close(&reason);
            proxy.cut();
        }
        self.over = Some(reason);
    }

    /// Restores the next checkpointed session.
    fn restore(&mut self) -> Result<(), Error> {
        let State::Restoring(left) = &mut self.state else {
            return Ok(());
        };
        match left.pop() {
            Some(directory) => self.tell(self.current, &ToAgent::Restore { directory }),
            None => {
                self.settle();
                // Not earlier, because a program that reconnects before its session is
                // restored would learn that it is over.
                self.open_proxy()?;
            }
        }
        Ok(())
    }

    fn restored(&mut self, error: Option<String>) -> Result<(), Error> {
        if let Some(error) = error {
            eprintln!("paragpu: a session cannot be restored: {}", plain(&error));
        }
        self.restore()
    }

    /// Handles an agent that has no lease, or has lost it.
    fn failed(&mut self, agent: u64, reason: String) {
        match self.state {
            State::Leaving(new) | State::Carrying(new) if new == agent => {
                self.route_proxy(self.current);
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
                    eprintln!("paragpu: the lease is over: {}", plain(&reason));
                }
                // Connected programs are told by their host, if it is still alive.
                if let Some(proxy) = &self.proxy {
                    proxy.close(&reason);
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
        if let Some(held) = self.agents.remove(&agent) {
            held.end();
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
        let patience = Instant::now() + 3 * HEARTBEAT;
        for held in self.agents.values_mut() {
            while let Ok(None) = held.agent.try_wait() {
                if Instant::now() > patience {
                    // Not TERM: srun would forward it to the host, which may be lost, and wait.
                    let _ = held.agent.kill();
                    let _ = held.agent.wait();
                    break;
                }
                std::thread::sleep(HEARTBEAT / 100);
            }
        }
        self.agents.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent that sends the given text and waits for the end of its input.
    #[derive(Debug)]
    struct Says(String);

    impl Pool for Says {
        fn agent(&self, _: &LeaseRequest, _: &std::path::Path) -> Result<Command, Error> {
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
        let said = FromAgent::Lease {
            lease: Box::new(crate::files::tests::lease()),
            host: "gpu1".into(),
        };
        let lines = [FromAgent::hello(), said].map(|said| json_lines::encode(&said).unwrap());
        let agent = Says(String::from_utf8(lines.concat()).unwrap());
        let options = Options {
            want: LeaseRequest::default(),
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
}
