//! The two configurations: the guest library's and the host daemon's.
//!
//! Each is declared once, in [`guest`] and [`host`]: key, type, default, range
//! and meaning. A configuration is read from, later wins:
//!
//! 1. the defaults;
//! 2. one file: `/etc/paragpu/guest.toml`, `/etc/paragpu/host.toml`;
//! 3. its fragments in order of their names: the guest's
//!    `/etc/paragpu/conf.d/*.toml`, the host's `/etc/paragpu/host.d/*.toml`;
//! 4. environment variables named after the keys: the guest's
//!    `PARAGPU_SHM_SOCKET` for `shm.socket`, the host's
//!    `PARAGPU_HOST_DAEMON_SOCKET` for `daemon.socket`;
//! 5. what the caller gives (command line).
//!
//! `PARAGPU_CONFIG` (guest) and `PARAGPU_HOST_CONFIG` (host) name another file,
//! which then stands for steps 2 and 3 and must exist. Files that are missing
//! at the default places are silently no files.
//!
//! Sections that stand for something with a name, as `[vm.NAME]`, are read from
//! files and the command line; variables cannot name them.
//!
//! Unknown keys and wrong values are refused with file, line and the nearest
//! valid key; so are variables with the prefix that name no key.
//! `PARAGPU_TEST_*` is left to test programs.

// What others send is read here, so nothing may panic.
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

mod error;
mod example;
pub mod guest;
pub mod host;
mod load;
mod nearest;
mod schema;
mod setting;
mod tls;

pub use error::{Error, Origin};
pub use example::example;
pub use load::{Entry, Loaded, Sources};
pub use schema::{Configuration, Declared, Key};
pub use setting::{
    Address, Communicator, Endpoint, Indices, Level, Listen, Setting, Size, Spin, VmSocket,
    VmSockets,
};
