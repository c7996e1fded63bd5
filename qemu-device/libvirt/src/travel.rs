//! Domains that migrate to another host: their device stays behind, and they get
//! one there.
//!
//! The VM's virtual GPUs went ahead, over the network. The running domain carries
//! a mark with the VM's name, which migrates with it (libvirt's metadata); the
//! hook of the other host sees it and has the domain arrive there.

use std::path::Path;

use crate::attach::{Asked, Attach, attach};
use crate::ffi::{Connection, Scope};
use crate::host::Host;
use crate::xml::{self, Description};
use crate::{Error, VmName};

/// The name of the VM that a running domain's device is of.
///
/// # Errors
/// [`Error::NotRunning`], [`Error::NotAttached`]; [`Error::NoSupervisor`] where
/// the device's process is somebody else's.
pub fn vm_of(host: &Host, connection: &Connection, domain: &str) -> Result<VmName, Error> {
    let domain = connection.domain(domain)?;
    if !domain.is_active()? {
        return Err(Error::NotRunning(domain.name()));
    }
    let machine = Description::parse(&domain.xml(Scope::Live)?)?;
    let Some(device) = machine.devices.first() else {
        return Err(Error::NotAttached {
            domain: domain.name(),
            place: "running",
        });
    };
    host.vm_of(&device.socket).ok_or(Error::NoSupervisor)
}

/// Marks a running domain: its virtual GPUs went ahead.
///
/// # Errors
/// As libvirt says.
pub fn mark(connection: &Connection, domain: &str, vm: &VmName) -> Result<(), Error> {
    connection
        .domain(domain)?
        .mark(Some(&xml::gpus_moved(vm.as_str())?))
}

/// Gives a domain that came from another host the device, if it runs, and takes
/// its mark away: its name, and the VM's.
///
/// # Errors
/// [`Error::NotRunning`]; [`Error::OnItsWay`]; as [`attach`].
pub fn receive(
    host: &Host,
    connection: &Connection,
    name: &str,
) -> Result<(String, VmName), Error> {
    let domain = connection.domain(name)?;
    if !domain.is_active()? {
        return Err(Error::NotRunning(domain.name()));
    }
    if domain.is_on_its_way()? {
        return Err(Error::OnItsWay(domain.name()));
    }
    let machine = Description::parse(&domain.xml(Scope::Live)?)?;
    let vm = match (&machine.gpus_moved_of, machine.devices.first()) {
        (Some(vm), _) => vm.parse()?,
        (None, Some(device)) => host.vm_of(&device.socket).ok_or(Error::NoSupervisor)?,
        (None, None) => domain.name().parse()?,
    };
    if machine.devices.is_empty() {
        let wanted = Attach {
            domain: name,
            asked: Asked {
                live: true,
                config: false,
            },
            vm: Some(&vm),
            socket: None::<&Path>,
        };
        attach(host, connection, wanted)?;
    }
    if machine.gpus_moved_of.is_some() {
        domain.mark(None)?;
    }
    Ok((domain.name(), vm))
}
