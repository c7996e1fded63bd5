//! A session on its way: to another worker, or to a directory and back (D9,
//! D10).
//!
//! [`state`] is the format, `replay.rs` recreates objects, `regions.rs` lists
//! memory, `mover.rs` reads and writes it, `machine.rs` is the rest of a
//! session, and `stop.rs` brings the session to a point where all of that can
//! be read. `ahead.rs` decides what of memory is copied before, and `shared.rs`
//! hands over what need not be copied at all.
//! [`checkpoint`] writes it to a directory; `source.rs` and `destination.rs`
//! are the two ends of a live migration, `handover.rs` passes the guest's
//! connection on, and `parting.rs` is what the source does where that cannot
//! be, and where several sessions move together.

#[cfg(feature = "serve")]
pub(crate) mod ahead;
pub mod checkpoint;
#[cfg(feature = "serve")]
pub(crate) mod destination;
#[cfg(feature = "serve")]
pub(crate) mod handover;
pub(crate) mod machine;
pub(crate) mod mover;
pub mod orders;
#[cfg(feature = "serve")]
mod parting;
#[cfg(feature = "serve")]
pub(crate) mod post;
pub(crate) mod regions;
pub mod replay;
#[cfg(feature = "serve")]
mod shared;
#[cfg(all(test, feature = "software", feature = "serve"))]
mod shared_tests;
#[cfg(feature = "serve")]
pub(crate) mod source;
pub mod state;
pub(crate) mod stop;
#[cfg(all(test, feature = "software"))]
mod tests;
