//! The PCI device of paragpu, on stock QEMU: the process behind one VM's
//! `ivshmem-doorbell` or `vfio-user-pci` device.
//!
//! The process owns the memory that the guest sees as BAR 2 ([`window`]) and the eventfds
//! behind doorbells and interrupt. It passes them to a hypervisor that connects
//! ([`ivshmem`]), or translates the hypervisor's register accesses to them ([`vfio_user`]).
//! A channel that a guest process opens is handed over to the host's daemon after its first
//! frame ([`channel`], [`daemon`]), and scrubbed before its next use. The process never
//! calls CUDA, never sees a guest's calls, and waits only for its descriptors
//! ([`service`]), so the hypervisor never waits for a GPU.
//!
//! If this process ends, its [`guard`] tells the guest.
//!
//! `kernel-module/include/uapi/linux/paragpu.h` specifies the device.

// This crate reads data from peers, so it must not panic.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
#![forbid(unsafe_code)]

pub mod channel;
pub mod daemon;
pub mod device;
mod error;
pub mod eventfd;
pub mod guard;
pub mod ivshmem;
pub mod layout;
pub mod listener;
pub mod rings;
pub mod service;
pub mod settings;
pub mod throttle;
pub mod vfio_user;
pub mod window;

pub use error::Error;
