//! Names of VMs.

use std::net::IpAddr;

/// Maximum number of bytes of a VM's name.
pub const MAX_VM_NAME: usize = 64;

/// Whether a VM may have this name where its characters are `allowed`. No VM has an address for a
/// name: that is the name of a guest over TCP, whose limits would then apply.
#[must_use]
pub fn is_vm_name(name: &str, allowed: impl Fn(char) -> bool) -> bool {
    (1..=MAX_VM_NAME).contains(&name.len())
        && name.chars().all(allowed)
        && name.parse::<IpAddr>().is_err()
}
