//! The PCI device of paragpu in libvirt's domains.
//!
//! [`attach()`] and [`detach()`] change a domain through libvirt's C library, which is
//! loaded when they need it ([`ffi`]): the same command serves hosts and guests without
//! libvirt. [`xml`] writes the device's element and reads domains. The VM's device process
//! must run before QEMU connects to it: [`host`] starts and stops it, for [`attach()`]
//! while the domain runs, and for [`hook`] when libvirt starts a domain or has ended one.
//! The hook must not call libvirt, which waits for it. [`travel`] handles the migration of
//! a domain. [`DomainRun`] tells how long a domain runs.

// This crate reads data from others, so it must not panic.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

mod attach;
mod domain_run;
mod error;
mod ffi;
pub mod hook;
pub mod host;
pub mod travel;
pub mod vhost_vsock;
mod vm;
pub mod xml;

pub use attach::{Asked, Attach, Change, Detach, attach, detach};
pub use domain_run::DomainRun;
pub use error::Error;
pub use ffi::{Connection, is_installed};
pub use vm::VmName;
