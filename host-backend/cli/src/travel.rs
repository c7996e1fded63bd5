//! Domains of libvirt that migrate, and their sessions.

use std::time::{Duration, Instant};

use paragpu_daemon::admin::{Migrate, Moved, Request, Response, SessionInfo};
use paragpu_libvirt::host::Host;
use paragpu_libvirt::{Asked, Connection, Detach, VmName, detach, travel};

use crate::arguments::Arguments;
use crate::control::{Control, unexpected};
use crate::error::{Error, print};

/// Between two attempts at what may need time.
const PAUSE: Duration = Duration::from_secs(1);

/// `paragpu depart`.
pub fn depart(
    arguments: &Arguments,
    domain: &str,
    to: &str,
    connect: Option<&str>,
    seconds: u64,
) -> Result<(), Error> {
    let connection = Connection::open(connect)?;
    let host = Host::this();
    let vm = travel::vm_of(&host, &connection, domain)?;
    let sent = send(
        &arguments.connect()?,
        &vm,
        |_| true,
        &Migrate {
            vm: Some(vm.to_string()),
            to: Some(to.to_owned()),
            ..Migrate::default()
        },
    )?;
    print(format!("{sent} sessions of {vm} went ahead to {to}\n"))?;
    let wanted = Detach {
        domain,
        asked: Asked {
            live: true,
            config: false,
        },
        patience: Duration::from_secs(seconds),
    };
    let change = detach(&host, &connection, wanted)?;
    travel::mark(&connection, domain, &vm)?;
    let name = change.domain;
    print(format!(
        "detached from {name}: it can migrate now (virsh migrate --live {name} URI)\n"
    ))
}

/// `paragpu arrive`.
pub fn arrive(
    arguments: &Arguments,
    domain: &str,
    connect: Option<&str>,
    seconds: u64,
) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let vm = until(deadline, || {
        let connection = Connection::open(connect)?;
        Ok(travel::receive(&Host::this(), &connection, domain)?)
    })?;
    print(format!("attached to {domain}\n"))?;
    // The guest may need a moment to see its device.
    let homed = until(deadline, || {
        send(
            &arguments.connect()?,
            &vm,
            |session| session.communicator != "pci",
            &Migrate {
                vm: Some(vm.to_string()),
                communicator: Some("pci".into()),
                ..Migrate::default()
            },
        )
    })?;
    print(format!("{homed} sessions of {vm} go over the device\n"))
}

/// Tries until it is done, or until the deadline.
fn until<T>(deadline: Instant, attempt: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    loop {
        match attempt() {
            Err(_) if Instant::now() + PAUSE < deadline => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

/// Orders the VM's sessions to go, where there are such: how many went.
fn send(
    control: &Control,
    vm: &VmName,
    concerned: impl Fn(&SessionInfo) -> bool,
    order: &Migrate,
) -> Result<usize, Error> {
    let Response::Sessions { sessions } = control.ask(&Request::List {})? else {
        return Err(unexpected());
    };
    let of_vm = |session: &&SessionInfo| session.vm == vm.as_str() && concerned(session);
    if sessions.iter().filter(of_vm).count() == 0 {
        return Ok(0);
    }
    match control.ask(&Request::Migrate(order.clone()))? {
        Response::Moved { sessions } => went(&sessions),
        _ => Err(unexpected()),
    }
}

/// How many sessions went; an error where one did not.
fn went(sessions: &[Moved]) -> Result<usize, Error> {
    match sessions.iter().find_map(|session| session.error.as_ref()) {
        Some(error) => Err(Error::Refused(error.clone())),
        None => Ok(sessions.len()),
    }
}
