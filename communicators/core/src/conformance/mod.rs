//! One suite that every communicator passes.
//!
//! A communicator's tests implement [`Factory`] and call
//! [`conformance_tests!`](crate::conformance_tests) with it, once for each configuration.

mod death;
mod files;
mod flow;
mod landing;
mod lost_path_unsafe;
mod malformed;
mod waiting;

use std::time::{Duration, Instant};

use paragpu_protocol::frame::FrameHeader;

use crate::{Connection, Error, Receiver, Sender, Wait};

pub use death::*;
pub use files::*;
pub use flow::*;
pub use landing::*;
pub use lost_path_unsafe::drop_packets;
pub use malformed::*;
pub use waiting::*;

/// Creates connected pairs of the communicator under test.
pub trait Factory {
    /// A guest and a host, connected to each other.
    fn connect(&self) -> (Connection, Connection);

    /// A host, connected to a guest that can send any bytes.
    fn connect_raw(&self) -> (Box<dyn RawGuest>, Connection);
}

/// A guest that need not follow the protocol.
pub trait RawGuest: Send {
    /// Sends these bytes as one frame. The header need not match the payload.
    fn write(&mut self, header: [u8; 16], payload: &[u8]);

    /// Ends as a killed process does: its descriptors close, without a message.
    fn die(self: Box<Self>);
}

/// Maximum time that a test waits for an expected event, so that a failure does not hang.
const HANG: Duration = Duration::from_secs(60);

fn soon() -> Wait {
    Wait::Until(Instant::now() + HANG)
}

/// Returns the next frame, which must arrive.
fn expect_frame(receiver: &mut dyn Receiver) -> (FrameHeader, Vec<u8>) {
    let frame = receiver
        .receive(soon())
        .expect("receive")
        .expect("a frame must arrive");
    assert_eq!(frame.header.payload_len(), frame.payload.len());
    (frame.header, frame.payload.to_vec())
}

/// Expects the end of the connection, and that it stays so.
fn expect_closed(receiver: &mut dyn Receiver) {
    for _ in 0..3 {
        match receiver.receive(soon()) {
            Err(Error::Closed) => {}
            other => panic!("not closed: {other:?}"),
        }
    }
}

/// Payload of frames that fill any communicator quickly.
const FILLER: usize = 16 << 10;

/// Sends frames until there is no room, at least for the moment. Returns their number.
fn fill(sender: &dyn Sender) -> u64 {
    let filler = vec![0x5a; FILLER];
    let mut sent = 0;
    loop {
        match sender.try_send(9, 0, None, &[&filler]) {
            Ok(_) => sent += 1,
            Err(Error::Full) => return sent,
            Err(error) => panic!("filling failed: {error}"),
        }
        assert!(sent < 1 << 20, "the communicator buffers without limit");
    }
}

/// A payload that depends on its position and length.
fn pattern(position: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|i| (position.wrapping_mul(31).wrapping_add(i.wrapping_mul(7)) >> 2) as u8)
        .collect()
}

/// Defines the suite's tests for a [`Factory`] expression. With `if condition,` before it,
/// they pass at once if the condition is false.
#[macro_export]
macro_rules! conformance_tests {
    (if $condition:expr, $factory:expr) => {
        $crate::conformance_tests!(@ $condition, $factory;
            ordering_both_ways, sequence_given_by_the_host, posted_frames_leave_by_themselves,
            batches_arrive_with_a_flush, gathered_payload, zero_length_payload,
            largest_frames_both_ways_at_once, many_threads_send, back_pressure_then_room,
            slow_peer_loses_nothing, ping_pong, oversized_payload_is_refused,
            reserved_kind_is_refused,
            poll_finds_only_what_is_there, deadline_passes, wake_ends_a_wait, waits_that_repeat,
            wake_before_the_wait_counts, frames_go_before_wakes, wake_after_the_end_is_harmless,
            drop_ends_a_waiting_receive, last_frames_before_the_end_arrive,
            drop_ends_a_blocked_sender, death_ends_a_waiting_receive, death_ends_a_blocked_sender,
            death_is_found_by_polling, frames_before_death_arrive, close_ends_own_calls,
            dropped_receiver_stops_the_peer, sends_after_the_end_fail,
            truncated_frame_is_no_frame, oversized_frame_is_refused,
            reserved_kind_from_the_peer_is_refused, good_frames_before_a_bad_one_arrive,
            landing_changes_nothing, recalled_bytes_are_unfinished,
            frame_cut_while_it_lands_is_no_frame, files_are_taken_by_their_number,
        );
    };
    (@ $condition:expr, $factory:expr; $($case:ident),* $(,)?) => {
        $(#[test]
        fn $case() {
            if $condition {
                $crate::conformance::$case(&$factory);
            }
        })*
    };
    ($factory:expr) => {
        $crate::conformance_tests!(if true, $factory);
    };
}
