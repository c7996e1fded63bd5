//! Attaches the device to a domain, and detaches it.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::ffi::{Connection, Domain, Scope};
use crate::host::{Host, Owner};
use crate::xml::{self, Description, Device, NewPort, Port};
use crate::{Error, VmName};

/// The parts of the domain to change. Neither: those that exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// The running domain.
    pub live: bool,
    /// The configuration with which it starts.
    pub config: bool,
}

/// A device to attach, and its domain.
#[derive(Debug, Clone, Copy)]
pub struct Attach<'a> {
    /// The domain's number, UUID or name.
    pub domain: &'a str,
    /// The parts of the domain.
    pub asked: Asked,
    /// The VM's name for daemon and device process, if it is not the domain's.
    pub vm: Option<&'a VmName>,
    /// The socket of a device process that is managed otherwise.
    pub socket: Option<&'a Path>,
}

/// A device to detach.
#[derive(Debug, Clone, Copy)]
pub struct Detach<'a> {
    /// The domain's number, UUID or name.
    pub domain: &'a str,
    /// The parts of the domain.
    pub asked: Asked,
    /// How long the guest may take to release the device.
    pub patience: Duration,
}

/// The change that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The domain's name.
    pub domain: String,
    /// Its UUID.
    pub uuid: String,
    /// Whether the running domain was changed.
    pub live: bool,
    /// Whether its configuration was changed.
    pub config: bool,
    /// The socket of the device process.
    pub socket: PathBuf,
}

/// Attaches the device. If one part of the domain already has it, only the other is
/// changed.
///
/// # Errors
/// The domain is then unchanged, and no device process is left behind.
pub fn attach(host: &Host, connection: &Connection, attach: Attach<'_>) -> Result<Change, Error> {
    let domain = connection.domain(attach.domain)?;
    let state = State::of(&domain)?;
    let places = state.places(attach.asked)?;
    let todo = places.those(|place| state.device(place).is_none());
    if todo.is_none() {
        return Err(Error::Attached {
            domain: state.name,
            place: places.word(),
        });
    }
    let there = state.device(Scope::Live).or(state.device(Scope::Config));
    let socket = match (attach.socket, attach.vm, there) {
        (Some(socket), _, _) => socket.to_owned(),
        (None, Some(vm), _) => host.socket(vm),
        (None, None, Some(device)) => device.socket.clone(),
        (None, None, None) => host.socket(&state.name.parse()?),
    };
    check_alone(connection, &state.uuid, &socket)?;

    let config = match &state.config {
        Some(machine) if todo.config => Some(Config::add(&domain, machine, &socket)?),
        _ => None,
    };
    let configured = match &config {
        Some(added) => added.port,
        None => state.device(Scope::Config).and_then(|device| device.port),
    };
    if todo.live
        && let Err(error) = attach_live(host, &domain, &state, &socket, configured)
    {
        if let Some(config) = config {
            config.undo(&domain);
        }
        return Err(error);
    }
    Ok(state.changed(todo, socket))
}

fn attach_live(
    host: &Host,
    domain: &Domain<'_>,
    state: &State,
    socket: &Path,
    configured: Option<Port>,
) -> Result<(), Error> {
    let Some(machine) = &state.live else {
        return Err(Error::NotRunning(state.name.clone()));
    };
    if machine.has_pcie && machine.free_ports.is_empty() {
        return Err(Error::NoPort(state.name.clone()));
    }
    // The port in the configuration, for which firmware reserved addresses if the domain
    // started with it.
    let free = |port: &Port| machine.free_ports.contains(port);
    let port = configured
        .filter(free)
        .or(machine.free_ports.first().copied());
    let element = xml::device(socket, port)?;
    let Some(vm) = host.vm_of(socket) else {
        let is_socket = socket
            .symlink_metadata()
            .is_ok_and(|found| found.file_type().is_socket());
        if !is_socket {
            return Err(Error::NoSocket(socket.to_owned()));
        }
        return domain.attach(Scope::Live, &element);
    };
    let owner = Owner {
        uuid: &state.uuid,
        name: &state.name,
    };
    host.start(&vm, owner)?;
    domain.attach(Scope::Live, &element).inspect_err(|_| {
        // libvirt's error matters more than a failure to stop.
        let _ = host.stop(&vm);
    })
}

/// Detaches the device from those parts of the domain that have it.
///
/// # Errors
/// libvirt's errors, or [`Error::Held`]. The domain's configuration is then unchanged.
pub fn detach(host: &Host, connection: &Connection, detach: Detach<'_>) -> Result<Change, Error> {
    let domain = connection.domain(detach.domain)?;
    let state = State::of(&domain)?;
    let places = state.places(detach.asked)?;
    let todo = places.those(|place| state.device(place).is_some());
    let live = state.device(Scope::Live).filter(|_| todo.live);
    let config = state.device(Scope::Config).filter(|_| todo.config);
    let Some(device) = live.or(config) else {
        return Err(Error::NotAttached {
            domain: state.name,
            place: places.word(),
        });
    };
    if let Some(device) = live {
        domain.detach(Scope::Live, &device.element)?;
        wait_until_gone(&domain, &state.name, detach.patience)?;
        if let Some(vm) = host.vm_of(&device.socket) {
            host.stop(&vm)?;
        }
    }
    if let Some(device) = config {
        domain.detach(Scope::Config, &device.element)?;
    }
    let socket = device.socket.clone();
    Ok(state.changed(todo, socket))
}

/// Waits until the guest has released the device, because libvirt itself does not wait for
/// long.
fn wait_until_gone(domain: &Domain<'_>, name: &str, patience: Duration) -> Result<(), Error> {
    let begin = Instant::now();
    while domain.is_active()? {
        if Description::parse(&domain.xml(Scope::Live)?)?
            .devices
            .is_empty()
        {
            break;
        }
        if begin.elapsed() >= patience {
            return Err(Error::Held {
                domain: name.to_owned(),
                seconds: patience.as_secs(),
            });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Refuses a socket that another domain uses. Two VMs of one device process would be one VM
/// for the daemon, and QEMU would not start the second.
fn check_alone(connection: &Connection, uuid: &str, socket: &Path) -> Result<(), Error> {
    for other in connection.domains()? {
        // The domain may end meanwhile.
        let Ok(state) = State::of(&other) else {
            continue;
        };
        let machines = state.live.iter().chain(&state.config);
        let mut devices = machines.flat_map(|machine| &machine.devices);
        if state.uuid != uuid && devices.any(|device| device.socket == socket) {
            return Err(Error::SocketOfOther {
                socket: socket.to_owned(),
                domain: state.name,
            });
        }
    }
    Ok(())
}

/// The changes of a configuration.
struct Config {
    device: String,
    port: Option<Port>,
    /// The port that was added for the device, if any.
    new_port: Option<NewPort>,
}

impl Config {
    fn add(domain: &Domain<'_>, machine: &Description, socket: &Path) -> Result<Self, Error> {
        let new_port = if machine.has_pcie && machine.free_ports.is_empty() {
            let port = machine.new_port()?;
            domain.attach(Scope::Config, &port.element)?;
            Some(port)
        } else {
            None
        };
        let port = match &new_port {
            Some(new) => Some(new.port),
            None => machine.free_ports.first().copied(),
        };
        let added = Self {
            device: xml::device(socket, port)?,
            port,
            new_port,
        };
        match domain.attach(Scope::Config, &added.device) {
            Ok(()) => Ok(added),
            Err(error) => {
                added.remove_port(domain);
                Err(error)
            }
        }
    }

    /// Undoes the changes after a failure. Errors are ignored, because that failure matters
    /// more.
    fn undo(&self, domain: &Domain<'_>) {
        let _ = domain.detach(Scope::Config, &self.device);
        self.remove_port(domain);
    }

    fn remove_port(&self, domain: &Domain<'_>) {
        if let Some(new) = &self.new_port {
            let _ = domain.detach(Scope::Config, &new.element);
        }
    }
}

/// The state of a domain before the change.
struct State {
    name: String,
    uuid: String,
    /// The running domain, if it runs.
    live: Option<Description>,
    /// The configuration with which it starts, if it is persistent.
    config: Option<Description>,
}

/// A selection of the two parts of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Places {
    live: bool,
    config: bool,
}

impl Places {
    fn those(self, wanted: impl Fn(Scope) -> bool) -> Self {
        Self {
            live: self.live && wanted(Scope::Live),
            config: self.config && wanted(Scope::Config),
        }
    }

    fn is_none(self) -> bool {
        !self.live && !self.config
    }

    /// The selection in words, for messages.
    fn word(self) -> &'static str {
        match (self.live, self.config) {
            (true, true) => "running and in its configuration",
            (true, false) => "running",
            _ => "in its configuration",
        }
    }
}

impl State {
    fn of(domain: &Domain<'_>) -> Result<Self, Error> {
        let machine = |place| Description::parse(&domain.xml(place)?);
        let (active, persistent) = (domain.is_active()?, domain.is_persistent()?);
        Ok(Self {
            name: domain.name(),
            uuid: domain.uuid()?,
            live: active.then(|| machine(Scope::Live)).transpose()?,
            config: persistent.then(|| machine(Scope::Config)).transpose()?,
        })
    }

    /// The selected parts of the domain that exist.
    fn places(&self, asked: Asked) -> Result<Places, Error> {
        let (active, persistent) = (self.live.is_some(), self.config.is_some());
        if asked == Asked::default() {
            return Ok(Places {
                live: active,
                config: persistent,
            });
        }
        if asked.live && !active {
            return Err(Error::NotRunning(self.name.clone()));
        }
        if asked.config && !persistent {
            return Err(Error::Transient(self.name.clone()));
        }
        Ok(Places {
            live: asked.live,
            config: asked.config,
        })
    }

    fn device(&self, place: Scope) -> Option<&Device> {
        let machine = match place {
            Scope::Live => self.live.as_ref(),
            Scope::Config => self.config.as_ref(),
        };
        machine.and_then(|machine| machine.devices.first())
    }

    fn changed(self, places: Places, socket: PathBuf) -> Change {
        Change {
            domain: self.name,
            uuid: self.uuid,
            live: places.live,
            config: places.config,
            socket,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(active: bool, persistent: bool) -> State {
        State {
            name: "web".into(),
            uuid: String::new(),
            live: active.then(Description::default),
            config: persistent.then(Description::default),
        }
    }

    #[test]
    fn what_is_changed_follows_what_there_is() {
        let none = Asked::default();
        let both = Asked {
            live: true,
            config: true,
        };
        for (active, persistent) in [(true, true), (true, false), (false, true)] {
            let places = state(active, persistent).places(none).unwrap();
            assert_eq!((places.live, places.config), (active, persistent));
        }
        let said = |state: State| state.places(both).unwrap_err().to_string();
        assert!(said(state(false, true)).contains("is not running"));
        assert!(said(state(true, false)).contains("is transient"));
        let only = Asked {
            live: false,
            config: true,
        };
        let places = state(true, true).places(only).unwrap();
        assert_eq!((places.live, places.config), (false, true));
    }
}
