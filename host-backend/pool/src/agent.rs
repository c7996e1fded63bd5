//! The agent, which is the program of a lease's job. It claims the lease from the host's
//! daemon and holds it until the holder, the engine or the daemon ends it.

use std::io::{Write, stdin, stdout};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use paragpu_control::admin::{Moved, Request, Response};
use paragpu_control::json_lines;
use paragpu_control::lease::{Claim, Name};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

use crate::Error;
use crate::event;
use crate::message::{self, FromAgent, ToAgent};
use crate::slurm;

/// How often each side sends a sign of life.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// The lease ends after this silence of its holder. It is longer than the holder waits for
/// a host before it moves the lease.
const SILENCE: Duration = Duration::from_secs(45);
/// How long to wait for a daemon that is being restarted.
const RESTART: Duration = Duration::from_secs(25);

/// The command line of an agent.
#[derive(Debug)]
pub struct Options {
    /// The daemon's lease socket.
    pub socket: PathBuf,
    /// The number of the engine's job, if there is one.
    pub job: Option<u64>,
    /// The name of the host in the engine.
    pub host: String,
    /// The GPU of the lease, if there is no job.
    pub gpu: u32,
}

enum Event {
    User(Option<ToAgent>),
    Daemon(Option<Response>),
    Signal(i32),
    /// The pool is rebalanced. The destination, if the engine knows one.
    Rebalanced(Option<slurm::Destination>),
}

struct Agent {
    options: Options,
    claim: Claim,
    daemon: UnixStream,
    events: Receiver<Event>,
    sender: Sender<Event>,
    /// The name of the lease, once it exists.
    name: Option<Name>,
    asked: Option<Asked>,
    /// The bound on the pause of its next move: only rebalancing has one.
    most_pause_ms: Option<u64>,
    heard: Instant,
}

/// The outcome of waiting for a daemon.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Back,
    Released,
}

/// Requests to the daemon without a reply yet.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Carry,
    Restore,
}

/// Holds a lease. Returns when it is over.
///
/// # Errors
/// [`Error`]: there was no lease, or it ended before its holder released it.
pub fn run(options: Options) -> Result<(), Error> {
    let (sender, events) = channel();
    event::lines(stdin(), sender.clone(), Event::User);
    let signals = [SIGTERM, SIGINT, SIGUSR1];
    event::signals(&signals, sender.clone(), Event::Signal).map_err(Error::Signals)?;
    say(&FromAgent::hello())?;
    let Some(ToAgent::Claim {
        memory,
        key,
        again,
        checkpoint,
    }) = claim_of(&events)?
    else {
        return Err(Error::NoLease("its holder sent no claim".into()));
    };
    let claim = Claim {
        job: options.job,
        memory,
        gpu: options.gpu,
        key,
        again,
        checkpoint,
        weight: 0,
        grace: 0,
    };
    let daemon = connect(&options.socket, &claim, &sender)?;
    let job = options.job;
    let agent = Agent {
        options,
        claim,
        daemon,
        events,
        sender,
        name: None,
        asked: None,
        most_pause_ms: None,
        heard: Instant::now(),
    };
    let outcome = agent.hold();
    if let Err(error) = &outcome {
        let reason = match error {
            // The holder says what it is the reason of.
            Error::NoLease(reason) => reason.clone(),
            other => other.to_string(),
        };
        let _ = say(&FromAgent::Over { reason });
    }
    if let (Err(Error::Alone), Some(job)) = (&outcome, job) {
        slurm::end(job)?;
    }
    outcome
}

/// Receives the message after the holder's hello.
fn claim_of(events: &Receiver<Event>) -> Result<Option<ToAgent>, Error> {
    let refused = |reason: String| {
        let _ = say(&FromAgent::Over {
            reason: reason.clone(),
        });
        Error::NoLease(reason)
    };
    match events.recv() {
        Ok(Event::User(Some(ToAgent::Hello { version, release }))) => {
            message::check("the requester", version, &release).map_err(refused)?;
        }
        Ok(Event::User(Some(_))) => {
            message::check("the requester", 0, "without a version").map_err(refused)?
        }
        _ => return Ok(None),
    }
    match events.recv() {
        Ok(Event::User(message)) => Ok(message),
        _ => Ok(None),
    }
}

fn connect(socket: &Path, claim: &Claim, sender: &Sender<Event>) -> Result<UnixStream, Error> {
    let failed = |source| Error::File {
        path: socket.to_owned(),
        source,
    };
    let daemon = UnixStream::connect(socket).map_err(failed)?;
    let reader = daemon.try_clone().map_err(failed)?;
    event::lines(reader, sender.clone(), Event::Daemon);
    json_lines::write(&daemon, &Request::Claim(claim.clone()))
        .map_err(|error| Error::NoLease(error.to_string()))?;
    Ok(daemon)
}

/// Sends a message to the holder. An error means that the holder is gone.
fn say(message: &FromAgent) -> Result<(), Error> {
    let text = json_lines::encode(message).map_err(|error| Error::NoLease(error.to_string()))?;
    let mut out = stdout().lock();
    out.write_all(&text)
        .and_then(|()| out.flush())
        .map_err(|_| Error::Alone)
}

impl Agent {
    fn hold(mut self) -> Result<(), Error> {
        loop {
            match self.events.recv_timeout(HEARTBEAT) {
                Ok(Event::User(None)) => return Err(Error::Alone),
                Ok(Event::User(Some(ToAgent::Release {}))) => return Ok(()),
                Ok(Event::User(Some(message))) => {
                    self.heard = Instant::now();
                    self.obey(message)?;
                }
                Ok(Event::Daemon(Some(response))) => self.pass_on(response)?,
                Ok(Event::Daemon(None)) => {
                    if self.come_back()? == Outcome::Released {
                        return Ok(());
                    }
                }
                Ok(Event::Signal(SIGUSR1)) => self.look_where_to(),
                Ok(Event::Rebalanced(to)) => {
                    self.most_pause_ms = to.as_ref().and_then(|to| to.most_pause_ms);
                    say(&FromAgent::Leave {
                        reason: "the pool is being rebalanced".into(),
                        to: to.map(|to| to.node),
                        optional: true,
                    })?;
                }
                Ok(Event::Signal(_)) => {
                    return Err(Error::NoLease("the engine ended it".into()));
                }
                Err(RecvTimeoutError::Timeout) => say(&FromAgent::Alive {})?,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if self.heard.elapsed() > SILENCE {
                return Err(Error::Alone);
            }
        }
    }

    /// Asks the engine for the destination of the lease, in a thread: a controller that is
    /// down must not delay the signs of life to the holder.
    fn look_where_to(&self) {
        let (job, sender) = (self.options.job, self.sender.clone());
        std::thread::spawn(move || {
            let to = job.and_then(slurm::destination);
            let _ = sender.send(Event::Rebalanced(to));
        });
    }

    fn obey(&mut self, message: ToAgent) -> Result<(), Error> {
        let (request, asked) = match message {
            ToAgent::Alive {} | ToAgent::Release {} => return Ok(()),
            ToAgent::Hello { .. } | ToAgent::Claim { .. } => {
                return Err(Error::NoLease("it is claimed twice".into()));
            }
            ToAgent::Carry { to } => {
                let most_pause_ms = self.most_pause_ms;
                (Request::Carry { to, most_pause_ms }, Asked::Carry)
            }
            ToAgent::Restore { directory } => {
                let copies = None;
                (Request::Restore { directory, copies }, Asked::Restore)
            }
        };
        self.asked = Some(asked);
        // The reader of the connection notices if the daemon is gone.
        let _ = json_lines::write(&self.daemon, &request);
        Ok(())
    }

    fn pass_on(&mut self, response: Response) -> Result<(), Error> {
        match response {
            Response::Lease(lease) => {
                self.name = Some(lease.name.clone());
                let Options { host, .. } = &self.options;
                say(&FromAgent::Lease {
                    lease: Box::new(lease),
                    host: host.clone(),
                })
            }
            Response::Leave { reason } => {
                self.most_pause_ms = None;
                say(&FromAgent::Leave {
                    reason,
                    to: None,
                    optional: false,
                })
            }
            Response::Progress { .. } => Ok(()),
            Response::Error { error } => match self.asked.take() {
                None => Err(Error::NoLease(error)),
                Some(asked) => say(&answer(&asked, Some(error))),
            },
            Response::Moved { sessions } => {
                self.asked = None;
                let pauses = sessions.iter().map(|one| one.figures.longest_delay_ms);
                say(&FromAgent::Carried {
                    pause: pauses.fold(0.0, f64::max),
                    error: failure(&sessions),
                })
            }
            Response::Done(_) => match self.asked.take() {
                Some(asked) => say(&answer(&asked, None)),
                None => Ok(()),
            },
            _ => Err(Error::NoLease(
                "the daemon sent an unexpected answer".into(),
            )),
        }
    }

    /// Waits for the next daemon after the connection was lost, and claims the same lease
    /// again.
    fn come_back(&mut self) -> Result<Outcome, Error> {
        let Some(name) = self.name.clone() else {
            return Err(Error::NoLease("the host's daemon ended".into()));
        };
        if let Some(asked) = self.asked.take() {
            say(&answer(&asked, Some("the host's daemon ended".into())))?;
        }
        self.claim.again = Some(name);
        let deadline = Instant::now() + RESTART;
        loop {
            match connect(&self.options.socket, &self.claim, &self.sender) {
                Ok(daemon) => {
                    self.daemon = daemon;
                    return Ok(Outcome::Back);
                }
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => {}
            }
            match self.events.recv_timeout(HEARTBEAT) {
                Ok(Event::User(None)) => return Err(Error::Alone),
                Ok(Event::User(Some(ToAgent::Release {}))) => {
                    return Ok(Outcome::Released);
                }
                Ok(Event::Signal(SIGTERM | SIGINT)) => {
                    return Err(Error::NoLease("the engine ended it".into()));
                }
                Ok(Event::User(Some(_))) => self.heard = Instant::now(),
                _ => {}
            }
            say(&FromAgent::Alive {})?;
        }
    }
}

/// Why the move of a lease failed, if it did. Its sessions move or stay together, except that
/// one that began during the move may stay alone: it ends with the lease here.
fn failure(sessions: &[Moved]) -> Option<String> {
    if sessions.iter().any(|session| session.moved) {
        return None;
    }
    let unknown = || "a session stayed".to_owned();
    let stayed = sessions.first()?;
    Some(stayed.error.clone().unwrap_or_else(unknown))
}

fn answer(asked: &Asked, error: Option<String>) -> FromAgent {
    match asked {
        Asked::Carry => FromAgent::Carried { pause: 0.0, error },
        Asked::Restore => FromAgent::Restored { error },
    }
}

#[cfg(test)]
mod tests {
    use paragpu_control::admin::Figures;

    use super::*;

    #[test]
    fn a_lease_moves_unless_all_sessions_stay() {
        let session = |error: Option<&str>| Moved {
            session: 1,
            vm: "lease".into(),
            moved: error.is_none(),
            error: error.map(Into::into),
            figures: Figures::default(),
        };
        let (moved, stayed) = (session(None), session(Some("no room")));
        for (sessions, expected) in [
            (vec![], None),
            (vec![moved.clone()], None),
            // Those that moved would be lost with the new lease.
            (vec![moved, stayed.clone()], None),
            (vec![stayed.clone(), stayed], Some("no room".to_owned())),
        ] {
            assert_eq!(failure(&sessions), expected);
        }
    }
}
