//! What libvirt's hook does when QEMU is about to start, and when it has ended.
//!
//! libvirt calls `/etc/libvirt/hooks/qemu.d/paragpu DOMAIN OPERATION …` with the
//! domain's XML as input, and waits for its end: nothing here may ask libvirt.
//! If it fails before the start, the domain does not start, and the user who
//! wanted that is shown what it said.

use std::io::Read;
use std::path::Path;

use crate::Error;
use crate::host::{Host, Owner};
use crate::xml::Description;

/// Where libvirt looks for it.
pub const PLACE: &str = "/etc/libvirt/hooks/qemu.d/paragpu";

/// Largest description of a domain that is read, in bytes.
const LARGEST: u64 = 16 << 20;

/// Does what `operation` on the domain `name` asks for, with its XML from `input`.
///
/// # Errors
/// [`Error::Xml`], and those of [`Host::start`] and [`Host::stop`]. After an
/// error of `prepare` no process of the domain is left.
pub fn run(host: &Host, name: &str, operation: &str, input: impl Read) -> Result<(), Error> {
    match operation {
        "prepare" => {
            let machine = read(input)?;
            let uuid = &machine.uuid;
            let owner = Owner { uuid, name };
            for device in &machine.devices {
                // The socket of somebody else's device process is theirs to provide.
                let Some(vm) = host.vm_of(&device.socket) else {
                    continue;
                };
                if let Err(error) = host.start(&vm, owner) {
                    let _ = host.stop_all(uuid);
                    return Err(error);
                }
            }
            Ok(())
        }
        // It comes from another host, where its virtual GPUs were sent ahead.
        // Its device can be plugged in when libvirt is done with the migration.
        "started" => {
            let machine = read(input)?;
            match machine.gpus_moved_of {
                Some(_) => host.await_arrival(&machine.uuid),
                None => Ok(()),
            }
        }
        "release" => host.stop_all(&read(input)?.uuid),
        _ => Ok(()),
    }
}

fn read(input: impl Read) -> Result<Description, Error> {
    let mut xml = String::new();
    input
        .take(LARGEST)
        .read_to_string(&mut xml)
        .map_err(Error::system("read", Path::new("the domain's XML")))?;
    let machine = Description::parse(&xml)?;
    if machine.uuid.is_empty() {
        return Err(Error::Xml("it names no UUID".into()));
    }
    Ok(machine)
}
