//! Moves a session to another worker, or to a checkpoint and back.
//!
//! [`state`] is the format. `replay.rs` recreates objects, `stale.rs` textures whose memory
//! the program has freed. `regions.rs` lists memory, `mover.rs` reads and writes it, and
//! `bookkeeping.rs` has the rest of the state.
//! `stop.rs` stops the session so that its state can be read, as often as `attempts.rs`
//! allows; `delay.rs` measures how much that delays the program. `precopy.rs` decides
//! which memory to pre-copy, `shared.rs` hands over memory by descriptor, `sharing.rs`
//! moves memory that sessions share, and `lack.rs` is what a round lacks meanwhile.
//! [`checkpoint`] writes to a directory. `source.rs` and `destination.rs` are the ends of
//! a live migration: `source/stop_and_copy.rs` sends the rest after the stop,
//! `source/switchover.rs` waits for guests that reconnect by themselves and for sessions
//! that move together, and `handover.rs` passes on the guest's connection.

pub(crate) mod attempts;
pub(crate) mod bookkeeping;
pub mod checkpoint;
pub(crate) mod delay;
pub(crate) mod destination;
#[cfg(all(test, feature = "software"))]
mod graph_tests;
pub(crate) mod handover;
pub mod identity;
mod lack;
pub(crate) mod mover;
pub mod orders;
pub(crate) mod precopy;
pub(crate) mod regions;
pub mod replay;
pub(crate) mod send_stage;
mod shared;
#[cfg(all(test, feature = "software"))]
mod shared_tests;
mod sharing;
pub(crate) mod source;
pub(crate) mod staging_ring;
mod stale;
pub mod state;
pub(crate) mod stop;
pub(crate) mod survey;
#[cfg(all(test, feature = "software"))]
mod tests;
