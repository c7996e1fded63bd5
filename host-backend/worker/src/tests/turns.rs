//! Launches on a GPU whose time is shared.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use paragpu_control::turn::{Turn, TurnRequest};
use paragpu_protocol::handle::{FunctionHandle, StreamHandle};
use paragpu_protocol::table::{
    HostFuncDone, HostFuncLaunch, Ping, StreamCreate, StreamSynchronize,
};

use super::{kernel, launch, load_module};
use crate::testing::guest::Guest;
use crate::turns::Turns;

/// A stream that the guest creates: handle, and the device's identifier.
const STREAM: StreamHandle = StreamHandle(16);
const ID: u64 = 1;
/// Another one.
const OTHER: StreamHandle = StreamHandle(17);

struct Paced {
    guest: Guest,
    turns: Arc<Turns>,
    pleas: Receiver<TurnRequest>,
    noop: FunctionHandle,
}

fn paced() -> Paced {
    let (say, pleas) = channel();
    let turns = Arc::new(Turns::new(move |request| {
        let _ = say.send(request);
    }));
    turns.handle(Turn::Paced);
    let mut guest = Guest::with_turns(Arc::clone(&turns));
    for stream in [STREAM, OTHER] {
        let create = StreamCreate {
            stream,
            flags: 1,
            priority: 0,
        };
        guest.call(&create).unwrap();
    }
    load_module(&mut guest);
    let noop = kernel(&mut guest, 901, "noop");
    Paced {
        guest,
        turns,
        pleas,
        noop,
    }
}

impl Paced {
    fn launch(&mut self, count: u32, stream: StreamHandle) {
        for _ in 0..count {
            self.guest.post(&launch(self.noop, stream, &[]));
        }
    }

    /// Grants the turn that the session asks for.
    fn take_turn(&self) {
        assert_eq!(self.pleas.recv(), Ok(TurnRequest::Wanted));
        self.turns.handle(Turn::Yours);
    }

    fn synchronize(&mut self, stream: StreamHandle) {
        self.guest.call(&StreamSynchronize { stream }).unwrap();
    }
}

#[test]
fn launches_wait_for_the_turn() {
    let mut paced = paced();
    paced.launch(1, STREAM);
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Wanted));
    assert_eq!(paced.guest.counters().launches, 0);
    paced.turns.handle(Turn::Yours);
    paced.synchronize(STREAM);
    assert_eq!(paced.guest.counters().launches, 1);
    // Without more work the turn ends by itself.
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Over));
    paced.launch(1, STREAM);
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Wanted));
    paced.guest.die();
}

#[test]
fn a_turn_ends_behind_the_kernel_that_runs() {
    let mut paced = paced();
    paced.guest.device.hold(ID, true);
    paced.launch(5, STREAM);
    paced.take_turn();
    paced.turns.handle(Turn::Ends(60_000_000));
    // Few are submitted to the GPU before one is complete.
    while paced.guest.counters().launches < 2 {
        std::thread::yield_now();
    }
    paced.turns.handle(Turn::Ends(0));
    assert!(paced.pleas.try_recv().is_err(), "a kernel still runs");
    paced.guest.device.hold(ID, false);
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Over));
    assert_eq!(paced.guest.counters().launches, 2);
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Wanted));
    // The rest launch in the next turn.
    paced.turns.handle(Turn::Yours);
    paced.synchronize(STREAM);
    assert_eq!(paced.guest.counters().launches, 5);
    paced.guest.goodbye();
}

#[test]
fn a_kernel_that_stays_does_not_block_other_streams() {
    let mut paced = paced();
    paced.guest.device.hold(ID, true);
    paced.launch(1, STREAM);
    paced.take_turn();
    paced.launch(5, OTHER);
    paced.synchronize(OTHER);
    assert_eq!(paced.guest.counters().launches, 6);
    // Nor do several of them, in the end.
    paced.launch(1, STREAM);
    paced.launch(1, OTHER);
    paced.synchronize(OTHER);
    assert_eq!(paced.guest.counters().launches, 8);
    assert!(paced.pleas.try_recv().is_err(), "a kernel still runs");
    paced.guest.device.hold(ID, false);
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Over));
    paced.guest.goodbye();
}

#[test]
fn a_session_whose_kernel_stays_requests_another_turn() {
    let mut paced = paced();
    paced.guest.device.hold(ID, true);
    paced.launch(1, STREAM);
    paced.take_turn();
    while paced.guest.counters().launches < 1 {
        std::thread::yield_now();
    }
    paced.turns.handle(Turn::Ends(0));
    paced.launch(1, OTHER);
    assert!(
        paced.pleas.try_recv().is_err(),
        "nobody launches concurrently yet"
    );
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Wanted));
    assert_eq!(paced.guest.counters().launches, 1);
    paced.turns.handle(Turn::Yours);
    paced.synchronize(OTHER);
    assert_eq!(paced.guest.counters().launches, 2);
    // Once its kernel has ended, it waits for a turn as others do.
    paced.turns.handle(Turn::Ends(0));
    paced.launch(1, OTHER);
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Wanted));
    paced.guest.device.hold(ID, false);
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Over));
    paced.take_turn();
    paced.synchronize(OTHER);
    assert_eq!(paced.guest.counters().launches, 3);
    paced.guest.goodbye();
}

#[test]
fn launches_behind_a_host_function_hold_nothing_up() {
    let mut paced = paced();
    paced.guest.post(&HostFuncLaunch {
        stream: STREAM,
        id: 1,
    });
    // More than may be in flight, and behind them a launch for which the function may wait.
    paced.launch(100, STREAM);
    paced.launch(1, OTHER);
    paced.take_turn();
    paced.synchronize(OTHER);
    assert_eq!(paced.guest.counters().launches, 101);
    // Others may launch meanwhile, and this session in another turn.
    paced.turns.handle(Turn::Ends(60_000_000));
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Waits));
    paced.launch(1, OTHER);
    paced.take_turn();
    paced.synchronize(OTHER);
    paced.turns.handle(Turn::Ends(60_000_000));
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Waits));
    paced.guest.post(&HostFuncDone { id: 1 });
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Over));
    assert_eq!(paced.guest.counters().launches, 102);
    paced.guest.goodbye();
}

#[test]
fn a_kernel_may_wait_for_a_launch_that_is_behind_others_of_its_stream() {
    let mut paced = paced();
    paced.guest.device.hold(ID, true);
    paced.launch(3, STREAM);
    paced.launch(1, OTHER);
    paced.take_turn();
    paced.synchronize(OTHER);
    paced.guest.device.hold(ID, false);
    paced.guest.goodbye();
}

#[test]
fn without_shares_no_turn_is_needed() {
    let mut paced = paced();
    paced.launch(1, STREAM);
    assert_eq!(paced.pleas.recv(), Ok(TurnRequest::Wanted));
    paced.turns.handle(Turn::Free);
    paced.guest.call(&Ping { value: 1 }).unwrap();
    assert_eq!(paced.guest.counters().launches, 1);
    paced.guest.goodbye();
    assert!(paced.pleas.try_recv().is_err());
}
