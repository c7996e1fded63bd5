//! The two configurations: the guest library's and the host daemon's.
//!
//! Each is declared once, in [`guest`] and [`host`], for confique: key, type, default,
//! range and meaning. Values come from these sources; later ones win:
//!
//! 1. the defaults;
//! 2. one file: `/etc/paragpu/guest.toml`, `/etc/paragpu/host.toml`;
//! 3. its fragments in order of their names: the guest's
//!    `/etc/paragpu/conf.d/*.toml`, the host's `/etc/paragpu/host.d/*.toml`;
//! 4. environment variables named after the keys: the guest's
//!    `PARAGPU_SHM_SOCKET` for `shm.socket`, the host's
//!    `PARAGPU_HOST_DAEMON_SOCKET` for `daemon.socket`;
//! 5. the caller (command line).
//!
//! In the last two a list is `0,2` or `[0, 2]`.
//!
//! `PARAGPU_CONFIG` (guest) and `PARAGPU_HOST_CONFIG` (host) name another file,
//! which replaces steps 2 and 3 and must exist. Missing default files are not an
//! error. A program with more rights than its user, such as a setuid program, ignores
//! its environment.
//!
//! Sections with a name of the user's choice, such as `[vm.NAME]`, can be set in files
//! and on the command line, but not by environment variables.
//!
//! Unknown keys and invalid values are refused with file, line and the most similar
//! valid key; so are variables with the prefix that match no key.
//! `PARAGPU_TEST_*` is reserved for test programs.

// This code parses untrusted input, so it must not panic.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

mod configuration;
mod error;
mod example;
pub mod files;
pub mod guest;
pub mod host;
mod key;
mod load;
mod nearest;
mod setting;
mod sys;
mod tls;

pub use configuration::{Configuration, Conflict, Named};
pub use error::{Error, Origin};
pub use example::example;
pub use key::Key;
pub use load::{Entry, Loaded, Sources, differing};
pub use setting::{
    Address, Communicator, Endpoint, Indices, Level, Listen, Size, Spin, VmSocket, VmSockets, parse,
};
pub use sys::is_privileged;
