//! The log of `paragpud` and its workers. Peers, guests and kernels cause events and choose
//! texts in them; they must neither fill the disk nor forge lines.
#![forbid(unsafe_code)]
// The texts are untrusted input, so nothing may panic.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]

mod fields;
mod limit;

pub use fields::{cut, fields};
pub use limit::Limit;
