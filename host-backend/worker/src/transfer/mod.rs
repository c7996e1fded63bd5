//! A session on its way: to another worker, or to a directory and back.
//!
//! [`state`] is the format, `replay.rs` recreates objects, `regions.rs` lists
//! memory, `mover.rs` reads and writes it, `bookkeeping.rs` is the rest of a
//! session. `stop.rs` brings the session to a point where all of that can be
//! read, as often as `attempts.rs` lets it; `delay.rs` measures by how much all of
//! it delays the program. `precopy.rs` decides what of memory
//! is copied before, and `shared.rs` hands over what need not be copied at all.
//! [`checkpoint`] writes it to a directory. `source.rs` and `destination.rs`
//! are the two ends of a live migration: `source/stop_and_copy.rs` sends what is
//! left after the stop, `source/switchover.rs` waits for a guest that connects
//! by itself and for sessions that move together, and `handover.rs` passes the
//! guest's connection on.

pub(crate) mod attempts;
pub(crate) mod bookkeeping;
pub mod checkpoint;
pub(crate) mod delay;
pub(crate) mod destination;
pub(crate) mod handover;
pub mod identity;
pub(crate) mod mover;
pub mod orders;
pub(crate) mod precopy;
pub(crate) mod regions;
pub mod replay;
pub(crate) mod send_stage;
mod shared;
#[cfg(all(test, feature = "software"))]
mod shared_tests;
pub(crate) mod source;
pub(crate) mod staging_ring;
pub mod state;
pub(crate) mod stop;
pub(crate) mod survey;
#[cfg(all(test, feature = "software"))]
mod tests;
