//! The actions of libvirt's hook when QEMU is about to start, and when it has ended.
//!
//! libvirt calls `/etc/libvirt/hooks/qemu.d/paragpu DOMAIN OPERATION …` with the domain's
//! XML as input, and waits for its end, so calling libvirt here would deadlock. If it fails
//! before the start, the domain does not start, and libvirt shows the hook's message to the
//! user.

use std::io::Read;
use std::path::Path;

use crate::Error;
use crate::host::{Host, Owner};
use crate::xml::Description;

/// The path at which libvirt looks for the hook.
pub const PLACE: &str = "/etc/libvirt/hooks/qemu.d/paragpu";

/// Maximum number of bytes of a domain's description.
const LARGEST: u64 = 16 << 20;

/// Handles `operation` on the domain `name`, whose XML is in `input`.
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
                // Another socket's device process is managed otherwise.
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
        // The domain may have migrated from another host, after its virtual GPUs had moved.
        // Its device can be attached only when libvirt has completed the migration.
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
        return Err(Error::Xml("it has no UUID".into()));
    }
    Ok(machine)
}
