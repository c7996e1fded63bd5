//! Migration of libvirt domains and their sessions.

use std::time::{Duration, Instant};

use paragpu_control::admin::{self, Moved, Request, Response, SessionInfo};
use paragpu_control::terminal::{counted, plain};
use paragpu_libvirt::host::Host;
use paragpu_libvirt::{Asked, Connection, Detach, VmName, travel};
use serde::Serialize;

use crate::arguments::{Arguments, Arrive, Depart, Output};
use crate::control::{Control, unexpected};
use crate::error::{Error, print, print_json};
use crate::{libvirt, moving};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// The result of a command, for JSON output.
#[derive(Debug, Serialize)]
struct Travelled<'a> {
    domain: &'a str,
    /// The VM's name for the daemons.
    vm: &'a str,
    sessions: &'a [Moved],
}

/// `paragpu depart`. Each step can be repeated if a later one failed.
pub fn depart(arguments: &Arguments, options: &Depart) -> Result<(), Error> {
    let Depart {
        domain, to, output, ..
    } = options;
    let connection = Connection::open(options.connect.as_deref())?;
    let host = Host::this();
    let vm = travel::vm_of(&host, &connection, domain)?;
    let order = admin::Migrate {
        vm: Some(vm.to_string()),
        to: Some(moving::url(to)),
        ..admin::Migrate::default()
    };
    let sessions = send(&arguments.connect()?, &vm, |_| true, &order, *output)?;
    travel::mark(&connection, domain, &vm)?;
    let wanted = Detach {
        domain,
        asked: Asked {
            live: true,
            config: false,
        },
        patience: Duration::from_secs(options.timeout),
    };
    let change = libvirt::release_device(&host, &connection, wanted, *output)?;
    let name = change.domain;
    tell(&name, &vm, &sessions, *output, || {
        format!(
            "{} of {vm} went ahead to {to}\n\
             detached from {name}: it can migrate now (virsh migrate --live {name} URI)\n",
            counted(sessions.len() as u64, "session")
        )
    })
}

/// `paragpu arrive`.
pub fn arrive(arguments: &Arguments, options: &Arrive) -> Result<(), Error> {
    let output = options.output;
    let deadline = Instant::now() + Duration::from_secs(options.timeout);
    let (name, vm) = until(deadline, || {
        let connection = Connection::open(options.connect.as_deref())?;
        Ok(travel::receive(
            &Host::this(),
            &connection,
            &options.domain,
        )?)
    })?;
    let order = admin::Migrate {
        vm: Some(vm.to_string()),
        communicator: Some("pci".into()),
        ..admin::Migrate::default()
    };
    // The guest may need a moment to detect its device.
    let elsewhere = |session: &SessionInfo| session.communicator != "pci";
    let sessions = until(deadline, || {
        send(&arguments.connect()?, &vm, elsewhere, &order, output)
    })?;
    tell(&name, &vm, &sessions, output, || {
        let moved = counted(sessions.len() as u64, "session");
        format!("{name} has the device; {moved} of {vm} moved to it\n")
    })
}

/// Retries an operation until it succeeds, fails for good, or the deadline passes.
/// Prints what it waits for.
fn until<T>(deadline: Instant, attempt: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let mut said = String::new();
    loop {
        match attempt() {
            Err(error) if passes(&error) && Instant::now() + PAUSE < deadline => {
                let reason = error.to_string();
                if reason != said {
                    eprintln!("paragpu: waiting: {}", plain(&reason));
                    said = reason;
                }
                std::thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Whether an error is transient: libvirt refuses while it works on the domain, the
/// daemon while a guest does not answer.
fn passes(error: &Error) -> bool {
    use paragpu_libvirt::Error as Of;
    let libvirt = |error: &Of| {
        matches!(
            error,
            Of::NotRunning(_) | Of::OnItsWay(_) | Of::Libvirt { .. }
        )
    };
    match error {
        Error::Refused(_) => true,
        Error::Libvirt(error) => libvirt(error),
        _ => false,
    }
}

/// Moves the VM's sessions, if there are any, and returns those that moved.
fn send(
    control: &Control,
    vm: &VmName,
    concerned: impl Fn(&SessionInfo) -> bool,
    order: &admin::Migrate,
    output: Output,
) -> Result<Vec<Moved>, Error> {
    let Response::Sessions { sessions } = control.ask(&Request::List {})? else {
        return Err(unexpected());
    };
    let mut of_vm = sessions
        .iter()
        .filter(|session| session.vm == vm.as_str() && concerned(session));
    if of_vm.next().is_none() {
        return Ok(Vec::new());
    }
    let done = moving::carry_out(control, &Request::Migrate(order.clone()), output)?;
    let Response::Moved { sessions } = done else {
        return Err(unexpected());
    };
    match sessions.iter().find(|session| !session.moved) {
        Some(stayed) => Err(Error::Refused(
            moving::outcome_line(stayed).trim_end().to_owned(),
        )),
        None => Ok(sessions),
    }
}

fn tell(
    domain: &str,
    vm: &VmName,
    sessions: &[Moved],
    output: Output,
    text: impl Fn() -> String,
) -> Result<(), Error> {
    match output {
        Output::Text => print(text()),
        Output::Json => print_json(&Travelled {
            domain,
            vm: vm.as_str(),
            sessions,
        }),
    }
}
