//! Domains that migrate to another host. Their device is detached before, and they get a
//! new one there.
//!
//! The VM's virtual GPUs move first, over the network. The running domain has a mark with
//! the VM's name in libvirt's metadata, which migrates with it. The hook of the other host
//! finds the mark and starts the arrival there.

use std::path::Path;

use crate::attach::{Asked, Attach, attach};
use crate::ffi::{Connection, Scope};
use crate::host::Host;
use crate::xml::{self, Description};
use crate::{Error, VmName};

/// The VM name of a running domain's device.
///
/// # Errors
/// [`Error::NotRunning`], [`Error::NotAttached`]; [`Error::NoSupervisor`] if the device
/// process is managed otherwise.
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

/// Marks a running domain whose virtual GPUs have moved.
///
/// # Errors
/// libvirt's errors.
pub fn mark(connection: &Connection, domain: &str, vm: &VmName) -> Result<(), Error> {
    connection
        .domain(domain)?
        .mark(Some(&xml::gpus_moved(vm.as_str())?))
}

/// Attaches the device to a running domain that has migrated from another host, and removes
/// its mark. Returns the domain's name and the VM's.
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
